"""Warm workers: fresh for each session, kept only on evidence, never left behind; and the limit of sessions."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import environments
from rlm_dspy._aio import threads
from rlm_dspy.environments import pool, sessions
from rlm_dspy.environments.base import Environment, Transport
from rlm_dspy.errors import ConfigurationError, SandboxUnavailableError

AT_ONCE = (os.cpu_count() or 1) + 1
"""Starts of workers that are made together."""


def until(condition: Callable[[], Any], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)


def in_context(function: Callable[..., Any], *args: Any) -> Any:
    """Call as an unrelated run would: outside of any session."""
    return contextvars.Context().run(function, *args)


def ask(channel: Any, code: str) -> Any:
    """Run code in a bare worker."""
    number = channel.new_id()
    return channel.request("exec", {"code": code}, number).result(20)


@pytest.fixture
def place() -> Iterator[Environment]:
    """An environment that no other test has used; its spares are gone afterwards."""
    global _timeout
    _timeout += 1
    yield environments.subprocess(timeout=_timeout)
    pool.close()
    until(lambda: sessions.slots.taken == 0)


_timeout = 100.0


def test_nothing_is_kept_before_the_second_use(place: Environment) -> None:
    first = in_context(pool.acquire, place)
    first.close()
    assert pool.spares(place) == 0
    second = in_context(pool.acquire, place)
    until(lambda: pool.spares(place) == 1)
    second.close()


def test_a_worker_serves_once_and_a_spare_is_fresh(place: Environment) -> None:
    pool.warm(place, 1)
    seen = set()
    for _ in range(4):
        until(lambda: pool.spares(place) >= 1)
        channel = in_context(pool.acquire, place)
        answer = ask(channel, "import os\nprint(os.getpid(), 'left' in globals())\nleft = 1")
        pid, left = answer["stdout"].split()
        assert left == "False"
        seen.add(pid)
        pool.discard(channel)
        assert not channel.alive
    assert len(seen) == 4


def test_equal_environments_share_spares_and_others_do_not(place: Environment) -> None:
    pool.warm(place, 1)
    twin = environments.subprocess(timeout=place.timeout)
    assert twin == place and pool.spares(twin) == 1
    assert pool.spares(environments.subprocess(timeout=1.5)) == 0


def test_dead_spares_are_noticed_and_replaced(place: Environment) -> None:
    pool.warm(place, 2)
    for spare in list(pool._pool.shelves[place].spares):
        os.killpg(spare._leased._transport.pid, signal.SIGKILL)
    until(lambda: pool.spares(place) == 0)
    channel = in_context(pool.acquire, place)
    assert ask(channel, "print(1)")["stdout"] == "1\n"
    channel.close()
    pool.warm(place, 2)
    assert pool.spares(place) >= 2


def test_spares_follow_concurrency_up_to_the_cap(place: Environment) -> None:
    channels = [in_context(pool.acquire, place) for _ in range(pool.spare_cap() + 2)]
    until(lambda: pool.spares(place) == pool.BUSY_SPARES)
    for channel in channels:
        channel.close()
    until(lambda: pool.spares(place) == pool.spare_cap())


def test_open_sessions_are_not_slowed_by_the_start_of_many_spares(place: Environment) -> None:
    pool.warm(place, 4)
    channels = [in_context(pool.acquire, place) for _ in range(4)]
    until(lambda: pool.spares(place) == pool.BUSY_SPARES and pool._pool._thread is None)
    channels.pop().close()
    channels.pop().close()
    channels.pop().close()
    until(lambda: pool.spares(place) == 3 and pool._pool._thread is None)
    channels.pop().close()
    until(lambda: pool.spares(place) == 4)


def test_idle_spares_are_closed_and_the_thread_ends(place: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.5)
    for _ in range(2):
        in_context(pool.acquire, place).close()
    until(lambda: place in pool._pool.shelves and pool.spares(place) == 0 and pool._pool._thread is None)
    assert not [thread for thread in threading.enumerate() if thread.name == "rlm-dspy-pool"]


def test_warm_keeps_and_zero_lets_go(place: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.2)
    environments.warm(place, 2)
    assert pool.spares(place) == 2
    environments.warm(place, 0)
    assert pool.spares(place) == 0
    with pytest.raises(ConfigurationError, match="0 or more"):
        environments.warm(place, -1)


def test_warm_in_the_background(place: Environment) -> None:
    pool.warm(place, 1, wait=False)
    until(lambda: pool.spares(place) == 1)


def test_warming_again_adds_nothing(place: Environment) -> None:
    for _ in range(3):
        pool.warm(place, 2)
        assert pool.spares(place) == 2
    calls = [threading.Thread(target=pool.warm, args=(place, 3)) for _ in range(3)]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    until(lambda: pool.spares(place) == 3 and pool._pool._thread is None)


def test_closing_while_spares_are_started_leaves_none(place: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, closed = threading.Event(), threading.Event()
    opened = type(place).open

    def slow(self: Environment) -> Transport:
        begun.set()
        assert closed.wait(20)
        return opened(self)

    monkeypatch.setattr(type(place), "open", slow)
    warming = threading.Thread(target=pool.warm, args=(place, 2))
    warming.start()
    assert begun.wait(20)
    pool.close()
    closed.set()
    warming.join()
    assert pool.spares(place) == 0


def test_only_as_many_start_at_once_as_there_are_cores(place: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, lock, enough = type(place).open, threading.Lock(), threading.Event()
    at_once: list[int] = [0]
    most: list[int] = [0]

    def counted(self: Environment) -> Transport:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
            if at_once[0] == AT_ONCE:
                enough.set()
        # All that may start are starting, unless nobody lets them.
        assert enough.wait(20)
        transport = opened(self)
        with lock:
            at_once[0] -= 1
        return transport

    monkeypatch.setattr(pool, "GATE_SECONDS", 60.0)
    monkeypatch.setattr(type(place), "open", counted)
    n = 3 * AT_ONCE
    pool.warm(place, n)
    assert pool.spares(place) == n and most[0] == AT_ONCE


def test_starts_that_hang_hold_no_others_up(place: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, hung, ended = type(place).open, threading.Semaphore(0), threading.Event()

    def hangs(self: Environment) -> Transport:
        hung.release()
        assert ended.wait(20)
        return opened(self)

    monkeypatch.setattr(pool, "GATE_SECONDS", 0.01)
    monkeypatch.setattr(type(place), "open", hangs)
    hanging = [threads.submit(pool.acquire, place) for _ in range(AT_ONCE)]
    try:
        for _ in hanging:
            assert hung.acquire(timeout=20)
        monkeypatch.setattr(type(place), "open", opened)
        channel = in_context(pool.acquire, place)
        assert channel.alive and not any(one.done() for one in hanging)
    finally:
        ended.set()
    for one in (channel, *(one.result(20) for one in hanging)):
        pool.discard(one)


class Broken(Environment):
    """An environment that never opens."""

    name = "broken"

    def open(self) -> Transport:
        raise OSError("no such place")

    def describe(self) -> Any:
        raise NotImplementedError


def test_what_does_not_open_says_so_and_holds_no_slot() -> None:
    for _ in range(3):
        with pytest.raises(SandboxUnavailableError, match="no such place"):
            in_context(pool.acquire, Broken())
    with pytest.raises(SandboxUnavailableError, match="no such place"):
        pool.warm(Broken(), 1)
    assert sessions.slots.taken == 0


def test_a_start_in_the_background_that_fails_is_tried_again(
    place: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "RETRY_SECONDS", 0.02)
    opened, tried = type(place).open, []

    def sometimes(self: Environment) -> Transport:
        tried.append(time.monotonic())
        if len(tried) <= 4:
            raise OSError("not now")
        return opened(self)

    monkeypatch.setattr(type(place), "open", sometimes)
    pool.warm(place, 2, wait=False)
    until(lambda: pool.spares(place) == 2)
    waits = [after - before for before, after in itertools.pairwise(tried[:5])]
    # Each wait is twice the one before, and less than the machine may add to it is told apart from none.
    assert len(tried) == 6 and all(wait >= 0.02 * 2**n for n, wait in enumerate(waits))
    # It is forgotten once it has worked.
    assert pool._pool.shelves[place].failures == 0


def test_a_place_that_never_opens_is_tried_less_and_less_often_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.05)
    broken = Broken()
    pool.warm(broken, 1, wait=False)
    until(lambda: pool._pool.shelves[broken].failures >= 5)
    assert pool._pool._thread is not None and pool.spares(broken) == 0
    pool.warm(broken, 0)
    until(lambda: pool._pool._thread is None)
    assert sessions.slots.taken == 0


def test_a_fork_forgets_the_parents_spares(place: Environment) -> None:
    pool.warm(place, 1)
    held = in_context(pool.acquire, place)
    until(lambda: pool.spares(place) == 1)
    child = os.fork()
    if child == 0:
        try:
            good = pool.spares(place) == 0 and sessions.slots.taken == 0
            channel = in_context(pool.acquire, place)
            good = good and ask(channel, "print(5)")["stdout"] == "5\n"
            channel.close()
            held.close()
            os._exit(0 if good else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.spares(place) == 1
    assert ask(held, "print(6)")["stdout"] == "6\n"
    held.close()


def test_waiting_runs_hold_no_thread_and_all_come_in(place: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sessions.VARIABLE, "2")
    order: list[int] = []

    async def one(number: int) -> None:
        channel = await pool.aacquire(place)
        order.append(number)
        assert sessions.slots.taken <= 2
        await asyncio.to_thread(channel.close)

    async def main() -> int:
        # Threads that earlier tests of this process left to end are not counted.
        before = threading.active_count()
        tasks = []
        for number in range(60):
            tasks.append(asyncio.ensure_future(one(number)))
            await asyncio.sleep(0)
        more = threading.active_count() - before
        await asyncio.gather(*tasks)
        return more

    assert asyncio.run(main()) < 40
    assert sorted(order) == list(range(60))


def test_cancelled_while_waiting_or_starting(place: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sessions.VARIABLE, "1")

    async def main() -> None:
        first = await contextvars.Context().run(asyncio.ensure_future, pool.aacquire(place))
        waiting = [contextvars.Context().run(asyncio.ensure_future, pool.aacquire(place)) for _ in range(3)]
        await asyncio.sleep(0)
        assert sessions.slots.waiting == 3
        waiting[0].cancel()
        await asyncio.to_thread(first.close)
        waiting[1].cancel()
        third = await waiting[2]
        assert third.alive
        await asyncio.to_thread(third.close)

    asyncio.run(main())
    until(lambda: sessions.slots.taken == 0)


def test_a_session_within_a_session_does_not_wait(place: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sessions.VARIABLE, "1")

    async def child() -> None:
        inner = await pool.aacquire(place)
        await asyncio.to_thread(inner.close)

    async def main() -> None:
        outer = await pool.aacquire(place)
        await asyncio.wait_for(asyncio.gather(child(), child()), 20)
        await asyncio.to_thread(outer.close)
        assert not sessions.is_nested()

    asyncio.run(main())


def test_slots_are_granted_in_the_order_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sessions.VARIABLE, "2")
    order: list[int] = []

    async def one(number: int) -> None:
        lease = await sessions.atake()
        order.append(number)
        await asyncio.sleep(0)
        lease.release()

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(50)))

    in_context(asyncio.run, main())
    assert order == list(range(50))


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_a_wrong_limit_is_reported(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sessions.VARIABLE, text)
    with pytest.raises(ConfigurationError, match=sessions.VARIABLE):
        sessions.max_sessions()


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["request", "release", "cancel"]), st.integers(0, 20)), max_size=60))
def test_slots_are_never_oversold_nor_lost(steps: list[tuple[str, int]]) -> None:
    gate = sessions.Slots()
    futures: list[Future[sessions.Lease]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(sessions.VARIABLE, "3")
        for step, index in steps:
            if step == "request":
                futures.append(gate.request())
            elif futures and step == "release":
                future = futures[index % len(futures)]
                if future.done() and not future.cancelled():
                    future.result().release()
                    future.result().release()
            elif futures:
                futures[index % len(futures)].cancel()
            held = [f for f in futures if f.done() and not f.cancelled() and f.result().live]
            assert gate.taken == len(held) <= 3
            if gate.waiting:
                assert gate.taken == 3
            waiting = [i for i, f in enumerate(futures) if not f.done()]
            granted = [i for i, f in enumerate(futures) if f.done() and not f.cancelled()]
            assert not waiting or not granted or max(granted) < min(waiting)

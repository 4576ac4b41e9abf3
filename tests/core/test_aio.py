"""Coroutines from synchronous code, and threads that come when they are needed."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import socket
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import _aio
from rlm_dspy._aio import Threads, caught, gathered, run_sync

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("test_aio", default="unset")


def test_a_synchronous_call_runs_on_the_callers_thread_and_reuses_its_loop() -> None:
    async def where() -> tuple[str, int]:
        return threading.current_thread().name, id(asyncio.get_running_loop())

    assert run_sync(where()) == run_sync(where())
    assert run_sync(where())[0] == threading.current_thread().name


def test_inside_a_running_loop_a_helper_thread_takes_over_with_the_context() -> None:
    async def inner() -> tuple[str, int]:
        return VARIABLE.get(), id(asyncio.get_running_loop())

    async def outer() -> tuple[tuple[str, int], int]:
        VARIABLE.set("outer")
        return run_sync(inner()), id(asyncio.get_running_loop())

    (seen, helper), own = asyncio.run(outer())
    assert seen == "outer" and helper != own


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), StopAsyncIteration()])
def test_every_error_reaches_the_caller_after_the_clean_up(error: BaseException, nested: bool) -> None:
    cleaned = []

    async def fails() -> None:
        try:
            await asyncio.sleep(0)
            raise error
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    async def outer() -> None:
        # Caught here, since asyncio.run would let two of them out of its loop.
        with pytest.raises(type(error)):
            run_sync(fails())

    if nested:
        asyncio.run(outer())
    else:
        with pytest.raises(type(error)):
            run_sync(fails())
    assert cleaned == [True]
    assert run_sync(caught(asyncio.sleep(0, "fine"))) == ("fine", None)


def test_ctrl_c_cancels_cleans_up_and_is_raised() -> None:
    cleaned = []

    async def waits() -> None:
        try:
            asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_sync(waits())
    assert cleaned == [True]


def test_ctrl_c_reaches_a_helper_thread_too(in_python: Callable[..., Any]) -> None:
    script = """
import asyncio, os, signal, sys
from rlm_dspy._aio import run_sync

async def waits():
    try:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    finally:
        print("cleaned", flush=True)

async def cell():  # as in a notebook: a loop runs, and SIGINT has Python's own handler
    try:
        run_sync(waits())
    except KeyboardInterrupt:
        print("interrupted", flush=True)

loop = asyncio.new_event_loop()
loop.run_until_complete(cell())
"""
    process = in_python(script)
    out, err = process.communicate(timeout=30)
    assert out.split() == ["cleaned", "interrupted"], err


def test_threads_end_leave_no_open_loop(in_python: Callable[..., Any]) -> None:
    script = """
import os, threading
from rlm_dspy._aio import run_sync

async def nothing():
    pass

run_sync(nothing())
before = len(os.listdir("/proc/self/fd"))
for _ in range(50):
    thread = threading.Thread(target=lambda: run_sync(nothing()))
    thread.start()
    thread.join()
print(len(os.listdir("/proc/self/fd")) - before)
"""
    out, err = in_python(script).communicate(timeout=30)
    assert out.strip() == "0", out + err


def test_nested_blocking_calls_never_wait_for_one_anothers_threads() -> None:
    threads = Threads("test-threads")

    async def level(depth: int) -> int:
        if depth == 0:
            return 1
        return sum(await asyncio.gather(*(threads.run(lambda: run_sync(level(depth - 1))) for _ in range(3))))

    assert asyncio.run(asyncio.wait_for(level(4), 30)) == 81


def test_an_idle_thread_is_reused_and_a_busy_one_is_not_waited_for(eventually: Callable[..., bool]) -> None:
    threads = Threads("test-threads")
    first = threads.submit(threading.get_ident).result(5)
    assert eventually(lambda: threads._idle == 1)
    assert threads.submit(threading.get_ident).result(5) == first
    gate = threading.Event()
    blocked = [threads.submit(gate.wait, 10) for _ in range(40)]
    assert threads.submit(lambda: "at once").result(5) == "at once"
    assert eventually(lambda: threads.busy == 40)
    gate.set()
    assert all(future.result(5) for future in blocked)
    assert eventually(lambda: threads.busy == 0)


def test_a_thread_keeps_nothing_of_what_it_has_done(eventually: Callable[..., bool]) -> None:
    class Large:
        pass

    pool = Threads("test")
    large, holder = Large(), contextvars.ContextVar[Any]("holder")
    gone = weakref.ref(large)
    token = holder.set(large)
    pool.submit(lambda: None).result(timeout=10)
    holder.reset(token)
    del large, token
    # While the thread waits for more.
    assert eventually(lambda: (gc.collect(), gone() is None)[1], 3.0)


def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., bool]) -> None:
    monkeypatch.setattr(_aio, "_IDLE_SECONDS", 0.01)
    threads = Threads("test-short-lived")
    assert [threads.submit(pow, 2, n).result(5) for n in range(5)] == [1, 2, 4, 8, 16]
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name == "test-short-lived"])
    assert threads.submit(pow, 2, 5).result(5) == 32


@given(st.lists(st.sampled_from(["run", "fail", "cancel", "stop", "wait", "nested"]), max_size=40))
@settings(max_examples=40, deadline=None)
def test_no_job_is_lost_in_any_pattern(pattern: list[str]) -> None:
    old, _aio._IDLE_SECONDS = _aio._IDLE_SECONDS, 0.001
    try:
        threads = Threads("test-pattern")
        jobs: list[tuple[str, Future[Any]]] = []

        def fail() -> None:
            raise ValueError("x")

        def stop() -> None:
            next(iter(()))

        work: dict[str, Callable[[], Any]] = {
            "run": lambda: 1,
            "cancel": lambda: 1,
            "fail": fail,
            "stop": stop,
            "nested": lambda: threads.submit(lambda: 1).result(10),
        }
        for kind in pattern:
            if kind == "wait":
                for _, future in jobs:
                    future.exception(10) if not future.cancelled() else None
                continue
            jobs.append((kind, threads.submit(work[kind])))
            if kind == "cancel":
                jobs[-1][1].cancel()
        for kind, future in jobs:
            if future.cancelled():
                assert kind == "cancel"
            elif kind in ("fail", "stop"):
                assert type(future.exception(10)) is (ValueError if kind == "fail" else RuntimeError)
            else:
                assert future.result(10) == 1
    finally:
        _aio._IDLE_SECONDS = old


def test_the_context_goes_along_and_stays_there() -> None:
    threads = Threads("test-context")

    def change() -> str:
        before = VARIABLE.get()
        VARIABLE.set("inside")
        return before

    token = VARIABLE.set("outside")
    try:
        assert threads.submit(change).result(5) == "outside"
        assert VARIABLE.get() == "outside"
    finally:
        VARIABLE.reset(token)
    assert threads.submit(VARIABLE.get).result(5) == "unset"


def test_stop_iteration_in_a_thread_does_not_hang_whoever_awaits_it() -> None:
    threads = Threads("test-stop")

    async def main() -> None:
        with pytest.raises(RuntimeError, match="StopIteration") as caught_error:
            await asyncio.wait_for(threads.run(next, iter(())), 10)
        assert isinstance(caught_error.value.__cause__, StopIteration)

    asyncio.run(main())


def test_cancelling_stops_the_waiting_not_the_thread() -> None:
    threads, gate, done = Threads("test-cancel"), threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(10)
        done.set()

    async def main() -> None:
        task = asyncio.create_task(threads.run(work))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    gate.set()
    assert done.wait(10)


def test_a_finalizer_may_submit_from_within_submit(eventually: Callable[..., bool]) -> None:
    """Python may collect, and so run a finalizer, wherever it runs."""
    threads = Threads("test-finalizer")
    threads.submit(int).result(5)
    assert eventually(lambda: threads._idle == 1)
    collected: list[Future[int]] = []

    class Collecting:
        def __init__(self, work: Any) -> None:
            self._work = work

        def put(self, job: Any) -> None:
            if not collected:
                collected.append(threads.submit(int, "2"))
            self._work.put(job)

        def get(self, timeout: float | None = None) -> Any:
            return self._work.get(timeout=timeout)

    # Its thread waits at the real queue.
    threads._work, work = Collecting(threads._work), threads._work  # type: ignore[assignment]
    outcomes: list[int] = []
    caller = threading.Thread(target=lambda: outcomes.append(threads.submit(int, "1").result(5)), daemon=True)
    caller.start()
    caller.join(10)
    threads._work = work
    assert outcomes == [1] and collected[0].result(5) == 2


def test_signals_wake_the_loop_of_a_synchronous_call() -> None:
    async def look() -> int:
        mine = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(mine, warn_on_full_buffer=False)
        return mine

    assert run_sync(look()) != -1
    assert signal.set_wakeup_fd(-1) == -1, "it is given back"


def test_a_wake_up_descriptor_of_somebody_else_stays_theirs() -> None:
    woken, wake = socket.socketpair()
    wake.setblocking(False)

    async def look() -> int:
        found = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(found, warn_on_full_buffer=False)
        return found

    before = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    try:
        assert run_sync(look()) == wake.fileno()
    finally:
        assert signal.set_wakeup_fd(before) == wake.fileno()
        woken.close()
        wake.close()


@pytest.mark.parametrize("how", ["cancelled", "cancelled twice", "an error"])
def test_what_is_gathered_has_ended_when_the_waiting_has(how: str) -> None:
    """``asyncio.gather`` goes on as soon as one of several has ended, and leaves the others behind."""
    ended: list[str] = []

    async def work(name: str, steps: int) -> None:
        try:
            if name == "failing" and how == "an error":
                raise ValueError("this one")
            await asyncio.Event().wait()
        finally:
            for _ in range(steps):
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    ended.append("again")
            ended.append(name)

    async def main() -> None:
        task = asyncio.create_task(gathered(work(name, steps) for name, steps in (("failing", 0), ("slow", 20))))
        for _ in range(3):
            await asyncio.sleep(0)
        if how != "an error":
            task.cancel()
        if how == "cancelled twice":
            for _ in range(4):
                await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(ValueError if how == "an error" else asyncio.CancelledError):
            await task
        assert [name for name in ended if name != "again"] == ["failing", "slow"]
        assert ("again" in ended) == (how == "cancelled twice")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())

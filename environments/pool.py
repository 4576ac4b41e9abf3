"""Workers that are started before they are asked for, and the one way to get a worker.

A worker serves one session and is then thrown away: nothing of one run is ever seen by another. What is kept are
fresh workers. Until an environment has been used twice nothing is kept, since a program that makes one call should
start one process; from then on as many spares are kept as sessions were recently open at once, up to a cap. While they
are open again only a few are started in the background, the others as they end: the start of a worker takes as much of
the processor as many turns do. Spares that nobody wanted for a minute are closed.

Where a worker is a process of this machine, only so many are started at once as there are cores, and one more. All of
them together would not be ready sooner, and an event loop of this process would wait its turn among them.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, cast

from rlm_dspy._aio import threads
from rlm_dspy.environments import sessions
from rlm_dspy.environments.base import Environment, Transport
from rlm_dspy.environments.channel import Channel, connect
from rlm_dspy.environments.prepare import prepare
from rlm_dspy.errors import ConfigurationError

IDLE_SECONDS = 60.0
"""Seconds after which spares of an environment that nobody used are closed."""
RETRY_SECONDS = 1.0
"""Seconds until a start in the background that failed is tried again; doubled each time, up to `IDLE_SECONDS`."""
BUSY_SPARES = 2
"""Spares that are started while as many sessions are open as there are spares to keep."""
GATE_SECONDS = 2.0
"""Seconds after which a start no longer waits for others, which may be held up by something else than the processor."""


def spare_cap() -> int:
    """The most spares that are kept of one environment without being asked for."""
    return min(8, 2 * (os.cpu_count() or 1))


def acquire(environment: Environment) -> Channel:
    """A fresh worker, ready: a spare if there is one, else started now. Blocking; see `aacquire`.

    Raises:
        SandboxUnavailableError, dspy.CodeInterpreterError: It cannot be started.
    """
    lease = sessions.take()
    return _take_spare(environment, lease) or _start(environment, lease)


async def aacquire(environment: Environment) -> Channel:
    """As `acquire`, off the event loop. While it waits for other sessions to end it holds no thread."""
    lease = await sessions.atake()
    spare = _take_spare(environment, lease)
    if spare is not None:
        return spare
    future = threads.submit(_start, environment, lease)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        future.cancel()
        future.add_done_callback(lambda done: _abandon(done, lease))
        raise


def discard(channel: Channel) -> None:
    """End a worker; it is never used again."""
    channel.close()


def warm(environment: Environment, n: int, *, wait: bool = True) -> None:
    """Keep ``n`` spare workers of ``environment`` from now on, however long nobody uses them; 0 ends that.

    Those that were taken are replaced in the background: up to `BUSY_SPARES` at once, the others when sessions end.
    Where that fails it is tried again, less and less often.

    Args:
        environment: Spares serve sessions of any environment equal to it.
        n: How many.
        wait: Return when they are ready. Otherwise they are started in the background.

    Raises:
        SandboxUnavailableError, dspy.CodeInterpreterError: They cannot be started (if ``wait``).
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise ConfigurationError(f"the number of workers to keep must be 0 or more, not {n!r}")
    pool = _pool
    with pool.lock:
        shelf = pool.shelf(environment)
        before, shelf.fixed = shelf.fixed, n
        shelf.failures, shelf.retry_at = 0, 0.0
        dead = [spare for spare in shelf.spares if not spare.alive]
        for spare in dead:
            shelf.spares.remove(spare)
        missing = max(0, n - len(shelf.spares)) if wait else 0
        shelf.starting += missing
        generation = pool.generation
        surplus = dead + [shelf.spares.popleft() for _ in range(max(0, len(shelf.spares) - shelf.target()))]
    for spare in surplus:
        spare.close()
    if not wait:
        pool.wake()
        return
    starts = [threads.submit(functools.partial(pool.start, shelf, generation)) for _ in range(missing)]
    failures = [error for start in starts if (error := start.exception()) is not None]
    if failures:
        with pool.lock:
            shelf.fixed = before
    # What another call or the background has started beside these is closed again.
    pool.wake()
    if failures:
        raise failures[0]


def spares(environment: Environment) -> int:
    """How many live spare workers there are of ``environment`` now."""
    with _pool.lock:
        shelf = _pool.shelves.get(environment)
        return 0 if shelf is None else sum(spare.alive for spare in shelf.spares)


def close() -> None:
    """Close all spares and keep none from now on, until environments are used again."""
    for spare in _pool.empty():
        spare.close()


class _Leased:
    """A transport that reports when it is closed, because that is when its session no longer counts."""

    def __init__(self, transport: Transport) -> None:
        self.same_python = transport.same_python
        self.read = transport.read
        self.write = transport.write
        self.write_now = getattr(transport, "write_now", None)
        self.text = getattr(transport, "text", False)
        self.kill = transport.kill
        self.reason = transport.reason
        self._transport = transport
        self._lock = threading.Lock()
        self._closed = False
        self._then: list[Callable[[], None]] = []

    def close(self) -> None:
        """See `Transport.close`."""
        try:
            self._transport.close()
        finally:
            with self._lock:
                self._closed = True
                then, self._then = self._then, []
            for function in then:
                function()

    def when_closed(self, function: Callable[[], None]) -> None:
        """Call ``function`` once the transport is closed, at once if it is."""
        with self._lock:
            if not self._closed:
                self._then.append(function)
                return
        function()


class _Opener:
    """An environment whose transport is `_Leased`; what `connect` needs of an environment and no more."""

    def __init__(self, environment: Environment) -> None:
        self.name = environment.name
        self.max_output = environment.max_output
        self.max_value = environment.max_value
        self._environment = environment
        self.leased: _Leased | None = None

    def open(self) -> Transport:
        """See `Environment.open`."""
        self.leased = _Leased(self._environment.open())
        return self.leased


class _Spare:
    """A worker that is ready, and the transport under it."""

    def __init__(self, environment: Environment) -> None:
        opener = _Opener(environment)
        self.stamp = environment.stamp()
        """Of the files of the host that it is made from."""
        with _pool.turn(environment):
            self.channel = connect(cast(Environment, opener))
        assert opener.leased is not None
        self._leased = opener.leased
        try:
            prepare(self.channel, environment)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        return self.channel.alive

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.channel.close()

    def give(self, shelf: _Shelf, lease: sessions.Lease) -> Channel:
        """Hand the worker out; its session counts until the transport is closed."""
        shelf.live += 1
        shelf.peak = max(shelf.peak, shelf.live)

        def end() -> None:
            with _pool.lock:
                shelf.live -= 1
                if len(shelf.spares) + shelf.starting < shelf.wanted():
                    _pool.wake()
            lease.release()

        self._leased.when_closed(end)
        return self.channel


class _Shelf:
    """The spares of one environment, and what is known of its use. Guarded by the pool's lock."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.spares: deque[_Spare] = deque()
        self.fixed = 0
        self.uses = 0
        self.live = 0
        self.peak = 0
        self.starting = 0
        self.failures = 0
        self.retry_at = 0.0
        self.used_at = time.monotonic()

    def idle(self) -> bool:
        return time.monotonic() - self.used_at >= IDLE_SECONDS

    def target(self) -> int:
        """Spares to keep, and not more."""
        return max(self.fixed, min(spare_cap(), self._recent()))

    def wanted(self) -> int:
        """Spares to have by now."""
        return min(self.target(), max(BUSY_SPARES, max(self.fixed, self._recent()) - self.live))

    def failed(self) -> None:
        """A start in the background failed. Only spares that were asked for are tried again, after a while."""
        self.uses = 0
        self.failures += 1
        self.retry_at = time.monotonic() + min(IDLE_SECONDS, RETRY_SECONDS * 2 ** min(self.failures - 1, 30))

    def _recent(self) -> int:
        return self.peak if self.environment.keeps_spares and self.uses >= 2 and not self.idle() else 0


class _Pool:
    """All shelves, and the thread that refills and clears them; the thread ends when nothing is left to do."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        # Also after a fork: what is on the shelves belongs to the parent, whose descriptors spawn closes here.
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self.shelves: dict[Environment, _Shelf] = {}
        self._thread: threading.Thread | None = None
        self._ended = False
        self.generation = 0
        self._gate = threading.Semaphore(1 + (os.cpu_count() or 1))

    @contextlib.contextmanager
    def turn(self, environment: Environment) -> Iterator[None]:
        """One of the starts that are made at once, if those of ``environment`` are of that kind."""
        gate = self._gate
        taken = environment.starts_here and gate.acquire(timeout=GATE_SECONDS)
        try:
            yield
        finally:
            if taken:
                gate.release()

    def shelf(self, environment: Environment) -> _Shelf:
        shelf = self.shelves.get(environment)
        if shelf is None:
            shelf = self.shelves[environment] = _Shelf(environment)
        return shelf

    def add(self, shelf: _Shelf) -> None:
        """Start a spare and put it on the shelf."""
        with self.lock:
            shelf.starting += 1
            generation = self.generation
        self.start(shelf, generation)

    def start(self, shelf: _Shelf, generation: int) -> None:
        """`add`, where it is counted as starting already; a pool that was closed since then keeps nothing."""
        spare = None
        try:
            spare = _Spare(shelf.environment)
        finally:
            with self.lock:
                shelf.starting -= 1
                if spare is not None:
                    shelf.failures, shelf.retry_at = 0, 0.0
                if spare is not None and not self._ended and generation == self.generation:
                    shelf.spares.append(spare)
                    spare = None
        if spare is not None:
            spare.close()

    def wake(self) -> None:
        with self.lock:
            if self._ended:
                return
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._tend, name="rlm-dspy-pool", daemon=True)
                self._thread.start()

    def empty(self, *, for_good: bool = False) -> list[_Spare]:
        with self.lock:
            self._ended = self._ended or for_good
            self.generation += 1
            found = [spare for shelf in self.shelves.values() for spare in shelf.spares]
            for shelf in self.shelves.values():
                shelf.spares.clear()
                shelf.fixed = shelf.uses = shelf.peak = 0
            self._changed.notify_all()
            return found

    def _tend(self) -> None:
        while True:
            with self.lock:
                short, surplus, wait = self._look()
                if short is None and not surplus:
                    if wait is None or self._ended:
                        self._thread = None
                        return
                    self._changed.wait(wait)
                    continue
            for spare in surplus:
                spare.close()
            if short is not None:
                try:
                    self.add(short)
                except Exception:
                    # The next session starts its own worker and reports the reason; here it is nobody's news.
                    with self.lock:
                        short.failed()

    def _look(self) -> tuple[_Shelf | None, list[_Spare], float | None]:
        """A shelf that needs a spare, spares to close, and seconds until the next look is due."""
        short: _Shelf | None = None
        surplus: list[_Spare] = []
        wait: float | None = None
        for shelf in self.shelves.values():
            dead = [spare for spare in shelf.spares if not spare.alive]
            for spare in dead:
                shelf.spares.remove(spare)
            surplus += dead
            if shelf.idle():
                shelf.peak = shelf.live
            target = shelf.target()
            while len(shelf.spares) > target:
                surplus.append(shelf.spares.popleft())
            if len(shelf.spares) + shelf.starting < shelf.wanted():
                later = shelf.retry_at - time.monotonic()
                if later <= 0:
                    short = short or shelf
                else:
                    wait = later if wait is None else min(wait, later)
            if len(shelf.spares) > shelf.fixed:
                due = max(0.05, shelf.used_at + IDLE_SECONDS - time.monotonic())
                wait = due if wait is None else min(wait, due)
        return short, surplus, wait


def _take_spare(environment: Environment, lease: sessions.Lease) -> Channel | None:
    """A live spare, if there is one, with the files of the host as they are now; notes the use either way."""
    pool = _pool
    stamp = environment.stamp()
    dead = []
    channel = None
    with pool.lock:
        shelf = pool.shelf(environment)
        shelf.uses += 1
        shelf.used_at = time.monotonic()
        while shelf.spares and channel is None:
            spare = shelf.spares.popleft()
            if spare.alive and spare.stamp == stamp:
                channel = spare.give(shelf, lease)
            else:
                dead.append(spare)
        if channel is not None:
            pool.wake()
    for spare in dead:
        spare.close()
    return channel


def _start(environment: Environment, lease: sessions.Lease) -> Channel:
    """A worker started now."""
    try:
        spare = _Spare(environment)
    except BaseException:
        lease.release()
        raise
    with _pool.lock:
        shelf = _pool.shelf(environment)
        shelf.failures, shelf.retry_at = 0, 0.0
        channel = spare.give(shelf, lease)
        if shelf.target():
            _pool.wake()
    return channel


def _abandon(done: Future[Any], lease: sessions.Lease) -> None:
    """The caller was cancelled: close the worker it would have had."""
    if done.cancelled():
        lease.release()
    elif done.exception() is None:
        threads.submit(done.result().close)


def _end() -> None:
    for spare in _pool.empty(for_good=True):
        spare.close()


_pool = _Pool()
atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.reset)

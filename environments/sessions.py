"""How many sandboxes one process runs at once.

Each *root* session takes a slot; beyond the limit runs wait in the order they came, without a thread each. A session
opened from within another one (a child RLM, a tool that runs an RLM) takes no slot: were it to wait for one, 64 runs
each waiting for their first child would wait for ever. What bounds those is their run's own width and depth.

That a session is within another one is known by its context, which a tool loses that runs RLMs in threads of its own
(``ThreadPoolExecutor``, ``dspy.Parallel``). Then the outer ones hold all slots and wait for inner ones that wait for
slots. So when every session has done nothing but wait for host calls for a while, the limit gives way by one.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from rlm_dspy.errors import ConfigurationError

logger = logging.getLogger(__name__)

DEFAULT_MAX_SESSIONS = 64
VARIABLE = "RLM_DSPY_MAX_SESSIONS"
STALL_SECONDS = 10.0
"""Seconds for which all sessions must have waited for host calls before one more is let in."""
_IDLE = 3
"""Times `STALL_SECONDS` for which nothing was asked of a session that may have been forgotten."""
_RAREST = 32
"""Times `STALL_SECONDS` that are at most between two searches for forgotten sessions."""


def max_sessions() -> int:
    """The limit: ``RLM_DSPY_MAX_SESSIONS``, or 64."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return DEFAULT_MAX_SESSIONS
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"the environment variable {VARIABLE} must be a whole number from 1 up, not {text!r}")
    return int(text)


class Lease:
    """The right to one live session; give it back with `release`."""

    def __init__(self, release: Callable[[Lease], None] | None = None) -> None:
        self.live = True
        self.calls = 0
        """Cells of it that wait for host calls now; kept by `Slots`."""
        self.used = time.monotonic()
        """When it was last asked for anything."""
        self._release = release
        self._lock = threading.Lock()

    def release(self) -> None:
        """Idempotent, from any thread."""
        with self._lock:
            if not self.live:
                return
            self.live = False
        if self._release is not None:
            self._release(self)


class Slots:
    """A counting gate, first come, first served, that can be waited at from threads and from event loops."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything; for a forked child, in which none of the sessions are its own."""
        self._lock = threading.Lock()
        self._taken = 0
        self._still = 0
        self._still_since: float | None = None
        self._extra = 0
        self._told = False
        self._moved = self._searched = time.monotonic()
        self._pause = 0.0
        self._suspects: frozenset[Lease] = frozenset()
        self._live: set[Lease] = set()
        self._waiting: deque[Future[Lease]] = deque()

    @property
    def taken(self) -> int:
        """Slots in use now."""
        return self._taken

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return sum(not future.done() for future in self._waiting)

    def request(self) -> Future[Lease]:
        """A future of a lease; cancel it to give up the place in the queue."""
        future: Future[Lease] = Future()
        with self._lock:
            self._waiting.append(future)
        self._serve()
        return future

    def _serve(self) -> None:
        limit = max_sessions()
        granted: list[tuple[Future[Lease], Lease]] = []
        with self._lock:
            while self._waiting and self._taken < limit + self._extra:
                # Beyond the limit the newest goes first: the inner ones asked after those that wait in line.
                future = self._waiting.popleft() if self._taken < limit else self._waiting.pop()
                if future.set_running_or_notify_cancel():
                    self._taken += 1
                    lease = Lease(self._give_back)
                    self._live.add(lease)
                    granted.append((future, lease))
            if not self._waiting:
                self._extra = 0
                self._told = False
            self._look()
        # Outside the lock, because callbacks run here.
        for future, lease in granted:
            future.set_result(lease)

    def _give_back(self, lease: Lease) -> None:
        with self._lock:
            self._moved = time.monotonic()
            if lease in self._suspects and self._moved - self._searched < STALL_SECONDS / 10:
                self._pause = 0.0  # It was found by the search.
            self._live.discard(lease)
            self._taken -= 1
            self._still -= lease.calls > 0
            lease.calls = 0
        self._serve()

    def note_calls(self, lease: Lease, change: int) -> None:
        """A cell of the session ``lease`` has begun (1) or ceased (-1) to wait for host calls."""
        with self._lock:
            if not lease.live or lease.calls + change < 0:
                return
            lease.used = time.monotonic()
            before, lease.calls = lease.calls > 0, lease.calls + change
            self._still += (lease.calls > 0) - before
            self._look()

    def _look(self) -> None:
        if self._taken == 0 or self._still < self._taken:
            self._still_since = None
        elif self._still_since is None:
            self._still_since = time.monotonic()

    def stuck(self) -> bool:
        """Whether to look for forgotten sessions: none was given back for a while, and of some nothing was asked for
        longer. True to one of those who wait; the rarer, the more often it was for nothing."""
        with self._lock:
            now = time.monotonic()
            if now - self._moved < STALL_SECONDS / 2 or now - self._searched < self._pause:
                return False
            self._suspects = frozenset(
                lease for lease in self._live if not lease.calls and now - lease.used >= _IDLE * STALL_SECONDS
            )
            if not self._suspects:
                return False
            self._searched = now
            self._pause = min(max(2 * self._pause, STALL_SECONDS / 2), _RAREST * STALL_SECONDS)
            return True

    def news(self) -> bool:
        """Whether it is news that somebody has waited for long: to the first, until nobody waits any more."""
        with self._lock:
            told, self._told = self._told, True
            return not told

    def relieve(self) -> None:
        """Let one more in if all sessions stand still; for those who wait to call now and then."""
        with self._lock:
            since = self._still_since
            if since is None or time.monotonic() - since < STALL_SECONDS:
                return
            self._still_since = time.monotonic()
            self._extra += 1
        self._serve()


slots = Slots()
_current: contextvars.ContextVar[Lease | None] = contextvars.ContextVar("rlm_dspy_session", default=None)


def is_nested() -> bool:
    """Whether the caller runs within a session that is still open."""
    lease = _current.get()
    return lease is not None and lease.live


def current() -> Lease | None:
    """The slot that the calling context's session counts for, or None."""
    return _current.get()


def resume(lease: Lease | None) -> None:
    """Something is asked of the session of ``lease``: the calling context is one of its, also if opened in another."""
    if lease is not None:
        lease.used = time.monotonic()
    if lease is not None and lease.live and not is_nested():
        _current.set(lease)


def take() -> Lease:
    """A lease for a session of the calling thread's context; waits for a slot, by blocking, unless nested."""
    if is_nested():
        return Lease()
    future = slots.request()
    waited = 0
    try:
        while True:
            try:
                lease = future.result(timeout=STALL_SECONDS / 4)
                break
            except TimeoutError:
                waited += 1
                _still_waiting(waited)
    except BaseException:
        _give_up(future)
        raise
    _current.set(lease)
    return lease


async def atake() -> Lease:
    """As `take`, without blocking the event loop; the lease belongs to the calling task's context."""
    if is_nested():
        return Lease()
    future = slots.request()
    try:
        if not future.done():
            waiter, waited = asyncio.wrap_future(future), 0
            while not (await asyncio.wait((waiter,), timeout=STALL_SECONDS / 4))[0]:
                waited += 1
                _still_waiting(waited)
        lease = future.result()
    except BaseException:
        _give_up(future)
        raise
    _current.set(lease)
    return lease


def _still_waiting(times: int) -> None:
    """A request has waited for a quarter of `STALL_SECONDS`, so often."""
    if slots.stuck():
        # Sessions that nobody closed, and nobody has any more, end when they are collected. It takes a large process
        # a second in which nothing else runs, so not for each who waits, and not as long as all of them are in use.
        gc.collect()
    if times == 4 and slots.news():
        logger.warning(
            "%d sandbox sessions are open, and more wait until some are closed; %s raises the limit of %d",
            slots.taken,
            VARIABLE,
            max_sessions(),
        )
    slots.relieve()


def _give_up(future: Future[Lease]) -> None:
    if not future.cancel():
        # Granted in the same moment.
        future.add_done_callback(lambda done: None if done.cancelled() else done.result().release())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=slots.reset)

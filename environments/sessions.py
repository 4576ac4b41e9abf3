"""How many sandboxes one process runs at once.

Each *root* session takes a slot; beyond the limit runs wait in the order they came, without a thread each. A session
opened from within another one (a child RLM, a tool that runs an RLM) takes no slot: were it to wait for one, 64 runs
each waiting for their first child would wait for ever. What bounds those is their run's own width and depth.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from rlm_dspy.errors import ConfigurationError

DEFAULT_MAX_SESSIONS = 64
VARIABLE = "RLM_DSPY_MAX_SESSIONS"


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

    def __init__(self, release: Callable[[], None] | None = None) -> None:
        self.live = True
        self._release = release
        self._lock = threading.Lock()

    def release(self) -> None:
        """Idempotent, from any thread."""
        with self._lock:
            if not self.live:
                return
            self.live = False
        if self._release is not None:
            self._release()


class Slots:
    """A counting gate, first come, first served, that can be waited at from threads and from event loops."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything; for a forked child, in which none of the sessions are its own."""
        self._lock = threading.Lock()
        self._taken = 0
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
        granted = []
        with self._lock:
            while self._waiting and self._taken < limit:
                future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    self._taken += 1
                    granted.append(future)
        # Outside the lock, because callbacks run here.
        for future in granted:
            future.set_result(Lease(self._give_back))

    def _give_back(self) -> None:
        with self._lock:
            self._taken -= 1
        self._serve()


slots = Slots()
_current: contextvars.ContextVar[Lease | None] = contextvars.ContextVar("rlm_dspy_session", default=None)


def is_nested() -> bool:
    """Whether the caller runs within a session that is still open."""
    lease = _current.get()
    return lease is not None and lease.live


def take() -> Lease:
    """A lease for a session of the calling thread's context; waits for a slot, by blocking, unless nested."""
    if is_nested():
        return Lease()
    future = slots.request()
    try:
        lease = future.result()
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
        lease = await asyncio.wrap_future(future)
    except BaseException:
        _give_up(future)
        raise
    _current.set(lease)
    return lease


def _give_up(future: Future[Lease]) -> None:
    if not future.cancel():
        # Granted in the same moment.
        future.add_done_callback(lambda done: None if done.cancelled() else done.result().release())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=slots.reset)

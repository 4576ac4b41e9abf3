"""What the runs of one tree share: the gates that bound how much of it happens at once, and answers already paid for.

One gate is for LM calls, of whatever run. A run that waits for its children holds no place in it: a place is taken for
an LM call alone, and given back by one that turns out to run an RLM inside. Children have one gate for each depth: a
child keeps its place while it waits for its own children, which queue at the next gate, so the deepest always go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any

from rlm_dspy.limits import Limits


class Gate:
    """Lets ``width`` through at once, first come, first served; to be waited at from any event loop.

    Args:
        width: How many.
        outer: A gate that has to be passed as well, behind this one.
    """

    def __init__(self, width: int, outer: Gate | None = None) -> None:
        self.width = width
        self._outer = outer
        self._free = width
        self._lock = threading.Lock()
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    @property
    def taken(self) -> int:
        """Places in use now."""
        with self._lock:
            return self.width - self._free

    async def acquire(self) -> None:
        """Take a place, when there is one."""
        await self._acquire()
        if self._outer is not None:
            try:
                await self._outer.acquire()
            except BaseException:
                self._release()
                raise

    def release(self) -> None:
        """Give a place back; from any thread."""
        if self._outer is not None:
            self._outer.release()
        self._release()

    async def _acquire(self) -> None:
        with self._lock:
            if self._free > 0 and not self._waiting:
                self._free -= 1
                return
            loop = asyncio.get_running_loop()
            granted: asyncio.Future[None] = loop.create_future()
            entry = (loop, granted)
            self._waiting.append(entry)
        try:
            await granted
        except BaseException:
            with self._lock:
                waited = entry in self._waiting
                if waited:
                    self._waiting.remove(entry)
            if not waited:
                # It had been granted in the same moment.
                self._release()
            raise

    def _release(self) -> None:
        with self._lock:
            self._free += 1
            while self._waiting and self._free > 0:
                loop, granted = self._waiting.popleft()
                try:
                    loop.call_soon_threadsafe(_grant, granted)
                except RuntimeError:
                    continue  # its loop has ended, and the run with it
                self._free -= 1

    @contextlib.asynccontextmanager
    async def place(self, note: Callable[[int], None] = lambda change: None) -> AsyncIterator[None]:
        """Hold a place while the body runs, less the time that RLMs run inside of it (`lent`).

        Args:
            note: Told of 1 whenever the place is taken, and of -1 whenever it is given back.
        """
        await self.acquire()
        hold = _Hold(self, note)
        token = _holding.set(hold)
        try:
            yield
        finally:
            _holding.reset(token)
            hold.end()


def _grant(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_result(None)


class _Hold:
    """A place that is held; given back while runs go on inside of what it was taken for."""

    def __init__(self, gate: Gate, note: Callable[[int], None]) -> None:
        self._gate = gate
        self._note = note
        note(1)
        self._lock = threading.Lock()
        self._inner = 0
        self._held = True
        self._ended = False

    def lend(self) -> None:
        """A run begins inside."""
        with self._lock:
            self._inner += 1
            release, self._held = self._held, False
        if release:
            self._give_back()

    def _give_back(self) -> None:
        self._note(-1)
        self._gate.release()

    async def take_back(self) -> None:
        """A run has ended inside."""
        with self._lock:
            self._inner -= 1
            if self._inner or self._ended:
                return
        await self._gate.acquire()
        with self._lock:
            keep = not (self._inner or self._ended or self._held)
            self._held = self._held or keep
            if keep:
                self._note(1)
        if not keep:
            self._gate.release()

    def end(self) -> None:
        """What the place was taken for is over."""
        with self._lock:
            self._ended = True
            release, self._held = self._held, False
        if release:
            self._give_back()


_holding: contextvars.ContextVar[_Hold | None] = contextvars.ContextVar("rlm_dspy_place", default=None)


@contextlib.asynccontextmanager
async def lent() -> AsyncIterator[None]:
    """For a run: give back the place of the LM call or module that it runs inside of, if any, until it has ended."""
    hold = _holding.get()
    if hold is None:
        yield
        return
    hold.lend()
    token = _holding.set(None)
    try:
        yield
    finally:
        _holding.reset(token)
        await hold.take_back()


class Recent:
    """The things last used, by key; what was not used for longest is let go. Thread-safe.

    Args:
        most: How many are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What is kept for ``key``; what ``make`` gives where nothing is."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            kept = self._kept.setdefault(key, made)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return kept


class Tree:
    """What all runs below one root share.

    Args:
        limits: The root's.
        outer: The tree of the run that this root was called from, by a tool or a module of it.
    """

    def __init__(self, limits: Limits, outer: Tree | None = None) -> None:
        self.calls: Gate = Gate(limits.max_concurrency, outer.calls if outer else None)
        self.answers: dict[Any, asyncio.Future[Any]] = {}
        """What sub-calls were answered, or are being answered, by what was asked of whom."""
        self.adhoc: Recent = Recent(16)
        """The predictors of the signatures that code wrote last."""
        self.rollouts: itertools.count[int] = outer.rollouts if outer else itertools.count(1)
        """Numbers of sub-calls that are asked afresh, so that no two of them are one to DSPy's cache."""
        self._width = limits.max_children
        self._children: dict[int, Gate] = {}
        self._lock = threading.Lock()

    def children(self, depth: int) -> Gate:
        """The gate of the children at ``depth``."""
        with self._lock:
            return self._children.setdefault(depth, Gate(self._width))

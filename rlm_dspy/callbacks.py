"""Callbacks of runs: called as turns, sub-calls and children begin and end.

DSPy's callbacks (``dspy.utils.BaseCallback``) see modules, LMs and tools; they do not know of turns, nor whose sub-call
an LM call is. The methods of `Callbacks` stand beside DSPy's own, on the same objects and in the same places: the
constructor's ``callbacks=``, ``dspy.configure(callbacks=[...])``, ``dspy.context(callbacks=[...])``.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import dspy
from dspy.utils.callback import BaseCallback

from rlm_dspy import events as ev
from rlm_dspy._aio import caught

if TYPE_CHECKING:
    from rlm_dspy.run import Run

logger = logging.getLogger(__name__)

MOMENTS: dict[type[ev.Event], str] = {
    ev.RunStarted: "on_run_start",
    ev.TurnStarted: "on_turn_start",
    ev.TurnEnded: "on_turn_end",
    ev.CallStarted: "on_subcall_start",
    ev.CallEnded: "on_subcall_end",
    ev.ChildStarted: "on_child_start",
    ev.ChildEnded: "on_child_end",
    ev.RunEnded: "on_run_end",
}
"""The event that each method is called with."""
LAST_SECONDS = 10.0
"""Seconds that a run waits at its end for callbacks that are awaited."""

Handler = Callable[[Any, "Run"], Any]


class Callbacks(BaseCallback):
    """What is called in the course of runs, as functions or as the methods of a subclass.

    Each is called as ``f(event, run)``, in order, with an event of `rlm_dspy.events`; ``run.request_stop()`` may be
    called from it, and ``run.ledger.usage()`` says what was used so far. A function of ``async def`` is awaited beside
    the run, one after the other, all of them before the call returns, unless they take more than ten seconds longer
    than the run. What one raises is logged, once for each function, and changes nothing else.

    Children are told of like their parents (``event.depth``), and so are runs that tools start.

    Args:
        on_run_start, on_run_end: A run, with its outcome and usage.
        on_turn_start, on_turn_end: A turn; one that a limit cuts short has no end.
        on_subcall_start, on_subcall_end: A call that code made of an LM or of a child (``event.name``; the two have the
            same ``event.call``). Calls of tools are DSPy's ``on_tool_start`` and ``on_tool_end``.
        on_child_start, on_child_end: A child, seen from its parent.

    Example:
        >>> rlm = RLM("context -> answer", callbacks=[Callbacks(on_turn_end=show)])  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        on_run_start: Handler | None = None,
        on_turn_start: Handler | None = None,
        on_turn_end: Handler | None = None,
        on_subcall_start: Handler | None = None,
        on_subcall_end: Handler | None = None,
        on_child_start: Handler | None = None,
        on_child_end: Handler | None = None,
        on_run_end: Handler | None = None,
    ) -> None:
        super().__init__()
        given = {name: value for name, value in locals().items() if name in MOMENTS.values() and value is not None}
        for name, function in given.items():
            if not callable(function):
                raise TypeError(f"{name} must be a function of (event, run), not {function!r}")
            setattr(self, name, function)


def callbacks_of(given: Any) -> list[BaseCallback]:
    """The option ``callbacks``, checked.

    Raises:
        TypeError: It is no list of callbacks.
    """
    if given is None:
        return []
    if isinstance(given, (list, tuple)):
        wrong = [one for one in given if not isinstance(one, BaseCallback)]
        if not wrong:
            return list(given)
        given = wrong[0]
    raise TypeError(
        "callbacks takes a list of rlm_dspy.Callbacks or dspy.utils.BaseCallback objects, such as "
        f"callbacks=[rlm_dspy.Callbacks(on_turn_end=f)], not {given!r}"
    )


class Dispatch:
    """An `rlm_dspy.events.Subscriber` that calls the callbacks of a tree of runs.

    Args:
        callbacks: Those with methods for runs.
        loop: The run's event loop, on which coroutines are awaited.
    """

    def __init__(self, callbacks: Sequence[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.callbacks = tuple(callbacks)
        self._loop = loop
        self._waiting: collections.deque[tuple[Any, str, Awaitable[Any]]] = collections.deque()
        self._pumping: asyncio.Task[None] | None = None
        self._failed: set[tuple[int, str]] = set()
        self._lock = threading.Lock()

    def __call__(self, event: ev.Event, run: Run) -> None:
        """Call what is there for ``event``."""
        name = MOMENTS.get(type(event))
        if name is None or (isinstance(event, (ev.CallStarted, ev.CallEnded)) and event.name in run.tools):
            return
        for callback in self.callbacks:
            if not _has(callback, name):
                continue
            try:
                result = getattr(callback, name)(event, run)
            except Exception as error:
                self._report(callback, name, error)
                continue
            if inspect.isawaitable(result):
                self._waiting.append((callback, name, result))
                self._loop.call_soon_threadsafe(self._start)

    def _report(self, callback: Any, name: str, error: BaseException) -> None:
        with self._lock:
            if (id(callback), name) in self._failed:
                return
            self._failed.add((id(callback), name))
        logger.error("the callback %s failed, which is reported once: %r", name, error, exc_info=error)

    def _start(self) -> None:
        if self._pumping is None or self._pumping.done():
            self._pumping = self._loop.create_task(self._pump())

    async def _pump(self) -> None:
        while self._waiting:
            callback, name, work = self._waiting.popleft()
            try:
                _, fatal = await caught(work)
            except Exception as error:
                fatal = error
            if fatal is not None:
                self._report(callback, name, fatal)

    async def ended(self) -> None:
        """Wait until all coroutines have ended, but not for ever."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                while self._waiting or (self._pumping is not None and not self._pumping.done()):
                    self._start()
                    assert self._pumping is not None
                    await asyncio.wait({self._pumping})
        except TimeoutError:
            logger.error("callbacks were not done %g seconds after their run, and are given up", LAST_SECONDS)
        finally:
            if self._pumping is not None:
                self._pumping.cancel()
            while self._waiting:
                _, _, work = self._waiting.popleft()
                if inspect.iscoroutine(work):
                    work.close()


@contextlib.asynccontextmanager
async def calling(run: Run) -> AsyncIterator[None]:
    """Have the callbacks of DSPy's settings and of the run's program called, for the time of ``run``."""
    told = [callback for some in run.events.subscribers if isinstance(some, Dispatch) for callback in some.callbacks]
    new: list[Any] = []
    for callback in _interested([*(dspy.settings.callbacks or []), *run.program.callbacks]):
        if not any(callback is one for one in (*told, *new)):
            new.append(callback)
    if not new:
        yield
        return
    dispatch = Dispatch(new, asyncio.get_running_loop())
    run.events.add(dispatch)
    try:
        yield
    finally:
        await dispatch.ended()


def _interested(callbacks: Iterable[Any]) -> list[Any]:
    return [one for one in callbacks if any(_has(one, name) for name in MOMENTS.values())]


def _has(callback: Any, name: str) -> bool:
    # Not by asking it: one for all of DSPy's moments may answer to any name.
    return hasattr(type(callback), name) or name in getattr(callback, "__dict__", ())

"""``rlm.stream(...)``: the events of a call while they happen, and its prediction as the last item."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import dataclasses
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import dspy

from rlm_dspy._aio import caught, ended, run_sync
from rlm_dspy._signals import joined, until
from rlm_dspy.events import Event, TextDelta, subscribe

if TYPE_CHECKING:
    from rlm_dspy.run import Run

Item: TypeAlias = "Event | dspy.Prediction"


class Streamed(Protocol):
    """What can be streamed: an RLM, or a session of one."""

    async def acall(self, **inputs: Any) -> dspy.Prediction:
        """Answer one task."""


class RunStream:
    """One call of an RLM, which begins when it is first iterated over, by ``async for`` or by ``for``.

    Items are `rlm_dspy.events.Event` objects of the run, its children and the runs that its tools start, each as it
    happens (``event.depth``, ``event.run``), `rlm_dspy.events.TextDelta` among them where the root's LM streams; the
    last item is the prediction, as ``rlm.acall`` gives it. What the call raises is raised here, after the events before
    it. Leaving the loop early, ``aclose()`` or ``close()``, and cancelling the task that iterates cancel the run, and
    wait until it has ended.

    A consumer may take its time: the run does not wait for it. What it has not taken yet are events, which the run
    keeps anyway, and text, of which the pieces of one request become one.

    Settings of DSPy and subscribers are those in force where ``rlm.stream`` was called.

    Example:
        >>> async for item in rlm.stream(context=text, query="…"):  # doctest: +SKIP
        ...     match item:
        ...         case rlm_dspy.events.TextDelta():
        ...             print(item.text, end="")
        ...         case dspy.Prediction():
        ...             print(item.answer)
    """

    def __init__(self, program: Streamed, inputs: dict[str, Any]) -> None:
        self._program = program
        self._inputs = inputs
        self._context = contextvars.copy_context()
        self._used = False
        # Whoever leaves a loop lets go of what it iterates over, which Python then closes: nothing may hold it besides.
        self._items: Callable[[], Any] = lambda: None
        self._tasks: list[asyncio.Task[Any]] = []
        self._own: Any = None

    def __aiter__(self) -> AsyncGenerator[Item, None]:
        items = self._begin(_asynchronous)
        assert isinstance(items, AsyncGenerator)
        return items

    def __iter__(self) -> Generator[Item, None, None]:
        items = self._begin(_synchronous)
        assert isinstance(items, Generator)
        return items

    def __anext__(self) -> Any:
        self._own = self._own or aiter(self)
        return self._own.__anext__()

    def __next__(self) -> Item:
        self._own = self._own or iter(self)
        item: Item = next(self._own)
        return item

    def _begin(self, kind: Callable[..., Any]) -> Any:
        if self._used:
            raise RuntimeError("this stream is one run, and was iterated over already: call rlm.stream(...) again")
        self._used = True
        items = kind(self._program, self._inputs, self._context, self._tasks)
        self._items = weakref.ref(items)
        return items

    async def aclose(self) -> None:
        """Cancel the run, if it goes on, and wait until it has ended."""
        self._used = True
        if (items := self._items()) is not None:
            await items.aclose()
        # Python closes what a loop was left over by itself, but waits for nothing.
        await ended(self._tasks)

    def close(self) -> None:
        """`aclose`, for a stream iterated over by ``for``."""
        self._used = True
        if (items := self._items()) is not None and isinstance(items, Generator):
            items.close()

    async def __aenter__(self) -> RunStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> RunStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Text:
    """Pieces of text that have not been taken yet."""

    def __init__(self, event: TextDelta) -> None:
        self.event = event
        self.pieces = [event.text]

    def takes(self, event: TextDelta) -> bool:
        mine = (self.event.request, self.event.role, self.event.reasoning)
        return mine == (event.request, event.role, event.reasoning)


class _Inbox:
    """A subscriber that keeps what happens until it is taken. Thread-safe.

    Args:
        arrived: Called when there is something to take.
    """

    deltas = True

    def __init__(self, arrived: Callable[[], Any]) -> None:
        self._arrived = arrived
        self._items: collections.deque[Event | _Text] = collections.deque()
        self._open: dict[str, _Text] = {}
        self._lock = threading.Lock()

    def __call__(self, event: Event, run: Run) -> None:
        with self._lock:
            if isinstance(event, TextDelta):
                text = self._open.get(event.run)
                if text is not None and text.takes(event):
                    text.pieces.append(event.text)
                    return
                text = self._open[event.run] = _Text(event)
                self._items.append(text)
            else:
                self._open.pop(event.run, None)
                self._items.append(event)
        self._arrived()

    def take(self) -> Event | None:
        """The next one; None if there is none now."""
        with self._lock:
            if not self._items:
                return None
            item = self._items.popleft()
            if isinstance(item, Event):
                return item
            if self._open.get(item.event.run) is item:
                del self._open[item.event.run]
            return dataclasses.replace(item.event, text="".join(item.pieces))


async def _driven(program: Streamed, inputs: dict[str, Any], inbox: _Inbox) -> dspy.Prediction:
    with subscribe(inbox):
        return await program.acall(**inputs)


async def _asynchronous(
    program: Streamed, inputs: dict[str, Any], context: contextvars.Context, tasks: list[asyncio.Task[Any]]
) -> AsyncGenerator[Item, None]:
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()

    def wake() -> None:
        # Tools may emit from threads, also of a loop that has ended.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(arrived.set)

    inbox = _Inbox(wake)
    task = loop.create_task(caught(_driven(program, inputs, inbox)), context=context)
    tasks.append(task)
    task.add_done_callback(lambda _: arrived.set())
    try:
        done = False
        while not done:
            await arrived.wait()
            arrived.clear()
            done = task.done()
            while (event := inbox.take()) is not None:
                yield event
        prediction, fatal = task.result()
        if fatal is not None:
            raise fatal
        assert prediction is not None
        yield prediction
    finally:
        await ended([task])


def _synchronous(
    program: Streamed, inputs: dict[str, Any], context: contextvars.Context, tasks: list[asyncio.Task[Any]]
) -> Generator[Item, None, None]:
    arrived = threading.Event()
    inbox = _Inbox(arrived.set)
    result: list[dspy.Prediction] = []
    failure: list[BaseException] = []
    gone = False

    async def main() -> dspy.Prediction:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        if gone:
            raise asyncio.CancelledError
        return await _driven(program, inputs, inbox)

    def work() -> None:
        try:
            result.append(run_sync(main()))
        except BaseException as error:
            failure.append(error)
        finally:
            arrived.set()

    # The caller's thread is the consumer's; one of its own leaves it free to look away.
    thread = threading.Thread(target=context.run, args=(work,), name="rlm-dspy-stream", daemon=True)
    thread.start()
    try:
        done = False
        while not done:
            until(arrived.wait)
            arrived.clear()
            done = bool(result or failure)
            while (event := inbox.take()) is not None:
                yield event
        if failure:
            raise failure[0]
        yield result[0]
    finally:
        gone = True
        if tasks and not (result or failure):
            with contextlib.suppress(RuntimeError):
                tasks[0].get_loop().call_soon_threadsafe(tasks[0].cancel)
        joined(thread)

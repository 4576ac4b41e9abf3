"""``dspy.streamify`` across event loops, with a consumer of any speed.

DSPy streams through an anyio channel that belongs to the event loop of the consumer and holds 16 items. A run may live
on another loop (a synchronous program under ``streamify``), and DSPy's status callbacks block the loop they fire on
until an item is taken, so a slow consumer would stop both for ever. Inside a run a `Bridge` stands in for the channel:
it accepts at once and hands items over in order on the consumer's own loop.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import math
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio.from_thread
import anyio.to_thread
import dspy

from rlm_dspy._aio import threads

T = TypeVar("T")

_ROOM = 4
_LOOK_SECONDS = 0.5
"""Seconds between two looks at whether the consumer's event loop is still there."""


class Bridge:
    """Accepts what is streamed, from any thread and loop, and never makes the sender wait.

    Args:
        stream: DSPy's send stream.
        home: The event loop that ``stream`` belongs to.
    """

    def __init__(self, stream: Any, home: asyncio.AbstractEventLoop) -> None:
        self._stream = stream
        self._home = home
        self._items: collections.deque[Any] = collections.deque()
        self._lock = threading.Lock()
        self._pumping: asyncio.Task[None] | None = None

    async def send(self, item: Any) -> None:
        """`put`, as DSPy's streams have it."""
        self.put(item)

    def put(self, item: Any) -> None:
        """Queue ``item``; returns at once. A consumer that is gone gets nothing."""
        with self._lock:
            self._items.append(item)
        try:
            self._home.call_soon_threadsafe(self._start)
        except RuntimeError:
            self._items.clear()

    def _start(self) -> None:
        if self._pumping is None or self._pumping.done():
            self._pumping = self._home.create_task(self._pump())

    async def _pump(self) -> None:
        while self._items:
            try:
                await self._stream.send(self._items.popleft())
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                self._items.clear()

    async def _drained(self) -> None:
        while self._items or (self._pumping is not None and not self._pumping.done()):
            self._start()
            assert self._pumping is not None
            await asyncio.wait({self._pumping})
        # DSPy's next status message blocks this loop unless the channel has room for it.
        with contextlib.suppress(AttributeError):
            while True:
                state = self._stream.statistics()
                if state.current_buffer_used <= max(0, state.max_buffer_size - _ROOM) or not state.open_receive_streams:
                    break
                await asyncio.sleep(0.005)

    async def flush(self, home: Home) -> None:
        """Wait until the consumer's channel holds all that was sent, with room to spare, or the consumer is gone."""
        if home.blocked:
            return
        if asyncio.get_running_loop() is self._home:
            await self._drained()
        else:
            await self._drained_elsewhere()

    async def _drained_elsewhere(self) -> None:
        drained = self._drained()
        try:
            waiting = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(drained, self._home))
            # A loop that has ended runs nothing any more, and tells nobody.
            while not waiting.done() and not self._home.is_closed():
                await asyncio.wait({waiting}, timeout=_LOOK_SECONDS)
        except RuntimeError:
            pass  # closed already
        else:
            # An ending loop cancels its tasks; that is not this run's cancellation.
            if waiting.done() and not waiting.cancelled():
                waiting.result()
        finally:
            if self._home.is_closed():
                drained.close()


@dataclass(frozen=True)
class Home:
    """Where a stream is consumed.

    Attributes:
        loop: The consumer's event loop.
        blocked: The run is called synchronously from that very loop, which therefore stands still until it ends.
    """

    loop: asyncio.AbstractEventLoop
    blocked: bool = False


def find_home(*, synchronous: bool) -> Home | None:
    """Where the stream of this context is consumed, or None if nothing is streamed or nobody could take it.

    To be called before a run starts a loop of its own.

    Args:
        synchronous: The caller waits for the run without giving way to its event loop.
    """
    if dspy.settings.send_stream is None:
        return None
    try:
        return Home(asyncio.get_running_loop(), blocked=synchronous)
    except RuntimeError:
        pass
    try:
        # From a worker thread of the loop that runs ``streamify``.
        return Home(anyio.from_thread.run_sync(asyncio.get_running_loop))
    except RuntimeError:
        return None


@contextlib.asynccontextmanager
async def bridged(home: Home | None) -> AsyncIterator[None]:
    """Put a `Bridge` in place of DSPy's send stream for the time of a run.

    Args:
        home: What `find_home` returned in the calling code.
    """
    stream = dspy.settings.send_stream
    if stream is None or isinstance(stream, Bridge):
        yield
        return
    if home is None:
        # Nobody can take items from here; without this the LM layer would try, and fail.
        with dspy.context(send_stream=None):
            yield
        return
    bridge = Bridge(stream, home.loop)
    try:
        # DSPy's LiteLLM engine asks for the usage of a streamed reply only where its own setting says so.
        with dspy.context(send_stream=bridge, track_usage=True):
            yield
    except Exception:
        await bridge.flush(home)
        raise
    await bridge.flush(home)


async def run_in_thread(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Await ``function(*args, **kwargs)`` in a thread from which DSPy can stream.

    DSPy's status messages and streamed LM calls reach the consumer from AnyIO's worker threads only; without a stream
    the project's own, cheaper ones do. Neither kind is bounded in number, and cancelling stops the waiting only.
    """
    if dspy.settings.send_stream is None:
        return await threads.run(function, *args, **kwargs)
    return await anyio.to_thread.run_sync(
        functools.partial(function, *args, **kwargs), abandon_on_cancel=True, limiter=anyio.CapacityLimiter(math.inf)
    )

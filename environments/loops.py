"""One event loop in a thread of its own, for SDKs that are asynchronous only; and their streams as plain iterators.

The loop is started with its first use, lives as long as the process, and is started anew in a fork. An SDK's client
must be made on it and used on it alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class _Executor(concurrent.futures.ThreadPoolExecutor):
    """Runs the loop's blocking calls, the look-up of addresses above all, also when the process is about to exit.

    The standard one takes no work then, so that no sandbox could be deleted any more. These threads exist from the
    beginning, because none can be started at exit, and nobody waits for them.
    """

    def __init__(self, count: int = 4) -> None:
        super().__init__(1)
        self._jobs: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        for _ in range(count):
            threading.Thread(target=self._loop, name="rlm-dspy-clouds", daemon=True).start()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """See ``concurrent.futures.Executor``."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._jobs.put((future, functools.partial(function, *args, **kwargs)))
        return future

    def _loop(self) -> None:
        while True:
            future, job = self._jobs.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job())
                except BaseException as error:
                    future.set_exception(error)
            del future, job


class _Thread:
    """The loop and its thread."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_default_executor(_Executor())
                threading.Thread(target=self._loop.run_forever, name="rlm-dspy-clouds", daemon=True).start()
            return self._loop


_thread = _Thread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_thread.reset)


def call(coroutine: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    """Run ``coroutine`` on the loop and wait for its result.

    Args:
        coroutine: What to run. It is cancelled if the wait is interrupted or takes too long.
        seconds: How long to wait; None for no limit.

    Raises:
        TimeoutError: It took longer.
    """
    future = asyncio.run_coroutine_threadsafe(coroutine, _thread.loop())
    try:
        return future.result(seconds)
    except BaseException:
        future.cancel()
        raise


def spawn(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run ``coroutine`` on the loop; its outcome is nobody's news."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _thread.loop())
    future.add_done_callback(lambda done: None if done.cancelled() else done.exception())


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """The items of an asynchronous iterator, one at a time: what is not asked for is not fetched."""

    async def following() -> tuple[bool, T | None]:
        # StopAsyncIteration would not get through a future.
        async for item in items:
            return True, item
        return False, None

    try:
        while True:
            more, item = call(following())
            if not more:
                return
            yield item  # type: ignore[misc]
    finally:
        # Given up half-way, an asynchronous generator would wait for ever.
        if (close := getattr(items, "aclose", None)) is not None:
            spawn(close())

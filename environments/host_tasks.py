"""Running the host functions that a cell calls, as tasks of the loop that runs the cell."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from rlm_dspy.environments import sessions
from rlm_dspy.environments.base import HostFunction
from rlm_dspy.environments.channel import Call
from rlm_dspy.errors import RLMError
from rlm_dspy.redact import redact


class HostTasks:
    """The host calls of one cell: tasks on the loop, and the clock of the time spent waiting for them."""

    def __init__(self, functions: Mapping[str, HostFunction], reply: Any, reply_error: Any) -> None:
        self.functions = functions
        self._fatal: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._reply, self._reply_error = reply, reply_error
        self._lease = sessions.current()
        self._tasks: set[asyncio.Task[None] | None] = set()
        self._unbegun: dict[int, Call] = {}
        self._open = 0
        self._waiter: asyncio.Future[None] | None = None
        self._waited = 0.0
        self._since = 0.0
        self._closed = False
        self._late: Callable[[Call], None] = self._refuse
        self._gate = threading.Lock()

    def accept(self, call: Call) -> None:
        """Start a call; from any thread."""
        with self._gate:
            # Asked here as well as on the loop, which may stand still for ever once the run has ended.
            ended = self._closed
            if not ended:
                try:
                    self._loop.call_soon_threadsafe(self._start, call)
                except RuntimeError:
                    ended = True
        if ended:
            self._late(call)

    def _refuse(self, call: Call) -> None:
        self._reply_error(call, "RuntimeError", "the cell that made this call has ended")

    def _start(self, call: Call) -> None:
        if self._closed:
            self._late(call)
            return
        if not self._open:
            self._since = time.perf_counter()
            self._note(1)
        self._open += 1
        self._unbegun[id(call)] = call
        task = self._loop.create_task(self._run(call), context=self._context.copy())
        # An eager task may have ended already.
        if not task.done():
            self._tasks.add(task)

    def _finished(self) -> None:
        self._open -= 1
        if not self._open:
            self._waited += time.perf_counter() - self._since
            self._note(-1)

    def _note(self, change: int) -> None:
        if self._lease is not None:
            sessions.slots.note_calls(self._lease, change)

    async def _run(self, call: Call) -> None:
        del self._unbegun[id(call)]
        try:
            await self._answer(call)
        finally:
            self._tasks.discard(asyncio.current_task())
            self._finished()

    async def _answer(self, call: Call) -> None:
        function = self.functions.get(call.name)
        if function is None:
            self._reply_error(call, "RuntimeError", f"{call.name}() is not available in this cell")
            return
        try:
            value = await function(*call.args, **call.kwargs)
        except asyncio.CancelledError:
            self._reply_error(call, "RuntimeError", f"{call.name}() was cancelled")
            raise
        except Exception as error:
            self._reply_error(call, *describe_failure(error))
        except BaseException as error:
            # KeyboardInterrupt or SystemExit in a tool ends the run, not only the call.
            self._reply_error(call, *describe_failure(error))
            self._fatal = self._fatal or error
            self._wake()
        else:
            self._reply(call, value)

    def waited(self) -> float:
        """Seconds during which at least one call was open."""
        return self._waited + (time.perf_counter() - self._since if self._open else 0.0)

    async def watch(self, answer: Future[Any], limit: float | None) -> bool:
        """Wait for the cell that makes the calls.

        Args:
            answer: Settled when the cell ends.
            limit: Seconds it may compute, the time it waits for calls not counted; None for no limit.

        Returns:
            False if it is over its limit and still runs.
        """
        start = time.perf_counter()
        answer.add_done_callback(self._wake_soon)
        while True:
            if self._fatal is not None:
                raise self._fatal
            if answer.done():
                return True
            left = None if limit is None else limit - (time.perf_counter() - start - self.waited())
            if left is not None and left <= 0:
                return False
            self._waiter = self._loop.create_future()
            timer = None if left is None else self._loop.call_later(left, self._wake)
            try:
                await self._waiter
            finally:
                if timer is not None:
                    timer.cancel()

    def _wake_soon(self, answer: Future[Any]) -> None:
        # In the thread that settles the answer; the loop may have ended.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def close(self, postpone: Callable[[Call], None] | None = None) -> None:
        """Cancel what still runs and wait for it.

        Args:
            postpone: Gets the calls that have not begun, where the cell has ended by itself: they are of threads that
                outlive it. They are refused if None.
        """
        with self._gate:
            self._closed = True
            self._late = postpone or self._refuse
        tasks = [task for task in self._tasks if task is not None]
        for task in tasks:
            task.cancel()
        # Cancelled before their first step, these answer nobody. Done first: the waiting may be cancelled as well.
        while self._unbegun:
            call = self._unbegun.popitem()[1]
            self._finished()
            self._late(call)
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)


def retrieve(future: asyncio.Future[Any]) -> None:
    """A done callback that takes the future's exception, so that asyncio does not report it as lost."""
    if not future.cancelled():
        future.exception()


def describe_failure(error: BaseException) -> tuple[str, str]:
    """The class and the redacted message with which a host function's exception is raised in the sandbox."""
    try:
        text = redact(str(error))
    except Exception:
        text = "(an error without text)"
    if isinstance(error, RLMError):
        return "RuntimeError", text
    if isinstance(error, (ValueError, TypeError)) and text:
        return ("ValueError" if isinstance(error, ValueError) else "TypeError"), text
    return "RuntimeError", f"{type(error).__name__}: {text}"

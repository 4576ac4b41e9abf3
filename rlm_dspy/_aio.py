"""Driving coroutines from synchronous code, and threads that come when they are needed.

A leaf module: it knows nothing of the project. Two rules shape it. A synchronous call runs its coroutine on the
*caller's* thread, because DSPy keeps its settings in context variables and streams from the calling thread (a shared
background loop hangs ``dspy.streamify``); only where a loop is already running, as in a notebook, a helper thread with
a copied context takes over. And blocking work never goes to asyncio's default executor, whose fixed size deadlocks
nested calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import functools
import os
import queue
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from rlm_dspy._signals import result_of, woken_by_signals

T = TypeVar("T")

_IDLE_SECONDS = 5.0


_loops: weakref.WeakSet[_Loop] = weakref.WeakSet()
_loops_lock = threading.RLock()
_at_fork: list[Any] = []


def _before_fork() -> None:
    _loops_lock.acquire()
    _at_fork.extend(one.runner.get_loop() for one in _loops)


def _after_fork_in_parent() -> None:
    _at_fork.clear()
    _loops_lock.release()


def _after_fork_in_child() -> None:
    # An inherited loop that is collected, also at the end of the process, closes itself, and takes its wake-up out of
    # the selector that it shares with the parent's, which then sleeps for ever. So it is never collected.
    for loop in _at_fork:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(loop))
    _after_fork_in_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


class _Loop:
    """An event loop that is closed with the thread it belongs to."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.pid = os.getpid()
        with _loops_lock:
            _loops.add(self)

    def __del__(self) -> None:
        # After a fork the inherited loop shares its selector with the parent's: it is dropped, not closed.
        if self.pid == os.getpid():
            loop = self.runner.get_loop()
            if not loop.is_closed() and not loop.is_running():
                loop.close()


class _ThreadLoop(threading.local):
    """One event loop a thread, kept so that HTTP connections pooled per loop are reused by the next call."""

    loop: _Loop | None = None

    def get(self) -> asyncio.Runner:
        if self.loop is None or self.loop.pid != os.getpid():
            self.loop = _Loop()
        return self.loop.runner


_thread_loop = _ThreadLoop()


def _in_loop() -> bool:
    # On its own, because what is raised while an exception is handled shows that one in its traceback.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` to its end from synchronous code and return its result.

    Ctrl-C cancels the coroutine, lets its ``finally`` blocks run, and then raises KeyboardInterrupt.
    """
    if not _in_loop():
        runner = _thread_loop.get()
        with woken_by_signals(runner.get_loop()):
            return _raised(runner.run(caught(coroutine), context=contextvars.copy_context()))
    context = contextvars.copy_context()
    outcome: Future[T] = Future()
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    def work() -> None:
        async def main() -> T:
            task = asyncio.ensure_future(coroutine)
            started.set_result((asyncio.get_running_loop(), task))
            return await task

        try:
            with asyncio.Runner() as runner:
                result = _raised(runner.run(caught(main()), context=context))
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    thread = threading.Thread(target=work, name="rlm-dspy-sync", daemon=True)
    try:
        # Inside, because Ctrl-C may also arrive while the thread starts.
        thread.start()
        return result_of(outcome)
    except KeyboardInterrupt:
        if not outcome.done():
            # Whatever the coroutine ends with, what the caller gets is the KeyboardInterrupt.
            with contextlib.suppress(BaseException):
                loop, task = started.result(timeout=5)
                loop.call_soon_threadsafe(task.cancel)
                outcome.result(timeout=10)
        raise


async def caught(work: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    """The result of ``work`` and None, or None and the KeyboardInterrupt or SystemExit that it raised.

    For what runs as a task of its own: asyncio lets these two out of the event loop at once, and everybody who waits
    for the task, with all their clean-up, would be left behind. Raise the error again in the waiting coroutine.
    """
    try:
        return await work, None
    except (KeyboardInterrupt, SystemExit) as error:
        return None, error


async def gathered(works: Iterable[Awaitable[T]]) -> list[T]:
    """Await all of ``works`` at once: their results in order.

    A KeyboardInterrupt or SystemExit of one of them is raised when all have ended (see `caught`). Any other error, and
    a cancellation, cancels those that still run and is raised when these have ended too: ``asyncio.gather`` leaves
    them behind.
    """
    tasks = [asyncio.ensure_future(caught(work)) for work in works]
    try:
        return [_raised(outcome) for outcome in await asyncio.gather(*tasks)]
    except BaseException:
        await ended(tasks)
        raise


async def ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel ``tasks`` and wait until all have ended; whoever cancels the waiting cancels them once more."""
    again = False
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            # Once is enough: a second time would disturb its clean-up.
            if again or not task.cancelling():
                task.cancel()
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError:
            again = True
    for task in tasks:
        if not task.cancelled():
            task.exception()  # so that asyncio does not report it as lost
    if again:
        raise asyncio.CancelledError


def _raised(outcome: tuple[T | None, BaseException | None]) -> T:
    result, fatal = outcome
    if fatal is not None:
        raise fatal
    return result  # type: ignore[return-value]


class Threads:
    """Daemon threads for blocking calls: an idle one is reused, otherwise a new one starts, without a fixed bound.

    Nested blocking calls (a tool that calls a module that calls a tool) can therefore never wait for one another's
    threads. Threads are daemons, so a call that never returns cannot keep the process from ending.
    """

    def __init__(self, name: str = "rlm-dspy-worker") -> None:
        self._name = name
        self._reset()

    def _reset(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0
        self._busy = 0
        # Reentrant, because a finalizer that submits may run wherever Python collects, in here too.
        self._lock = threading.RLock()
        self._pid = os.getpid()

    @property
    def busy(self) -> int:
        """Calls that are running now."""
        return self._busy

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Start ``function(*args, **kwargs)`` in a thread, under a copy of the caller's context."""
        outcome: Future[T] = Future()

        def settle(result: T, failure: BaseException | None) -> None:
            if failure is not None:
                outcome.set_exception(failure)
            else:
                outcome.set_result(result)

        self._start(outcome.set_running_or_notify_cancel, functools.partial(function, *args, **kwargs), settle)
        return outcome

    def _start(
        self, wanted: Callable[[], bool], call: Callable[[], Any], settle: Callable[[Any, BaseException | None], None]
    ) -> None:
        """Run ``call`` in a thread if it is still ``wanted`` there, and give what came of it to ``settle``."""
        if self._pid != os.getpid():
            self._reset()
        context = contextvars.copy_context()

        def job() -> None:
            if not wanted():
                return
            result = failure = None
            with self._lock:
                self._busy += 1
            try:
                result = context.run(call)
            except BaseException as error:
                failure = error
            with self._lock:
                self._busy -= 1
            if isinstance(failure, StopIteration):
                # A future cannot carry it to a coroutine; whoever awaits would wait for ever.
                stopped, failure = failure, RuntimeError(f"StopIteration: {failure}".rstrip(": "))
                failure.__cause__ = stopped
            settle(result, failure)

        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                self._work.put(job)
                return
        # A thread keeps its arguments as long as it lives, and a job the whole run that it was part of.
        threading.Thread(target=self._loop, args=([job],), name=self._name, daemon=True).start()

    def _loop(self, first: list[Callable[[], None]]) -> None:
        work = self._work
        job: Callable[[], None] | None = first.pop()
        while True:
            if job is not None:
                job()
                job = None
            with self._lock:
                # Only now: a callback of the result may itself wait for a call, which must not be given to this thread.
                self._idle += 1
            try:
                job = work.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    # _idle counts waiting threads less queued jobs: at zero, one of the jobs is this thread's.
                    if self._idle > 0:
                        self._idle -= 1
                        return
                job = work.get()

    async def run(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Await ``function(*args, **kwargs)`` run in a thread; cancelling stops the waiting, not the thread."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[T] = loop.create_future()

        def wanted() -> bool:
            return not waiter.cancelled()

        def settle(result: T, failure: BaseException | None) -> None:
            # Straight to the loop: a future of threads in between would cost as much again as the way itself.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, waiter, result, failure)

        self._start(wanted, functools.partial(function, *args, **kwargs), settle)
        return await waiter


def _settle(waiter: asyncio.Future[T], result: T, failure: BaseException | None) -> None:
    if waiter.done():
        return
    if failure is not None:
        waiter.set_exception(failure)
    else:
        waiter.set_result(result)


threads = Threads()
"""Process-wide instance; `Threads` grows on demand, so sharing one bounds nothing."""

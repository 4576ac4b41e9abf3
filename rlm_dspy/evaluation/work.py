"""Many calls at once: a few threads, items taken only as they are needed, and a stop that loses nothing.

Items come from an iterator that may be far larger than memory; at most one more than there are threads is held here.
"""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from rlm_dspy._signals import patience
from rlm_dspy.errors import ConfigurationError

__all__ = ["Stop", "check_threads", "finished"]

T = TypeVar("T")
R = TypeVar("R")

_PATIENCE = 15.0
"""Seconds that calls which were given up have to clean up after themselves."""


class Stop:
    """A request to end a job. From any thread, and from signal handlers.

    Attributes:
        reason: Why no more items are begun; None while they are.
        given_up: The calls under way are given up too.
        out_of_money: The job's money is spent: RLMs under way end where they are.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.given_up = False
        self.out_of_money = False
        self._cancels: dict[int, Callable[[], Any]] = {}
        self._strikes: dict[int, Callable[[], Any]] = {}
        self._numbers = iter(range(2**62))

    def ask(self, reason: str) -> None:
        """Begin no more items; the first reason counts."""
        if self.reason is None:
            self.reason = reason

    def give_up(self, reason: str) -> None:
        """Also cancel what is under way."""
        self.ask(reason)
        self.given_up = True
        for cancel in list(self._cancels.values()):
            cancel()

    def spent(self, reason: str) -> None:
        """Also stop what can be stopped and spends money."""
        self.ask(reason)
        self.out_of_money = True
        for strike in list(self._strikes.values()):
            strike()

    def cancelling(self, cancel: Callable[[], Any]) -> contextlib.AbstractContextManager[None]:
        """Have ``cancel`` called when the calls under way are given up, while this is on."""
        return self._called(self._cancels, cancel, lambda: self.given_up)

    def striking(self, strike: Callable[[], Any]) -> contextlib.AbstractContextManager[None]:
        """Have ``strike`` called when the money is spent, while this is on."""
        return self._called(self._strikes, strike, lambda: self.out_of_money)

    @contextlib.contextmanager
    def _called(
        self, table: dict[int, Callable[[], Any]], function: Callable[[], Any], already: Callable[[], bool]
    ) -> Iterator[None]:
        number = next(self._numbers)
        table[number] = function
        try:
            if already():
                function()
            yield
        finally:
            table.pop(number, None)


def check_threads(threads: Any) -> int:
    """``threads``, a whole number of at least 1.

    Raises:
        ConfigurationError: It is not.
    """
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ConfigurationError(f"threads must be a whole number of at least 1, not {threads!r}")
    return threads


def finished(
    items: Iterable[T],
    work: Callable[[T], R],
    threads: int,
    stop: Stop,
    ready: Callable[[], bool] = lambda: True,
) -> Iterator[tuple[T, R]]:
    """Each item with what ``work`` made of it, in the order in which they end.

    Args:
        items: Taken one at a time, when a thread is free.
        work: Called in a thread with a copy of this context; what it raises is raised here, after the others ended.
        threads: How many at once.
        stop: Ends it early; what was begun comes to its end unless it is given up.
        ready: Asked before an item is taken; where it says no, it is asked again when another one has ended.

    An iterator that is closed, or left by an exception such as KeyboardInterrupt, gives up what is under way.
    """
    crew = _Crew(work)
    source = iter(items)
    more = True
    failure: BaseException | None = None
    ended = False
    # Who waits for the next one that ends is woken to wait no longer than there is patience.
    with stop.cancelling(crew.wake):
        try:
            while True:
                while more and failure is None and stop.reason is None and crew.under_way < threads and ready():
                    try:
                        crew.put(next(source))
                    except StopIteration:
                        more = False
                    except Exception as error:  # what was begun still comes to its end, and is given out first
                        failure = error
                # One that is given up and does not end, such as code without an await, is left behind.
                done = crew.get(_PATIENCE if stop.given_up else None)
                if done is None:
                    break
                item, result, raised = done
                if raised is not None:
                    failure = failure or raised
                elif item is not _NOTHING:
                    yield item, result
            ended = True
            if failure is not None:
                raise failure
        finally:
            if not ended:
                stop.give_up("interrupted")
            crew.close(0.0 if stop.given_up and ended else _PATIENCE)


_NOTHING: Any = object()


class _Crew:
    """Threads that do the same work on different items; as many as there were items at once."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.under_way = 0
        self._work = work
        self._todo: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Any, Any, BaseException | None]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def put(self, item: Any) -> None:
        """Have a thread work on ``item``."""
        if self.under_way == len(self._threads):
            context = contextvars.copy_context()
            name = f"rlm-dspy-job-{len(self._threads)}"
            thread = threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._todo.put(item)
        self.under_way += 1

    def get(self, timeout: float | None) -> tuple[Any, Any, BaseException | None] | None:
        """An item with its result or error, the next that ends, or nothing at all after `wake`; None where none is
        under way, or none ends in time."""
        if not self.under_way:
            return None
        while True:
            try:
                done = self._done.get(timeout=patience() if timeout is None else timeout)
                break
            except queue.Empty:
                if timeout is not None:
                    return None
        self.under_way -= done[0] is not _NOTHING
        return done

    def wake(self) -> None:
        """Let `get` return."""
        self._done.put((_NOTHING, None, None))

    def close(self, patience: float) -> None:
        """Let idle threads end, and wait for them."""
        for _ in self._threads:
            self._todo.put(_NOTHING)
        for thread in self._threads:
            thread.join(patience)

    def _run(self) -> None:
        while (item := self._todo.get()) is not _NOTHING:
            try:
                self._done.put((item, self._work(item), None))
            except BaseException as error:
                self._done.put((item, None, error))
            # Nothing is held on to while there is nothing to do.
            item = None

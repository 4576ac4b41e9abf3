"""Ctrl-C while a run is on: first the best answer so far, then giving up, then leaving at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from rlm_dspy import events as ev
from rlm_dspy.cli import exits
from rlm_dspy.run import Run

MESSAGE = "stopping: asking for the best answer so far (Ctrl-C again to give up)"


class Interrupts:
    """Turns signals into requests to the run.

    The first SIGINT asks the run to stop, the second one, or SIGTERM, cancels it, so that it cleans up after itself.
    A third one leaves the process at once; the sandbox does not outlive it.

    Args:
        say: Shows a message to the user.

    Attributes:
        count: Signals so far.
    """

    def __init__(self, say: Callable[[str], Any]) -> None:
        self.count = 0
        self._say = say
        self._run: Run | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def subscriber(self, event: ev.Event, run: Run) -> None:
        """An `rlm_dspy.events.Subscriber` that learns which run is to be stopped."""
        if event.depth == 0 and isinstance(event, ev.RunStarted):
            self._run = run
        elif event.depth == 0 and isinstance(event, ev.RunEnded):
            self._run = None

    @contextlib.contextmanager
    def watching(self, task: asyncio.Task[Any]) -> Iterator[None]:
        """Handle signals while ``task`` is on. Only the main thread gets signals; elsewhere this does nothing."""
        self._loop, self._task = task.get_loop(), task
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # Not loop.add_signal_handler: it waits for the loop, and a blocked loop is when Ctrl-C is needed most.
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 2:
            _leave()
        give_up = number == signal.SIGTERM or self.count > 1
        if give_up:
            self.count = max(self.count, 2)
        if self._loop is not None:
            # Nothing is done here: the signal may have struck anywhere, in the middle of a print too.
            self._loop.call_soon_threadsafe(self._give_up if give_up else self._stop)

    def _stop(self) -> None:
        if self._run is None:
            self._give_up()
            return
        self._say(MESSAGE)
        self._run.request_stop("interrupted")

    def _give_up(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _leave() -> None:
    with contextlib.suppress(OSError):
        if os.isatty(2):
            # The live display hides the cursor while it is on.
            os.write(2, b"\x1b[?25h\n")
    os._exit(exits.INTERRUPTED)

"""What is shown while bytes come in or are hashed: a bar on a terminal, now and then a line elsewhere, on stderr."""

from __future__ import annotations

import sys
import time
from typing import Any

_LINE_SECONDS = 10.0
_LINE_PARTS = 10


class Progress:
    """Shows how far a task of known size is; several tasks may follow one another.

    Args:
        quiet: Show nothing at all.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet or sys.stderr is None
        self._bar: Any = None
        self._task: Any = None
        self._what = ""
        self._total = 0
        self._steps = True
        self._began = self._said = 0.0
        self._first = self._done = self._said_at = 0

    def say(self, text: str) -> None:
        """One line of text."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def start(self, what: str, total: int, done: int = 0, *, steps: bool = True) -> None:
        """Begin a task of ``total`` bytes of which ``done`` are done already.

        Args:
            what: Its name.
            total: Its size in bytes.
            done: How much of it was done before.
            steps: Where there is no bar, a line for each tenth; else only now and then.
        """
        self.close()
        self._what, self._total, self._done, self._steps = what, total, done, steps
        self._first = self._said_at = done
        self._began = self._said = time.monotonic()
        if not self._quiet and sys.stderr.isatty():
            self._open_bar()

    def update(self, done: int) -> None:
        """So many bytes of the task are done now."""
        self._done = min(max(done, self._done), self._total)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        elif not self._quiet:
            far = self._steps and self._done - self._said_at >= self._total / _LINE_PARTS
            if self._done > self._said_at and (far or time.monotonic() - self._said >= _LINE_SECONDS):
                self._line()

    def advance(self, count: int) -> None:
        """``count`` more bytes are done."""
        self.update(self._done + count)

    def close(self) -> None:
        """End the task, and leave the terminal as it was."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def _line(self) -> None:
        now = time.monotonic()
        speed = (self._done - self._first) / max(now - self._began, 1e-3)
        self._said, self._said_at = now, self._done
        print(
            f"{self._what}: {self._done / 1e6:,.0f} of {self._total / 1e6:,.0f} MB "
            f"({100 * self._done // max(self._total, 1)} %), {speed / 1e6:,.1f} MB/s",
            file=sys.stderr,
            flush=True,
        )

    def _open_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bar = Bar(TextColumn("{task.description}"), *columns, console=Console(stderr=True))
        self._bar.start()
        self._task = self._bar.add_task(self._what, total=self._total, completed=self._done)

"""Where lines for a person go: a terminal with a live area below them, or any stream, line by line.

Text given to a `Screen` may hold anything: control characters are written out before they can reach a terminal, and
nothing in it is read as markup. Runs that are shown at the same time on one stream share one `Screen`, since a
terminal can have one live area only.
"""

from __future__ import annotations

import atexit
import threading
import time
from typing import Any, TextIO

from rlm_dspy.live_area import ASCII_BRANCHES, ASCII_FRAMES, BRANCHES, FRAMES, Row, area
from rlm_dspy.render import printable

_REFRESH_SECONDS = 0.125
_HEIGHT = 14
"""Lines of the live area at most."""


class Screen:
    """A stream for a person, written line by line and flushed after each. Thread-safe.

    Once the stream fails (its reader has gone, it was closed) everything more is dropped: showing what a run does must
    never end the run.

    Args:
        stream: Written to as text.
    """

    live = False
    """True if `rows` are shown and kept up to date."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        self.shared = False
        self.users = 0
        self.rows: tuple[Row, ...] = ()
        self.lock = threading.RLock()
        self._broken = False

    def line(self, text: str, style: str = "", indent: int = 0, prefix: str = "") -> None:
        """Append ``text``, which may hold line breaks.

        Args:
            text: Any text.
            style: A rich style such as ``"red"``; ignored where there is no colour.
            indent: Columns to the left of it.
            prefix: What stands before each of its lines, also before those that a terminal makes of a long one.
        """
        self._put(lambda: self._line(self.safe(text), style, indent, self.safe(prefix)))

    def code(self, text: str, indent: int = 0, prefix: str = "") -> None:
        """Append Python source, highlighted where there is colour, each of its lines behind ``prefix``."""
        self._put(lambda: self._code(self.safe(text), indent, self.safe(prefix)))

    def add(self, row: Row) -> None:
        """Show ``row`` in the live area, where there is one."""
        with self.lock:
            self.rows = (*self.rows, row)
            self._put(self._rows_changed)

    def remove(self, row: Row) -> None:
        """Take ``row`` out of the live area."""
        with self.lock:
            self.rows = tuple(r for r in self.rows if r is not row)
            self._put(self._rows_changed)

    def close(self) -> None:
        """Leave the stream as it was found. Idempotent."""
        with self.lock:
            self.rows = ()
            self._put(self._rows_changed)

    def safe(self, text: str) -> str:
        """``text`` that this stream can show, whatever its encoding."""
        return printable(text).encode(self.encoding, "backslashreplace").decode(self.encoding)

    def _put(self, write: Any) -> None:
        with self.lock:
            if self._broken:
                return
            try:
                write()
            except (OSError, ValueError):
                self._broken = True

    def _line(self, text: str, style: str, indent: int, prefix: str = "") -> None:
        pad = prefix + " " * indent
        self.stream.write("".join(f"{pad}{line}".rstrip() + "\n" for line in text.split("\n")))
        self.stream.flush()

    def _code(self, text: str, indent: int, prefix: str) -> None:
        self._line(text, "", indent, prefix)

    def _rows_changed(self) -> None:
        pass


class TerminalScreen(Screen):
    """A terminal: colour as far as it has any, and a live area that is gone when the last row is.

    Args:
        stream: The terminal.
        live: Whether to keep a live area.
        color: False for none; None leaves the choice to the terminal and ``NO_COLOR``.
    """

    def __init__(self, stream: TextIO, *, live: bool, color: bool | None = None) -> None:
        from rich.console import Console

        super().__init__(stream)
        self._console = Console(
            file=stream,
            force_terminal=True,
            force_jupyter=False,
            no_color=True if color is False else None,
            markup=False,
            emoji=False,
            highlight=False,
        )
        self.live = live and not self._console.is_dumb_terminal
        plain = self.safe(FRAMES + "".join(BRANCHES)) != FRAMES + "".join(BRANCHES)
        self._frames, self._branches = (ASCII_FRAMES, ASCII_BRANCHES) if plain else (FRAMES, BRANCHES)
        self._live: Any = None
        self._stopped = threading.Event()

    def _line(self, text: str, style: str, indent: int, prefix: str = "") -> None:
        from rich.padding import Padding
        from rich.text import Text

        body = Text(text, style=style, overflow="fold")
        if prefix:
            self._behind(prefix, indent, body)
            return
        self._console.print(Padding(body, (0, 0, 0, indent), expand=False) if indent else body)

    def _behind(self, prefix: str, indent: int, body: Any) -> None:
        """Print ``body``, each line of the screen behind ``prefix``."""
        from rich.text import Text

        room = max(8, self._console.width - len(prefix) - indent)
        before = Text(f"{prefix}{' ' * indent}", style=body.style)
        pieces = [p for line in body.split("\n") for p in (line.wrap(self._console, room, overflow="fold") or [line])]
        text = Text("\n").join(before.copy().append_text(piece) for piece in pieces)
        self._console.print(text, no_wrap=True, overflow="ignore", crop=False)

    def _code(self, text: str, indent: int, prefix: str) -> None:
        from rich.padding import Padding
        from rich.syntax import Syntax

        body = Syntax(text, "python", theme="ansi_dark", background_color="default", word_wrap=True)
        if not prefix:
            self._console.print(Padding(body, (0, 0, 0, indent)))
            return
        self._behind(prefix, indent, body.highlight(text))

    def _rows_changed(self) -> None:
        if not self.live:
            return
        if self.rows and self._live is None:
            import sys

            from rich.live import Live

            # Others' prints must go above the live area, but only where they would reach this terminal anyway.
            self._stopped = threading.Event()
            self._live = Live(
                console=self._console,
                get_renderable=self._area,
                transient=True,
                auto_refresh=False,
                redirect_stdout=bool(sys.stdout and sys.stdout.isatty()),
                redirect_stderr=bool(sys.stderr and sys.stderr.isatty()),
            )
            # A process that ends in the middle of a run would leave the terminal without its cursor.
            atexit.register(self.close)
            self._live.start()
            threading.Thread(target=self._refresh, args=(self._live, self._stopped), daemon=True).start()
        elif not self.rows and self._live is not None:
            live, self._live = self._live, None
            atexit.unregister(self.close)
            self._stopped.set()
            live.stop()

    def _refresh(self, live: Any, stopped: threading.Event) -> None:
        # Rich's own thread writes at the same time as others print, and then leaves parts of the area behind.
        while not stopped.wait(_REFRESH_SECONDS):
            with self.lock:
                if self._live is not live:
                    return
                self._put(live.refresh)

    def _area(self) -> Any:
        # Also called where others print, under rich's lock: taking ours here could deadlock with a writer.
        from rich.text import Text

        frame = self._frames[int(time.monotonic() * 10) % len(self._frames)]
        # One line of the terminal stays for what is above.
        height = max(1, min(_HEIGHT, self._console.height - 1))
        text = Text(overflow="ellipsis", no_wrap=True, end="")
        for number, (line, style) in enumerate(area(self.rows, height, frame, self._branches)):
            text.append("\n" if number else "")
            text.append(self.safe(line), style=style)
        return text


_open: dict[int, Screen] = {}
_open_lock = threading.Lock()


def acquire(stream: TextIO, *, live: bool | None = None, color: bool | None = None) -> Screen:
    """The screen on ``stream``, shared with the runs that are being shown there now; give it back with `release`.

    Args:
        stream: Where to write.
        live: Whether to treat it as a terminal with a live area; None asks the stream.
        color: False for no colour; None leaves the choice to the terminal and ``NO_COLOR``.
    """
    # While a live area is up, rich has put a proxy of its own in the place of sys.stderr.
    stream = getattr(stream, "rich_proxied_file", stream)
    with _open_lock:
        screen = _open.get(id(stream))
        if screen is None:
            try:
                terminal = bool(stream.isatty())
            except (AttributeError, ValueError):
                terminal = False
            if live or terminal:
                screen = TerminalScreen(stream, live=live is not False, color=color)
            else:
                screen = Screen(stream)
            _open[id(stream)] = screen
        screen.users += 1
        screen.shared = screen.shared or screen.users > 1
        return screen


def release(screen: Screen) -> None:
    """Give back what `acquire` gave; the last one to do so closes it."""
    with _open_lock:
        screen.users -= 1
        last = screen.users == 0
        if last:
            _open.pop(id(screen.stream), None)
    if last:
        screen.close()

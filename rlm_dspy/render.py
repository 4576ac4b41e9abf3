"""Texts for people, and trajectories as a rich table for terminals. Their pages are made by `rlm_dspy.pages`."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlm_dspy.trajectory import Turn

_SHOWN = 4_000
_HARMLESS = frozenset("\n\t\u200c\u200d") | {c for c in map(chr, range(0x3001)) if unicodedata.category(c) == "Zs"}


def shorten(text: str, limit: int) -> str:
    """``text`` with its middle cut so that at most ``limit`` characters of it are left, and a note of how many went."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    return f"{text[:head]}\n… {len(text) - limit:,} characters left out …\n{text[len(text) - tail :]}"


def one_line(text: str, limit: int = 80) -> str:
    """The beginning of ``text`` on one line of at most ``limit`` characters."""
    line = " ".join(text[: limit * 4].split())
    return line if len(line) <= limit and len(text) <= limit * 4 else line[: limit - 1] + "…"


def brief(error: str, limit: int = 300) -> str:
    """The text of an error as one line for people: its first paragraph, without a fix that stands behind it.

    Where a reply could not be read, which DSPy tells with all of the reply, how that begins.
    """
    if error.startswith("AdapterParseError"):
        _, there, reply = error.partition("LM Response:")
        said = one_line(reply.strip(), 100)
        return f"a reply of the model was not in the form that it was asked for{f': {said!r}' if there else ''}"
    lines = error.strip().split("\n\n")[0].split("\n")
    return one_line(" ".join(line for line in lines if not line.startswith("Fix: ")), limit)


def printable(text: str) -> str:
    """``text`` with lone surrogates and control characters written out, so that any stream can show it.

    Control characters are those that act on a terminal or turn the order of text round; spaces of other scripts and
    the joiners of emoji and of Indic and Arabic writing stay.
    """
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c.isprintable() or c in _HARMLESS else repr(c)[1:-1] for c in text)


def trajectory_table(turns: Sequence[Turn]) -> Any:
    """A `rich.table.Table` with a row a turn: number, what it did, what came back."""
    from rich.syntax import Syntax
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True, expand=True)
    table.add_column("turn", justify="right", no_wrap=True)
    table.add_column("code", ratio=1)
    table.add_column("output", ratio=1)
    for turn in turns:
        style = "red" if turn.error else ""
        table.add_row(
            Text(f"{turn.number}\n{turn.seconds:.1f} s", style=style),
            Syntax(printable(shorten(turn["code"], _SHOWN)), "python", word_wrap=True, background_color="default"),
            Text(printable(shorten(turn["output"], _SHOWN)), style=style),
        )
    return table

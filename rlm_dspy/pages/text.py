"""Texts on a page: escaped, and bounded as a whole, so that a run of any size gives a page that opens."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass, field

from rlm_dspy.redact import redactor
from rlm_dspy.render import one_line, printable, shorten

_LEAST = 200


@dataclass
class Texts:
    """Escapes and shortens the texts of one page, and takes the secrets that are known out of them.

    Attributes:
        each: Characters of one text that are shown.
        total: Characters of all of them; once they are used up, texts are shown in short.
    """

    each: int
    total: int
    _hide: Callable[[str], str] = field(default_factory=redactor, repr=False)

    def fresh(self) -> Texts:
        """The same bounds, for another page."""
        return Texts(self.each, self.total)

    def block(self, text: str) -> str:
        """A text of many lines; where it is long, its head and tail."""
        shown = shorten(text, min(self.each, max(_LEAST, self.total)))
        self.total -= len(shown)
        return self.line(shown)

    def brief(self, text: str, limit: int = 120) -> str:
        """The beginning of a text, on one line."""
        return self.line(one_line(text, limit))

    def line(self, text: str) -> str:
        """All of a short text."""
        return html.escape(printable(self._hide(text)))


def seconds(value: float) -> str:
    """A duration for people."""
    if value < 0.0995:
        return f"{value * 1000:.0f} ms" if value >= 0.0005 else "0 s"
    return f"{value:.1f} s" if value < 120 else f"{int(value // 60)} min {value % 60:02.0f} s"


def money(value: float) -> str:
    """US dollars for people."""
    if 0 < value < 1e-4:
        return "< $0.0001"
    return "$0" if value == 0 else f"${value:,.2f}" if value >= 0.1 else f"${value:#.2g}"


def count(number: int, what: str, many: str = "") -> str:
    """``1 turn``, ``2 turns``."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"


def tokens(number: int) -> str:
    """A number of tokens for people."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)

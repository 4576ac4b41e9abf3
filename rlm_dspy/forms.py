"""How a text is written: prose, CSV, JSON lines, columns or records of its own."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter

from rlm_dspy.passages import WIDTH
from rlm_dspy.signatures.contract import Form
from rlm_dspy.tables import table

_LINES = 20
_PAIR = re.compile(r"\w=[^=\s]")


def form(text: str) -> Form:
    """How ``text`` is written, as far as a few places of it tell; what is nothing else is records."""
    lines = text[:100_000].split("\n")[:2]
    if len(lines) == 2 and all(map(json_keys, lines)):
        return "json"
    if table(text) is not None:
        return "csv"
    votes = 0
    for at in (len(text) * (2 * n + 1) // 10 for n in range(5)):
        window = text[at : at + 1_000]
        marks = sum(window.count(mark) for mark in '={}|<>_\t"')
        digits = sum(character.isdigit() for character in window)
        sentences = len(re.findall(r"[^\W\d_][.!?][ \n]", window))
        votes += sentences >= 2 and marks < 15 and digits < 40
    if votes >= 3:
        return "prose"
    return "columns" if _has_columns(text) else "records"


def _has_columns(text: str) -> bool:
    """Whether most lines have the same number of words, and no ``key=value`` in them."""
    lines = [line_at(text, len(text) * (2 * n + 1) // (2 * _LINES)) for n in range(_LINES)]
    words = Counter(len(line.split()) for line in lines if len(line) <= 4 * WIDTH)
    number, alike = words.most_common(1)[0] if words else (0, 0)
    pairs = sum(_PAIR.search(line) is not None for line in lines)
    return number >= 4 and 2 * alike >= _LINES and 3 * pairs < _LINES


def json_keys(line: str) -> list[str]:
    """The keys of a line that is one JSON object, else nothing."""
    if line.startswith("{") and line.rstrip().endswith("}"):
        with contextlib.suppress(ValueError, RecursionError):
            return list(json.loads(line))
    return []


def line_at(text: str, at: int) -> str:
    """The first line with something in it that begins behind ``at``, or what stands at ``at`` in an endless one."""
    window = text[at : at + 8 * WIDTH]
    _, end, rest = window.partition("\n")
    rest = rest.lstrip("\n")
    return rest.split("\n", 1)[0] if end and rest else window

"""In which part of a record a word stands, so that code can ask for it there and nowhere else.

``'502'`` stands in many numbers of a log, and ``'status=502'`` in those lines that are meant; in JSON lines a word is
the value of one field. Said is what most of the lines with the word have in common, nothing where they have nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rlm_dspy.data import Data, values_of
from rlm_dspy.passages import line, occurrences

SAMPLED = 300
"""Lines with the word that are looked at."""

_NUMBERS = 3_000
"""Lines with a number that are looked at for those in which it stands by itself."""

_LEAST = 2
_MOST = 0.8
_SHOWN = 60
_EDGES = "\"'()[]{}<>,;"


@dataclass(frozen=True)
class Place:
    """Where a word usually stands.

    Attributes:
        unit: ``"field"`` of JSON and of records, ``"column"`` of CSV, ``"word"`` of a line split at spaces, ``"token"``
            without one.
        path: The keys, or the number, that lead to it; empty for a token.
        how: ``"number"`` or ``"whole"`` if the value is the word, ``"begins"`` or ``"part"`` if it has it in it.
        token: Of a token, the text that stands there.
        apart: Only a number that is no part of a longer one stands there.
    """

    unit: str
    path: tuple[str | int, ...]
    how: str
    token: str = ""
    apart: bool = False


def where(data: Data, word: str) -> str:
    """`place` as it follows the number of times, such as ``", mostly in the field 'svc'"``."""
    found = find(data, word)
    if found is None:
        return ""
    return f", {'by itself mostly' if found.apart else 'mostly'} {_said(found)}"


def place(data: Data, word: str) -> str:
    """Such as ``"as 'status=502'"`` or ``"in the field 'svc'"``, or ``""`` where ``word`` has no usual place.

    Args:
        data: Prose has no places.
        word: As it stands in the text of ``data``.
    """
    found = find(data, word)
    return "" if found is None else _said(found)


def _said(found: Place) -> str:
    if found.unit == "token":
        return f"as {found.token!r}"
    if found.unit == "word":
        return f"as word [{found.path[0]}]"
    name = "".join(f"[{key!r}]" for key in found.path) if len(found.path) > 1 else repr(found.path[0])
    return {
        "number": f"as a number in the {found.unit} {name}",
        "whole": f"in the {found.unit} {name}",
        "begins": f"at the beginning of the {found.unit} {name}",
        "part": f"in the text of the {found.unit} {name}",
    }[found.how]


def find(data: Data, word: str) -> Place | None:
    """Where ``word`` stands in nearly every line of ``data`` that has it, or None.

    Short numbers stand in longer ones too, by accident: where they do, it is where they stand by themselves.
    """
    if data.form == "prose":
        return None
    found = _find(data, word, itertools.islice(occurrences(data.text, word), SAMPLED))
    if not word.isdigit() or (found is not None and found.how != "part"):
        return found
    alone = _find(data, word, itertools.islice(occurrences(data.text, word), _NUMBERS), apart=True)
    return found if alone is None or alone == found else dataclasses.replace(alone, apart=True)


def _find(data: Data, word: str, places: Iterable[int], apart: bool = False) -> Place | None:
    text, form = data.text, data.form
    if form == "rows":
        return _field([_first_value(_plain(data.row_at(at)), word) for at in places], "field", apart)
    lines = [text[slice(*line(text, at))] for at in places]
    if form == "json":
        return _field([_first_value(_plain(_loaded(each)), word) for each in lines], "field", apart)
    if form == "csv" and (read := data.table) is not None:
        rows = (zip(read.columns, read.fields(each), strict=False) for each in lines)
        found = [_first_value((((name,), value) for name, value in row), word) for row in rows]
        return _field(found, "column", apart)
    if not apart:
        return _token(lines, re.compile(re.escape(word)))
    alone = re.compile(rf"(?<![\w.]){word}(?!\w|\.\d)")
    lines = [each for each in lines if alone.search(each)]
    return _token(lines, alone) if len(lines) >= _LEAST else None


def _field(found: list[tuple[tuple[str, ...], str] | None], unit: str, apart: bool) -> Place | None:
    if apart:
        found = [each for each in found if each is not None and each[1] in ("whole", "number")]
        if len(found) < _LEAST:
            return None
    best = _usual(found)
    return None if best is None else Place(unit, *best)


def _first_value(values: Iterable[tuple[tuple[str, ...], Any]], word: str) -> tuple[tuple[str, ...], str] | None:
    """The keys that lead to the value that has ``word``, and how it has it; the whole value before a part of one."""
    part = None
    for path, value in values:
        said = value if isinstance(value, str) else json.dumps(value)
        if said == word:
            return path, "whole" if isinstance(value, str) else "number"
        if part is None and isinstance(value, str) and word in value:
            part = path, "begins" if value.startswith(word) else "part"
    return part


def _loaded(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _plain(row: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The texts and numbers in an object and in the objects in it."""
    return ((path, value) for path, value in values_of(row) if isinstance(value, (str, int, float, bool)))


def _token(lines: list[str], pattern: re.Pattern[str]) -> Place | None:
    """The token with the word, or the number of it, where that is nearly always the same; else what stands before."""
    tokens, heads, numbers, word = [], [], [], ""
    for each in lines:
        found = ((n, token, match) for n, token in enumerate(each.split()) if (match := pattern.search(token)))
        number, token, match = next(found, (-1, "", None))
        word = match[0] if match else word
        tokens.append(token.strip(_EDGES) if len(token) <= _SHOWN else "")
        before = token[: match.start() if match else 0].lstrip(_EDGES)
        heads.append(before if len(before) <= _SHOWN else "")
        numbers.append(number if match and token == word else -1)
    token_, head, number = _usual(tokens), _usual(heads), _usual(numbers)
    if number is not None and number >= 0:
        return Place("word", (number,), "whole")
    if token_ and token_ != word:
        return Place("token", (), "part", token_)
    if head and not re.search(r"\d", head):
        return Place("token", (), "part", head + word)
    return None


def _usual(found: Iterable[Any]) -> Any:
    """What nearly all of ``found`` are, or None."""
    listed = list(found)
    value, number = Counter(listed).most_common(1)[0] if listed else (None, 0)
    return value if number >= _MOST * len(listed) else None

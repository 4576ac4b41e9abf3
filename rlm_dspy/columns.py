"""What the fields of records hold, one line a field: values and how often, or the range of numbers and dates.

Code that reads a CSV file's rows fails first on what a type says: all of its values are texts, numbers too. So a field
of such numbers says by what they become numbers, and how often it is empty.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlm_dspy.data import MOST_FIELDS, Data

CELLS = 2_000_000
"""Values that are looked at in all; of more records than that some, taken at random."""

FEW = 12
"""Different values of a field that are all listed."""

MOST = 3_500
"""Characters of all lines together, but for the names of fields that come after."""

_WIDTH = 60
_LINE = 420
_EXAMPLES = 3
_INNER = 8
_INT = re.compile(r"\s*[-+]?\d{1,18}\s*")
_FLOAT = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?\s*")
_GROUPED = re.compile(r"\s*[-+]?\d{1,3}(,\d{3})+(\.\d+)?\s*")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?\S{0,12}( ?UTC)?)?")


@dataclass(frozen=True)
class Numbers:
    """A field whose values are numbers written as text.

    Attributes:
        least, most: The range.
        call: Code that makes a number of ``value``, with ``{}`` in its place.
    """

    least: str
    most: str
    call: str


def numbers_in(texts: Sequence[str]) -> Numbers | None:
    """The numbers that all of ``texts`` are, or None."""
    if not texts:
        return None
    if all(map(_INT.fullmatch, texts)):
        return Numbers(min(texts, key=int).strip(), max(texts, key=int).strip(), "int({})")
    if all(map(_FLOAT.fullmatch, texts)):
        return Numbers(min(texts, key=float).strip(), max(texts, key=float).strip(), "float({})")
    if all(_GROUPED.fullmatch(text) or _FLOAT.fullmatch(text) for text in texts):
        least, most = min(texts, key=_grouped), max(texts, key=_grouped)
        return Numbers(least.strip(), most.strip(), "float({}.replace(',', ''))")
    return None


def _grouped(text: str) -> float:
    return float(text.replace(",", ""))


def column(data: Data, name: str) -> list[Any]:
    """The values of the field ``name``, None where there is none; of many records some, taken at random."""
    return _column(_some(data), name)


def _column(rows: Sequence[Any], name: str) -> list[Any]:
    return [row.get(name) if isinstance(row, dict) else None for row in rows]


def _some(data: Data) -> Sequence[Any]:
    """The records that are looked at, in their order; the same ones each time."""
    rows, most = data.rows or (), max(1, CELLS // max(1, len(data.fields)))
    if len(rows) <= most:
        return rows
    # Every nth would be misled by what comes round in them.
    return [rows[n] for n in sorted(random.Random(0).sample(range(len(rows)), most))]


def other_type(data: Data, name: str, value: Any) -> str | int | float | None:
    """The text for a number, or the number for a text, where only that is a value of the field ``name``; else None.

    ``row['items'] == 3`` is never true of a CSV file's rows, and ``row['items'] == '3'`` is.
    """
    try:
        values = set(column(data, name))
        if value in values:
            return None
        other: str | int | float | None = str(value)
        if isinstance(value, str):
            other = int(value) if _INT.fullmatch(value) else float(value) if _FLOAT.fullmatch(value) else None
        return other if other in values else None
    except TypeError:
        # The field holds lists or dicts.
        return None


def fields(data: Data) -> list[str]:
    """A heading and a line a field; bounded in length whatever the records hold."""
    rows = _some(data)
    lines: list[str] = []
    left = MOST
    texts = True
    for number, name in enumerate(data.fields):
        values = _column(rows, name)
        texts = texts and all(value is None or type(value) is str for value in values)
        described = _lines(rows, name, values)
        left -= sum(map(len, described))
        if left < 0:
            rest = ", ".join(_short(name) for name in data.fields[number:][:40])
            lines.append(f"and {len(data.fields) - number:,} more: {_cut(rest, 1_000)}")
            break
        lines += described
    some = f" in {len(rows):,} of them, taken at random" if len(rows) < len(data.rows or ()) else ""
    more = " (the first of many)" if len(data.fields) == MOST_FIELDS else ""
    head = f"Its fields{more}{some}{', all of them text' if texts and lines else ''}:"
    odd = sum(not isinstance(row, dict) for row in data.rows or ())
    note = [f"{odd:,} of its items are no dicts: if isinstance(row, dict)"] if odd else []
    return [head, *lines, *note]


def _lines(rows: Sequence[Any], name: str, values: list[Any]) -> list[str]:
    """The line of a field, and those of the fields of the dicts that it holds."""
    lacking = sum(isinstance(row, dict) and name not in row for row in rows)
    found = _described(f"row[{name!r}]", values, lacking)
    note = f"; {lacking:,} records have no such field: row.get({name!r})" if lacking else ""
    lines = [_cut(f"{_short(name)}: {found}{note}", _LINE)]
    inner = [value for value in values if isinstance(value, dict)]
    if len(inner) * 2 > len(values):
        for key in itertools.islice(dict.fromkeys(key for value in inner[:100] for key in value), _INNER):
            where = f"[{name!r}][{key!r}]"
            described = _described(f"row{where}", [value.get(key) for value in inner], 0)
            lines.append(_cut(f"{_cut(where, 2 * _WIDTH)}: {described}", _LINE))
    return lines


def _described(read: str, values: list[Any], lacking: int) -> str:
    """What ``values`` are, which the code ``read`` gives one by one."""
    there = [value for value in values if value is not None and value != ""]
    empty = len(values) - len(there) - lacking
    if not there:
        return "always empty"
    said = _of_kind(read, there, empty)
    if empty <= 0:
        return said
    return f"{said}; {'empty' if any(value == '' for value in values) else 'None'} {empty:,} times"


def _of_kind(read: str, there: list[Any], empty: int) -> str:
    kinds = set(map(type, there))
    if kinds <= {int, float}:
        return _numbers(there)
    if kinds == {bool}:
        return f"True {sum(there):,} times, False {len(there) - sum(there):,} times"
    if kinds == {dict}:
        keys = dict.fromkeys(key for value in there[:100] for key in value)
        return f"dicts with the keys {_cut(str(list(itertools.islice(keys, 20))), 300)}"
    if kinds == {list}:
        return f"lists of up to {max(map(len, there)):,}, such as {_short(max(there[:20], key=len))}"
    if kinds == {str}:
        return _texts(read, there, empty)
    names = sorted(kind.__name__ for kind in kinds)
    return f"{' and '.join(names[:4])}, such as {_short(there[0])}"


def _numbers(values: list[Any]) -> str:
    counts = Counter(values)
    if len(counts) <= FEW and len(counts) < len(values):
        return _counted(counts)
    finite = [value for value in values if value == value] or values
    return f"numbers, {_short(min(finite))} to {_short(max(finite))}"


def _texts(read: str, values: list[str], empty: int) -> str:
    counts = Counter(values)
    numbers = numbers_in(list(counts))
    if numbers is not None:
        how = f"{numbers.call.format(read)}{f' if {read}' if empty > 0 else ''}"
        listed = _counted(counts) if len(counts) <= FEW // 2 and len(counts) < len(values) else ""
        span = listed or f"{_short(numbers.least)} to {_short(numbers.most)}"
        return f"numbers as text, {span}; a number by {how}"
    if len(counts) <= FEW and len(counts) < len(values):
        return _counted(counts)
    if all(map(_DATE.fullmatch, counts)):
        return f"dates as text, {_short(min(counts))} to {_short(max(counts))}"
    frequent = counts.most_common(_EXAMPLES)
    if len(counts) == len(values):
        return f"all different, such as {', '.join(_short(value) for value, _ in frequent)}"
    most = ", ".join(f"{_short(value)} {number:,} times" for value, number in frequent)
    return f"{len(counts):,} different texts, most often {most}"


def _counted(counts: Counter[Any]) -> str:
    return ", ".join(f"{_short(value)} {number:,} times" for value, number in counts.most_common())


def _short(value: Any) -> str:
    if isinstance(value, str) and len(value) > _WIDTH:
        value = f"{value[:_WIDTH]} …"
    try:
        return _cut(repr(value), 2 * _WIDTH) if not isinstance(value, list) else _cut(repr(value[:5]), 2 * _WIDTH)
    except Exception:
        # An object in a list may have a representation that fails.
        return type(value).__name__


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} …"

"""What the fields of records hold, one line a field: values and how often, or the range of numbers and dates.

Code that reads a CSV file's rows fails first on what a type says: all of its values are texts, numbers too. So a field
of such numbers says by what they become numbers, and how often it is empty.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlm_dspy.data import MOST_FIELDS, Data

CELLS = 2_000_000
"""Values that are looked at in all; of more records than that some, evenly spread."""

FEW = 12
"""Different values of a field that are all listed."""

MOST = 3_500
"""Characters of all lines together, but for the names of fields that come after."""

_WIDTH = 60
_LINE = 420
_EXAMPLES = 3
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
        order = sorted(texts, key=int)
        return Numbers(order[0].strip(), order[-1].strip(), "int({})")
    if all(map(_FLOAT.fullmatch, texts)):
        order = sorted(texts, key=float)
        return Numbers(order[0].strip(), order[-1].strip(), "float({})")
    if all(_GROUPED.fullmatch(text) or _FLOAT.fullmatch(text) for text in texts):
        order = sorted(texts, key=lambda text: float(text.replace(",", "")))
        return Numbers(order[0].strip(), order[-1].strip(), "float({}.replace(',', ''))")
    return None


def column(data: Data, name: str) -> list[Any]:
    """The values of the field ``name``, None where there is none; of many records some, evenly spread."""
    rows = data.rows or ()
    most = max(1, CELLS // max(1, len(data.fields)))
    step = -(-len(rows) // most) or 1
    return [row.get(name) if isinstance(row, dict) else None for row in rows[::step]]


def fields(data: Data) -> list[str]:
    """A heading and a line a field; bounded in length whatever the records hold."""
    rows = data.rows or ()
    step = -(-len(rows) // max(1, CELLS // max(1, len(data.fields)))) or 1
    lines: list[str] = []
    left = MOST
    texts = True
    for number, name in enumerate(data.fields):
        values = column(data, name)
        texts = texts and all(value is None or type(value) is str for value in values)
        line = _cut(f"{_short(name)}: {_described(name, values)}", _LINE)
        left -= len(line)
        if left < 0:
            rest = ", ".join(_short(name) for name in data.fields[number:][:40])
            lines.append(f"and {len(data.fields) - number:,} more: {_cut(rest, 1_000)}")
            break
        lines.append(line)
    some = f" in every {step:,}th of them" if step > 1 else ""
    more = " (the first of many)" if len(data.fields) == MOST_FIELDS else ""
    head = f"Its fields{more}{some}{', all of them text' if texts and lines else ''}:"
    odd = sum(not isinstance(row, dict) for row in rows)
    note = [f"{odd:,} of its items are no dicts: if isinstance(row, dict)"] if odd else []
    return [head, *lines, *note]


def _described(name: str, values: list[Any]) -> str:
    kinds = Counter(map(type, values))
    there = [value for value in values if value is not None and value != ""] if kinds else []
    empty = len(values) - len(there)
    said = _of_kind(name, there, empty)
    if not empty:
        return said
    if not there:
        return "always empty"
    what = "None" if not kinds.get(str, 0) else "empty"
    return f"{said}; {what} {empty:,} times"


def _of_kind(name: str, there: list[Any], empty: int) -> str:
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
        return _texts(name, there, empty)
    if not kinds:
        return ""
    names = sorted(kind.__name__ for kind in kinds)
    return f"{' and '.join(names[:4])}, such as {_short(there[0])}"


def _numbers(values: list[Any]) -> str:
    counts = Counter(values)
    if len(counts) <= FEW and len(counts) < len(values):
        return _counted(counts)
    finite = [value for value in values if value == value] or values
    return f"numbers, {_short(min(finite))} to {_short(max(finite))}"


def _texts(name: str, values: list[str], empty: int) -> str:
    counts = Counter(values)
    numbers = numbers_in(list(counts))
    if numbers is not None:
        guard = f" if row[{name!r}]" if empty else ""
        how = f"{numbers.call.format(f'row[{name!r}]')}{guard}"
        listed = _counted(counts) if len(counts) <= FEW and len(counts) < len(values) else ""
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

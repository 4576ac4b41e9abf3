"""A large input as the aids for small models see it: a text, or records, which are looked at as one line each.

Records are a list of dicts, such as the rows of a CSV file. The line of one is its values, not its keys: a word that is
the name of a field stands in none of them. The aids look for words in these lines as they do in those of a text.
"""

from __future__ import annotations

import bisect
import itertools
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from rlm_dspy.forms import form, json_keys
from rlm_dspy.passages import SEARCHED, WIDTH, Span, cut
from rlm_dspy.signatures.contract import SHORT, Form
from rlm_dspy.tables import Table, table

SAMPLED = 200
"""Items that are looked at to tell whether a list holds records."""

MOST_FIELDS = 100
ROW = 600
"""Characters that are shown of one record, about."""

_VALUE = 80
_ITEMS = 50
_DEEP = 2
_NESTED = reprlib.Repr()
_NESTED.maxlevel = 3
_NESTED.maxlist = _NESTED.maxtuple = _NESTED.maxset = _NESTED.maxfrozenset = 5
_NESTED.maxdict = 8
_NESTED.maxstring = _NESTED.maxother = _NESTED.maxlong = _VALUE


def is_records(value: Any) -> bool:
    """Whether ``value`` is a list of dicts with names as keys, as far as a few of its items tell; nine in ten do."""
    if not isinstance(value, (list, tuple)) or not value:
        return False
    items = value[:: max(1, len(value) // SAMPLED)]
    records = sum(isinstance(item, dict) and all(type(key) is str for key in item) for item in items)
    return 10 * records >= 9 * len(items)


def values_of(row: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of a dict and of the dicts in it, with the keys that lead to each."""
    if isinstance(row, dict):
        for key, value in row.items():
            if isinstance(value, dict) and len(path) < _DEEP:
                yield from values_of(value, (*path, key))
            else:
                yield (*path, key), value


class Data:
    """One input.

    Args:
        name: The variable.
        value: A text, or records; what is none of these counts as an empty text.

    Attributes:
        rows: The records, or None for a text.
    """

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.rows: Sequence[Any] | None = value if is_records(value) else None
        self._given = value if isinstance(value, str) else ""

    @cached_property
    def size(self) -> int:
        """Characters, of records about; told without going through them."""
        if self.rows is None:
            return len(self._given)
        some = self.rows[:: max(1, len(self.rows) // 20)]
        return sum(map(_length, some)) * len(self.rows) // len(some)

    @property
    def large(self) -> bool:
        """Whether the root is shown no more than a part of it."""
        return self.size > SHORT

    @cached_property
    def text(self) -> str:
        """What words are looked for in: the text, or a line of values each record."""
        return self._given if self.rows is None else "\n".join(self._lines)

    @cached_property
    def _lines(self) -> list[str]:
        lines: list[str] = []
        # In what is longer nothing is looked for, whatever it is.
        left = SEARCHED if self.size <= 4 * SEARCHED else -1
        for row in self.rows or ():
            if left < 0:
                return [" " * (SEARCHED + 1)]
            lines.append(_line(row))
            left -= len(lines[-1]) + 1
        return lines

    @cached_property
    def _starts(self) -> list[int]:
        return list(itertools.accumulate((len(line) + 1 for line in self._lines), initial=0))

    @cached_property
    def form(self) -> Form:
        """How it is written."""
        return form(self._given) if self.rows is None else "rows"

    @cached_property
    def table(self) -> Table | None:
        """What divides its fields and what they are called, where it is a text of CSV."""
        return table(self._given) if self.rows is None else None

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields of records, JSON lines or CSV, else none."""
        if self.rows is None:
            return self.table.columns if self.table else tuple(json_keys(self._given[:10_000].partition("\n")[0]))
        # Not of all: a name that only few records have is rarely what is asked for.
        some = itertools.chain(self.rows[:SAMPLED], self.rows[:: max(1, len(self.rows) // SAMPLED)])
        keys = dict.fromkeys(key for row in some if isinstance(row, dict) for key in row)
        return tuple(itertools.islice((key for key in keys if type(key) is str), MOST_FIELDS))

    @property
    def unit(self) -> str:
        """What one passage of it is called: a sentence, a record or a line."""
        return {"prose": "sentence", "rows": "record"}.get(self.form, "line")

    def row_at(self, at: int) -> Any:
        """The record whose line the character ``at`` of the text is in; None for a text."""
        number = bisect.bisect_right(self._starts, at) - 1 if self.rows is not None else -1
        return self.rows[number] if self.rows is not None and 0 <= number < len(self.rows) else None

    def passage(self, span: Span, words: Sequence[str] = ()) -> str:
        """What stands at ``span`` as the root is shown it: a line or sentence as it is, a record as Python writes it.

        Of what is too long the part round the first of ``words`` in it.
        """
        return cut(self.text, span, words) if self.rows is None else shown(self.row_at(span[0]), words)


def largest(inputs: Mapping[str, Any]) -> Data:
    """The largest text or records of ``inputs``; an empty text without a name where there is none."""
    datas = (Data(name, value) for name, value in inputs.items() if isinstance(value, str) or is_records(value))
    return max(datas, key=lambda data: data.size, default=Data("", ""))


def shown(row: Any, words: Sequence[str] = ()) -> str:
    """One record as Python writes it; its long values cut, round the first of ``words`` where one has some."""
    if not isinstance(row, dict):
        return _value(row, words)
    parts: list[str] = []
    left = ROW
    for key, value in row.items():
        parts.append(f"{_value(key, ())}: {_value(value, words)}")
        left -= len(parts[-1]) + 2
        if left < 0 and len(parts) < len(row):
            parts.append(f"… {len(row) - len(parts):,} more fields")
            break
    return f"{{{', '.join(parts)}}}"


def _value(value: Any, words: Sequence[str], deep: int = _DEEP) -> str:
    if isinstance(value, dict) and deep:
        # In its own order, which reprlib does not keep.
        pairs = itertools.islice(value.items(), _NESTED.maxdict)
        inner = [f"{_value(key, (), 0)}: {_value(item, words, deep - 1)}" for key, item in pairs]
        return f"{{{', '.join([*inner, *['…'] * (len(value) > len(inner))])}}}"
    if not isinstance(value, str):
        return _NESTED.repr(value)
    if len(value) <= _VALUE:
        return repr(value)
    lower = value[: 4 * WIDTH * WIDTH].lower()
    at = min((found for word in words if (found := lower.find(word.lower())) >= 0), default=0)
    begin = max(0, at - _VALUE // 2) if at + _VALUE // 2 > _VALUE else 0
    return repr(f"{'… ' * bool(begin)}{value[begin : begin + _VALUE]}{' …' * (begin + _VALUE < len(value))}")


def _line(row: Any) -> str:
    if not isinstance(row, dict):
        return _flat(row)
    try:
        # The values of a CSV file are texts; to ask each one what it is takes several times as long.
        line = "\t".join(row.values())
    except TypeError:
        line = "\t".join(_flat(value) for _, value in values_of(row) if value is not None)
    return line.replace("\n", " ") if "\n" in line else line


def _flat(value: Any) -> str:
    if isinstance(value, (str, int, float)) or (isinstance(value, (list, tuple)) and len(value) <= _ITEMS):
        try:
            text = str(value)
        except ValueError:
            # Python refuses to write out an integer of many thousand digits.
            return ""
    else:
        plain = not isinstance(value, (dict, set, frozenset, list, tuple))
        text = _plain(value) if plain else _NESTED.repr(value)
    return text.replace("\n", " ")


def _plain(value: Any) -> str:
    """The text of a date, a decimal and the like; ``""`` for an object that has none of its own."""
    return str(value) if type(value).__module__ in ("datetime", "decimal", "uuid", "fractions") else ""


def _length(row: Any) -> int:
    if not isinstance(row, dict):
        return len(row) if isinstance(row, str) else 8
    return sum(len(key) + 6 + (len(value) if isinstance(value, str) else 8) for key, value in row.items())

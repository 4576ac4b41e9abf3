"""Whether a text is CSV, and of which columns."""

from __future__ import annotations

import csv
from dataclasses import dataclass

_DELIMITERS = ",;\t|"
_SEEN = 100_000
_LINES = 20
_MOST = 100


@dataclass(frozen=True)
class Table:
    """A text of CSV: what divides its fields, and what its first line calls them."""

    delimiter: str
    columns: tuple[str, ...]

    def fields(self, line: str) -> list[str]:
        """The fields of one line; none of one that cannot be read."""
        try:
            return next(csv.reader([line], delimiter=self.delimiter), [])
        except csv.Error:
            return []


def table(text: str) -> Table | None:
    """The table that ``text`` is, or None: its first lines have as many fields as the first, which are names."""
    lines = text[:_SEEN].split("\n")[: _LINES + 1]
    lines = [line.rstrip("\r") for line in lines[:-1] if line.strip()]
    if len(lines) < 3:
        return None
    for delimiter in _DELIMITERS:
        if delimiter not in lines[0]:
            continue
        names = Table(delimiter, ()).fields(lines[0])
        found = Table(delimiter, tuple(name.strip() for name in names))
        if not 2 <= len(names) <= _MOST or not all(map(_is_name, found.columns)) or len(set(names)) < len(names):
            continue
        if sum(len(found.fields(line)) == len(names) for line in lines[1:]) >= 0.9 * (len(lines) - 1):
            return found
    return None


def _is_name(field: str) -> bool:
    return 0 < len(field) <= 60 and not field[0].isdigit() and field[0] not in "-+.({["

"""Bytes as text, and text as the data it holds: encodings, JSON, JSONL, CSV.

Each function gives a value and notes on what it had to guess or to keep as it was; none of them raises over bad data.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

Parsed = tuple[Any, tuple[str, ...]]

_NAMED = 5
_SAMPLE = 50
# The UTF-32 mark begins with the UTF-16 one, so it has to be tried first.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def decode(data: bytes) -> tuple[str, str] | None:
    """Bytes as text and a note on the encoding (``""`` if there is nothing to say), or None where they are no text.

    UTF-8, or UTF-16 and UTF-32 with a byte order mark; else Latin-1, which takes every byte, unless there are NULs.
    Line ends stay as they are.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return data.decode(encoding), ""
            except UnicodeDecodeError:
                continue
    try:
        return data.decode("utf-8"), ""
    except UnicodeDecodeError:
        pass
    if b"\0" in data:
        return None
    return data.decode("latin-1"), "not UTF-8, read as Latin-1"


def parse(name: str, text: str) -> Parsed:
    """The data that ``text`` holds, by the ending of the file's name; the text itself for all that is not data."""
    parser = _PARSERS.get(PurePath(name).suffix.lower())
    return parser(text) if parser is not None else (text, ())


def parse_json(text: str) -> Parsed:
    """JSON as its value; JSON lines under the wrong name likewise; anything else stays text, with a note."""
    try:
        return json.loads(text), ()
    except RecursionError:
        return text, ("nested too deeply for JSON, kept as text",)
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            records, notes = parse_jsonl(text)
            if not notes:
                return records, ("several JSON values, one a line, read as a list",)
        return text, (f"not valid JSON ({error}), kept as text",)


def parse_jsonl(text: str) -> Parsed:
    """A list with the value of each line; lines that are no JSON stay text and are named. Blank lines are left out."""
    records: list[Any] = []
    bad: list[int] = []
    # Not splitlines: JSON text may hold U+2028 and other line ends of Unicode.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip(" \t\r"):
            continue
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError):
            bad.append(number)
            records.append(line.rstrip("\r"))
    if not bad:
        return records, ()
    more = f" and {len(bad) - _NAMED:,} more" if len(bad) > _NAMED else ""
    lines = f"line{'s' if len(bad) > 1 else ''} {', '.join(map(str, bad[:_NAMED]))}{more}"
    return records, (f"not valid JSON, kept as text: {lines}",)


_field_limit_lock = threading.Lock()


def _rows(text: str, delimiter: str, limit: int | None = None) -> list[list[str]]:
    rows: list[list[str]] = []
    # The limit is the csv module's own and global: put back, and not changed by two at once.
    with _field_limit_lock:
        before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
        try:
            for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
                # An empty line has no fields; a single empty field is written as "".
                if row:
                    rows.append(row)
                    if limit is not None and len(rows) >= limit:
                        break
        finally:
            csv.field_size_limit(before)
    return rows


def parse_csv(text: str, delimiter: str | None = None) -> Parsed:
    """Delimited text as a list of dicts, one a record, all values text.

    The first record names the columns unless it looks like the others. Fields beyond the columns get names of their
    own, missing ones are None.

    Args:
        text: The whole file.
        delimiter: Found from the first records (comma, semicolon, tab, bar) if None.
    """
    try:
        delimiter = delimiter or _delimiter(text)
        rows = _rows(text, delimiter)
    except csv.Error as error:
        return text, (f"not valid CSV ({error}), kept as text",)
    if not rows:
        return [], ()
    if len(rows) == 1:
        return text, ("a single record, which may be a header or data, kept as text",)
    notes: list[str] = []
    if _has_header(rows):
        columns = _columns(rows[0])
        if columns != rows[0]:
            notes.append("columns without a name or with the same name have been named anew")
        body = rows[1:]
    else:
        columns = _columns([""] * len(rows[0]))
        notes.append(f"no header: the columns are called {columns[0]} to {columns[-1]}")
        body = rows
    widest = max(map(len, body))
    ragged = sum(len(row) != len(columns) for row in body)
    columns = _columns([*columns, *[""] * (widest - len(columns))])
    if ragged:
        notes.append(f"{ragged:,} of {len(body):,} records have more or fewer fields than the header")
    short = dict.fromkeys(columns)
    wide = len(columns)
    records = [
        dict(zip(columns, row, strict=True)) if len(row) == wide else short | dict(zip(columns, row, strict=False))
        for row in body
    ]
    return records, tuple(notes)


def _delimiter(text: str) -> str:
    """The one of the usual delimiters that gives the first records the most fields, all the same number of them."""
    best, most = ",", (False, 1)
    for delimiter in (",", ";", "\t", "|"):
        try:
            # The sample is cut by records, not characters: one that ends inside of a quoted field spoils the count.
            widths = [len(row) for row in _rows(text, delimiter, _SAMPLE)]
        except csv.Error:
            continue
        if widths and min(widths) > 1:
            score = (len(set(widths)) == 1, min(widths))
            if score > most:
                best, most = delimiter, score
    return best


_NUMBER = re.compile(r"[-+]?[.,]?\d[\d.,]*(e[-+]?\d+)?\s*%?\Z", re.IGNORECASE)
_YEAR = re.compile(r"(1[89]|20|21)\d\d\Z")


def _has_header(rows: list[list[str]]) -> bool:
    """Whether the first record differs from the rest as names differ from data, by a vote of the columns."""
    votes = 0
    for i, cell in enumerate(rows[0]):
        below = [row[i] for row in rows[1 : _SAMPLE + 1] if len(row) > i and row[i].strip()]
        if not below or sum(bool(_NUMBER.match(b.strip())) for b in below) * 2 <= len(below):
            continue
        if not _NUMBER.match(cell.strip()):
            votes += 1
        elif not _YEAR.match(cell.strip()):
            votes -= 1
    return votes >= 0


def _columns(cells: list[str]) -> list[str]:
    """Names for columns: the given ones, made unique, and ``column_N`` where there is none."""
    taken: set[str] = set()
    given = {cell for cell in cells if cell.strip()}
    names = []
    for number, cell in enumerate(cells, start=1):
        base = name = cell if cell.strip() else f"column_{number}"
        count = 1
        while name in taken or ((count > 1 or base != cell) and name in given):
            count += 1
            name = f"{base}_{count}"
        taken.add(name)
        names.append(name)
    return names


_PARSERS: dict[str, Callable[[str], Parsed]] = {
    ".json": parse_json,
    ".jsonl": parse_jsonl,
    ".ndjson": parse_jsonl,
    ".csv": parse_csv,
    ".tsv": lambda text: parse_csv(text, "\t"),
    ".tab": lambda text: parse_csv(text, "\t"),
}

"""What an error of code over records comes from: no such field, a text that is no number, records taken for text.

The traceback says what Python met; said here is what the data are, and how they are read instead.
"""

from __future__ import annotations

import ast
import difflib
import re

from rlm_dspy import columns
from rlm_dspy.data import Data
from rlm_dspy.environments.base import CellError
from rlm_dspy.fields import names
from rlm_dspy.signatures.dialect import parse

_LISTED = 30
_FIELDS = 6
_NO_FIELD = ("KeyError", "TypeError", "AttributeError", "ValueError")
_AS_TEXT = re.compile(
    r"'list' object has no attribute '(split|splitlines|lower|find|strip|read|replace|count_lines)'"
    r"|must be str, bytes or bytearray, not list|initial_value must be str or None, not list"
    r"|expected string or bytes-like object, got 'list'|'dict' object has no attribute '(split|lower|strip|find)'"
    r"|iterator should return strings, not dict|expected str instance, dict found"
)
_NOT_NUMBERS = re.compile(
    r"not supported between instances of '(str|int|float|NoneType)' and '(str|int|float|NoneType)'"
    r"|unsupported operand type\(s\) for .*'(str|NoneType)'|could not convert string to float"
    r"|invalid literal for int\(\)|can only concatenate str|argument must be a string or a real number, not 'NoneType'"
    r"|must be real number, not str|can't convert type 'str' to numerator"
)

_AS_RECORD = re.compile(r"string indices must be integers")


def cause(code: str, error: CellError, data: Data) -> str:
    """What to do about ``error`` of ``code`` over ``data``, in one or a few lines; ``""`` if unknown."""
    if data.rows is None:
        return _no_record(error, data)
    if error.type not in _NO_FIELD:
        return ""
    if error.type == "KeyError":
        return _no_field(error.message, data)
    if _AS_TEXT.search(error.message):
        return f"`{data.name}` is no text but a list of dicts already: for row in {data.name}: row[{_first(data)!r}]"
    if _NOT_NUMBERS.search(error.message):
        return _no_number(code, data)
    return ""


def _no_record(error: CellError, data: Data) -> str:
    """That lines of a text were taken for the records that they stand for."""
    if error.type != "TypeError" or not _AS_RECORD.search(error.message):
        return ""
    made = as_records(data)
    said = f"A line of {data.name} is a text, not a record. These are the records:"
    return f"{said}\n```python\n{made}\n```" if made else ""


def as_records(data: Data) -> str:
    """Code that reads the lines of ``data`` into ``rows``; ``""`` where they are neither JSON nor CSV."""
    if data.form == "json":
        return f"import json\nrows = [json.loads(line) for line in {data.name}.splitlines() if line.strip()]"
    if data.form == "csv" and (table := data.table) is not None:
        given = "" if table.delimiter == "," else f", delimiter={table.delimiter!r}"
        return f"import csv, io\nrows = list(csv.DictReader(io.StringIO({data.name}){given}))"
    return ""


def _no_field(message: str, data: Data) -> str:
    name = message.strip().strip("'\"")
    if name in data.fields:
        return f"Not every record has the field {name!r}: row.get({name!r})" if _lacking(data, name) else ""
    lower = {field.lower().strip(): field for field in data.fields}
    close = lower.get(name.lower().strip()) or next(
        (lower[found] for found in difflib.get_close_matches(name.lower(), lower, 1, 0.7)), None
    )
    meant = f" Use {close!r}." if close else ""
    more = ", …" if len(data.fields) > _LISTED else ""
    listed = ", ".join(map(repr, data.fields[:_LISTED]))
    return f"The records of {data.name} have no field {name!r}.{meant} They have: {listed}{more}"


def _no_number(code: str, data: Data) -> str:
    read = dict.fromkeys(name for name in names(parse(code) or ast.Module([], [])) if name in data.fields)
    said = [f"{name!r}: {found}" for name in list(read)[:_FIELDS] if (found := _as_number(data, name))]
    return "\n".join(["What the fields in this code hold:", *said]) if said else ""


def _as_number(data: Data, name: str) -> str:
    """How the field ``name`` is read as a number, ``""`` where it holds numbers and nothing else."""
    values = columns.column(data, name)
    texts = list(dict.fromkeys(value for value in values if isinstance(value, str) and value.strip()))
    empty = sum(value is None or (isinstance(value, str) and not value.strip()) for value in values)
    if not texts:
        return f"numbers, None {empty:,} times: leave these out, if row[{name!r}] is not None" if empty else ""
    read = columns.numbers_in(texts)
    if read is not None:
        guard = f", and leave out what is empty ({empty:,} times): if row[{name!r}]" if empty else ""
        return f"numbers as text; a number by {read.call.format(f'row[{name!r}]')}{guard}"
    odd = next(text for text in texts if columns.numbers_in([text]) is None)
    some = sum(columns.numbers_in([text]) is not None for text in texts[:1_000])
    if some * 2 < min(len(texts), 1_000):
        return ""
    return f"numbers as text, but not always: leave out such as {odd[:60]!r}"


def _lacking(data: Data, name: str) -> bool:
    return any(not isinstance(row, dict) or name not in row for row in data.rows or ())


def _first(data: Data) -> str:
    return data.fields[0] if data.fields else "..."

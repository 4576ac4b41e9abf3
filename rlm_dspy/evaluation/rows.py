"""Rows of a file, one at a time: JSON Lines and CSV of any size."""

from __future__ import annotations

import codecs
import csv
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import pydantic

from rlm_dspy.errors import ConfigurationError

__all__ = ["FORMATS", "Row", "inputs_of", "read"]

FORMATS = ("jsonl", "csv", "tsv")
_BY_SUFFIX = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv"}
_LONGEST_FIELD = 2**31 - 1
_OPEN = "a quotation mark is opened in line {} and closed nowhere: all behind it was read as one field"


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        number: From 0.
        digest: Of what it holds; 16 hexadecimal digits.
        values: By column; empty where it cannot be read.
        error: Why it cannot be read, or None.
        text: The values are texts, whatever they mean, as in CSV.
    """

    number: int
    digest: str
    values: Mapping[str, Any]
    error: str | None = None
    text: bool = False


def read(path: str | PathLike[str], form: str | None = None) -> Iterator[Row]:
    """The rows of a file, read as they are taken. What is no row is one with an error; empty lines are none.

    Args:
        path: The file, UTF-8.
        form: One of `FORMATS`; by the file's name if None.

    Raises:
        ConfigurationError: The file cannot be read, or its form is unknown.
    """
    chosen = form or _BY_SUFFIX.get(Path(path).suffix.lower())
    if chosen not in FORMATS:
        raise ConfigurationError(f"{path}: say what it is, one of {', '.join(FORMATS)} (--format)")
    try:
        with open(path, "rb") as file:
            begins = file.read(2)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error
    if begins in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise ConfigurationError(f"{path} is UTF-16: make it UTF-8, as by iconv -f UTF-16 -t UTF-8")
    return _json_lines(path) if chosen == "jsonl" else _csv(path, "\t" if chosen == "tsv" else ",")


def _json_lines(path: str | PathLike[str]) -> Iterator[Row]:
    number = 0
    with open(path, "rb") as file:
        for place, line in enumerate(file, start=1):
            data = line.removeprefix(b"\xef\xbb\xbf").strip() if place == 1 else line.strip()
            if not data:
                continue
            digest = hashlib.sha256(data).hexdigest()[:16]
            error, values = None, None
            try:
                values = json.loads(data)
            except (ValueError, RecursionError) as raised:
                if number == 0 and data.startswith(b"["):
                    raise ConfigurationError(
                        f"{path} is one JSON array, and no JSON Lines, which have an object in every line: make it so, "
                        "as by jq -c '.[]'"
                    ) from None
                error = f"line {place} is no JSON: {raised}"
            if error is None and not isinstance(values, dict):
                error = f"line {place} is no JSON object, which gives a value for each input"
            yield Row(number, digest, values if isinstance(values, dict) else {}, error)
            number += 1


def _csv(path: str | PathLike[str], delimiter: str) -> Iterator[Row]:
    if csv.field_size_limit() < _LONGEST_FIELD:
        csv.field_size_limit(_LONGEST_FIELD)
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        source = _Lines(file)
        lines = csv.reader(source, delimiter=delimiter)
        head = next(filter(None, lines), [])
        if source.ended and head:
            raise ConfigurationError(f"{path}: {_OPEN.format(1)}")
        if twice := sorted(name for name, times in Counter(head).items() if name and times > 1):
            raise ConfigurationError(f"{path} has two columns {twice[0]!r}: give each a name of its own")
        number, begins = 0, lines.line_num + 1
        for fields in lines:
            place, begins = begins, lines.line_num + 1
            if not fields:
                continue
            digest = hashlib.sha256(json.dumps([head, fields]).encode()).hexdigest()[:16]
            error = None
            if len(fields) != len(head):
                error = f"line {lines.line_num} has {len(fields)} fields, and there are {len(head)} columns"
            if source.ended:
                error = _OPEN.format(place)
            yield Row(number, digest, {} if error else dict(zip(head, fields, strict=True)), error, text=True)
            number += 1


class _Lines(Iterator[str]):
    """The lines of a file, and whether more were asked for than there are: only a row that is not closed does that."""

    def __init__(self, file: Iterator[str]) -> None:
        self._file = file
        self.ended = False

    def __next__(self) -> str:
        try:
            return next(self._file)
        except StopIteration:
            self.ended = True
            raise


def inputs_of(
    row: Row, signature: Any, columns: Mapping[str, str] | None = None, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The inputs of a program from a row.

    Args:
        row: The row.
        signature: Whose inputs are wanted; None for all columns.
        columns: Input to the column that has it, where that has another name.
        given: Inputs that are the same for all rows.

    Raises:
        ValueError: The row cannot be read, lacks a column, or has a text that is none of the input's type.
    """
    if row.error is not None:
        raise ValueError(row.error)
    columns, given = columns or {}, given or {}
    if signature is None:
        moved = {column: name for name, column in columns.items()}
        return {moved.get(column, column): value for column, value in row.values.items()} | dict(given)
    found: dict[str, Any] = dict(given)
    for name, info in signature.input_fields.items():
        if name in given:
            continue
        column = columns.get(name, name)
        if column not in row.values:
            if not info.is_required():
                continue
            there = ", ".join(map(repr, list(row.values)[:12]))
            raise ValueError(f"there is no column {column!r} for the input {name!r}; there are {there}")
        found[name] = _typed(name, row.values[column], info.annotation) if row.text else row.values[column]
    return found


def _typed(name: str, text: str, annotation: Any) -> Any:
    """A text of a CSV file as a value of the input's type: as it is, or else as JSON."""
    if annotation in (str, Any):
        return text
    try:
        adapter = pydantic.TypeAdapter(annotation)
    except Exception:  # a class that pydantic has no schema for
        raise ValueError(
            f"the input {name!r} is no type that a text of CSV can be made: give the rows in Python"
        ) from None
    try:
        return adapter.validate_strings(text)
    except pydantic.ValidationError:
        pass
    try:
        return adapter.validate_json(text)
    except pydantic.ValidationError as error:
        said = error.errors()[0]["msg"]
        raise ValueError(f"the input {name!r} cannot be read from {text[:60]!r}: {said}") from None

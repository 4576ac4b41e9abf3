"""Encodings, JSON lines and CSV: round trips, and bad data that is kept and named."""

from __future__ import annotations

import codecs
import csv
import io
import json
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rlm_dspy import formats

text = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(text)
@example("\r\n\r\n\0")
def test_utf8_round_trip(value: str) -> None:
    assume(not value.startswith("\ufeff"))
    assert formats.decode(value.encode()) == (value, "")
    assert formats.decode(codecs.BOM_UTF8 + value.encode()) == (value, "")


@given(text, st.sampled_from(["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]))
def test_utf16_and_utf32_with_a_mark(value: str, encoding: str) -> None:
    # FF FE 00 00 is UTF-32, and also UTF-16 that begins with a NUL.
    assume(not (encoding == "utf-16-le" and value.startswith("\0")))
    assert formats.decode(f"\ufeff{value}".encode(encoding)) == (value, "")


@given(st.binary())
def test_any_bytes_are_text_or_binary(data: bytes) -> None:
    decoded = formats.decode(data)
    if decoded is None:
        assert b"\0" in data
        return
    found, note = decoded
    if note:
        assert "Latin-1" in note and found.encode("latin-1") == data


def test_a_mark_that_lies() -> None:
    assert formats.decode(b"\xff\xfeabc") == ("ÿþabc", "not UTF-8, read as Latin-1")
    assert formats.decode(b"\xff\xfea\0b") is None


@given(json_values, st.sampled_from([None, 2]))
def test_json_round_trip(value: Any, indent: int | None) -> None:
    assert formats.parse("x.JSON", json.dumps(value, indent=indent)) == (value, ())


@pytest.mark.parametrize("bad", ["", "{", "{'a': 1}", "[" * 100_000, "1" * 5_000])
def test_bad_json_stays_text(bad: str) -> None:
    value, notes = formats.parse("x.json", bad)
    assert value == bad and len(notes) == 1 and "kept as text" in notes[0]


def test_json_lines_under_the_name_of_json() -> None:
    value, notes = formats.parse("x.json", '{"a": 1}\n{"a": 2}\n')
    assert value == [{"a": 1}, {"a": 2}] and len(notes) == 1
    assert formats.parse("x.json", '{"a": 1} {"a": 2}')[0] == '{"a": 1} {"a": 2}'


@given(
    st.lists(json_values), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.lists(st.sampled_from(["", " ", "\t"]))
)
def test_jsonl_round_trip(values: list[Any], end: str, ascii_only: bool, blank: list[str]) -> None:
    lines = [json.dumps(value, ensure_ascii=ascii_only) for value in values]
    assert formats.parse("x.jsonl", end.join([*lines, *blank])) == (values, ())


@given(st.lists(st.one_of(json_values.map(json.dumps), st.just("{not json"), st.just("also not"))))
def test_bad_lines_of_jsonl_are_kept_and_named(lines: list[str]) -> None:
    values, notes = formats.parse("x.ndjson", "\n".join(lines))
    assert len(values) == len(lines)
    bad = [number for number, line in enumerate(lines, start=1) if line in ("{not json", "also not")]
    assert all(values[number - 1] == lines[number - 1] for number in bad)
    assert len(notes) == bool(bad)
    if bad:
        assert str(bad[0]) in notes[0]
        assert (f"and {len(bad) - 5} more" in notes[0]) == (len(bad) > 5)


cells = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.data(), st.sampled_from([",", ";", "\t", "|"]), st.sampled_from(["\n", "\r\n"]))
def test_csv_round_trip(data: st.DataObject, delimiter: str, end: str) -> None:
    width = data.draw(st.integers(2, 5))
    rows = data.draw(st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=8))
    header = [f"name{chr(97 + i)}" for i in range(width)]
    sink = io.StringIO(newline="")
    # Everything quoted, so that no field holds a delimiter that the reader would have to guess against.
    csv.writer(sink, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator=end).writerows([header, *rows])
    assert formats.parse("x.csv", sink.getvalue()) == ([dict(zip(header, row, strict=True)) for row in rows], ())


@given(st.lists(st.lists(cells, min_size=1, max_size=6), min_size=2, max_size=8))
def test_no_field_of_a_csv_is_lost(rows: list[list[str]]) -> None:
    sink = io.StringIO(newline="")
    csv.writer(sink, quoting=csv.QUOTE_ALL).writerows(rows)
    records, _ = formats.parse_csv(sink.getvalue(), ",")
    body = rows if len(records) == len(rows) else rows[1:]
    assert [[v for v in record.values() if v is not None] for record in records] == body
    if len(records) < len(rows):
        named = [cell for cell in rows[0] if cell.strip()]
        assert set(named) <= set(records[0])


@pytest.mark.parametrize(
    ("source", "records", "note"),
    [
        ("", [], ""),
        ("a,b\n1,2\n", [{"a": "1", "b": "2"}], ""),
        ("name;2019;2020\nx;1;2\n", [{"name": "x", "2019": "1", "2020": "2"}], ""),
        (
            "alice,30,NYC\nbob,25,LA\n",
            [
                {"column_1": "alice", "column_2": "30", "column_3": "NYC"},
                {"column_1": "bob", "column_2": "25", "column_3": "LA"},
            ],
            "no header",
        ),
        (
            ",a,a,a_2\n1,2,3,4\n",
            [{"column_1": "1", "a": "2", "a_3": "3", "a_2": "4"}],
            "named anew",
        ),
        (
            "a,b\n1\n1,2,3\n",
            [{"a": "1", "b": None, "column_3": None}, {"a": "1", "b": "2", "column_3": "3"}],
            "2 of 2 records",
        ),
        ("word\nx\ny\n", [{"word": "x"}, {"word": "y"}], ""),
        ("a,b\n", "a,b\n", "single record"),
        ('a,b\n"x\r\ny, z",2\n', [{"a": "x\r\ny, z", "b": "2"}], ""),
        ("a;b\n1,5;2,5\n3,5;4,5\n", [{"a": "1,5", "b": "2,5"}, {"a": "3,5", "b": "4,5"}], ""),
    ],
)
def test_csv(source: str, records: Any, note: str) -> None:
    found, notes = formats.parse("x.csv", source)
    assert found == records
    assert (note in notes[0]) if note else notes == ()


def test_the_field_limit_of_the_csv_module_is_put_back() -> None:
    before = csv.field_size_limit()
    big = "x" * (before + 1)
    assert formats.parse("x.csv", f"a,b\n{big},2\n")[0] == [{"a": big, "b": "2"}]
    assert csv.field_size_limit() == before


def test_numbers_are_told_in_linear_time() -> None:
    # A cell of digits that is no number after all must not be tried at every length.
    cell = "1" * 200_000 + "x"
    assert formats.parse("x.csv", f"a,b\n{cell},2\n{cell},3\n")[0][1] == {"a": cell, "b": "3"}


def test_other_names_are_text() -> None:
    assert formats.parse("x.txt", '{"a": 1}') == ('{"a": 1}', ())
    assert formats.parse("README", "a,b\n1,2") == ("a,b\n1,2", ())

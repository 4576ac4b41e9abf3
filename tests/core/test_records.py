"""Records, such as a CSV file's rows: they are looked at, explained and mended as text is, and what is said is true."""

from __future__ import annotations

import ast
import csv
import datetime
import decimal
import io
import json
import time
from pathlib import Path
from typing import Any

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM, columns, documents, explain, first_look, record_errors, repair
from rlm_dspy.conditions import differences
from rlm_dspy.data import Data, is_records, largest
from rlm_dspy.environments.base import CellError, Environment
from rlm_dspy.inputs import describe
from rlm_dspy.signatures.conversation import user
from rlm_dspy.signatures.dialect import lists_in
from rlm_dspy.testing import ScriptedLM, code
from tests.core.test_first_look import hostile
from tests.core.test_guidance import acting, observation

ORDERS: list[dict[str, Any]] = [
    {
        "order_id": str(10_000 + n),
        "at": f"2031-{n % 12 + 1:02d}-{n % 28 + 1:02d}",
        "country": ("DE", "FR", "PL", "SE")[n % 4],
        "status": "Refunded" if n % 9 == 0 else "Paid",
        "amount": f"{n * 7 % 200}.50" if n % 50 else "",
        "items": str(n % 9 + 1),
        "note": "broken on arrival" if n % 71 == 0 else "",
    }
    for n in range(1_800)
]
EVENTS: list[dict[str, Any]] = [
    {"ts": f"2031-03-{n % 28 + 1:02d}T{n % 24:02d}:00:00Z", "level": "ERROR" if n % 4 == 3 else "INFO"}
    | {"svc": f"svc-{n % 5}"}
    | {"http": {"status": (200, 404, 500)[n % 3], "ms": n % 700}, "tags": ["a", "b"][: n % 3]}
    | ({"err": "timeout while calling db"} if n % 4 == 3 else {})
    for n in range(900)
]  # fmt: skip
QUESTION = "How many refunded orders came from DE?"
REFUNDED = sum(row["status"] == "Refunded" and row["country"] == "DE" for row in ORDERS)

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), hostile, st.text(max_size=300), st.dates())
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(hostile, inner, max_size=4)),
    max_leaves=8,
)
keys = st.one_of(hostile, st.sampled_from("ab"))
tables = st.lists(st.dictionaries(keys, anything, max_size=6), min_size=1, max_size=30)


def asked(root: ScriptedLM, sandbox: Environment, context: Any, query: str = QUESTION, **options: Any) -> Any:
    with dspy.context(lm=root):
        return RLM("context, query -> answer: int", interpreter=sandbox, **options)(context=context, query=query)


def looked(rows: Any, task: str = "") -> str:
    return describe("context", rows, look=task).look


# ---------------------------------------------------------------------------------------------------- the first look


@settings(deadline=None)
@given(tables, st.integers(1, 40), st.one_of(hostile, st.text(max_size=80)))
def test_any_records_are_shown_in_bounded_space(rows: list[Any], times: int, task: str) -> None:
    data = Data("context", rows * times)
    shown = first_look.look(data, task)
    assert len(shown) <= 12_000 and user(shown)["content"].encode()
    assert len(data.text.split("\n")) == len(rows) * times
    for word, number in first_look.telling_words(data, task).items():
        assert data.text.count(word) == number > 0


def test_the_fields_say_what_they_hold() -> None:
    shown = looked(ORDERS).split("\n")
    fields = shown[shown.index("Its fields, all of them text:") + 1 :]
    assert fields[0] == "'order_id': numbers as text, '10000' to '11799'; a number by int(row['order_id'])"
    assert fields[1] == "'at': dates as text, '2031-01-01' to '2031-12-28'"
    assert fields[2] == "'country': 'DE' 450 times, 'FR' 450 times, 'PL' 450 times, 'SE' 450 times"
    assert fields[3] == "'status': 'Paid' 1,600 times, 'Refunded' 200 times"
    assert fields[4].endswith("a number by float(row['amount']) if row['amount']; empty 36 times")
    assert fields[5] == "'items': numbers as text, '1' to '9'; a number by int(row['items'])"
    assert fields[6] == "'note': 'broken on arrival' 26 times; empty 1,774 times"


def test_the_code_that_the_fields_name_gives_numbers() -> None:
    row = {"a": "1,234.50", "b": "12", "c": "-1.5e3"}
    shown = looked([row] * 40 + [{"a": "7", "b": "3", "c": "2"}] * 3)
    reads = {line[1]: line.partition("a number by ")[2] for line in shown.split("\n") if "a number by" in line}
    assert {name: eval(read, {"row": row}) for name, read in reads.items()} == {"a": 1234.5, "b": 12, "c": -1500.0}


def test_fields_of_every_kind() -> None:
    shown = looked(EVENTS, "How many 500 answers of svc-3 were at level error?")
    assert "'http': dicts with the keys ['status', 'ms']" in shown
    assert "['http']['status']: 200 300 times, 404 300 times, 500 300 times" in shown
    assert "['http']['ms']: numbers, 0 to 699" in shown
    assert "'tags': lists of up to 2, such as ['a', 'b']" in shown
    assert "'err': 'timeout while calling db' 225 times; 675 records have no such field: row.get('err')" in shown
    assert "Its fields:" in shown and "all of them text" not in shown
    rows = [
        {"ok": n % 3 == 0, "at": datetime.date(2031, 1, n % 28 + 1), "sum": decimal.Decimal(n), "x": None}
        for n in range(90)
    ]
    shown = looked(rows)
    assert "'ok': True 30 times, False 60 times" in shown and "'at': date, such as datetime.date" in shown
    assert "'sum': Decimal, such as Decimal('0')" in shown and "'x': always empty" in shown


def test_the_words_of_the_task_are_named_with_their_field_as_they_are_spelled_there() -> None:
    shown = looked(ORDERS, QUESTION)
    assert "Words of the task that stand in it: 'Refunded' 200 times, mostly in the field 'status'; 'DE' 450" in shown
    shown = looked(EVENTS, "How many 500 answers of svc-3 were at level errors?")
    assert "mostly as a number in the field ['http']['status']; 'svc-3' 180 times" in shown
    assert "'ERROR' 225 times, mostly in the field 'level'" in shown


def test_the_name_of_a_field_is_no_word_that_stands_in_the_records() -> None:
    task = "What is the status and the country of each order_id?"
    assert first_look.telling_words(Data("context", ORDERS), task) == {}


def test_records_with_rare_words_of_the_task_are_shown_as_python_writes_them() -> None:
    rows = [*ORDERS, ORDERS[7] | {"note": "it's the zebra crossing"}]
    shown = looked(rows, "Which order was about a zebra?")
    assert f"Records with words of the task:\n{rows[-1]!r}" in shown


def test_a_long_value_is_cut_round_the_word() -> None:
    rows = [*ORDERS, {"note": "x" * 5_000 + " zebra " + "y" * 5_000}]
    (line,) = first_look.matches(Data("context", rows), "Where is the zebra?")
    assert " zebra " in line and len(line) < 120


@pytest.mark.parametrize(
    ("value", "records"),
    [
        (ORDERS, True),
        (tuple(EVENTS), True),
        ([*EVENTS, "a broken line"], True),
        (["a"] * 50, False),
        ([{"a": 1}, "b", "c"], False),
        ([{1: "a"}] * 50, False),
        ([], False),
        ({"a": ORDERS}, False),
        ("text", False),
    ],
)
def test_what_counts_as_records(value: Any, records: bool) -> None:
    assert is_records(value) == records
    assert (Data("x", value).form == "rows") == records


def test_items_that_are_no_dicts_are_told() -> None:
    shown = looked([*EVENTS, *["not json at all"] * 3])
    assert shown.endswith("3 of its items are no dicts: if isinstance(row, dict)")


def test_the_largest_input_is_the_one_that_is_looked_at() -> None:
    assert largest({"a": "x" * 2_000, "b": ORDERS, "c": 5}).name == "b"
    assert largest({"a": "x" * 2_000_000, "b": ORDERS}).name == "a"
    assert largest({"c": 5}).text == "" and not largest({}).large


def test_counts_of_a_sample_are_not_led_astray_by_what_comes_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CELLS", 4_000)
    shown = looked([{"side": "left" if n % 2 else "right", "n": n} for n in range(40_000)])
    assert "Its fields in 2,000 of them, taken at random:" in shown
    line = next(line for line in shown.split("\n") if line.startswith("'side'"))
    assert "'left' " in line and "'right' " in line


def test_many_records_cost_little_and_are_not_searched() -> None:
    rows = [{"id": n, "text": "zebra " * 30} for n in range(400_000)]
    started = time.process_time()
    about = describe("context", rows, look="Where is the zebra?")
    assert time.process_time() - started < 10
    assert not about.searched and not about.words and "'id': numbers, 0 to 399999" in about.look
    assert explain.nothing("[r for r in context if r['text'] == 'lion']", Data("context", rows)) is None


# ------------------------------------------------------------------------------------------- why nothing was found


def test_what_stands_where_is_told_of_fields() -> None:
    source = "hits = [r for r in context if r['level'] == 'svc-3' and r['err'] == 'timeout' and r['tags'] == 'zz']"
    explained = explain.nothing(source, Data("context", EVENTS), "q")
    assert explained is not None and explained.missed == "never"
    assert "'svc-3' 180 times, mostly in the field 'svc'" in explained.text
    assert "'timeout' 225 times, mostly at the beginning of the field 'err'; 'zz' never" in explained.text
    assert "With 'svc-3', 'timeout': 45 records, such as:\n{'ts': " in explained.text


def test_a_number_that_is_compared_with_texts_is_told() -> None:
    explained = explain.nothing("[r for r in context if r['items'] == 3]", Data("context", ORDERS))
    assert explained is not None and not explained.missed
    assert explained.text == "The values of 'items' are texts: compare with '3', not with 3."


@pytest.mark.parametrize(
    ("rows", "conditions", "task", "number"),
    [
        (ORDERS, "row['status'] == 'refunded' and row['country'] == 'Germany'", QUESTION, REFUNDED),
        (ORDERS, "row['country'] == 'Refunded'", "How many were refunded?", 200),
        (ORDERS, "row['items'] == 3", "How many have 3 items?", 200),
        (ORDERS, "row.get('items') == 3 and row['status'] == 'refunded'", "How many refunded have 3 items?", 0),
        (ORDERS, "'Refunded' in row", "How many were refunded?", 200),
        (ORDERS, "'broken' in row", "How many were broken?", 26),
        (EVENTS, "row['http']['status'] == '500' and row['level'] == 'error'", "How many errors with 500?", 75),
        (EVENTS, "row['level'] == 'svc-3'", "How many of svc-3?", 180),
    ],
)
def test_what_is_mended_finds_what_was_meant(rows: list[Any], conditions: str, task: str, number: int) -> None:
    data = Data("context", rows)
    source = f"hits = [row for row in context if {conditions}]"
    made = repair.mended(source, data, task, first_look.telling_words(data, task))
    assert made is not None
    names: dict[str, Any] = {"context": rows}
    exec(ast.unparse(made), names)
    assert len(names["hits"]) == number


@pytest.mark.parametrize(
    "conditions",
    [
        "row['status'] == 'Refunded' and row['country'] == 'DE'",
        "float(row['amount'] or 0) > 1000",
        "row['items'] == '3'",
        "'status' in row",
        "row['status'] == wanted",
    ],
)
def test_what_fits_stays_as_it_is(conditions: str) -> None:
    data = Data("context", ORDERS)
    words = first_look.telling_words(data, QUESTION + " 3 items")
    assert repair.mended(f"[row for row in context if {conditions}]", data, QUESTION + " 3 items", words) is None


@settings(deadline=None)
@given(tables, hostile, anything, st.text(max_size=60))
def test_any_code_over_any_records_is_explained_and_mended_or_left(
    rows: list[Any], key: str, value: Any, task: str
) -> None:
    data = Data("context", rows * 3)
    source = f"hits = [r for r in context if {key!r} in r and r[{key!r}] == {value!r} and r['a'] == 1]"
    words = first_look.telling_words(data, task)
    made = repair.mended(source, data, task, words)
    assert made is None or compile(ast.unparse(made), "<mended>", "exec")
    explained = explain.nothing(source, data, task)
    assert explained is None or len(explained.text) < 6_000
    assert all(len(remark) < 6_000 for remark in differences(source, "", data, task, words).remarks)
    compile(explain.start(data, words) or "0", "<start>", "exec")
    for kind in ("KeyError", "TypeError", "ValueError"):
        said = record_errors.cause(source, CellError(kind, repr(key), "could not convert string to float"), data)
        assert len(said) < 3_000


def test_the_code_to_begin_with_finds_what_it_says() -> None:
    data = Data("context", ORDERS)
    names: dict[str, Any] = {"context": ORDERS}
    exec(explain.start(data, first_look.telling_words(data, QUESTION)), names)
    assert len(names["hits"]) == REFUNDED


# ------------------------------------------------------------------------------------------------- what failed


@pytest.mark.parametrize(
    ("rows", "source", "said"),
    [
        (ORDERS, "sum(r['amount'] for r in context)", "'amount': numbers as text; a number by float(row['amount'])"),
        (ORDERS, "sum(float(r['amount']) for r in context)", "leave out what is empty (36 times): if row['amount']"),
        (ORDERS, "[r for r in context if r['items'] > 3]", "'items': numbers as text; a number by int(row['items'])"),
        (ORDERS, "max(context, key=lambda r: r['items'] * 1.5)", ""),
        (ORDERS, "context.splitlines()", "`context` is no text but a list of dicts already: for row in context: row["),
        (ORDERS, "import json\njson.loads(context)", "`context` is no text but a list of dicts already"),
        (ORDERS, "import csv, io\nlist(csv.DictReader(io.StringIO(context)))", "is no text but a list of dicts"),
        (ORDERS, "import re\nre.findall('x', context)", "is no text but a list of dicts"),
        (ORDERS, "[r['Status'] for r in context]", "The records of context have no field 'Status'. Use 'status'."),
        (ORDERS, "[r['zebra'] for r in context]", "have no field 'zebra'. They have: 'order_id', 'at', "),
        (EVENTS, "[r['err'] for r in context]", "Not every record has the field 'err': row.get('err')"),
        ([{"n": n or None} for n in range(900)], "sum(r['n'] for r in context)", "None 1 times: leave these out"),
    ],
)
def test_the_cause_of_an_error_is_told_and_its_fix(rows: list[Any], source: str, said: str) -> None:
    try:
        exec(source, {"context": rows})
    except Exception as error:
        found = record_errors.cause(source, CellError(type(error).__name__, str(error), ""), Data("context", rows))
        assert said in found and (said or not found)
    else:
        raise AssertionError("the code did not fail")


def test_an_error_that_has_nothing_to_do_with_the_records_is_left_alone() -> None:
    for kind, message in (("ZeroDivisionError", "division by zero"), ("TypeError", "'int' object is not callable")):
        assert record_errors.cause("1/0", CellError(kind, message, ""), Data("context", ORDERS)) == ""


# --------------------------------------------------------------------------------------------------- in a run


def test_a_run_over_records_is_shown_what_a_run_over_text_is(sandbox: Environment) -> None:
    looks = "hits = [row for row in context if row['status'] == 'refunded' and row['country'] == 'DE']"
    root = acting(code(f"{looks}\nprint(len(hits))"), code("print(len(hits_2))\nSUBMIT(len(hits_2))"))
    prediction = asked(root, sandbox, ORDERS)
    assert prediction.answer == REFUNDED and prediction.outcome == "submitted"
    first = root.calls[0].own[0]["content"]
    assert "Variable `context` is already set: list[dict], 1,800 items\nIts first records:\n{'order_id'" in first
    # The demonstration is one over records as well.
    assert "hits = [row for row in context\n        if row['way'] == 'IN'" in root.calls[0].messages[2]["content"]
    shown = observation(root)
    assert shown.startswith("Output:\n0\nNo record meets these conditions.") and f"output:\n{REFUNDED}" in shown
    # The records are as they were: the second look changed nothing of them.
    assert "hits_2 = [row for row in context if row['status'] == 'Refunded' and row['country'] == 'DE']" in shown


def test_words_that_the_code_does_not_use_are_named(sandbox: Environment) -> None:
    root = acting(code("hits = [r for r in context if r['country'] == 'DE']\nprint(len(hits))"), code("SUBMIT(5)"))
    asked(root, sandbox, ORDERS)
    said = "These words of the task stand in context too, and the code does not use them: 'Refunded' (200 times)"
    assert said in observation(root)


def test_an_answer_before_any_look_is_refused_with_code_to_begin_with(sandbox: Environment) -> None:
    root = acting(code("SUBMIT(7)"), code("print(len(hits)) if 'hits' in dir() else print(1)"), code("SUBMIT(7)"))
    asked(root, sandbox, ORDERS)
    assert "no code has looked at the data yet" in observation(root)
    assert "row.get('status') == 'Refunded'" in observation(root)


def test_code_that_types_the_records_in_again_is_not_run(sandbox: Environment) -> None:
    typed = "context = [{'status': 'Paid'}]\nprint(len(context))"
    root = acting(code(typed), code("print(len(context))"), code("SUBMIT(1)"))
    prediction = asked(root, sandbox, ORDERS)
    assert "`context` is set already" in observation(root) and prediction.trajectory[1].output.startswith("1800")


@pytest.mark.parametrize(
    ("source", "typed"),
    [
        ("rows = [{'a': 1}, {'a': 2}]", True),
        ("rows: list = [\n    {'a': 'x'},", True),
        ("rows = [{'a': x} for x in rows]", False),
        ("rows = [{'a': len(rows)}]", False),
        ("rows = []", False),
        ("others = [{'a': 1}]", False),
    ],
)
def test_records_that_are_spelled_out(source: str, typed: bool) -> None:
    assert lists_in(source, "rows") == typed


def test_every_aid_over_records_can_be_turned_off(sandbox: Environment) -> None:
    root = acting(code("print(len([r for r in context if r['status'] == 'refunded']))"), code("SUBMIT(1)"))
    prediction = asked(root, sandbox, ORDERS, guidance=False)
    assert prediction.answer == 1 and len(prediction.trajectory) == 2
    assert "Its fields" not in root.calls[0].prompt and observation(root) == "Output:\n0"


def test_small_records_are_shown_whole_and_leave_the_aids_out(sandbox: Environment) -> None:
    root = acting(code("SUBMIT(2)"))
    assert asked(root, sandbox, [{"a": 1}, {"a": 2}], "How many?").answer == 2
    assert "Variable `context` = [{'a': 1}, {'a': 2}]" in root.calls[0].own[0]["content"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json"])
def test_files_of_records_as_the_command_line_reads_them(suffix: str, tmp_path: Path, sandbox: Environment) -> None:
    path = tmp_path / f"orders.{suffix}"
    written = io.StringIO(newline="")
    if suffix == "csv":
        writer = csv.DictWriter(written, list(ORDERS[0]))
        writer.writeheader()
        writer.writerows(ORDERS)
    else:
        written.write(json.dumps(ORDERS) if suffix == "json" else "\n".join(map(json.dumps, ORDERS)))
    path.write_text(written.getvalue())
    root = acting(code("print(len([r for r in context if 'Refunded' in r]))"), code("SUBMIT(200)"))
    asked(root, sandbox, documents.read([path]).context)
    assert "Its output:\n200" in observation(root)


def test_lines_that_are_taken_for_records_are_told_how_to_be_read() -> None:
    error = CellError("TypeError", "string indices must be integers, not 'str'", "")
    as_json = "\n".join(json.dumps({"id": f"r-{n}", "ms": n}) for n in range(50))
    as_csv = "id;ms\n" + "\n".join(f"r-{n};{n}" for n in range(50))
    for text, read in ((as_json, "json.loads(line)"), (as_csv, "delimiter=';'")):
        said = record_errors.cause("[l['ms'] for l in context.splitlines()]", error, Data("context", text))
        assert "A line of context is a text, not a record" in said and read in said
        names: dict[str, Any] = {"context": text}
        exec(said.partition("```python\n")[2].partition("```")[0], names)
        assert len(names["rows"]) == 50 and names["rows"][7]["id"] == "r-7"
    prose = Data("context", "Nobody wrote a record here. " * 40)
    assert record_errors.cause("context['a']", error, prose) == ""
    assert record_errors.cause("context['a']", CellError("TypeError", "no", ""), Data("context", as_json)) == ""

"""Conditions that the data or the task rule out are mended: what is run instead finds what was meant."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import Guidance
from rlm_dspy.environments.base import Environment
from rlm_dspy.first_look import telling_words
from rlm_dspy.repair import repaired
from rlm_dspy.tables import table
from rlm_dspy.testing import code
from tests.core.test_first_look import hostile, texts
from tests.core.test_guidance import acting, ask, observation

ROWS: list[dict[str, Any]] = [
    {"level": "ERROR" if n % 9 == 0 else "INFO", "svc": f"svc-{n % 4}", "http": {"status": 500 + n % 3}, "id": n}
    for n in range(900)
]
JSON = "\n".join(map(json.dumps, ROWS))
COLUMNS = "\n".join(f"2031-01-04 {r['level']} {r['svc']} GET {r['http']['status']} {r['id']}ms" for r in ROWS)
PAIRS = "\n".join(f"{r['level']} svc={r['svc']} status={r['http']['status']}" for r in ROWS)
CSV = "\n".join(["level;svc;status", *(f"{r['level']};{r['svc']};{r['http']['status']}" for r in ROWS)])

READ = {
    JSON: "import json\nrows = [json.loads(line) for line in context.splitlines()]\n",
    COLUMNS: "rows = [line.split() for line in context.splitlines()]\n",
    PAIRS: "rows = context.splitlines()\n",
    CSV: "import csv, io\nrows = list(csv.DictReader(io.StringIO(context), delimiter=';'))\n",
}


def number(source: str, text: str) -> int:
    """How many rows the code keeps."""
    names: dict[str, Any] = {"context": text}
    exec(source, names)
    return len(names["hits"])


@pytest.mark.parametrize(
    ("text", "conditions", "task", "rows"),
    [
        # In another field than its own, in other capitals, as text where it is a number.
        (JSON, "row.get('svc') == 'svc-1' and row.get('id') == 'error'", "How many errors has svc-1?", 25),
        (JSON, "row['status'] == '501'", "How many have status 501?", 300),
        (JSON, "row['http']['status'] == '501' and row['svc'] == 'svc-2'", "How many have 501 in svc-2?", 75),
        (COLUMNS, "row[3] == '501' and row[2] == 'svc-1'", "How often did svc-1 answer 501?", 75),
        (COLUMNS, "len(row) > 4 and row[1] == 'Error'", "How many errors are there?", 100),
        (CSV, "row['level'] == 'svc-3'", "How many has svc-3?", 225),
        (JSON, "'zzz' in row.get('svc') and row.get('svc', '').lower() == 'error'", "How many errors?", 100),
        # Not in the data, or not in the task.
        (PAIRS, "'svc-1' in row and 'answered' in row", "How often was svc-1 answered?", 225),
        (PAIRS, "'svc-1' in row and 'INFO' in row and 'ERROR' in row", "What has svc-1?", 225),
        (COLUMNS, "row[2] == 'GET'", "Who has the most requests?", 900),
        # Another value of the field that a word of the task stands in.
        (COLUMNS, "row[4] == '502' and row[2] == 'none'", "How many answers were 501?", 300),
        # Each stands there, and no line has all.
        (COLUMNS, "row[0].startswith('2031-01-04') and 'GET' in row and 'svc-1' in row and 'svc-2' in row",
         "Of 2031-01-04, what did svc-1 GET from svc-2?", 225),
    ],
)  # fmt: skip
def test_what_is_mended_finds_what_was_meant(text: str, conditions: str, task: str, rows: int) -> None:
    source = f"{READ[text]}hits = [row for row in rows if {conditions}]"
    mended = repaired(source, text, task, telling_words(text, task))
    assert mended and number(mended, text) == rows


@pytest.mark.parametrize(
    "source",
    [
        "hits = [row for row in rows if row[2] == 'svc-1' and row[1] == 'ERROR']",
        "hits = [row for row in rows if int(row[4]) > 900 or row[2] == kept]",
        "hits = [row for row in rows if not row]",
        "print(len(rows))",
        "hits = [row for row in rows if 'zebra' in row]",
        "not code (",
        "if 'svc-1' in context:\n    print(1)",
    ],
)
def test_what_fits_stays_as_it_is(source: str) -> None:
    assert repaired(source, COLUMNS, "How many errors has svc-1?", {"svc-1": 225}) == ""


@settings(deadline=None)
@given(texts, hostile, st.text(max_size=60))
def test_any_code_over_any_text_is_mended_into_code_or_left(text: str, value: str, task: str) -> None:
    source = f"hits = [r for r in rows if {value!r} in r and r[0] == {value!r}]"
    mended = repaired(source, text, task, telling_words(text, task))
    if mended:
        compile(mended, "<mended>", "exec")


def test_the_root_is_shown_both_outputs_and_its_variables_are_those_of_the_second(sandbox: Environment) -> None:
    found = "hits = [line for line in context.splitlines() if 'zanzibar' in line and 'departed' in line]"
    root = acting(code(f"{found}\nprint(len(hits))"), code("SUBMIT(len(hits))"))
    prediction = ask(root, sandbox, "context, query -> answer: int")
    shown = observation(root)
    assert shown.startswith("Output:\n0\n") and "'Zanzibar' in line" in shown and "Its output:\n40" in shown
    assert "Its output:\n40" in prediction.trajectory[0].output
    assert prediction.answer == 40 and prediction.outcome == "submitted" and len(prediction.trajectory) in (2, 3)


@pytest.mark.parametrize(
    "source",
    [
        "n = len([line for line in context.splitlines() if 'zanzibar' in line])\nllm_query('hello')\nprint(n)",
        "print(len([line for line in ['a'] if 'zanzibar' in line]))",
    ],
)
def test_what_calls_the_host_or_reads_something_else_is_not_run_again(
    sandbox: Environment, source: str
) -> None:
    root = acting(code(source), code("SUBMIT(len(context))"))
    prediction = ask(root, sandbox, "context, query -> answer: int", sub_lm=acting("hello"))
    assert prediction.outcome == "submitted" and "Its output:" not in observation(root)


def test_an_empty_answer_that_is_refused_shows_what_mended_code_finds(sandbox: Environment) -> None:
    source = "n = len([line for line in context.splitlines() if 'zanzibar' in line])\nprint(n)\nSUBMIT(n)"
    root = acting(code(source), code("SUBMIT(n)"))
    prediction = ask(root, sandbox, "context, query -> answer: int")
    assert "Its output:\n40" in observation(root) and "refused" not in observation(root)
    assert prediction.answer == 40 and prediction.outcome == "submitted"


def test_a_second_run_that_fails_or_finds_nothing_leaves_the_first_as_it_was(sandbox: Environment) -> None:
    source = "hits = [line for line in context.splitlines() if 'zanzibar' in line]\nprint(len(hits) // 50)"
    root = acting(code(source), code("SUBMIT(len(context))"))
    prediction = ask(root, sandbox, "context, query -> answer: int", guidance=Guidance())
    assert prediction.trajectory[0].output == "0" and "Its output:" not in observation(root)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (CSV, ("level", "svc", "status")),
        ("a,b\n1,2\n3,4\n5,6\n", ("a", "b")),
        ('name\t"the place"\r\nx\t"y\tz"\r\nx\ty\r\nx\ty\r\n', ("name", "the place")),
        ("a,b\n1,2\n3\n5\n6\n", None),
        ("1,2\n3,4\n5,6\n7,8\n", None),
        ("a,a\n1,2\n3,4\n5,6\n", None),
        ("Dear all, hello\nthis is, a text\nwith commas, in it\nno names\nat all\n", None),
        (PAIRS, None),
        ("", None),
    ],
)
def test_a_table_is_known_by_its_header(text: str, columns: tuple[str, ...] | None) -> None:
    found = table(text)
    assert (found.columns if found else None) == columns

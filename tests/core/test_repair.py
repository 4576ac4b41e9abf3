"""Conditions that the data or the task rule out are mended: what is run instead finds what was meant."""

from __future__ import annotations

import ast
import json
import threading
import time
from typing import Any

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM, environments, subscribe
from rlm_dspy.data import Data
from rlm_dspy.environments.base import Environment
from rlm_dspy.events import Note
from rlm_dspy.first_look import telling_words
from rlm_dspy.guide import Guide
from rlm_dspy.repair import mended
from rlm_dspy.second_look import apart, beside
from rlm_dspy.tables import table
from rlm_dspy.testing import code
from tests.core.test_first_look import hostile, texts
from tests.core.test_guidance import BOATS, acting, ask, observation

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


def remade(source: str, text: str, task: str) -> str:
    """The code with its conditions mended, ``""`` if they stay."""
    data = Data("context", text)
    made = mended(source, data, task, telling_words(data, task))
    return "" if made is None else ast.unparse(made)


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
        # Another value of the field that a word of the task stands in.
        (COLUMNS, "row[4] == '502' and row[2] == 'none'", "How many answers were 501?", 300),
        # Each stands there, and no line has all.
        (COLUMNS, "row[0].startswith('2031-01-04') and 'GET' in row and 'svc-1' in row and 'svc-2' in row",
         "Of 2031-01-04, what did svc-1 GET from svc-2?", 225),
    ],
)  # fmt: skip
def test_what_is_mended_finds_what_was_meant(text: str, conditions: str, task: str, rows: int) -> None:
    source = f"{READ[text]}hits = [row for row in rows if {conditions}]"
    assert number(remade(source, text, task), text) == rows


@pytest.mark.parametrize(
    "source",
    [
        "hits = [row for row in rows if row[2] == 'svc-1' and row[1] == 'ERROR']",
        "hits = [row for row in rows if int(row[4]) > 900 or row[2] == kept]",
        "hits = [row for row in rows if not row]",
        "print(len(rows))",
        "hits = [row for row in rows if 'zebra' in row]",
        "hits = [row for row in rows if kind == 'Error' and row[2] == 'svc-1']",
        "hits = [row for row in rows if row[1].startswith('rror', 1) and row[2] == 'svc-1']",
        "hits = [row for row in rows if not (row[1] == 'svc-1')]",
        "hits = [row for row in rows if row[1] == 'svc-1' or row[2] == 'ERROR']",
        "for row in rows:\n    if row[0] == 'svc-1':\n        continue",
        "not code (",
        "if 'svc-1' in context:\n    print(1)",
    ],
)
def test_what_fits_stays_as_it_is(source: str) -> None:
    assert remade(source, COLUMNS, "How many errors has svc-1?") == ""


@settings(deadline=None)
@given(texts, hostile, st.text(max_size=60))
def test_any_code_over_any_text_is_mended_into_code_or_left(text: str, value: str, task: str) -> None:
    source = f"hits = [r for r in rows if {value!r} in r and r[0] == {value!r}]"
    compile(remade(source, text, task), "<mended>", "exec")


FOUND = "hits = [line for line in context.splitlines() if 'zanzibar' in line and 'departed' in line]"


def test_what_mended_code_finds_stands_beside_what_the_code_found(sandbox: Environment) -> None:
    root = acting(code(f"{FOUND}\nprint(len(hits))"), code("print(len(hits))\nSUBMIT(len(hits_2))"))
    prediction = ask(root, sandbox, "context, query -> answer: int", guidance={"name_words": False})
    shown = observation(root)
    assert shown.startswith("Output:\n0\nNo line meets these conditions.")
    assert "hits_2 = [line for line in context.splitlines() if 'Zanzibar' in line]" in shown
    assert "Its output:\n40" in shown
    assert prediction.trajectory[0].output == "0" and prediction.trajectory[1].output.startswith("0\n")
    assert prediction.answer == 40 and prediction.outcome == "submitted"


def test_words_of_the_language_go_where_the_rest_finds_nothing_with_them(sandbox: Environment) -> None:
    rows = [*ROWS, *({"level": "INFO", "svc": "svc-1", "msg": "a call that had ended"} for _ in range(30))]
    text = "\n".join(map(json.dumps, rows))
    source = (
        "import json\nrows = [json.loads(line) for line in context.splitlines()]\n"
        "hits = [r for r in rows if r['svc'] == 'svc-9' and r.get('level') == 'ERROR' and 'ended' in r.get('msg', '')]"
    )
    root = acting(code(f"{source}\nprint(len(hits))"), code("SUBMIT(len(hits_3))"))
    with dspy.context(lm=root):
        prediction = RLM("context, query -> answer: int", interpreter=sandbox, guidance={"name_words": False})(
            context=text, query="How many requests to svc-1 ended at level ERROR?"
        )
    assert prediction.answer == 25


def test_a_true_none_costs_one_more_turn_at_most(sandbox: Environment) -> None:
    root = acting(code(f"{FOUND}\nprint(len(hits))"), code("SUBMIT(len(hits))"))
    prediction = ask(root, sandbox, "context, query -> answer: int")
    assert prediction.answer == 0 and prediction.outcome == "submitted" and len(prediction.trajectory) == 3
    assert "Submit from hits_2 if that is what the task asks for" in prediction.trajectory[1].output


@pytest.mark.parametrize(
    "source",
    [
        # What calls the host, or would under other conditions.
        "n = len([l for l in context.splitlines() if 'zanzibar' in l])\nllm_query('hello')\nprint(n)",
        "n = [llm_query(l) for l in context.splitlines() if 'zanzibar' in l]\nprint(n)",
        "ask = llm_query\nn = [ask(l) for l in context.splitlines() if 'zanzibar' in l]\nprint(n)",
        # What changes something.
        "log = []\nn = [log.append(l) for l in context.splitlines() if 'zanzibar' in l]\nprint(n)",
        "d = {'n': 0}\nd['n'] += len([l for l in context.splitlines() if 'zanzibar' in l])\nprint(d['n'])",
        "n = 0\nfor l in [l for l in context.splitlines() if 'zanzibar' in l]:\n    n += 1\nprint(n)",
        "print(len([open(l, 'w') for l in context.splitlines() if 'zanzibar' in l]))",
        # What shows nothing, or does not read the data.
        "n = [l for l in context.splitlines() if 'zanzibar' in l]",
        "print(len([l for l in ['a'] if 'zanzibar' in l]))",
    ],
)
def test_only_what_computes_is_looked_at_again(sandbox: Environment, source: str) -> None:
    root = acting(code(source), code("SUBMIT(len(context))"))
    prediction = ask(root, sandbox, "context, query -> answer: int", sub_lm=acting("hello"))
    assert prediction.outcome == "submitted" and "Its output:" not in observation(root)


def test_the_conditions_of_a_task_in_the_docstring_are_the_tasks_own(sandbox: Environment) -> None:
    signature = dspy.Signature("context -> answer: int", "Count the boats that left Zanzibar for Lisbon.")
    source = "n = len([l for l in context.splitlines() if 'Zanzibar' in l and 'Lisbon' in l])\nprint(n)"
    root = acting(code(source), code("SUBMIT(n)"))
    with dspy.context(lm=root):
        prediction = RLM(signature, interpreter=sandbox)(context=BOATS)
    mended = "n_2 = len([l for l in context.splitlines() if 'Lisbon' in l])"
    assert prediction.answer == 0 and mended in observation(root)


def test_the_first_output_error_and_refusal_stay(sandbox: Environment) -> None:
    source = f"{FOUND}\nprint(len(hits))\nSUBMIT(total=len(hits))"
    root = acting(code(source), code("SUBMIT(answer=1)"))
    ask(root, sandbox, "context, query -> answer: int")
    assert "total is not an output" in observation(root) and "Its output:\n40" in observation(root)


def test_a_second_look_that_fails_or_finds_nothing_leaves_the_first_as_it_was(sandbox: Environment) -> None:
    source = "hits = [line for line in context.splitlines() if 'zanzibar' in line]\nprint(len(hits) // 50)"
    root = acting(code(source), code("SUBMIT(len(context))"))
    prediction = ask(root, sandbox, "context, query -> answer: int")
    assert prediction.trajectory[0].output == "0" and "Its output:" not in observation(root)


@pytest.mark.parametrize(
    "source",
    [
        # It finds nothing, it fails, it is too slow.
        "hits = [line for line in context.splitlines() if 'zanzibar' in line]\nprint(len(hits) // 50)",
        "hits = [line for line in context.splitlines() if 'zanzibar' in line]\nprint([x[9999] for x in hits])",
        "hits = [sum(map(len, context.splitlines() * 30000)) for l in context.splitlines() if 'zanzibar' in l]\n"
        "print(len(hits))",
    ],
)
def test_a_second_look_that_was_of_no_use_leaves_nothing_behind(sandbox: Environment, source: str) -> None:
    left = "print(sorted(n for n in globals() if 'hits' in n or n.startswith('__look') or n == '__name'))"
    root = acting(code(source), code(left), code("SUBMIT(len(context))"))
    prediction = ask(root, sandbox, "context, query -> answer: int")
    assert "Its output:" not in observation(root) and prediction.trajectory[1].output == "['hits']"


def test_an_aid_is_given_up_at_the_time_limit(sandbox: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    def endless(self: Guide, *given: Any) -> Any:
        assert let_go.wait(60)

    endless.__name__ = "remarks"
    monkeypatch.setattr(Guide, "remarks", endless)
    notes: list[str] = []
    started = time.monotonic()
    try:
        with subscribe(lambda event, run: notes.append(event.message) if isinstance(event, Note) else None):
            root = acting(code("print(len(context))"), best="[[ ## answer ## ]]\n7\n\n[[ ## completed ## ]]")
            with dspy.context(lm=root):
                rlm = RLM("context, query -> answer: int", interpreter=sandbox, max_seconds=1)
                prediction = rlm(context=BOATS * 10, query="How many?")
    finally:
        let_go.set()
    assert time.monotonic() - started < 30
    assert prediction.answer == 7 and prediction.outcome.limit == "max_seconds"
    assert prediction.trajectory[0].output == str(len(BOATS) * 10)
    assert "the aid remarks was given up: max_seconds" in notes


def test_a_worker_that_dies_in_a_second_look_loses_no_input() -> None:
    eat = "print([len([0] * (10 ** 10)) for l in context.splitlines() if 'zanzibar' in l])"
    root = acting(code(eat), code("print(len(context))\nSUBMIT(len(context))"))
    prediction = ask(root, environments.local(memory="512MiB"), "context, query -> answer: int")
    assert prediction.answer == len(BOATS) and prediction.outcome == "submitted"


@pytest.mark.parametrize(
    ("before", "source"),
    [
        ("it = iter(context.splitlines())", "print(len([l for l in it if 'zanzibar' in l]))"),
        ("lines = context.splitlines()", "print(len([l for l in lines if 'zanzibar' in l]))"),
        ("def reader(x): return x", "print(len([l for l in reader(context.splitlines()) if 'zanzibar' in l]))"),
        ("x = 1", "print(len(['a' * 10 ** 9 for l in context.splitlines() if 'zanzibar' in l]))"),
        ("x = 1", "print(len([sum(range(10 ** 9)) for l in context.splitlines() if 'zanzibar' in l]))"),
        ("x = 1", "import os\nprint(len([l for l in context.splitlines() if 'zanzibar' in l and os.getpid()]))"),
    ],
)
def test_a_cell_that_does_not_stand_alone_is_not_looked_at_again(
    sandbox: Environment, before: str, source: str
) -> None:
    root = acting(code(before), code(source), code("SUBMIT(len(context))"))
    ask(root, sandbox, "context, query -> answer: int")
    assert "Its output:" not in observation(root, 2)


def test_what_the_code_calls_by_the_new_name_stays(sandbox: Environment) -> None:
    looked = f"{FOUND}\nprint(len(hits))"
    root = acting(code("hits_2 = 83\nprint(hits_2)"), code(looked), code("print(hits_2)\nSUBMIT(hits_2)"))
    prediction = ask(root, sandbox, "context, query -> answer: int")
    assert prediction.answer == 83 and "hits_3 = " in observation(root, 2)


def test_an_aid_that_fails_ends_no_run(sandbox: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> Any:
        raise ZeroDivisionError("an aid")

    for name in ("doubt", "remarks", "second_looks"):
        monkeypatch.setattr(Guide, name, broken)
        broken.__name__ = name
    notes: list[str] = []
    with subscribe(lambda event, run: notes.append(event.message) if isinstance(event, Note) else None):
        root = acting(code("print(context.count('zebra'))"), code("SUBMIT(7)"))
        assert ask(root, sandbox, "context, query -> answer: int").answer == 7
    assert any("failed: ZeroDivisionError: an aid" in note for note in notes)


@pytest.mark.parametrize(
    "source",
    [
        "hits = [h for h in rows if 'a' in h]\nprint(hits)",
        "x = [hits for hits in rows if 'a' in hits]\nhits = x\nprint(hits)",
        "print((lambda hits: hits)(1))",
    ],
)
def test_names_of_their_own_are_given_to_what_differs(source: str) -> None:
    first, second = ast.parse(source), ast.parse(source.replace("'a'", "'b'"))
    made = beside(first, second, ["rows"], "hits_2 = 1")
    if made is not None:
        names: dict[str, Any] = {"rows": ["b"], "hits": "kept", "x": "kept", "hits_2": "taken"}
        exec(apart(made[0], ["rows"], made[2]), names)
        new = names.keys() - {"rows", "hits", "x", "hits_2", "__builtins__"}
        assert new == set(made[2]), "nothing else is left"
        assert names["hits"] == names["x"] == "kept" and names["hits_2"] == "taken"
        assert "hits_2" not in made[2] and all(name in names for name in made[2])
    else:
        assert "'a'" not in source or "for hits" in source


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

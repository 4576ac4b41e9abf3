"""Rows, values and files of every bad sort: a line for each, nothing that ends the job, no money forgotten."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import evaluation
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.evaluation import Program, Stop, map_rows
from rlm_dspy.evaluation.rows import inputs_of, read
from rlm_dspy.testing import ScriptedLM, outputs


class _Speechless:
    def __repr__(self) -> str:
        raise ValueError("no text")


def _looped() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


_HOSTILE: dict[str, Callable[[], Any]] = {
    "too long an integer": lambda: 10**5_000,
    "holds itself": _looped,
    "too deep": lambda: json.loads("[" * 900 + "]" * 900),
    "no text": _Speechless,
    "keys that are no texts": lambda: {(1, 2): 3, b"\xff": 1, None: 2},
    "bytes": lambda: b"\xff\xfe",
    "lone surrogate": lambda: "\ud800",
    "not finite": lambda: [float("nan"), float("inf")],
    "fine": lambda: 5,
}


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_an_answer_of_any_sort_is_a_line_and_ends_no_job(tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"which": which}) + "\n" for which in _HOSTILE))
    program = Program("mine", lambda signature: lambda which: {"answer": _HOSTILE[which]()})
    done = map_rows(program, read(source), out, signature="which -> answer")
    assert done.statuses == {"answered": len(_HOSTILE)} and done.stopped is None
    answers = dict(zip(_HOSTILE, (line["outputs"] for line in lines(out)), strict=True))
    assert answers["fine"] == {"answer": 5} and "cannot be written" in str(answers["no text"])
    assert answers["not finite"] == {"answer": ["NaN", "Infinity"]}
    examples = [
        dspy.Example(which=which, tokens=_HOSTILE[which]()).with_inputs("which") for which in ("no text", "fine")
    ]
    report = evaluation.evaluate(program, examples, lambda example, prediction: 1.0, out=tmp_path / "eval")
    assert [row["score"] for row in report.rows] == [1.0, 1.0] and report.table()


def test_columns_of_any_sort_can_be_kept(tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    deep = "[" * 900 + "]" * 900
    source.write_text("".join(f'{{"which": "fine", "id": {one}}}\n' for one in ("NaN", "1e999", '"\\ud800"', deep)))
    program = Program("mine", lambda signature: lambda which: {"answer": which})
    assert map_rows(program, read(source), out, signature="which -> answer", keep=["id"]).statuses == {"answered": 4}
    assert [line["kept"]["id"] for line in lines(out)][:3] == ["NaN", "Infinity", "\ud800"]


def test_a_quotation_mark_that_is_never_closed_is_told(tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text('text,id\n"a, with\na line",1\n"b,2\nc,3\n')
    first, second = read(source)
    assert first.values == {"text": "a, with\na line", "id": "1"}
    assert second.error is not None and "opened in line 4 and closed nowhere" in second.error
    with pytest.raises(ValueError, match="closed nowhere"):
        inputs_of(second, None)
    source.write_text('text,"id\na,1\n')
    with pytest.raises(ConfigurationError, match="opened in line 1 and closed nowhere"):
        list(read(source))
    source.write_text('text,id\na,"1"')
    assert [row.error for row in read(source)] == [None]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("rows.csv", b"text,id,text\na,1,b\n", "two columns 'text'"),
        ("rows.tsv", "text\tid\na\t1\n".encode("utf-16"), "is UTF-16: make it UTF-8"),
        ("rows.json", b'[{"text": "a"},\n{"text": "b"}]\n', "one JSON array.*jq"),
    ],
)
def test_a_file_of_another_form_is_refused_with_the_fix(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigurationError, match=message):
        list(read(tmp_path / name))


def test_empty_columns_and_lines_above_the_head_are_no_harm(tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("\n\ntext,,\na,,\n")
    assert [dict(row.values) for row in read(source)] == [{"text": "a", "": ""}]


def test_an_input_that_does_not_exist_is_refused_before_any_row(tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "a"}\n')
    for wrong in ({"columns": {"contxt": "text"}}, {"given": {"contxt": "a"}}):
        with pytest.raises(ConfigurationError, match="has no input 'contxt'; it has context"):
            map_rows(evaluation.get("direct"), read(source), out, signature="context -> answer", **wrong)
    assert list(tmp_path.iterdir()) == [source]


def test_a_large_input_for_all_rows_is_no_part_of_settings_and_messages(tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"which": "a"}\n')
    program = Program("mine", lambda signature: lambda which, book: {"answer": len(book)})

    def run(book: str) -> Any:
        return map_rows(program, read(source), out, signature="which, book -> answer", given={"book": book})

    assert run("x" * 1_000_000).rows == 1 == run("x" * 1_000_000).rows
    assert (tmp_path / "out.jsonl.job" / "settings.json").stat().st_size < 2_000
    with pytest.raises(ConfigurationError, match="book") as raised:
        run("y" * 1_000_000)
    assert len(str(raised.value)) < 2_000


def test_what_failures_cost_counts_after_they_were_tried_again(tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"context": str(n)}) + "\n" for n in range(20)))
    lm = ScriptedLM(lambda call: outputs(answer="x"))
    prices = {"scripted/lm": (1000, 1000)}
    bad = {str(n) for n in range(0, 20, 5)}

    class Asks(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("context -> answer")

        def forward(self, context: str) -> Any:
            found = self.ask(context=context)
            if context in bad:
                raise KeyError("a bug of mine")
            return found

    program = Program("asks", lambda signature: Asks())

    def run(**options: Any) -> Any:
        with dspy.context(lm=lm):
            return map_rows(program, read(source), out, signature="context -> answer", prices=prices, **options)

    paid = run().spent
    bad.remove("0")
    stop = Stop()
    # Ended in the middle of it: rows that were taken over wait for the first one.
    part = run(retry=True, stop=stop, seen=lambda line: stop.ask("enough"))
    more = 1 / 20 * paid
    assert part.spent == pytest.approx(paid + more, rel=0.05)
    assert run().spent == pytest.approx(paid + 4 * more, rel=0.05)
    bad.clear()
    assert run(retry=True).spent == pytest.approx(paid + 7 * more, rel=0.05)
    assert run().spent == pytest.approx(paid + 7 * more, rel=0.05) and len(lm.calls) == 27

"""A program on every row: in order, whatever ends first; nothing lost, nothing done twice."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.lm15 import AuthError
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import evaluation
from rlm_dspy.environments.base import Environment
from rlm_dspy.errors import ConfigurationError, RecordingError
from rlm_dspy.evaluation import Program, Stop, map_rows
from rlm_dspy.evaluation.ordered import Ordered
from rlm_dspy.evaluation.rows import Row, inputs_of, read
from rlm_dspy.testing import ScriptedLM, code, outputs

SIGNATURE = "context, query -> answer: int"


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def letters(n: int) -> list[dict[str, Any]]:
    return [{"context": "a" * (number + 1), "query": "How long?", "id": f"r{number}"} for number in range(n)]


def lengths(function: Any = None) -> Program:
    """A program without an LM: the length of the context."""

    def answer(context: str, query: str) -> dict[str, Any]:
        if function is not None:
            function(context)
        return {"answer": len(context)}

    return Program("lengths", lambda signature: answer)


def test_an_rlm_on_each_row_of_a_file(sandbox: Environment, tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", letters(5))
    program = evaluation.get("rlm", interpreter=sandbox, guidance=False)
    lm = ScriptedLM(lambda call: code("SUBMIT(answer=len(context))"))
    with dspy.context(lm=lm):
        done = map_rows(
            program,
            read(source),
            tmp_path / "out.jsonl",
            signature=SIGNATURE,
            keep=["id"],
            threads=3,
            prices={"scripted/lm": (1, 1)},
        )
    found = lines(tmp_path / "out.jsonl")
    assert [(line["row"], line["kept"]["id"], line["outputs"]) for line in found] == [
        (number, f"r{number}", {"answer": number + 1}) for number in range(5)
    ]
    assert {line["outcome"] for line in found} == {"submitted"} and all(line["turns"] == 1 for line in found)
    assert done.rows == 5 and done.statuses == {"answered": 5} and done.stopped is None
    assert done.spent == pytest.approx(sum(line["cost"] for line in found)) and done.spent > 0
    # Nothing is left that only going on would need, and the settings are.
    assert [path.name for path in sorted((tmp_path / "out.jsonl.job").iterdir())] == [
        "settings.json",
        "unfinished.jsonl",
    ]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), threads=st.integers(1, 9), n=st.integers(0, 60))
def test_lines_are_in_order_whatever_ends_first(
    seed: int, threads: int, n: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("map")
    draw = random.Random(seed)
    passes = threading.Semaphore(0)

    def work(context: str) -> None:
        if draw.random() < 0.5:
            passes.acquire(timeout=0.002)

    source = write(folder / "rows.jsonl", letters(n))
    done = map_rows(lengths(work), read(source), folder / "out.jsonl", signature=SIGNATURE, threads=threads)
    assert [line["outputs"]["answer"] for line in lines(folder / "out.jsonl")] == list(range(1, n + 1))
    assert done.rows == n


@settings(max_examples=40, deadline=None)
@given(order=st.permutations(range(12)), stops=st.lists(st.integers(0, 12), max_size=3))
def test_what_is_ahead_is_not_lost(
    order: list[int], stops: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Closed and opened again anywhere: every line is there once, in order."""
    folder = tmp_path_factory.mktemp("ordered")
    path = folder / "out.jsonl"
    todo = list(order)
    for stop in [*stops, 12]:
        ordered = Ordered(path, folder)
        already = [line["row"] for line in ordered.lines()]
        assert already == list(range(ordered.next))
        for number in todo[:stop]:
            ordered.put({"row": number})
            ordered.flush()
        ordered.close()
        del todo[:stop]
    assert [line["row"] for line in lines(path)] == list(range(12))


def test_what_is_ahead_stays_small_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlm_dspy.evaluation.ordered._LARGE", 20)
    ordered = Ordered(tmp_path / "out.jsonl", tmp_path)
    list(ordered.lines())
    for start in range(0, 300, 2):
        # There is always one ahead.
        ordered.put({"row": start + 1})
        ordered.put({"row": start})
        ordered.ahead.setdefault(10**9, {"row": 10**9})
    ordered.close()
    assert sum(path.stat().st_size for path in tmp_path.glob("ahead-*")) < 1_000


def test_rows_far_ahead_wait_for_the_one_before_them(tmp_path: Path) -> None:
    """And the file is read no further than that."""
    taken: list[int] = []
    far, go = threading.Event(), threading.Event()

    def rows() -> Iterator[Row]:
        for number in range(60):
            taken.append(number)
            yield Row(number, str(number), {"context": str(number), "query": ""})

    def work(context: str) -> None:
        if context == "0":
            assert go.wait(60)
        elif context == "15":
            far.set()

    def watch() -> None:
        assert far.wait(60)
        # All threads but one are idle by now or soon; no row beyond the window is ever taken before row 0 ends.
        assert max(taken) <= 16
        go.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    map_rows(lengths(work), rows(), tmp_path / "out.jsonl", threads=3)
    watcher.join()
    assert go.is_set() and len(lines(tmp_path / "out.jsonl")) == 60


def test_failures_have_their_lines_and_can_be_tried_again(tmp_path: Path) -> None:
    rows = [*letters(3), ["no", "object"], {"context": "x"}, *letters(1)]
    source = write(tmp_path / "rows.jsonl", rows)
    source.write_text(source.read_text() + "{torn\n\n")
    bad, calls = {"aa"}, list[str]()

    def work(context: str) -> None:
        calls.append(context)
        if context in bad:
            raise KeyError("a bug of mine")

    out = tmp_path / "out.jsonl"
    done = map_rows(lengths(work), read(source), out, signature=SIGNATURE)
    found = lines(out)
    assert [line["status"] for line in found] == [
        *("answered", "failed", "answered", "failed", "failed", "answered", "failed")
    ]
    assert "a bug of mine" in found[1]["error"] and found[1]["outputs"] is None
    assert "line 4 is no JSON object" in found[3]["error"] and found[3]["outcome"] == "unreadable"
    assert "no column 'query'" in found[4]["error"] and "line 7 is no JSON" in found[6]["error"]
    assert done.statuses == {"answered": 3, "failed": 4}
    bad.clear()
    del calls[:]
    assert map_rows(lengths(work), read(source), out, signature=SIGNATURE).statuses["failed"] == 4 and not calls
    again = map_rows(lengths(work), read(source), out, signature=SIGNATURE, retry=True)
    assert calls == ["aa"] and again.statuses == {"answered": 4, "failed": 3}
    now = lines(out)
    assert now[1]["outputs"] == {"answer": 2} and now[0] == found[0] and now[2:] == found[2:]


def test_a_retry_that_was_ended_goes_on(tmp_path: Path) -> None:
    source, out = write(tmp_path / "rows.jsonl", letters(40)), tmp_path / "out.jsonl"
    bad = {"a" * n for n in range(1, 41, 2)}
    stop, calls = Stop(), list[str]()

    def work(context: str) -> None:
        calls.append(context)
        if context in bad:
            raise KeyError

    map_rows(lengths(work), read(source), out, signature=SIGNATURE)
    bad.clear()
    del calls[:]

    def seen(line: dict[str, Any]) -> None:
        if len(calls) == 5:
            stop.ask("enough")

    stopped = map_rows(lengths(work), read(source), out, signature=SIGNATURE, retry=True, stop=stop, seen=seen)
    assert stopped.stopped == "enough" and stopped.rows < 40
    done = map_rows(lengths(work), read(source), out, signature=SIGNATURE)
    assert len(calls) == 20 == len(set(calls)) and done.statuses == {"answered": 40}
    assert [line["outputs"]["answer"] for line in lines(out)] == list(range(1, 41))


def test_other_settings_rows_and_files_are_refused(tmp_path: Path) -> None:
    source, out = write(tmp_path / "rows.jsonl", letters(3)), tmp_path / "out.jsonl"
    map_rows(lengths(), read(source), out, signature=SIGNATURE)
    kept = out.read_bytes()
    with pytest.raises(ConfigurationError, match=r"keep was \[\] and is \['id'\].*another file \(--out\)"):
        map_rows(lengths(), read(source), out, signature=SIGNATURE, keep=["id"])
    changed = letters(3)
    changed[1]["context"] = "b"
    with pytest.raises(ConfigurationError, match="row 1 of the input is not what it was"):
        map_rows(lengths(), read(write(source, changed)), out, signature=SIGNATURE)
    with pytest.raises(ConfigurationError, match="has 3 rows, and the input 2"):
        map_rows(lengths(), read(write(source, letters(2))), out, signature=SIGNATURE)
    mine = write(tmp_path / "mine.jsonl", [{"precious": 1}])
    with pytest.raises(ConfigurationError, match="is there, and not of a job"):
        map_rows(lengths(), read(source), mine, signature=SIGNATURE)
    assert out.read_bytes() == kept and lines(mine) == [{"precious": 1}]
    assert map_rows(lengths(), read(write(source, letters(5))), out, signature=SIGNATURE).rows == 5
    out.write_bytes(kept.replace(b'"row": 1', b'"row": 7'))
    with pytest.raises(RecordingError, match="row 1 is not in its place"):
        map_rows(lengths(), read(source), out, signature=SIGNATURE)


def test_a_provider_that_fails_ends_it_after_some_rows(tmp_path: Path) -> None:
    from rlm_dspy.testing import Reply

    source, out = write(tmp_path / "rows.jsonl", letters(50)), tmp_path / "out.jsonl"
    program = evaluation.get("direct")
    with dspy.context(lm=ScriptedLM(lambda call: Reply(error=AuthError("bad key")))):
        done = map_rows(program, read(source), out, signature=SIGNATURE, max_errors=4)
    assert done.statuses == {"error": 4} and "4 calls in a row failed" in str(done.stopped)
    with dspy.context(lm=ScriptedLM(lambda call: outputs(answer=1))):
        done = map_rows(program, read(source), out, signature=SIGNATURE, retry=True)
    assert done.statuses == {"answered": 50} and [line["row"] for line in lines(out)] == list(range(50))


def test_money_ends_it_and_all_times_count(tmp_path: Path) -> None:
    source, out = write(tmp_path / "rows.jsonl", letters(20)), tmp_path / "out.jsonl"
    lm = ScriptedLM(lambda call: outputs(answer=1))
    program, prices = evaluation.get("direct"), {"scripted/lm": (1000, 1000)}

    def run(limit: float) -> Any:
        with dspy.context(lm=lm):
            return map_rows(program, read(source), out, signature=SIGNATURE, max_cost=limit, prices=prices)

    first = run(1.0)
    assert str(first.stopped).startswith("max_cost=") and 0 < first.rows < 20 and first.spent >= 1.0
    made = len(lm.calls)
    assert run(1.0).rows == first.rows and len(lm.calls) == made
    assert run(100.0).rows == 20 and len(lm.calls) == 20
    with dspy.context(lm=lm), pytest.raises(ConfigurationError, match="price of scripted/lm"):
        map_rows(program, read(source), tmp_path / "other.jsonl", signature=SIGNATURE, max_cost=1.0)


def test_rows_of_csv(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b'\xef\xbb\xbftext,n,tags\n"a ""b"",\nc",3,"[""x""]"\n\nd,x,[]\nshort,1\n')
    rows = list(read(path))
    assert [row.number for row in rows] == [0, 1, 2] and rows[0].values["text"] == 'a "b",\nc'
    signature = dspy.Signature("context: str, n: int, tags: list[str], query: str -> answer")
    found = inputs_of(rows[0], signature, {"context": "text"}, {"query": "q"})
    assert found == {"context": 'a "b",\nc', "n": 3, "tags": ["x"], "query": "q"}
    with pytest.raises(ValueError, match="input 'n' cannot be read from 'x'"):
        inputs_of(rows[1], signature, {"context": "text"}, {"query": "q"})
    with pytest.raises(ValueError, match="line 6 has 2 fields, and there are 3 columns"):
        inputs_of(rows[2], signature)
    assert inputs_of(rows[1], None, {"context": "text"}, {"k": 1}) == {"context": "d", "n": "x", "tags": "[]", "k": 1}
    (tmp_path / "rows.tsv").write_text("a\tb\n1\t2,3\n")
    assert [dict(row.values) for row in read(tmp_path / "rows.tsv")] == [{"a": "1", "b": "2,3"}]


def test_a_file_is_not_held_in_memory(tmp_path: Path) -> None:
    """Rows of 100 MB in all, of 1 MB each, which a CSV field may well have."""
    import tracemalloc

    path = tmp_path / "rows.csv"
    with path.open("w") as file:
        file.write("context,query\n")
        for number in range(100):
            file.write("x" * 1_000_000 + f",{number}\n")
    tracemalloc.start()
    done = map_rows(lengths(), read(path), tmp_path / "out.jsonl", signature=SIGNATURE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert done.statuses == {"answered": 100} and peak < 25_000_000


def test_what_cannot_be_read_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(ConfigurationError, match=r"one of jsonl, csv, tsv \(--format\)"):
        read(tmp_path / "rows.parquet")
    (row,) = read(write(tmp_path / "rows.txt", [{"a": 1}]), "jsonl")
    assert row.values == {"a": 1}

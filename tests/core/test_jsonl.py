"""A trajectory in a file of its own: what is read is what was written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM, RecordingError, ReplayDiffers, Trajectory, journal, jsonl, kept
from rlm_dspy import events as ev
from rlm_dspy.environments.base import Environment
from rlm_dspy.journals import KINDS
from rlm_dspy.redact import hide
from rlm_dspy.testing import Call, ScriptedLM, code

TEXT = st.text(max_size=20) | st.sampled_from(["\ud800\0\n", "é" * 5_000, "</script>", "\u2028\u2029\x85"])
NUMBER = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 10**20)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
VALUE = PLAIN | st.binary(max_size=200) | st.tuples(NUMBER, TEXT) | st.sets(TEXT, max_size=3)
KEPT = VALUE.map(kept.pack) | TEXT.filter(bool).map(lambda why: kept.Kept(why=why))
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "str": TEXT,
    "str | None": st.none() | TEXT,
    "int": st.integers(0, 10**6),
    "int | None": st.none() | st.integers(0, 10**6),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "bool | None": st.none() | st.booleans(),
    "dict[str, str]": st.dictionaries(TEXT, TEXT, max_size=3),
    "dict[str, Any]": st.dictionaries(TEXT, PLAIN, max_size=3),
    "dict[str, Kept]": st.dictionaries(TEXT, KEPT, max_size=2),
    "Kept | None": st.none() | KEPT,
    "tuple[str, ...]": st.lists(TEXT, max_size=3).map(tuple),
    "tuple[str, str] | None": st.none() | st.tuples(TEXT, TEXT),
    "tuple[tuple[str, str], ...]": st.lists(
        st.tuples(
            st.just("image/png"), st.binary(max_size=9).map(lambda b: __import__("base64").b64encode(b).decode())
        ),
        max_size=2,
    ).map(tuple),
}


@st.composite
def logs(draw: st.DrawFn, ids: Any = None, depth: int = 0) -> tuple[ev.Event, ...]:
    """The events of a run, with children inside; ids are as they are in life, each once."""
    ids = ids or iter(range(10_000))
    own = f"run-{next(ids)}"
    log: list[ev.Event] = []
    for kind in [ev.RunStarted, *draw(st.lists(st.sampled_from(sorted(KINDS.values(), key=str)), max_size=4))]:
        fields = {f.name: draw(TYPES[str(f.type)]) for f in dataclasses.fields(kind) if str(f.type) in TYPES}
        if kind is ev.RunStarted:
            fields["run_id"] = own
        if kind is ev.ChildEnded:
            if depth == 2:
                continue
            fields["events"] = draw(logs(ids, depth + 1))
            fields["run_id"] = fields["events"][0].run_id
        log.append(kind(**fields))
    return tuple(log)


def test_every_field_of_every_event_is_varied() -> None:
    odd = {str(f.type) for kind in KINDS.values() for f in dataclasses.fields(kind)} - TYPES.keys()
    assert odd == {"tuple[Event, ...]"}


@settings(deadline=None)
@given(logs())
def test_what_is_read_is_what_was_written(tmp_path_factory: pytest.TempPathFactory, log: tuple[ev.Event, ...]) -> None:
    path = tmp_path_factory.mktemp("t") / "t.jsonl"
    first = Trajectory.from_events(log)
    first.to_jsonl(path)
    again = Trajectory.from_jsonl(path)
    assert again.events == log and again == first
    assert [vars(turn) for turn in again] == [vars(turn) for turn in first]
    assert list(jsonl.lines(again.events)) == path.read_text().splitlines() == list(jsonl.lines(log))
    assert Trajectory.from_jsonl(jsonl.lines(log)).events == log


def root(call: Call) -> str:
    """Plays the root of both the run and its child."""
    if "count it" in call.own[0]["content"]:
        return code("SUBMIT(str(len(text)))")
    if call.turn == 0:
        return code("print(rlm_query('count it', text=context['text'][:9]), llm_query('hello'))")
    return code("SUBMIT(str(context['rows'].sum()))")


def recorded(sandbox: Environment) -> tuple[RLM, dspy.Prediction]:
    """A run with a child, a sub-call and values of odd types."""
    rlm = RLM("context: dict -> a", interpreter=sandbox, max_depth=2, sub_lm=ScriptedLM(["hi"]))
    context = {"text": "é\ud800\0" + "x" * 1_000, "rows": np.arange(1_000)}
    with dspy.context(lm=ScriptedLM(root)):
        return rlm, rlm(context=context)


def event_without_run(trajectory: Trajectory) -> list[ev.Event]:
    """The events, as whoever makes them by hand has them."""
    return [dataclasses.replace(event, run="") for event in trajectory.events]


def test_a_run_from_a_file_runs_again(sandbox: Environment, tmp_path: Path) -> None:
    rlm, pred = recorded(sandbox)
    pred.trajectory.to_jsonl(tmp_path / "t.jsonl")
    again = Trajectory.from_jsonl(tmp_path / "t.jsonl")
    assert again.events == pred.trajectory.events and again.children == pred.trajectory.children
    assert {event.run for event in again.events} == {event.run for event in pred.trajectory.events}
    lines = list(jsonl.lines(event_without_run(pred.trajectory)))
    assert Trajectory.from_jsonl(lines).events == again.events
    assert (tmp_path / "t.jsonl").stat().st_mode & 0o077 == 0
    with dspy.context(lm=None):
        second = again.replay(rlm)
    assert second.a == pred.a == "499500" and second.differences == ()


def test_replay_of_a_trajectory_says_what_differs(sandbox: Environment) -> None:
    rlm, pred = recorded(sandbox)
    other = {"text": "y" * 20, "rows": np.arange(3)}
    with pytest.raises(ReplayDiffers, match="another one"):
        pred.trajectory.replay(rlm, context=other)
    assert pred.trajectory.replay(rlm, context=other, on_difference="return").a == "3"


def test_values_too_large_for_memory_come_from_the_journal(sandbox: Environment, tmp_path: Path) -> None:
    rlm = RLM("context -> a", interpreter=sandbox)
    text = "ж" * 3_000_000
    with journal(tmp_path / "j"), dspy.context(lm=ScriptedLM([code("SUBMIT(str(len(context)))")])):
        pred = rlm(context=text)
    pred.trajectory.to_jsonl(tmp_path / "t.jsonl")
    started = Trajectory.from_jsonl(tmp_path / "t.jsonl").events[0]
    assert isinstance(started, ev.RunStarted) and started.inputs["context"].value() == text
    pred.trajectory.to_jsonl(tmp_path / "small.jsonl", values=False)
    small = Trajectory.from_jsonl(tmp_path / "small.jsonl")
    assert small == pred.trajectory and (tmp_path / "small.jsonl").stat().st_size < 10_000
    with pytest.raises(RecordingError, match="left out of the file"):
        small.replay(rlm)


def test_no_secret_is_written(sandbox: Environment, tmp_path: Path) -> None:
    hide("the-secret-of-this-test")
    rlm = RLM("context -> a", interpreter=sandbox, sub_lm=ScriptedLM(["it is the-secret-of-this-test"]))
    with dspy.context(lm=ScriptedLM([code("x = llm_query('?')\nprint(x)\nSUBMIT(x)")])):
        pred = rlm(context="x")
    pred.trajectory.to_jsonl(tmp_path / "t.jsonl")
    assert "the-secret" not in (tmp_path / "t.jsonl").read_text() and "[hidden]" in (tmp_path / "t.jsonl").read_text()


def test_what_a_later_version_adds_is_passed_over(sandbox: Environment) -> None:
    _, pred = recorded(sandbox)
    head, *rest = jsonl.lines(pred.trajectory.events)
    more = [json.dumps(json.loads(line) | {"colour": "red"}) for line in rest]
    more.insert(1, json.dumps({"run": json.loads(head)["run"], "kind": "sang", "song": 1}))
    assert Trajectory.from_jsonl([head, *more]).events == pred.trajectory.events


HEAD = '{"format": "rlm-dspy trajectory", "schema": 1, "run": "a"}'


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "not a trajectory"),
        (["{}"], "not a trajectory"),
        (["\ud800"], "not a trajectory"),
        (['{"format": "rlm-dspy trajectory", "schema": 99, "run": "a"}'], "upgrade"),
        ([HEAD, "{"], "line 2 of the trajectory is damaged"),
        ([HEAD, '{"run": "a"}'], "kind"),
        (
            [
                '{"format": "rlm-dspy trajectory", "schema": 1, "run": "a"}',
                '{"run": "a", "kind": "note", "message": 3}',
            ],
            "message",
        ),
    ],
)
def test_what_is_no_trajectory_is_refused(lines: list[str], says: str) -> None:
    with pytest.raises(RecordingError, match=says):
        Trajectory.from_jsonl(lines)


def test_paths_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be read"):
        Trajectory.from_jsonl(tmp_path / "none.jsonl")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordingError, match="not a trajectory"):
        Trajectory.from_jsonl(tmp_path / "bytes")


def test_a_part_cannot_be_written(sandbox: Environment, tmp_path: Path) -> None:
    _, pred = recorded(sandbox)
    with pytest.raises(RecordingError, match="give the whole one"):
        pred.trajectory[:1].to_jsonl(tmp_path / "t.jsonl")
    assert not (tmp_path / "t.jsonl").exists()

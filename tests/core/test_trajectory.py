"""The trajectory: a list of dicts for programs, a table for people, both from the events."""

from __future__ import annotations

import copy
import json
import pickle

import dspy
import pytest
from rich.console import Console

from rlm_dspy import RLM, Outcome, Trajectory, Turn
from rlm_dspy import events as ev
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import ScriptedLM, code

HOSTILE = "<script>alert('x')</script> & \"q\" \x1b[31m \ud800 [bold red]x[/] \0"


@pytest.fixture
def trajectory(sandbox: Environment) -> Trajectory:
    replies = [code("print('a' * 30)\nllm_query('x')", "Plan."), code("1/0"), "no code here", code("SUBMIT('done')")]
    with dspy.context(lm=ScriptedLM(replies)):
        found = RLM("q -> a", interpreter=sandbox, sub_lm=ScriptedLM(["yes"]))(q="x").trajectory
    assert isinstance(found, Trajectory)
    return found


def test_it_is_a_list_of_dicts(trajectory: Trajectory) -> None:
    assert isinstance(trajectory, list) and all(isinstance(turn, dict) for turn in trajectory)
    assert [set(turn) for turn in trajectory] == [{"reasoning", "code", "output"}] * 4
    first = trajectory[0]
    assert first["reasoning"] == first.reasoning == "Plan."
    assert first["output"] == first.output == "a" * 30 + "\n'yes'"
    assert json.loads(json.dumps(trajectory)) == [dict(turn) for turn in trajectory]


def test_the_rest_is_on_attributes(trajectory: Trajectory) -> None:
    assert [turn.number for turn in trajectory] == [1, 2, 3, 4]
    assert [turn.error for turn in trajectory] == [False, True, True, False]
    assert [len(turn.calls) for turn in trajectory] == [1, 0, 0, 0]
    name, seconds, error = trajectory[0].calls[0]
    assert name == "llm_query" and seconds >= 0 and error is None
    assert trajectory[2].reply == "no code here" and trajectory[2].code == ""
    assert "ZeroDivisionError" in trajectory[1].output and "FINAL" in trajectory[3].output
    assert all(turn.seconds > 0 for turn in trajectory)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_copies_are_equal_and_whole(trajectory: Trajectory, again: object) -> None:
    other = again(trajectory)  # type: ignore[operator]
    assert type(other) is Trajectory and other == trajectory
    assert [vars(turn) for turn in other] == [vars(turn) for turn in trajectory]
    assert other.events == trajectory.events


def test_a_turn_that_a_program_added_to_survives_copying() -> None:
    turn = Turn(reasoning="r", number=3, lost=["x"])
    turn["score"] = "1"
    del turn["code"]
    other = pickle.loads(pickle.dumps(turn))
    assert other == turn == {"reasoning": "r", "output": "", "score": "1"} and other.lost == ("x",)
    assert copy.deepcopy(turn).number == 3


def test_slices_are_trajectories(trajectory: Trajectory) -> None:
    assert type(trajectory[1:]) is Trajectory and len(trajectory[1:]) == 3
    assert type(trajectory[0]) is Turn and trajectory[-1].number == 4
    assert trajectory[1:].events == ()


def test_hostile_text_on_a_terminal() -> None:
    console = Console(width=100, force_terminal=True, record=True)
    with console.capture() as capture:
        console.print(Trajectory([Turn(reasoning=HOSTILE, code=HOSTILE, output=HOSTILE, number=1, error=True)]))
    shown = capture.get()
    shown.encode()
    assert "[bold red]" in shown and "\\x1b" in shown


def test_long_text_is_cut_for_people_and_not_for_programs() -> None:
    turns = Trajectory([Turn(output="x" * 100_000, number=1)])
    assert len(turns._repr_html_()) < 20_000 and len(turns[0].output) == 100_000
    assert Trajectory()._repr_html_().startswith("<div")


def test_a_turn_cut_short_keeps_what_is_known() -> None:
    log = [
        ev.TurnStarted(turn=1),
        ev.Acted(turn=1, reply="r", reasoning="why", code="x"),
        ev.CallEnded(turn=1, call=1, name="f", seconds=0.5, error="E"),
        ev.TurnStarted(turn=2),
    ]
    (turn,) = Trajectory.from_events(log)
    assert (turn.reasoning, turn.code, turn.output, turn.calls) == ("why", "x", "", (("f", 0.5, "E"),))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_an_outcome_is_its_text_and_more(again: object) -> None:
    outcome = Outcome("extracted", limit="max_iters", error="E: x")
    for other in (outcome, again(outcome)):  # type: ignore[operator]
        assert other == "extracted" and type(other) is Outcome
        assert (other.limit, other.error) == ("max_iters", "E: x")
        assert repr(other) == "Outcome('extracted', limit='max_iters', error='E: x')"
    assert json.dumps({"o": outcome}) == '{"o": "extracted"}'

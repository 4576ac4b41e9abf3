"""`evaluating`: a slow example is run once, and rollouts reach sub-calls."""

from __future__ import annotations

import itertools
import threading
import types
from typing import Any

import dspy
import pytest
from dspy.utils import parallelizer

from rlm_dspy import RLM, optimizers
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import ScriptedLM, code


class Slow(dspy.Module):
    """Two minutes a run, by a clock that runs fast; a run ends once another began, or after two looks at the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[str] = []
        self.again = threading.Event()

    def forward(self, q: str) -> dspy.Prediction:
        if q in self.runs:
            self.again.set()
        self.runs.append(q)
        self.again.wait(timeout=2.5)
        return dspy.Prediction(a=q)


@pytest.fixture
def fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of DSPy's executor: two minutes pass between two looks at it."""
    minutes = itertools.count(0, 121)
    monkeypatch.setattr(parallelizer, "time", types.SimpleNamespace(time=lambda: float(next(minutes))))


def evaluated(program: dspy.Module) -> float:
    devset = [dspy.Example(q=q, a=q).with_inputs("q") for q in ("one", "two")]
    evaluate = dspy.Evaluate(devset=devset, metric=lambda e, p, *_: p.a == e.a, num_threads=2, display_progress=False)
    return float(evaluate(program).score)


@pytest.mark.heavy
def test_a_slow_example_is_run_once(fast_clock: None) -> None:
    """The first half fails where DSPy no longer starts slow examples twice: `evaluating` is not needed any more."""
    stock = Slow()
    assert evaluated(stock) == 100.0
    assert len(stock.runs) > 2
    ours = Slow()
    with optimizers.evaluating():
        assert evaluated(ours) == 100.0
    assert sorted(ours.runs) == ["one", "two"]


def test_only_the_default_timeout_is_turned_off_and_only_inside() -> None:
    def timeouts() -> list[float]:
        return [parallelizer.ParallelExecutor(**given).timeout for given in ({}, {"timeout": 30}, {"timeout": 0})]

    before = timeouts()
    assert before[0] == 120  # fails where DSPy's default changes: say the new one in `evaluating`
    with optimizers.evaluating():
        with optimizers.evaluating():
            assert timeouts() == [0, 30, 0]
        assert timeouts() == [0, 30, 0]
        other: list[Any] = []
        thread = threading.Thread(target=lambda: other.extend(timeouts()))
        thread.start()
        thread.join()
        assert other == before
    assert timeouts() == before


def test_equal_examples_are_each_run(sandbox: Environment) -> None:
    """Two rollouts of one example are two: nothing is merged by what is asked."""
    lm = ScriptedLM(lambda call: code(f"SUBMIT('answer {call.number}')"))
    rlm = RLM("q -> a", interpreter_factory=sandbox)
    devset = [dspy.Example(q="same", a="?").with_inputs("q")] * 3
    with dspy.context(lm=lm), optimizers.evaluating():
        evaluate = dspy.Evaluate(devset=devset, metric=lambda *_: 1.0, num_threads=2, display_progress=False)
        answers = {prediction.a for _, prediction, _ in evaluate(rlm).results}
    assert answers == {"answer 0", "answer 1", "answer 2"}


@pytest.mark.parametrize("own", [{}, {"temperature": 0.0}, {"temperature": 1.0, "rollout_id": 77}])
def test_a_rollout_of_the_root_reaches_sub_calls(sandbox: Environment, own: dict[str, Any]) -> None:
    """Otherwise an explicit ``sub_lm`` would answer every rollout from DSPy's cache with what it said at first."""
    number = itertools.count()
    sub_lm = ScriptedLM(lambda call: f"answer {next(number)}", model="scripted/cached", cache=True, **own)
    ask = code("SUBMIT(llm_query('how are you? ' + q))")
    rlm = RLM("q -> a", sub_lm=sub_lm, interpreter_factory=sandbox)

    def answer(**rollout: Any) -> str:
        with dspy.context(lm=ScriptedLM(lambda call: ask, **rollout)):
            return str(rlm(q=f"{own}").a)

    first = [answer(), answer(), answer(rollout_id=1, temperature=1.0), answer(rollout_id=2, temperature=1.0)]
    fixed = "rollout_id" in own
    assert first == ["answer 0"] * 2 + (["answer 0"] * 2 if fixed else ["answer 1", "answer 2"])
    assert answer(rollout_id=1, temperature=1.0) == first[2]

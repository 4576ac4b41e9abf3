"""``mlflow.genai.evaluate`` on RLMs, with the scorers that are shipped."""

from __future__ import annotations

import sys
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, MissingExtraError, tasks, tracking
from rlm_dspy.environments.base import Environment
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.testing import Call, ScriptedLM, code
from rlm_dspy.tracking import scorers
from rlm_dspy.tracking.facts import Facts

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")

PRICES = {"scripted/root": (1.0, 2.0), "scripted/sub": (3.0, 4.0)}
STEPS = {
    "ask": ["print(llm_query('a long question about ' + context))", "SUBMIT(answer=context)"],
    "plain": ["SUBMIT(answer=context)"],
    "die": ["import os; os._exit(1)", "SUBMIT(answer='wrong')"],
}


def policy(call: Call) -> str:
    kind = next(kind for kind in STEPS if f"{kind} me" in str(call.own[0]["content"]))
    return code(STEPS[kind][call.turn])


@pytest.fixture
def rlm(sandbox: Environment) -> RLM:
    sub = ScriptedLM(lambda call: f"<{call.prompt}>", model="scripted/sub")
    return RLM("context -> answer", sub_lm=sub, interpreter=sandbox, prices=PRICES, guidance=False)


@pytest.fixture
def root() -> ScriptedLM:
    return ScriptedLM(policy, model="scripted/root")


def examples() -> list[dspy.Example]:
    return [dspy.Example(context=f"{kind} me", answer=f"{kind} me").with_inputs("context") for kind in STEPS]


def table(result: Any) -> dict[str, dict[str, Any]]:
    """Values of all assessments, by the input of their trace."""
    found = {}
    for trace in mlflow.search_traces(run_id=result.run_id, return_type="list"):
        kind = trace.data.spans[0].inputs["context"].split()[0]
        found[kind] = {a.name: a.feedback.value for a in trace.info.assessments if a.feedback is not None}
    return found


@pytest.mark.heavy
def test_live_predictions_and_stored_traces_are_scored_alike(
    tracked: Any, rlm: RLM, root: ScriptedLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_GENAI_EVAL_SKIP_TRACE_VALIDATION", "true")
    given: dict[str, Any] = {}

    def predict(context: str) -> dspy.Prediction:
        given[context.split()[0]] = prediction = rlm(context=context)
        return prediction

    # MLflow's threads know nothing of ``dspy.context``.
    rlm.act.lm = rlm.extract.lm = root
    live = mlflow.genai.evaluate(data=scorers.data(examples()), predict_fn=predict, scorers=scorers.ready())
    found = table(live)
    assert set(found) == set(STEPS) == set(given)
    assert {kind: row["correctness"] for kind, row in found.items()} == {"ask": True, "plain": True, "die": False}
    for kind, row in found.items():
        usage = given[kind].usage
        assert row["cost"] == pytest.approx(usage["cost"]) and row["turns"] == usage["turns"] == len(STEPS[kind])
        assert row["outcome"] == "submitted" and row["sandbox_errors"] == (kind == "die")
        own = usage["by_role"]["act"]
        total = usage["input_tokens"] + usage["output_tokens"]
        assert row["delegation_share"] == pytest.approx(1 - (own["input_tokens"] + own["output_tokens"]) / total)
    assert found["ask"]["delegation_share"] > 0 == found["plain"]["delegation_share"]
    assert live.metrics["correctness/mean"] == pytest.approx(2 / 3)
    # The same of what is in the store, without running anything.
    tracking.flush()
    calls = len(root.calls)
    stored = mlflow.genai.evaluate(
        data=mlflow.search_traces(run_id=live.run_id, return_type="list"), scorers=scorers.ready()
    )
    again = table(stored)
    assert len(root.calls) == calls
    assert again == found
    # And the program itself as predict_fn; MLflow runs the first example once more, to see whether it is traced.
    monkeypatch.delenv("MLFLOW_GENAI_EVAL_SKIP_TRACE_VALIDATION")
    whole = mlflow.genai.evaluate(
        data=scorers.data(examples()[1:2]), predict_fn=rlm, scorers=[scorers.outcome(), scorers.cost()]
    )
    assert table(whole)["plain"]["outcome"] == "submitted" and len(root.calls) == calls + 2


@pytest.fixture
def predicted(rlm: RLM, root: ScriptedLM) -> dspy.Prediction:
    with dspy.context(lm=root):
        prediction: dspy.Prediction = rlm(context="ask me")
    return prediction


def test_predictions_are_scored_without_a_trace(rlm: RLM, root: ScriptedLM, predicted: dspy.Prediction) -> None:
    usage = predicted.usage
    assert scorers.cost()(outputs=predicted) == usage["cost"] > 0
    assert scorers.turns()(outputs=predicted) == 2 and scorers.outcome()(outputs=predicted) == "submitted"
    assert scorers.delegation_share(of="calls", name="calls")(outputs=predicted) == pytest.approx(1 / 3)
    # What is not known is no score.
    with dspy.context(lm=root):
        unpriced = rlm.with_options(prices={})(context="plain me")
    assert unpriced.usage["cost"] is None and scorers.cost()(outputs=unpriced) is None
    for nothing in (None, "text", {"answer": 1}, dspy.Prediction(answer=1)):
        assert scorers.turns()(outputs=nothing) is None and scorers.outcome()(outputs=nothing) is None


def test_any_dspy_metric_scores_correctness(predicted: dspy.Prediction) -> None:
    def metric(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> dspy.Prediction:
        assert set(example.inputs().keys()) == {"context"}
        return dspy.Prediction(score=float(prediction.answer == example.answer), feedback="because")

    scored = scorers.correctness(metric)(
        inputs={"context": "ask me"}, outputs=predicted, expectations={"answer": "ask me"}
    )
    assert (scored.value, scored.rationale, scored.name) == (1.0, "because", "correctness")
    example = tasks.generate(n=1, tokens=1_000, seed=1)[0]
    (row,) = scorers.data([example])
    right = dspy.Prediction(answer=example.answer)
    by_task = scorers.correctness(tasks.score)
    assert by_task(inputs=row["inputs"], outputs=right, expectations=row["expectations"]) == 1.0
    assert by_task(inputs=row["inputs"], outputs={"answer": "no"}, expectations=row["expectations"]) == 0.0
    plain = scorers.correctness()
    assert plain(outputs=predicted, expectations={"expected_response": "ask me"}) is True
    assert plain(outputs=predicted, expectations={"answer": "other"}) is False
    assert plain(outputs=predicted, expectations={}) is None


def test_what_cannot_be_scored_is_said() -> None:
    with pytest.raises(ConfigurationError, match="with_inputs"):
        scorers.data([dspy.Example(context="x")])
    with pytest.raises(ConfigurationError, match="'tokens' or 'calls'"):
        scorers.delegation_share(of="money")  # type: ignore[arg-type]
    assert Facts().share() is None and "cost" in Facts().metrics() and Facts().add([]).runs == 0


def test_without_mlflow_the_scorers_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("mlflow.genai")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "mlflow.genai.scorers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rlm-dspy\[mlflow\]'"):
        scorers.cost()

"""Scorers for ``mlflow.genai.evaluate``: of live predictions of RLMs, and of runs that were tracked before.

    import mlflow, rlm_dspy.tracking
    from rlm_dspy.tracking import scorers

    rlm_dspy.tracking.enable(experiment="contracts")
    mlflow.genai.evaluate(data=scorers.data(examples), predict_fn=rlm, scorers=scorers.ready(metric))
    mlflow.genai.evaluate(data=mlflow.search_traces(...), scorers=scorers.ready())

Each function makes one ``mlflow.genai.scorers.Scorer``. Figures come from the runs in the trace, where there are any,
else from what was predicted. What is not known, such as the cost of a model without a price, is not scored at all, and
so does not count as 0. Needs the extra ``mlflow``, which is loaded by the first call of a function here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import dspy

from rlm_dspy.errors import ConfigurationError, MissingExtraError, RecordingError
from rlm_dspy.redact import redact
from rlm_dspy.traces.reading import runs_of
from rlm_dspy.tracking.facts import Facts

__all__ = ["correctness", "cost", "data", "delegation_share", "outcome", "ready", "sandbox_errors", "turns"]

Metric = Callable[..., Any]
ONLY = "expected_response"
"""MLflow's name of what is expected of the only output."""


def data(examples: Iterable[dspy.Example]) -> list[dict[str, Any]]:
    """Examples as ``mlflow.genai.evaluate`` takes them: ``inputs``, and all else as ``expectations``.

    Args:
        examples: With inputs marked by ``with_inputs``.

    Raises:
        ConfigurationError: One has no inputs marked.
    """
    rows = []
    for number, example in enumerate(examples):
        try:
            inputs = example.inputs().toDict()
        except ValueError:
            inputs = {}
        if not inputs:
            raise ConfigurationError(f"example {number} has no inputs: mark them, as in example.with_inputs('context')")
        rows.append({"inputs": inputs, "expectations": example.labels().toDict()})
    return rows


def ready(metric: Metric | None = None) -> list[Any]:
    """All scorers of this module.

    Args:
        metric: For `correctness`; without one, answers are compared with expectations of the same name.
    """
    return [correctness(metric), outcome(), cost(), turns(), sandbox_errors(), delegation_share()]


def correctness(metric: Metric | None = None, *, name: str = "correctness") -> Any:
    """What a DSPy metric says of the answer.

    Args:
        metric: Such as `rlm_dspy.tasks.score`: called as ``metric(example, prediction)``, with inputs and expectations
            in the example; returns a number or bool, or a ``dspy.Prediction(score=…, feedback=…)``. None to compare
            outputs with the expectations of the same names, or the only output with ``expected_response``.
        name: Of the assessment.

    Where nothing is expected, and no metric was given, there is no score.
    """

    def score(inputs: Any = None, outputs: Any = None, expectations: Any = None, trace: Any = None) -> Any:
        inputs = inputs if isinstance(inputs, Mapping) else {}
        expected = dict(expectations or {})
        prediction = _prediction(outputs, trace)
        if metric is None:
            return _same(prediction, expected)
        example = dspy.Example(**{**inputs, **expected}).with_inputs(*inputs)
        return _feedback(name, metric(example, prediction))

    return _scorer(score, name)


def cost(*, name: str = "cost") -> Any:
    """US dollars of all that a call did. No score where the price of a model is unknown."""
    return _of_facts(name, lambda facts: facts.total.cost)


def turns(*, name: str = "turns") -> Any:
    """Turns of the root and of all children."""
    return _of_facts(name, lambda facts: facts.usage.turns)


def outcome(*, name: str = "outcome") -> Any:
    """``"submitted"``, ``"direct"``, ``"extracted"`` or ``"failed"``; of several runs the one that is worst."""
    order = ("failed", "extracted", "direct", "submitted")
    return _of_facts(name, lambda facts: min(facts.outcomes, key=order.index))


def sandbox_errors(*, name: str = "sandbox_errors") -> Any:
    """Sessions that were lost (killed, out of time or memory), and runs that an error of the sandbox ended."""
    return _of_facts(name, lambda facts: facts.sandbox_errors)


def delegation_share(*, of: Literal["tokens", "calls"] = "tokens", name: str = "delegation_share") -> Any:
    """Share of the tokens, or of the LM calls, that sub-calls and children took in place of the root: from 0 to 1.

    Args:
        of: ``"tokens"`` or ``"calls"``.
        name: Of the assessment.
    """
    if of not in ("tokens", "calls"):
        raise ConfigurationError(f"of must be 'tokens' or 'calls', not {of!r}")
    return _of_facts(name, lambda facts: facts.share(of))


def _of_facts(name: str, measure: Callable[[Facts], Any]) -> Any:
    def score(outputs: Any = None, trace: Any = None) -> Any:
        facts = facts_of(outputs, trace)
        return None if facts is None else measure(facts)

    return _scorer(score, name)


def _scorer(function: Callable[..., Any], name: str) -> Any:
    try:
        from mlflow.genai.scorers import scorer
    except ImportError:
        raise MissingExtraError("scorers for mlflow.genai.evaluate", "mlflow") from None
    function.__name__ = name
    return scorer(function, name=name)


def facts_of(outputs: Any, trace: Any) -> Facts | None:
    """What the runs of a trace came to, or that of a prediction; None where there was no run of an RLM."""
    facts = Facts()
    if trace is not None:
        try:
            for run in runs_of(trace):
                facts.add(run.trajectory.events)
        except RecordingError:
            facts = Facts()
    if not facts.runs:
        trajectory = outputs.get("trajectory") if isinstance(outputs, (dspy.Prediction, Mapping)) else None
        facts.add(getattr(trajectory, "events", ()))
    return facts if facts.runs else None


def _prediction(outputs: Any, trace: Any) -> dspy.Prediction:
    if isinstance(outputs, dspy.Prediction):
        return outputs
    if isinstance(outputs, Mapping):
        return dspy.Prediction(**outputs)
    if trace is not None:
        for run in runs_of(trace):
            if run.outputs:
                return dspy.Prediction(**run.outputs)
    return dspy.Prediction() if outputs is None else dspy.Prediction(answer=outputs)


def _same(prediction: dspy.Prediction, expected: Mapping[str, Any]) -> bool | None:
    given = {name: value for name, value in prediction.items() if name not in ("trajectory", "usage", "outcome")}
    if ONLY in expected and len(given := {k: v for k, v in given.items() if k != "final_reasoning"}) == 1:
        return bool(next(iter(given.values())) == expected[ONLY])
    common = expected.keys() & given.keys()
    return all(given[name] == expected[name] for name in common) if common else None


def _feedback(name: str, score: Any) -> Any:
    if not isinstance(score, dspy.Prediction):
        return score if score is None or isinstance(score, (bool, int, float, str)) else float(score)
    from mlflow.entities import Feedback

    why = score.get("feedback")
    return Feedback(name=name, value=score.get("score"), rationale=None if why is None else redact(str(why)))

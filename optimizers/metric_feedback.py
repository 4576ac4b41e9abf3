"""`feedback`: a task's metric as one that says, for each predictor of an RLM, what it should do better.

    optimizer = dspy.GEPA(metric=optimizers.feedback(metric), reflection_lm=…, max_metric_calls=200)
    optimizer = optimizers.RLMGEPA(metric=optimizers.feedback(metric), …)   # wraps a plain metric by itself

A metric sees an answer. What made it wrong is in the trajectory, and mostly at another predictor than the one that is
being rewritten: the root may have computed rightly with what a sub-LM read wrongly. So each finding of
`rlm_dspy.optimizers.diagnose`, and each sub-call that can be held against the gold answer, is told to the predictor
that can change it, and to no other.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import dspy
from dspy.teleprompt.bootstrap_trace import FailedPrediction

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.optimizers.diagnosis import Finding, diagnose, role_of_predictor
from rlm_dspy.redact import error_text, redact
from rlm_dspy.render import one_line, shorten
from rlm_dspy.signatures.conversation import sendable

logger = logging.getLogger("rlm_dspy.optimizers")

Metric = Callable[..., Any]
"""``metric(gold, pred, trace=None)``, or with GEPA's two more arguments; gives a number, a bool, or a
``dspy.Prediction`` (or dict) with ``score`` and perhaps ``feedback``."""
SubGold = Callable[[Any, str, Mapping[str, Any], Mapping[str, Any]], Any]
"""``sub_gold(gold, role, inputs, outputs)``: None where nothing is known of a sub-call, True where it is right, or a
text that says what it should have answered."""

OWN_OUTPUTS = frozenset({"trajectory", "final_reasoning", "outcome", "usage"})
"""Keys of an RLM's prediction that are no answer."""
SAID = 4_000
"""Characters of what a metric says that predictors are told."""
_SHORTEST = 3
_MOST = 12


class Feedback:
    """A metric of five arguments, ``(gold, pred, trace, pred_name, pred_trace)``; made by `feedback`.

    Called without ``pred_name`` it gives the score alone, a float. With one it gives a ``dspy.Prediction`` of ``score``
    and ``feedback``, as GEPA asks for it; the score is the same, that of the whole run.

    Attributes:
        metric: The task's.
        sub_gold: What sub-calls should have answered, or None.
    """

    def __init__(self, metric: Metric, sub_gold: SubGold | None = None) -> None:
        if not callable(metric):
            raise ConfigurationError(f"metric must be a function of (gold, pred, trace=None), not {metric!r}")
        self.metric = metric
        self.sub_gold = sub_gold
        self.__name__ = str(getattr(metric, "__name__", None) or type(metric).__name__)
        self._places = _places(metric)

    def __call__(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> Any:
        score, said = self.scored(gold, pred, trace, pred_name, pred_trace)
        if pred_name is None:
            return score
        role = role_of_predictor(pred_name)
        # GEPA gives one call of the predictor; all of its calls are in the whole trace.
        calls = _calls(trace, role) or _calls(pred_trace, role)
        trajectory = pred.get("trajectory") if isinstance(pred, dspy.Prediction) else None
        findings = diagnose(trajectory) if trajectory is not None else []
        return dspy.Prediction(score=score, feedback=self.told(role, gold, pred, score, said, findings, calls))

    def scored(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> tuple[float, str]:
        """The task's score, and what its metric says in words, ``""`` where it says nothing."""
        if pred is None or isinstance(pred, FailedPrediction):
            return 0.0, "The run gave no answer."
        given = (gold, pred, trace, pred_name, pred_trace)[: self._places]
        return read_score(self.metric(*given))

    def told(
        self,
        role: str,
        gold: Any,
        pred: Any,
        score: float,
        said: str,
        findings: Iterable[Finding],
        calls: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]] = (),
    ) -> str:
        """What the predictor of ``role`` is told of one run.

        Args:
            role: As in `Finding.role`.
            gold: The example, with its labels.
            pred: What the run gave, or None.
            score: What it is worth.
            said: What the task's metric says in words.
            findings: Of the whole run.
            calls: Inputs and outputs of this predictor's calls.
        """
        said = shorten(said.strip(), SAID)
        lines = [f"Score {score:g}." + (f" {said}" if said else "")]
        lines += _answers(gold, pred)
        findings = _in_point(findings, score)
        own = [finding for finding in findings if finding.role == role]
        # What was spent is worth a word only where it is this predictor's doing, or nothing else went wrong.
        lines += [f"- {finding}" for finding in own[:_MOST]]
        if len(own) > _MOST:
            lines.append(f"- … {len(own) - _MOST} more of the same kinds")
        lines += [f"- {line}" for line in self._against_gold(role, gold, score, calls)]
        others = sorted({f.role for f in findings if f.role != role and f.kind != "budget"})
        if not own and others:
            lines.append(f"What went wrong in this run was at: {', '.join(others)}.")
        return redact(sendable("\n".join(lines)))

    def blamed(
        self, role: str, gold: Any, score: float, findings: Iterable[Finding], calls: Iterable[Any] = ()
    ) -> bool:
        """Whether something that the predictor of ``role`` can change went wrong."""
        own = any(finding.role == role and finding.kind != "budget" for finding in _in_point(findings, score))
        return own or bool(self._against_gold(role, gold, score, calls))

    def _against_gold(self, role: str, gold: Any, score: float, calls: Iterable[Any]) -> list[str]:
        """What this predictor's calls said, held against what is known of the right answer."""
        if role in ("act", "extract", "compact", "direct"):
            return []
        lines = []
        wanted = list(_labels(gold).items())
        for inputs, outputs in calls:
            asked = one_line(" | ".join(str(value) for value in inputs.values()), 160)
            answered = one_line(" | ".join(str(value) for value in outputs.values()), 160)
            if self.sub_gold is not None:
                try:
                    right = self.sub_gold(gold, role, inputs, outputs)
                except Exception as error:
                    # It only adds words: hours of work must not end by it.
                    logger.warning("sub_gold raised, so nothing is known of this sub-call: %s", error_text(error, 300))
                    right = None
                if isinstance(right, str) and right:
                    lines.append(f"asked {asked!r}, it answered {answered!r}; right is: {one_line(right, 300)}")
                if right is not None:
                    continue
            lines += [
                f"asked {asked!r}, it answered {answered!r}, though the text it was given has the expected "
                f"{name}: {one_line(str(value), 160)!r}"
                for name, value in wanted
                if score < 1 and _stands_in(value, inputs.values()) and not _stands_in(value, outputs.values())
            ]
        return list(dict.fromkeys(lines))[:_MOST]


def feedback(metric: Metric, *, sub_gold: SubGold | None = None) -> Feedback:
    """``metric`` with feedback for each predictor, from the whole trajectory.

    Works as the metric of ``dspy.GEPA``, of `rlm_dspy.optimizers.RLMGEPA`, of ``dspy.Evaluate`` and of every other
    optimiser.

    Args:
        metric: The task's: ``metric(gold, pred, trace=None)``, with or without GEPA's further arguments.
        sub_gold: ``sub_gold(gold, role, inputs, outputs)`` for sub-calls of which the right answer is known: None for
            nothing known, True for right, or a text that says what was right. Without it, a sub-call is held against
            the example's labels where one of these stands in what it was given.

    Raises:
        ConfigurationError: ``metric`` cannot be called so.
    """
    return metric if isinstance(metric, Feedback) and sub_gold is None else Feedback(metric, sub_gold)


def read_score(result: Any) -> tuple[float, str]:
    """The score and the words in what a metric gave.

    Raises:
        TypeError: There is no finite number in it.
    """
    said = ""
    if isinstance(result, (dspy.Prediction, Mapping)) or hasattr(result, "score"):
        get = result.get if isinstance(result, (dspy.Prediction, Mapping)) else lambda name: getattr(result, name, None)
        result, said = get("score"), str(get("feedback") or "")
    if result is None:
        raise TypeError(
            "a metric gives a number or a dspy.Prediction(score=…), not None: does it end without a return?"
        )
    try:
        score = float(result)
    except (TypeError, ValueError):
        raise TypeError(
            f"a metric gives a number or a dspy.Prediction(score=…), not {one_line(repr(result))}"
        ) from None
    # Not a number is neither more nor less than any other, so nothing could be chosen by it.
    if not math.isfinite(score):
        raise TypeError(f"a metric gives a finite number, not {score}")
    return score, said


def _places(metric: Metric) -> int:
    """How many arguments ``metric`` is called with: 5 where it takes GEPA's, else 3 or 2."""
    try:
        signature = inspect.signature(metric)
    except (TypeError, ValueError):
        return 3
    for places in (5, 3, 2):
        try:
            signature.bind(*[None] * places)
        except TypeError:
            continue
        return places
    raise ConfigurationError(f"a metric is called as metric(gold, pred, trace=None), which {metric!r} is not for")


def _labels(gold: Any) -> dict[str, Any]:
    labels = getattr(gold, "labels", None)
    try:
        return dict(labels().items()) if callable(labels) else {}
    except (ValueError, AttributeError):
        # An example that was never told what its inputs are.
        return {}


def _answers(gold: Any, pred: Any) -> list[str]:
    """What was expected, and what came."""
    labels = _labels(gold)
    given = {k: v for k, v in pred.items() if k not in OWN_OUTPUTS} if isinstance(pred, dspy.Prediction) else {}
    lines = []
    for name, value in labels.items():
        if name in given:
            came = "the same" if _same(given[name], value) else one_line(str(given[name]), 300)
            lines.append(f"{name}: expected {one_line(str(value), 300)}, got {came}.")
    lines += [f"{name}: got {one_line(str(value), 300)}." for name, value in given.items() if name not in labels]
    return lines


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        # Arrays and data frames compare item by item, and give no one answer.
        return repr(one) == repr(other)


def _in_point(findings: Iterable[Finding], score: float) -> list[Finding]:
    """Without what turned out well: an answer that was submitted early and is right was no fault."""
    return [finding for finding in findings if score < 1 or finding.kind != "blind_submit"]


def _stands_in(value: Any, texts: Iterable[Any]) -> bool:
    wanted = str(value).casefold()
    return (
        isinstance(value, (str, int, float))
        and not isinstance(value, bool)
        and len(wanted) >= _SHORTEST
        and any(wanted in str(text).casefold() for text in texts)
    )


def _calls(trace: Any, role: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Inputs and outputs of the calls of the predictors of ``role`` in ``trace``."""
    return [
        (dict(inputs), dict(outputs.items()))
        for predictor, inputs, outputs in trace or ()
        if getattr(predictor, "role", None) == role and not isinstance(outputs, FailedPrediction)
    ]

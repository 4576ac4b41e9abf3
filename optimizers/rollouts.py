"""One run of a candidate on one example, and all that is kept of it: `Rollout`.

A rollout is plain data: what it was worth, what it took, what each predictor is told of it, and the run as a readable
text. It holds no object of the program, so that it can be kept in a file and be read by people.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dspy
from dspy.utils.exceptions import LMError

from rlm_dspy import events as ev
from rlm_dspy.digests import digest
from rlm_dspy.engine import modules_of
from rlm_dspy.errors import RunStopped
from rlm_dspy.events import subscribe
from rlm_dspy.optimizers.diagnosis import Finding, diagnose, role_of_predictor
from rlm_dspy.optimizers.excerpts import excerpt
from rlm_dspy.optimizers.metric_feedback import OWN_OUTPUTS, Feedback
from rlm_dspy.redact import error_text, redact
from rlm_dspy.render import one_line, shorten
from rlm_dspy.rlm import RLM
from rlm_dspy.trajectory import Trajectory

EXCERPT = 6_000
"""Characters of a rollout's excerpt."""
_CALLS = 6
_CALL_CHARS = 1_200


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One run, as it is kept.

    Attributes:
        candidate, example, seed: Which: the digests of the instructions and of the example, and the number of the
            repetition, from 0.
        score: What the task's metric gave; that of a failure where there was no answer.
        outputs: The answer in short, by output.
        outcome: How it ended, as in `rlm_dspy.Outcome`; ``"raised"`` where the program raised.
        error: Of a failed run, as text.
        outage: The language model itself failed, before the first turn.
        unscored: The metric failed on an answer. Such runs, and those of an outage, are made again when a compile is
            resumed.
        cost: US dollars of the RLMs in the program; None where a price is unknown.
        tokens: Input and output tokens of these.
        seconds: Wall time.
        called: Names of the predictors that were called.
        blamed: Names of those that did something which went wrong.
        told: Predictor to what it is told of this run.
        calls: Predictor to inputs and outputs of some of its calls, shortened; not of the root's.
        excerpt: The run as a text.
    """

    candidate: str
    example: str
    seed: int = 0
    score: float = 0.0
    outputs: dict[str, str] = field(default_factory=dict)
    outcome: str = ""
    error: str = ""
    outage: bool = False
    unscored: bool = False
    cost: float | None = None
    tokens: int = 0
    seconds: float = 0.0
    called: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()
    told: dict[str, str] = field(default_factory=dict)
    calls: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    excerpt: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """Tells rollouts apart."""
        return self.candidate, self.example, self.seed

    def to_dict(self) -> dict[str, Any]:
        """Plain data, JSON-able."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Rollout:
        """What `to_dict` gave.

        Raises:
            TypeError, ValueError, KeyError: It is something else.
        """
        lists = {name: tuple(data.get(name) or ()) for name in ("called", "blamed")}
        given: dict[str, Any] = {f.name: data[f.name] for f in dataclasses.fields(cls) if f.name in data}
        made = cls(**{**given, **lists})
        if not isinstance(made.score, (int, float)) or not isinstance(made.seed, int):
            raise ValueError("a rollout's score and seed are numbers")
        return made


def candidate_digest(candidate: Mapping[str, str]) -> str:
    """Tells the instructions of candidates apart."""
    return hashlib.sha256(json.dumps(sorted(candidate.items())).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def example_digest(example: Any) -> str:
    """Tells examples apart, by all that is in them; the same in every process."""
    return digest([dict(example)])


def without_addresses(text: str) -> str:
    """A ``repr`` without the places in memory of objects that have no text of their own."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def about_program(program: dspy.Module) -> dict[str, Any]:
    """What tells a program from another one, for a folder: a digest of its state and options, and its models' names."""
    lms = [dspy.settings.lm]
    for module in modules_of(program):
        lms += module.lms() if isinstance(module, RLM) else [getattr(module, "lm", None)]
    return {
        "student": example_digest({"state": program.dump_state(), "program": without_addresses(repr(program))}),
        "models": sorted({str(getattr(lm, "model", lm)) for lm in lms if lm is not None}),
    }


class Runs:
    """The outermost RLM runs that are made while it is subscribed."""

    def __init__(self) -> None:
        self._runs: dict[str, Any] = {}
        self.stopped = False

    def __call__(self, event: ev.Event, run: Any) -> None:
        if run.parent is None and isinstance(event, ev.RunStarted):
            self._runs[run.id] = run
            if self.stopped:
                run.request_stop(answer=False)

    def stop(self) -> None:
        """Have those under way end where they are, without a last answer: nobody will read it."""
        self.stopped = True
        for run in tuple(self._runs.values()):
            run.request_stop(answer=False)

    def trajectories(self) -> list[Trajectory]:
        """What they did."""
        return [Trajectory.from_events(run.events) for run in self._runs.values()]


def roll_out(
    program: dspy.Module,
    example: Any,
    judge: Feedback,
    *,
    candidate: str,
    digest: str,
    seed: int = 0,
    failure_score: float = 0.0,
    runs: Runs | None = None,
) -> Rollout:
    """Run ``program`` on ``example`` and keep what is worth keeping. It raises nothing of the program's.

    Args:
        program: The candidate; it is called in this thread.
        example: Its inputs and labels.
        judge: The metric.
        candidate, digest, seed: What the rollout goes by.
        failure_score: The score where there is no answer.
        runs: To stop them by; None for new ones.
    """
    runs = Runs() if runs is None else runs
    prediction: Any = None
    error: Exception | None = None
    started = time.monotonic()
    with subscribe(runs), dspy.context(trace=[], **_settings(seed)):
        try:
            prediction = program(**example.inputs())
        except RunStopped as stopped:
            prediction, error = stopped.prediction, stopped
        except Exception as raised:
            error = raised
        trace = list(dspy.settings.trace or ())
    seconds = time.monotonic() - started
    score, said, unscored = failure_score, "", False
    if prediction is not None:
        try:
            score, said = judge.scored(example.copy(), prediction, None)
        except Exception as raised:
            # A metric that fails on one answer must not end hours of work; it is told, and seen in the folder.
            said, error = f"The metric failed: {error_text(raised, 300)}.", error or raised
            # Of a run without an answer it is none of the metric's business.
            unscored = getattr(prediction, "outcome", "") != "failed"
    if error is not None and not said:
        said = f"The run ended in an error: {error_text(error, 300)}"
    trajectories = runs.trajectories()
    made = _Told(judge, example, prediction, score, said, trajectories, trace)
    names = {id(predictor): name for name, predictor in program.named_predictors()}
    usages = [e.usage for t in trajectories for e in t.events if isinstance(e, ev.RunEnded)]
    costs = [usage.get("cost") for usage in usages]
    outage = isinstance(error, LMError) and not any(trajectories)
    return Rollout(
        candidate=candidate,
        example=digest,
        seed=seed,
        score=score,
        outputs=_shown(prediction),
        outcome=_outcome(prediction, trajectories, error),
        error=error_text(error, 500) if error is not None else "",
        outage=outage,
        unscored=unscored,
        cost=None if None in costs else float(sum(cost for cost in costs if cost is not None)),
        tokens=sum(usage.get("input_tokens", 0) + usage.get("output_tokens", 0) for usage in usages),
        seconds=round(seconds, 3),
        excerpt=redact("\n\n".join(excerpt(t, chars=max(400, EXCERPT // len(trajectories))) for t in trajectories)),
        **made.by_predictor(names),
    )


class _Told:
    """What a run has to say to each predictor."""

    def __init__(
        self,
        judge: Feedback,
        example: Any,
        prediction: Any,
        score: float,
        said: str,
        trajectories: list[Trajectory],
        trace: list[Any],
    ) -> None:
        self._judge, self._example, self._prediction = judge, example, prediction
        self._score, self._said, self._trace = score, said, trace
        self._findings: list[Finding] = [found for t in trajectories for found in diagnose(t)]

    def by_predictor(self, names: Mapping[int, str]) -> dict[str, Any]:
        """The fields ``called``, ``blamed``, ``told`` and ``calls`` of the rollout."""
        made: dict[str, list[tuple[Any, Any]]] = {}
        for predictor, inputs, outputs in self._trace:
            if (name := names.get(id(predictor))) is not None and hasattr(outputs, "items"):
                made.setdefault(name, []).append((dict(inputs), dict(outputs.items())))
        # A root whose reply could not be read, or a sub-call that failed, leaves no trace but a finding.
        roles = {found.role for found in self._findings if found.kind != "budget"}
        at_fault = {name for name in names.values() if role_of_predictor(name) in roles}
        called = [name for name in names.values() if name in made or name in at_fault]
        told, blamed = {}, []
        for name in called:
            role, calls = role_of_predictor(name), made.get(name, [])
            told[name] = self._judge.told(
                role, self._example, self._prediction, self._score, self._said, self._findings, calls
            )
            if self._judge.blamed(role, self._example, self._score, self._findings, calls):
                blamed.append(name)
        inner = {name: calls for name, calls in made.items() if role_of_predictor(name) not in ("act", "extract")}
        return {
            "called": tuple(called),
            "blamed": tuple(blamed),
            "told": told,
            "calls": {name: [_call(*call) for call in _spread(calls)] for name, calls in inner.items()},
        }


def _spread(calls: list[Any]) -> list[Any]:
    """Some of ``calls``, from all over."""
    if len(calls) <= _CALLS:
        return calls
    return [calls[round(n * (len(calls) - 1) / (_CALLS - 1))] for n in range(_CALLS)]


def _call(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, str]:
    def text(values: Mapping[str, Any]) -> str:
        single = len(values) == 1
        parts = [str(v) if single else f"{name}: {v}" for name, v in values.items()]
        return redact(shorten("\n".join(parts), _CALL_CHARS))

    return {"inputs": text(inputs), "outputs": text(outputs)}


def _shown(prediction: Any) -> dict[str, str]:
    if not isinstance(prediction, dspy.Prediction):
        return {}
    return {k: redact(one_line(str(v), 200)) for k, v in prediction.items() if k not in OWN_OUTPUTS}


def _outcome(prediction: Any, trajectories: list[Trajectory], error: BaseException | None) -> str:
    if error is not None and not isinstance(error, RunStopped) and prediction is None:
        return "raised"
    ended = [e.outcome for t in trajectories for e in t.events if isinstance(e, ev.RunEnded)]
    return ended[-1] if ended else ""


def _settings(seed: int) -> dict[str, Any]:
    lm = dspy.settings.lm
    return {"lm": _another(lm, seed)} if seed and isinstance(lm, dspy.BaseLM) else {}


def vary(program: dspy.Module, seed: int) -> None:
    """Have the language models of ``program`` answer anew for every repetition, not from DSPy's cache.

    Args:
        program: A copy of one's own; its models are replaced by copies.
        seed: The repetition; 0 leaves all as it is.
    """
    for module in modules_of(program) if seed else ():
        attribute = "sub_lm" if isinstance(module, RLM) else "lm"
        if isinstance(lm := getattr(module, attribute, None), dspy.BaseLM):
            setattr(module, attribute, _another(lm, seed))


def _another(lm: Any, seed: int) -> Any:
    made = copy.copy(lm)
    made.kwargs = {**lm.kwargs, "rollout_id": seed}
    return made

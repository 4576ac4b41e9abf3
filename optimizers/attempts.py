"""Attempts at examples: a program run over a training set, each run scored and kept with all that was asked in it.

What demonstrations (`rlm_dspy.optimizers.BootstrapTrajectories`) and training rows (`rlm_dspy.optimizers.sft_rows`) are
made of. An attempt that fails is scored 0 and kept with its error; none is dropped.
"""

from __future__ import annotations

import contextvars
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import dspy

from rlm_dspy import events as ev
from rlm_dspy._signals import all_ended, patience
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.kept import Kept
from rlm_dspy.optimizers.metric_feedback import feedback
from rlm_dspy.optimizers.watching import Asked, Ran, Watcher, watched
from rlm_dspy.redact import error_text
from rlm_dspy.rlm import RLM
from rlm_dspy.trajectory import Trajectory

logger = logging.getLogger(__name__)

Metric = Callable[..., Any]
LARGEST = 1 << 16
"""Bytes of one value of a run, such as an input, that an attempt keeps."""
_ROOTS = ("", "act", "extract", "compact", "direct")
"""Roles of an RLM's predictors that the root's LM plays; other modules' predictors have none."""


@dataclass(eq=False)
class Attempt:
    """One run of a program on one example.

    Attributes:
        example: The example.
        prediction: What the program gave; None where it raised.
        score: What the metric said of it, as a number; 0.0 where the program or the metric raised.
        error: What was raised, as text without secrets, or None.
        rollout: 0 for the first attempt at the example, 1 for the second, and so on.
        seconds: Wall time.
        program: The copy of the program that ran; ``names`` maps its predictors.
        asked: The calls of predictors.
        ran: The runs of RLMs in it, by id. Values larger than `LARGEST` are left out of their events, and of those of
            ``prediction.trajectory``, so that many attempts over large inputs fit into memory: such runs can be looked
            at, and not be replayed.
    """

    example: dspy.Example
    rollout: int
    program: dspy.Module
    prediction: Any = None
    score: float = 0.0
    error: str | None = None
    seconds: float = 0.0
    asked: list[Asked] = field(default_factory=list, repr=False)
    ran: dict[str, Ran] = field(default_factory=dict, repr=False)

    @property
    def cost(self) -> float | None:
        """US dollars of all its runs; None where a price is unknown, or nothing ran."""
        costs = [run.usage.get("cost") for run in self.ran.values() if run.depth == 0]
        return sum(costs) if costs and None not in costs else None  # type: ignore[arg-type]

    @property
    def turns(self) -> int:
        """Turns of all its runs, children's not counted."""
        return sum(len(run.trajectory) for run in self.ran.values() if run.depth == 0)

    def names(self) -> dict[int, str]:
        """The names of the program's predictors, by ``id``."""
        return {id(predictor): name for name, predictor in self.program.named_predictors()}


def collect(
    program: dspy.Module,
    examples: Sequence[dspy.Example],
    metric: Metric | None = None,
    *,
    lm: dspy.BaseLM | None = None,
    sub_lm: dspy.BaseLM | None = None,
    rollouts: int = 1,
    until: int | None = None,
    threshold: float = 1.0,
    num_threads: int | None = None,
    max_errors: int | None = 10,
    into: list[Attempt] | None = None,
) -> list[Attempt]:
    """Run ``program`` on ``examples`` and score what comes of it.

    The program itself stays as it is: copies of it run. A second attempt at an example is made with another
    ``rollout_id`` and a temperature of 1, of the root's and the sub-calls' LM, so that no cache gives the first again.

    Args:
        program: An RLM, or any module with RLMs in it.
        examples: With their inputs marked (``with_inputs``).
        metric: ``metric(example, prediction, trace)``, a number, a bool or a ``dspy.Prediction`` with ``score``; None
            for 1 where every run at the top submitted its answer.
        lm: A teacher: plays the root in the program's place, and the sub-LM where the program names none.
        sub_lm: A teacher for sub-calls.
        rollouts: Attempts at each example, at most.
        until: Attempts that have to reach ``threshold``, after which an example is not tried again; None for all.
        threshold: See ``until``.
        num_threads: Runs at once; None for DSPy's setting.
        max_errors: Attempts that may raise before it is given up; None for any number.
        into: A list that attempts are added to as they end, so that they are there whatever happens.

    Returns:
        The attempts, in the order of the examples.

    Raises:
        ConfigurationError: There are no examples, or one does not say which of its fields are inputs.
        RuntimeError: Too many attempts raised, or all of them did; the message has the last error.
        KeyboardInterrupt: After the runs under way were asked to stop.
    """
    _check(examples, rollouts)
    made: list[Attempt] = into if into is not None else []
    before = len(made)
    solved = [0] * len(examples)
    tried: dict[int, list[Attempt]] = {number: [] for number in range(len(examples))}
    errors = 0
    for rollout in range(rollouts):
        ours = taught(program, lm, sub_lm, rollout)
        configured = lm if lm is not None else dspy.settings.lm
        jobs = [n for n in range(len(examples)) if until is None or solved[n] < until]
        work = [(n, Attempt(examples[n], rollout, ours)) for n in jobs]
        for number, attempt in _each(work, metric, _varied(configured, rollout), num_threads):
            made.append(attempt)
            tried[number].append(attempt)
            solved[number] += attempt.error is None and attempt.score >= threshold
            errors += attempt.error is not None and attempt.prediction is None
            if max_errors is not None and errors > max_errors:
                raise RuntimeError(f"{errors} attempts raised an error, the last: {attempt.error}")
    ended = made[before:]
    if ended and all(attempt.prediction is None for attempt in ended):
        raise RuntimeError(f"every one of {len(ended)} attempts raised an error, the last: {ended[-1].error}")
    return [attempt for attempts in tried.values() for attempt in attempts]


def _check(examples: Sequence[dspy.Example], rollouts: int) -> None:
    if not examples:
        raise ConfigurationError("there are no examples to run the program on")
    if rollouts < 1:
        raise ConfigurationError(f"rollouts must be 1 or more, not {rollouts!r}")
    for number, example in enumerate(examples):
        try:
            example.inputs()
        except ValueError:
            raise ConfigurationError(
                f"example {number} does not say which of its fields are inputs: "
                'dspy.Example(...).with_inputs("context", "query")'
            ) from None


def taught(program: dspy.Module, lm: Any, sub_lm: Any, rollout: int = 0) -> dspy.Module:
    """A copy of ``program`` whose roots are played by ``lm`` and whose sub-calls are answered by ``sub_lm``.

    Args:
        program: Stays as it is.
        lm, sub_lm: None for the program's own.
        rollout: Above 0 the program's own LMs are asked for another answer too.
    """
    ours: dspy.Module = program.deepcopy()
    for (name, predictor), (_, given) in zip(ours.named_predictors(), program.named_predictors(), strict=True):
        called = getattr(predictor, "role", "") not in _ROOTS or "sub_calls[" in name
        predictor.lm = (sub_lm if called else lm) or _varied(given.lm, rollout)
    for (_, module), (_, given) in zip(ours.named_sub_modules(RLM), program.named_sub_modules(RLM), strict=True):
        module.sub_lm = sub_lm or _varied(given.sub_lm, rollout)
    return ours


def _varied(lm: Any, rollout: int) -> Any:
    return lm.copy(rollout_id=rollout, temperature=1.0) if rollout and isinstance(lm, dspy.BaseLM) else lm


def _each(
    work: Sequence[tuple[int, Attempt]], metric: Metric | None, lm: Any, num_threads: int | None
) -> Iterator[tuple[int, Attempt]]:
    """The attempts as they end."""
    watchers, stopping = list[Watcher](), threading.Event()
    threads = num_threads or dspy.settings.num_threads or 1
    executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="rlm-attempt")
    numbers: dict[Future[None], tuple[int, Attempt]] = {}
    try:
        for number, attempt in work:
            # A context each: two threads cannot be in one.
            job = executor.submit(contextvars.copy_context().run, _attempt, attempt, metric, lm, watchers, stopping)
            numbers[job] = number, attempt
        pending = set(numbers)
        while pending:
            done, pending = wait(pending, patience(), return_when=FIRST_COMPLETED)
            for job in sorted(done, key=lambda job: numbers[job][0]):
                job.result()
                yield numbers[job]
    finally:
        # Left early: what has not begun does not begin, what goes on is asked to stop.
        for job in numbers:
            job.cancel()
        stopping.set()
        for watcher in list(watchers):
            watcher.stop()
        all_ended(numbers)
        executor.shutdown(wait=True, cancel_futures=True)


def _attempt(
    attempt: Attempt, metric: Metric | None, lm: Any, watchers: list[Watcher], stopping: threading.Event
) -> None:
    started = time.monotonic()
    with watched(lm) as watcher:
        watchers.append(watcher)
        if stopping.is_set():
            watcher.stop()
        try:
            attempt.prediction = attempt.program(**attempt.example.inputs())
        except Exception as error:
            attempt.error = error_text(error)
    attempt.seconds = time.monotonic() - started
    attempt.asked, attempt.ran = watcher.asked, watcher.ran
    watchers.remove(watcher)
    if attempt.error is not None:
        logger.warning("an attempt raised an error and is scored 0: %s", attempt.error)
    else:
        try:
            attempt.score = score_of(attempt, metric)
        except Exception as error:
            attempt.error = f"the metric raised {error_text(error)}"
            logger.warning("%s; the attempt is scored 0", attempt.error)
    for ran in attempt.ran.values():
        ran.trajectory.events = slimmed(ran.trajectory.events)
    trajectory = getattr(attempt.prediction, "trajectory", None)
    if isinstance(trajectory, Trajectory):
        trajectory.events = slimmed(trajectory.events)


def slimmed(events: Sequence[ev.Event]) -> tuple[ev.Event, ...]:
    """``events`` without values of inputs, outputs and host calls larger than `LARGEST`, those of children too."""
    found: list[ev.Event] = []
    for event in events:
        match event:
            case ev.RunStarted():
                inputs = {name: _without(value) for name, value in event.inputs.items()}
                found.append(dataclasses.replace(event, inputs=inputs))
            case ev.Returned() if event.result is not None:
                found.append(dataclasses.replace(event, result=_without(event.result)))
            case ev.RunEnded() if event.values is not None:
                found.append(dataclasses.replace(event, values=_without(event.values)))
            case ev.ChildEnded():
                found.append(dataclasses.replace(event, events=slimmed(event.events)))
            case _:
                found.append(event)
    return tuple(found)


def _without(value: Kept) -> Kept:
    if value.why or value.size <= LARGEST:
        return value
    return Kept(why=f"an attempt keeps no value of {value.size:,} bytes")


def score_of(attempt: Attempt, metric: Metric | None) -> float:
    """What ``metric`` says of an attempt, as a number."""
    if metric is None:
        roots = [run for run in attempt.ran.values() if run.depth == 0]
        return float(bool(roots) and all(run.outcome in ("submitted", "direct") for run in roots))
    trace = [(a.predictor, a.inputs, dspy.Prediction(**a.outputs)) for a in attempt.asked if a.outputs is not None]
    return feedback(metric).scored(attempt.example.copy(), attempt.prediction, trace)[0]

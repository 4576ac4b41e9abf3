"""`BootstrapTrajectories`: demonstrations out of whole runs that succeeded."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import dspy
from dspy.teleprompt import Teleprompter

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.optimizers import demos
from rlm_dspy.optimizers.attempts import Attempt, Metric, collect, taught
from rlm_dspy.rlm import RLM
from rlm_dspy.signatures.guidance import Guidance

logger = logging.getLogger(__name__)


class BootstrapTrajectories(Teleprompter):
    """Demonstrations for every predictor of a program with RLMs in it, out of its runs that succeeded.

    DSPy's ``BootstrapFewShot`` takes one random step of each run. This takes, for ``act``, the whole run as a short
    conversation: plan, code, outputs (shortened, never made up), the submission; for ``sub``, each of ``sub_calls`` and
    other predictors, what they were asked and answered. They are chosen to be short, without errors and unlike one
    another (`rlm_dspy.optimizers.demos.chosen`), within a cap of tokens. They hold nothing of the contract of the runs
    that they were made of, and are saved and loaded with the program.

    Example:
        >>> optimizer = BootstrapTrajectories(metric, teacher_lm=dspy.LM("openai/gpt-5.4"))  # doctest: +SKIP
        >>> compiled = optimizer.compile(rlm, trainset=trainset)  # doctest: +SKIP

    Attributes:
        attempts: Of the last ``compile``: every run with its score, failed ones too; there as they end, also where
            ``compile`` is interrupted.
    """

    def __init__(
        self,
        metric: Metric | None = None,
        max_demos: int = 3,
        max_tokens: int = 3_000,
        *,
        threshold: float = 1.0,
        rollouts: int = 1,
        teacher_lm: dspy.BaseLM | None = None,
        teacher_sub_lm: dspy.BaseLM | None = None,
        max_successes: int | None = None,
        num_threads: int | None = None,
        max_errors: int | None = 10,
    ) -> None:
        """
        Args:
            metric: ``metric(example, prediction, trace)``; None for 1 where the answer was submitted.
            max_demos: Demonstrations for each predictor, at most.
            max_tokens: Of all demonstrations of one predictor, a token being four characters.
            threshold: Score from which on a run has succeeded.
            rollouts: Attempts at each example, until one succeeds.
            teacher_lm: Plays the root of the runs in the place of the program's LM, and answers the sub-calls where the
                program has no ``sub_lm``.
            teacher_sub_lm: Answers the sub-calls.
            max_successes: Runs that succeeded, after which no more examples are tried; None to try all.
            num_threads: Runs at once; None for DSPy's setting.
            max_errors: Runs that may raise an error before it is given up; None for any number.

        Raises:
            ConfigurationError: A number is out of range.
        """
        super().__init__()
        for name, value, least in (
            ("max_demos", max_demos, 0),
            ("max_tokens", max_tokens, 1),
            ("rollouts", rollouts, 1),
            ("max_successes", 1 if max_successes is None else max_successes, 1),
        ):
            if not isinstance(value, int) or value < least:
                raise ConfigurationError(f"{name} must be a whole number from {least}, not {value!r}")
        self.metric = metric
        self.max_demos = max_demos
        self.max_tokens = max_tokens
        self.threshold = threshold
        self.rollouts = rollouts
        self.teacher_lm = teacher_lm
        self.teacher_sub_lm = teacher_sub_lm
        self.max_successes = max_successes
        self.num_threads = num_threads
        self.max_errors = max_errors
        self.attempts: list[Attempt] = []

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: Sequence[dspy.Example],
        teacher: dspy.Module | None = None,
        valset: Sequence[dspy.Example] | None = None,
        **kwargs: Any,
    ) -> dspy.Module:
        """A copy of ``student`` with demonstrations in the place of its own, where some were found.

        Args:
            student: An RLM, or a module with RLMs in it; it stays as it is.
            trainset: Examples with their inputs marked.
            teacher: Runs in the student's place, with predictors of the same names; None for the student itself.
            valset: Not used: nothing is chosen by score here.
            **kwargs: Not used.

        Raises:
            ConfigurationError: The teacher has other predictors, or the examples are of no use.
            RuntimeError: Every run raised an error, or more than ``max_errors``.
        """
        names = {name for name, _ in student.named_predictors()}
        runner = student if teacher is None else teacher
        theirs = {name for name, _ in runner.named_predictors()}
        if teacher is not None and not names & theirs:
            raise ConfigurationError(
                f"the teacher has none of the student's predictors: {', '.join(sorted(theirs))} in place of "
                f"{', '.join(sorted(names))}"
            )
        self.attempts = []
        self._run(runner, list(trainset))
        solved = [a for a in self.attempts if a.error is None and a.score >= self.threshold]
        found = demos.candidates(solved, self.max_tokens, _Guidances(student))
        compiled = taught(student, None, None)
        told = []
        for name, predictor in compiled.named_predictors():
            chosen = demos.chosen(found.get(name, []), self.max_demos, self.max_tokens)
            if chosen:
                predictor.demos = [dspy.Example(**one.demo) for one in chosen]
                told.append(f"{name}: {len(chosen)} ({sum(one.tokens for one in chosen):,} tokens)")
        compiled._compiled = True
        logger.info(
            "%d of %d runs succeeded; demonstrations: %s", len(solved), len(self.attempts), "; ".join(told) or "none"
        )
        return compiled

    def _run(self, runner: dspy.Module, trainset: list[dspy.Example]) -> None:
        threads = self.num_threads or dspy.settings.num_threads or 1
        step = len(trainset) if self.max_successes is None else max(1, min(threads, len(trainset)))
        for start in range(0, max(1, len(trainset)), max(1, step)):
            before = len(self.attempts)
            # They are added as they end, for where it is interrupted; now in the order of the examples.
            self.attempts[before:] = collect(
                runner,
                trainset[start : start + step],
                self.metric,
                lm=self.teacher_lm,
                sub_lm=self.teacher_sub_lm,
                rollouts=self.rollouts,
                until=1,
                threshold=self.threshold,
                num_threads=self.num_threads,
                max_errors=self.max_errors,
                into=self.attempts,
            )
            solved = sum(attempt.score >= self.threshold for attempt in self.attempts)
            if self.max_successes is not None and solved >= self.max_successes:
                return


class _Guidances:
    """The guidance of the RLM that has the predictor of a name."""

    def __init__(self, program: dspy.Module) -> None:
        self._by_name: dict[str, Guidance] = {}
        own = {id(predictor): name for name, predictor in program.named_predictors()}
        for _, rlm in program.named_sub_modules(RLM):
            if (name := own.get(id(rlm.act))) is not None:
                self._by_name.setdefault(name, rlm.guidance)

    def __call__(self, name: str) -> Guidance:
        return self._by_name.get(name, Guidance())

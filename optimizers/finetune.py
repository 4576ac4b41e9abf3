"""`TrajectoryFinetune`: DSPy's ``BootstrapFinetune`` on whole conversations."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import dspy
from dspy.clients.utils_finetune import TrainDataFormat
from dspy.teleprompt import BootstrapFinetune

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.optimizers.attempts import Attempt, Metric, collect, taught
from rlm_dspy.optimizers.distill import sft_rows
from rlm_dspy.rlm import RLM
from rlm_dspy.rows import formed

logger = logging.getLogger(__name__)


class TrajectoryFinetune(BootstrapFinetune):
    """Fine-tune the LMs of a program with RLMs in it on what a teacher did right.

    DSPy's ``BootstrapFinetune`` makes a row of every entry of a run's trace, by the signature of the predictor: K turns
    are K rows that grow, with the turns shortened as traces have them. Here a row is what was really sent and replied
    (`rlm_dspy.optimizers.sft_rows`): K turns are one, as the root will see them again. The jobs are those of DSPy: any
    provider with ``LM.finetune`` takes them.

    Such providers take the loss over every assistant's message, so demonstrations are left out of the rows, and turned
    off in the program that is returned (its own too, if ``exclude_demos``); runs with a failed turn give no row then.

    Attributes:
        attempts: Of the last ``compile``, failed ones too.
        rows: What was trained on in the last ``compile``, by LM name and role.
    """

    def __init__(
        self,
        metric: Metric | None = None,
        multitask: bool = True,
        train_kwargs: Any = None,
        exclude_demos: bool = True,
        num_threads: int | None = None,
        *,
        teacher_lm: dspy.BaseLM | None = None,
        teacher_sub_lm: dspy.BaseLM | None = None,
        rollouts: int = 1,
        max_errors: int | None = 10,
        **filters: Any,
    ) -> None:
        """
        Args:
            metric: ``metric(example, prediction, trace)``; None for 1 where the answer was submitted.
            multitask: One job for each LM, with the rows of all predictors that it serves; False for a job for each
                predictor.
            train_kwargs: For ``LM.finetune``, as in DSPy.
            exclude_demos: Take the demonstrations of predictors away after training. The built-in one is turned off in
                any case.
            num_threads: Runs at once.
            teacher_lm, teacher_sub_lm, rollouts, max_errors: As for `rlm_dspy.optimizers.collect`.
            **filters: As for `rlm_dspy.optimizers.sft_rows`, such as ``max_turns=8``.
        """
        super().__init__(
            metric=metric,
            multitask=multitask,
            train_kwargs=train_kwargs,
            exclude_demos=exclude_demos,
            num_threads=num_threads,
        )
        self.teacher_lm = teacher_lm
        self.teacher_sub_lm = teacher_sub_lm
        self.rollouts = rollouts
        self.max_errors = max_errors
        self.filters = filters
        self.attempts: list[Attempt] = []
        self.rows: dict[tuple[str, str], int] = {}

    def compile(
        self,
        student: dspy.Module,
        trainset: Sequence[dspy.Example],
        teacher: dspy.Module | list[dspy.Module] | None = None,
    ) -> dspy.Module:
        """A copy of ``student`` whose predictors have the LMs that training gave.

        Predictors of which no row was found keep their LM, with a warning.

        Args:
            student: Each predictor that is to be trained needs an LM of its own: ``student.set_lm(lm)``.
            trainset: Examples with their inputs marked.
            teacher: Programs that run in the student's place, with predictors of the same names.

        Raises:
            ConfigurationError: No predictor has an LM, or no attempt gave a row.
        """
        jobs = self._jobs(student)
        self.attempts = []
        for runner in teacher if isinstance(teacher, list) else [teacher or student]:
            before = len(self.attempts)
            self.attempts[before:] = collect(
                runner,
                trainset,
                self.metric,
                lm=self.teacher_lm,
                sub_lm=self.teacher_sub_lm,
                rollouts=self.rollouts,
                num_threads=self.num_threads,
                max_errors=self.max_errors,
                into=self.attempts,
            )
        rows = sft_rows(self.attempts, **self.filters)
        self.rows = {}
        finetunes: dict[Any, dict[str, Any]] = {}
        for key, (lm, names) in jobs.items():
            data = [line for row in rows if row["role"] in names for line in formed(row, "roles", bare=True)]
            data = [{"messages": [_bare(message) for message in line["messages"]]} for line in data]
            if not data:
                logger.warning("nothing to train %s on for %s; it stays as it is", lm.model, ", ".join(sorted(names)))
                continue
            for name in names:
                self.rows[lm.model, name] = sum(row["role"] == name for row in rows)
            finetunes[key] = {
                "lm": lm,
                "train_data": data,
                "train_data_format": TrainDataFormat.CHAT,
                "train_kwargs": self.train_kwargs[lm],
            }
        if not finetunes:
            good = sum(attempt.error is None and attempt.score > 0 for attempt in self.attempts)
            raise ConfigurationError(
                f"no training rows: of {len(self.attempts)} attempts {good} had a score above 0. A stronger "
                "teacher_lm, more rollouts, or a lower min_score= may give some"
            )
        return self._with(student, jobs, self.finetune_lms(finetunes))

    def _jobs(self, student: dspy.Module) -> dict[Any, tuple[Any, set[str]]]:
        """What is to be trained for which predictors."""
        found: dict[Any, tuple[Any, set[str]]] = {}
        for name, predictor in student.named_predictors():
            if isinstance(predictor.lm, dspy.LM):
                key = id(predictor.lm) if self.multitask else (id(predictor.lm), name)
                found.setdefault(key, (predictor.lm, set()))[1].add(name)
        if not found:
            raise ConfigurationError("no predictor has an LM that could be trained: student.set_lm(lm) first")
        return found

    def _with(self, student: dspy.Module, jobs: dict[Any, tuple[Any, set[str]]], lms: dict[Any, Any]) -> dspy.Module:
        made = taught(student, None, None)
        trained = {name: lms[key] for key, (_, names) in jobs.items() if key in lms for name in names}
        for name, predictor in made.named_predictors():
            if name in trained:
                predictor.lm = trained[name]
                predictor.demos = [] if self.exclude_demos else predictor.demos
        for _, rlm in made.named_sub_modules(RLM):
            rlm.guidance = dataclasses.replace(rlm.guidance, demonstration=False)
        made._compiled = True
        return made


def _bare(message: dict[str, Any]) -> dict[str, Any]:
    # DSPy's providers refuse any other key.
    return {"role": message["role"], "content": message["content"]}

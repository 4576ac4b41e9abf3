"""`RLMAdapter`: an RLM, or a program with RLMs in it, as the ``gepa`` library evaluates it and reflects on it.

The adapter is ``gepa``'s public seam (``gepa.core.adapter.GEPAAdapter``). A candidate is a dict of predictor names to
instructions, and nothing else: the contract is in no instruction, so no candidate can lose it.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import dspy

from rlm_dspy._signals import all_ended, result_of
from rlm_dspy.errors import RLMError
from rlm_dspy.optimizers.compile_folder import Folder
from rlm_dspy.optimizers.diagnosis import role_of_predictor
from rlm_dspy.optimizers.measured import mean, objectives
from rlm_dspy.optimizers.metric_feedback import Feedback
from rlm_dspy.optimizers.rollouts import Rollout, Runs, candidate_digest, roll_out, vary
from rlm_dspy.render import shorten

logger = logging.getLogger("rlm_dspy.optimizers")

Candidate = dict[str, str]
Propose = Callable[[Candidate, Mapping[str, Sequence[Mapping[str, Any]]], list[str]], dict[str, str]]


class Outage(RLMError):
    """The language model answers no run any more; what was done is in the folder, and the same call goes on from it."""


@dataclass(frozen=True)
class Item:
    """An example with the digest that it goes by, which is of its own also where another one is equal."""

    example: Any
    digest: str


class RLMAdapter:
    """Evaluates candidates, each example once, and shows their runs to a reflecting model.

    Args:
        student: The program; it is copied for each candidate.
        judge: The metric.
        folder: Where rollouts are kept and looked up.
        propose: Makes new instructions of reflective datasets; gepa's ``propose_new_texts``.
        num_threads: Rollouts at once.
        repeats: Rollouts of each example; its score is their mean.
        failure_score: Of a run without an answer.
        on_rollout: Called with each new rollout.

    Attributes:
        used: Keys of the rollouts that were asked for so far, in order, whether they were made or looked up.
        made: How many of these were run.
    """

    def __init__(
        self,
        student: dspy.Module,
        judge: Feedback,
        folder: Folder,
        propose: Propose | None = None,
        *,
        num_threads: int = 8,
        repeats: int = 1,
        failure_score: float = 0.0,
        on_rollout: Callable[[Rollout], None] | None = None,
    ) -> None:
        self.student, self.judge, self.folder = student, judge, folder
        self.propose_new_texts = propose
        self._threads, self._repeats, self._failure = num_threads, repeats, failure_score
        self._on_rollout = on_rollout
        self.used: dict[tuple[str, str, int], None] = {}
        self.made = 0
        self._under_way: set[Runs] = set()
        self._lock = threading.Lock()
        self._stopping = False

    def program(self, candidate: Mapping[str, str], seed: int = 0) -> dspy.Module:
        """The student with the instructions of ``candidate``."""
        made: dspy.Module = self.student.deepcopy()
        for name, predictor in made.named_predictors():
            if name in candidate:
                predictor.signature = predictor.signature.with_instructions(candidate[name])
        vary(made, seed)
        return made

    def evaluate(self, batch: list[Item], candidate: Candidate, capture_traces: bool = False) -> Any:
        """Rollouts of ``candidate`` on ``batch``, as gepa takes them."""
        from gepa.core.adapter import EvaluationBatch

        groups, fresh = self.measure(batch, candidate)
        return EvaluationBatch(
            outputs=[group[0].outputs for group in groups],
            scores=[mean([rollout.score for rollout in group]) for group in groups],
            trajectories=groups if capture_traces else None,
            objective_scores=[objectives(group) for group in groups],
            # What was asked for before is free, so the count is the same where a compile is resumed.
            num_metric_calls=fresh,
        )

    def measure(self, batch: list[Item], candidate: Candidate) -> tuple[list[tuple[Rollout, ...]], int]:
        """Rollouts of ``candidate`` on ``batch``, by example, and how many were not asked for before.

        Raises:
            RLMError: It is the first one, and every run ended in an error, or the metric failed on all of them.
            Outage: The language model answered none of several runs.
        """
        digest = candidate_digest(candidate)
        keys = dict.fromkeys((digest, item.digest, seed) for item in batch for seed in range(self._repeats))
        fresh = sum(key not in self.used for key in keys)
        first = not self.used
        self.used.update(keys)
        made = self._roll_out(batch, candidate, digest)
        if len(made) > 1 and all(rollout.outage for rollout in made):
            raise Outage(f"the language model does not answer: {made[0].error}")
        groups = [self.group(digest, item.digest) for item in batch]
        of_all = [rollout for group in groups for rollout in group]
        if first and all(rollout.outcome == "raised" or rollout.unscored for rollout in of_all):
            what = "the metric failed on every run of the program as it is"
            if not of_all[0].unscored:
                what = "every run of the program as it is ended in an error"
            raise RLMError(f"{what}, so there is nothing to learn from; the first: {of_all[0].error}")
        return groups, fresh

    def group(self, candidate: str, example: str) -> tuple[Rollout, ...]:
        """All repetitions of one rollout."""
        return tuple(self.folder.rollouts[candidate, example, seed] for seed in range(self._repeats))

    def make_reflective_dataset(
        self, candidate: Candidate, eval_batch: Any, components_to_update: list[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """For each predictor: what it is told of each run, the run, its calls, and a better run of the same input."""
        groups = sorted(eval_batch.trajectories or (), key=lambda group: mean([r.score for r in group]))
        made: dict[str, list[dict[str, Any]]] = {}
        for name in components_to_update:
            records = [record for group in groups if (record := self._record(name, group)) is not None]
            if records:
                made[name] = records
        return made

    def _record(self, name: str, group: tuple[Rollout, ...]) -> dict[str, Any] | None:
        # Of several runs of one input the worst is shown, and the best beside it.
        worst = min((r for r in group if name in r.called), key=lambda r: r.score, default=None)
        if worst is None:
            return None
        record: dict[str, Any] = {"Feedback": worst.told.get(name, f"Score {worst.score:g}.")}
        inner = bool(worst.calls.get(name)) and role_of_predictor(name) not in ("act", "extract")
        if inner:
            record["Its calls"] = [
                f"Given: {call['inputs']}\nIt answered: {call['outputs']}" for call in worst.calls[name]
            ]
        # The root's run matters less to a sub-model, which is shown its own calls.
        record["The whole run"] = _about(worst.excerpt, 2_000) if inner else worst.excerpt
        others = [r for r in tuple(self.folder.rollouts.values()) if r.example == worst.example and r.key in self.used]
        # Of equal ones always the same, in whatever order they ended.
        best = max(others, key=lambda r: (r.score, r.key), default=worst)
        if best.score > worst.score:
            record["A better run of the same input"] = f"Score {best.score:g}.\n{_about(best.excerpt, 3_000)}"
        return record

    def _roll_out(self, batch: list[Item], candidate: Candidate, digest: str) -> list[Rollout]:
        """Make the rollouts that are not there yet, several at once; these."""
        todo = [
            (item, seed)
            for item in {item.digest: item for item in batch}.values()
            for seed in range(self._repeats)
            if (digest, item.digest, seed) not in self.folder.rollouts
        ]
        if not todo:
            return []
        programs = {seed: self.program(candidate, seed) for seed in {seed for _, seed in todo}}

        def one(item: Item, seed: int) -> Rollout:
            runs = Runs()
            # Only while it goes on: what ran may hold inputs of any size.
            self._under_way.add(runs)
            if self._stopping:
                runs.stop()
            try:
                rollout = roll_out(
                    programs[seed],
                    item.example,
                    self.judge,
                    candidate=digest,
                    digest=item.digest,
                    seed=seed,
                    failure_score=self._failure,
                    runs=runs,
                )
            finally:
                self._under_way.discard(runs)
            with self._lock:
                self.made += 1
            if not self._stopping:
                # A run that was stopped half-way says nothing of the candidate.
                self.folder.add(rollout)
            return rollout

        self._stopping = False
        with ThreadPoolExecutor(min(self._threads, len(todo)), thread_name_prefix="rlm-dspy-rollout") as pool:
            futures = [pool.submit(contextvars.copy_context().run, one, item, seed) for item, seed in todo]
            made = []
            try:
                for future in futures:
                    made.append(result_of(future))
                    if self._on_rollout is not None:
                        self._on_rollout(made[-1])
            except BaseException:
                self._stopping = True
                pool.shutdown(wait=False, cancel_futures=True)
                for runs in tuple(self._under_way):
                    runs.stop()
                all_ended(futures)
                raise
            return made


def _about(text: str, chars: int) -> str:
    """``text`` cut to ``chars`` where it is much longer."""
    return text if len(text) <= chars * 1.25 else shorten(text, chars)

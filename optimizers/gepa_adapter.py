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

from rlm_dspy.errors import RLMError
from rlm_dspy.optimizers.compile_folder import Folder
from rlm_dspy.optimizers.diagnosis import role_of_predictor
from rlm_dspy.optimizers.metric_feedback import Feedback
from rlm_dspy.optimizers.rollouts import Rollout, Runs, candidate_digest, roll_out, vary
from rlm_dspy.render import shorten

logger = logging.getLogger("rlm_dspy.optimizers")

Candidate = dict[str, str]
Propose = Callable[[Candidate, Mapping[str, Sequence[Mapping[str, Any]]], list[str]], dict[str, str]]


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
        propose: Propose,
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
        self._runs: list[Runs] = []
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

        digest = candidate_digest(candidate)
        keys = [(digest, item.digest, seed) for item in batch for seed in range(self._repeats)]
        fresh = sum(key not in self.used for key in dict.fromkeys(keys))
        first = not self.used
        self.used.update(dict.fromkeys(keys))
        self._roll_out(batch, candidate, digest)
        groups = [self.group(digest, item.digest) for item in batch]
        if first and groups and all(rollout.outcome == "raised" for group in groups for rollout in group):
            raise RLMError(
                f"every run of the program as it is ended in an error, so there is nothing to learn from; the first: "
                f"{groups[0][0].error}"
            )
        return EvaluationBatch(
            outputs=[group[0].outputs for group in groups],
            scores=[_mean([rollout.score for rollout in group]) for group in groups],
            trajectories=groups if capture_traces else None,
            objective_scores=[objectives(group) for group in groups],
            # What was asked for before is free, so the count is the same where a compile is resumed.
            num_metric_calls=fresh,
        )

    def group(self, candidate: str, example: str) -> tuple[Rollout, ...]:
        """All repetitions of one rollout."""
        return tuple(self.folder.rollouts[candidate, example, seed] for seed in range(self._repeats))

    def make_reflective_dataset(
        self, candidate: Candidate, eval_batch: Any, components_to_update: list[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """For each predictor: what it is told of each run, the run, its calls, and a better run of the same input."""
        groups = sorted(eval_batch.trajectories or (), key=lambda group: _mean([r.score for r in group]))
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
        record["The whole run"] = shorten(worst.excerpt, 2_000) if inner else worst.excerpt
        others = [r for r in tuple(self.folder.rollouts.values()) if r.example == worst.example and r.key in self.used]
        best = max(others, key=lambda r: r.score, default=worst)
        if best.score > worst.score:
            record["A better run of the same input"] = f"Score {best.score:g}.\n{shorten(best.excerpt, 3_000)}"
        return record

    def _roll_out(self, batch: list[Item], candidate: Candidate, digest: str) -> None:
        """Make the rollouts that are not there yet, several at once."""
        todo = [
            (item, seed)
            for item in {item.digest: item for item in batch}.values()
            for seed in range(self._repeats)
            if (digest, item.digest, seed) not in self.folder.rollouts
        ]
        if not todo:
            return
        programs = {seed: self.program(candidate, seed) for seed in {seed for _, seed in todo}}

        def one(item: Item, seed: int) -> Rollout:
            rollout = roll_out(
                programs[seed],
                item.example,
                self.judge,
                candidate=digest,
                digest=item.digest,
                seed=seed,
                failure_score=self._failure,
                watch=self._watch,
            )
            with self._lock:
                self.made += 1
            if not self._stopping:
                # A run that was stopped half-way says nothing of the candidate.
                self.folder.add(rollout)
            return rollout

        self._stopping = False
        with ThreadPoolExecutor(min(self._threads, len(todo)), thread_name_prefix="rlm-dspy-rollout") as pool:
            futures = [pool.submit(contextvars.copy_context().run, one, item, seed) for item, seed in todo]
            try:
                for future in futures:
                    rollout = future.result()
                    if self._on_rollout is not None:
                        self._on_rollout(rollout)
            except BaseException:
                self._stopping = True
                pool.shutdown(wait=False, cancel_futures=True)
                for runs in self._runs:
                    runs.stop()
                raise
            finally:
                self._runs.clear()

    def _watch(self, runs: Runs) -> None:
        self._runs.append(runs)


def objectives(group: Sequence[Rollout]) -> dict[str, float]:
    """The score, and what it took as negative numbers, of which more is better too; the cost where it is known."""
    costs = [rollout.cost for rollout in group]
    made = {
        "score": _mean([rollout.score for rollout in group]),
        "tokens": -_mean([float(rollout.tokens) for rollout in group]),
        "seconds": -_mean([rollout.seconds for rollout in group]),
    }
    if None not in costs:
        made["cost"] = -_mean([cost for cost in costs if cost is not None])
    return made


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

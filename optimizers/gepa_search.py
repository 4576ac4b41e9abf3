"""One compile by `RLMGEPA`: the search by ``gepa.optimize``, what it tried, and the gate."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dspy

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.optimizers.compile_folder import Folder
from rlm_dspy.optimizers.gepa_adapter import Item, RLMAdapter, objectives
from rlm_dspy.optimizers.gepa_reflection import Reflection
from rlm_dspy.optimizers.gepa_result import CandidateResult, CompileResult, Proposal, best_of, front_of
from rlm_dspy.optimizers.promotion import Promotion, decide
from rlm_dspy.optimizers.rollouts import candidate_digest, example_digest

if TYPE_CHECKING:
    from rlm_dspy.optimizers.gepa_optimizer import RLMGEPA

logger = logging.getLogger("rlm_dspy.optimizers")

_CHEAPER = 0.9
_LEAK = 4


class Compile:
    """One call of ``compile``."""

    def __init__(
        self,
        options: RLMGEPA,
        student: dspy.Module,
        train: list[Item] | None,
        val: list[Item] | None,
        holdout: list[Item] | None,
    ) -> None:
        if not train:
            raise ConfigurationError("trainset is empty; give some examples")
        self.options, self.student = options, student
        self.train, self.val, self.holdout = train, val or train, holdout
        names = [name for name, predictor in student.named_predictors() if hasattr(predictor, "signature")]
        wanted = options.predictors or names
        if unknown := sorted(set(wanted) - set(names)):
            raise ConfigurationError(f"no predictors {', '.join(unknown)}; there are {', '.join(names)}")
        self.seed_candidate = {
            name: str(p.signature.instructions) for name, p in student.named_predictors() if name in wanted
        }
        self.started = time.monotonic()
        self.proposals: list[Proposal] = []
        self.turns: Counter[str] = Counter()
        self.found_after: dict[int, int] = {}
        self.idle, self.used_before = 0, 0
        self.stopped = "it was interrupted"

    def run(self) -> dspy.Module:
        """Search, gate, and give the program."""
        options = self.options
        self.store = Folder(options.folder, self._about())
        try:
            self.reflection = Reflection(options.reflection_lm, self.store, options.max_instruction_chars, options.hint)
            self.adapter = RLMAdapter(
                self.student,
                options.judge,
                self.store,
                self.reflection,
                num_threads=options.num_threads or dspy.settings.num_threads or 8,
                repeats=options.repeats,
                failure_score=options.failure_score,
                on_rollout=options.on_rollout,
            )
            found = self._search()
            searched = len(self.adapter.used)
            candidates = self._candidates(found)
            best = best_of(candidates)
            promotion = self._gate(candidates[best])
            options.result = CompileResult(
                candidates=candidates,
                proposals=tuple(self.proposals),
                best=best,
                front=front_of(candidates),
                promotion=promotion,
                metric_calls=searched,
                gate_calls=len(self.adapter.used) - searched,
                rollouts_run=self.adapter.made,
                reflection_calls=self.reflection.calls,
                stopped=self.stopped,
                seconds=round(time.monotonic() - self.started, 3),
                folder=None if self.store.path is None else str(self.store.path),
            )
            self.store.save("result.json", options.result.to_json())
            self.store.save("result.html", options.result.to_html())
        finally:
            self.store.close()
        logger.info("%s", options.result)
        chosen = candidates[best].instructions if promotion.promoted else {}
        compiled = self.adapter.program(chosen)
        compiled._compiled = True
        return compiled

    def _about(self) -> dict[str, Any]:
        """What tells this compile from another one."""
        options = self.options
        splits = {"train": self.train, "val": self.val, "holdout": self.holdout or []}
        return {
            "student": example_digest({"state": self.student.dump_state(), "program": repr(self.student)}),
            **{name: example_digest({"": [item.digest for item in items]}) for name, items in splits.items()},
            "metric": options.judge.__name__,
            "reflection_lm": str(getattr(options.reflection_lm, "model", "")),
            **{name: getattr(options, name) for name in ("seed", "minibatch_size", "repeats", "weigh_cost", "hint")},
            "components": options.components if isinstance(options.components, str) else "function",
            "predictors": sorted(self.seed_candidate),
            "max_instruction_chars": options.max_instruction_chars,
            "scores": [options.failure_score, options.perfect_score],
        }

    def _search(self) -> Any:
        import gepa

        options = self.options
        return gepa.optimize(
            seed_candidate=dict(self.seed_candidate),
            trainset=self.train,
            valset=self.val,
            adapter=self.adapter,
            reflection_minibatch_size=min(options.minibatch_size, len(self.train)),
            module_selector=self._select,
            frontier_type="hybrid" if options.weigh_cost else "instance",
            perfect_score=options.perfect_score,
            acceptance_criterion=_Acceptance(self),
            stop_callbacks=[self._stop],
            logger=_Log(),
            seed=options.seed,
            raise_on_exception=True,
        )

    def _stop(self, state: Any) -> bool:
        used = len(self.adapter.used)
        for number in range(len(self.found_after), len(state.program_candidates)):
            self.found_after[number] = used
        # What needs nothing new any more would go on for ever: every run of it is looked up.
        self.idle = self.idle + 1 if used == self.used_before else 0
        self.used_before = used
        limit = self.options.max_seconds
        best = max(state.program_full_scores_val_set)
        rounds = -(-len(self.train) // self.options.minibatch_size) + 2
        if used >= self.options.max_metric_calls:
            self.stopped = f"max_metric_calls={self.options.max_metric_calls}"
        elif best >= self.options.perfect_score:
            self.stopped = "a candidate is perfect on the validation set"
        elif limit is not None and time.monotonic() - self.started >= limit:
            self.stopped = f"max_seconds={limit:g}"
        elif self.idle >= rounds:
            self.stopped = f"{rounds} rounds gave nothing new"
        else:
            return False
        return True

    def _select(
        self, state: Any, trajectories: Any, subsample_scores: Any, candidate_idx: int, candidate: dict[str, str]
    ) -> list[str]:
        """The predictors that this round rewrites; never one that was not called."""
        groups = [tuple(group) for group in trajectories]
        wrong = [g for g in groups if any(r.score < self.options.perfect_score for r in g)] or groups
        called = [name for name in candidate if any(name in r.called for g in wrong for r in g)]
        policy = self.options.components
        if not isinstance(policy, str):
            asked = list(policy(wrong, called))
            return [name for name in called if name in asked]
        if policy == "blamed":
            return [name for name in called if any(name in r.blamed for g in wrong for r in g)] or called
        if policy == "round_robin" and called:
            key = candidate_digest(candidate)
            self.turns[key] += 1
            return [called[(self.turns[key] - 1) % len(called)]]
        return called

    def _candidates(self, found: Any) -> tuple[CandidateResult, ...]:
        labels = _labels([*self.train, *self.val])
        made = []
        for number, instructions in enumerate(found.candidates):
            groups = [self.adapter.group(candidate_digest(instructions), item.digest) for item in self.val]
            means = objectives([rollout for group in groups for rollout in group])
            scores = tuple(objectives(group)["score"] for group in groups)
            changed = tuple(name for name, text in instructions.items() if text != self.seed_candidate[name])
            leaks = {name: _leaks(instructions[name], self.seed_candidate[name], labels) for name in changed}
            made.append(
                CandidateResult(
                    number=number,
                    instructions=dict(instructions),
                    changed=changed,
                    parents=tuple(parent for parent in found.parents[number] if parent is not None),
                    score=means["score"],
                    scores=scores,
                    cost=-means["cost"] if "cost" in means else None,
                    tokens=-means["tokens"],
                    seconds=-means["seconds"],
                    found_after=self.found_after.get(number, len(self.adapter.used)),
                    leaks={name: told for name, told in leaks.items() if told},
                )
            )
        return tuple(made)

    def _gate(self, best: CandidateResult) -> Promotion:
        student = self._scores(self.seed_candidate, self.holdout or self.val)
        held_out = bool(self.holdout)
        if best.number == 0:
            mean = sum(student) / len(student)
            return Promotion(False, "no candidate scored better than the student", mean, mean, held_out=held_out)
        scores = self._scores(best.instructions, self.holdout or self.val)
        return decide(student, scores, alpha=self.options.alpha, held_out=held_out, seed=self.options.seed)

    def _scores(self, candidate: dict[str, str], items: list[Item]) -> list[float]:
        return list(self.adapter.evaluate(items, candidate).scores)


class _Acceptance:
    """Keeps proposals that do better on their minibatch, and remembers all of them."""

    def __init__(self, compile_: Compile) -> None:
        self._compile = compile_

    def should_accept(self, proposal: Any, state: Any) -> bool:
        """As ``gepa.strategies.acceptance.AcceptanceCriterion``."""
        before, after = sum(proposal.subsample_scores_before), sum(proposal.subsample_scores_after)
        accepted = after > before or (self._compile.options.weigh_cost and after == before and _cheaper(proposal))
        # What another parent came to before is no new candidate.
        accepted = accepted and proposal.candidate not in state.program_candidates
        number = proposal.parent_program_ids[0]
        parent = state.program_candidates[number]
        texts = {name: text for name, text in proposal.candidate.items() if text != parent[name]}
        self._compile.proposals.append(Proposal(number, texts, before, after, accepted))
        told = f"summed score {before:g} before, {after:g} with it, on {len(proposal.subsample_scores_before)} examples"
        self._compile.reflection.tell(parent, proposal.candidate, told)
        return accepted


def _cheaper(proposal: Any) -> bool:
    def spent(evaluation: Any) -> float:
        return -sum(made.get("cost", made["tokens"]) for made in evaluation.objective_scores or [])

    return spent(proposal.eval_after) <= _CHEAPER * spent(proposal.eval_before)


class _Log:
    """gepa's log, for whoever wants it."""

    def log(self, message: str) -> None:
        """As ``gepa.logging.logger.LoggerProtocol``."""
        logger.debug("%s", message)


def items_of(examples: Sequence[Any] | None, name: str) -> list[Item] | None:
    """The examples by their digests; of equal ones in one split each has its own."""
    if examples is None:
        return None
    seen: Counter[str] = Counter()
    items = []
    for example in examples:
        if not isinstance(example, dspy.Example):
            raise ConfigurationError(f"{name} must hold dspy.Example objects, not {type(example).__name__}")
        digest = example_digest(example)
        seen[digest] += 1
        items.append(Item(example, digest if seen[digest] == 1 else f"{digest}.{seen[digest]}"))
    return items


def _labels(items: Sequence[Item]) -> set[str]:
    found = (str(value) for item in items for value in item.example.labels().values())
    return {text for text in found if _LEAK <= len(text) <= 200}


def _leaks(text: str, before: str, labels: set[str]) -> tuple[str, ...]:
    """Labels of examples that an instruction has learned by heart."""
    return tuple(sorted(label for label in labels if label in text and label not in before))

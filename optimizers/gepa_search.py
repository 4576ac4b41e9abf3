"""One compile by `RLMGEPA`: the search by ``gepa.optimize``, what it tried, and the gate."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dspy

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.optimizers import gepa_tracking
from rlm_dspy.optimizers.compile_folder import Folder
from rlm_dspy.optimizers.gepa_adapter import Item, Outage, RLMAdapter
from rlm_dspy.optimizers.gepa_reflection import Reflection
from rlm_dspy.optimizers.gepa_result import CandidateResult, CompileResult, Proposal
from rlm_dspy.optimizers.measured import cheapest, figures, front_of
from rlm_dspy.optimizers.promotion import Promotion, decide
from rlm_dspy.optimizers.rollouts import about_program, candidate_digest, example_digest
from rlm_dspy.redact import error_text, redacted

if TYPE_CHECKING:
    from rlm_dspy.optimizers.gepa_optimizer import RLMGEPA

logger = logging.getLogger("rlm_dspy.optimizers")

_CHEAPER = 0.9
_LEAK = 4
_FAILURES = 3


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
        if not names:
            raise ConfigurationError(
                "the program has no predictors that may be rewritten: those of a module that is marked as compiled "
                "are frozen; set its _compiled to False to have them rewritten"
            )
        wanted = options.predictors or names
        if unknown := sorted(set(wanted) - set(names)):
            raise ConfigurationError(f"no predictors {', '.join(unknown)}; there are {', '.join(names)}")
        self.seed_candidate = {
            name: str(p.signature.instructions) for name, p in student.named_predictors() if name in wanted
        }
        self.started = time.monotonic()
        self.proposals: list[Proposal] = []
        self.turns: Counter[str] = Counter()
        self.candidates: list[CandidateResult] = []
        self.labels = _labels([*self.train, *self.val])
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
            try:
                self._search()
                searched = len(self.adapter.used)
                promotion = self._gate(self.candidates[cheapest(self.candidates)])
            except BaseException as error:
                # Also where it is interrupted, what was found is not lost.
                if isinstance(error, Exception):
                    self.stopped = str(error) if isinstance(error, Outage) else error_text(error, 500)
                if self.candidates:
                    self._tell(len(self.adapter.used), self._broken_off())
                raise
            self._tell(searched, promotion)
        finally:
            self.store.close()
        assert options.result is not None
        logger.info("%s", options.result)
        chosen = options.result.candidates[options.result.best].instructions if promotion.promoted else {}
        compiled = self.adapter.program(chosen)
        compiled._compiled = True
        return compiled

    def _tell(self, searched: int, promotion: Promotion) -> None:
        """Say what was tried: to the user, in the folder, to MLflow."""
        candidates = tuple(self.candidates)
        result = CompileResult(
            candidates=candidates,
            proposals=tuple(self.proposals),
            best=cheapest(candidates),
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
        self.options.result = result
        self.store.save("result.json", json.dumps(redacted(result.to_dict()), indent=2))
        self.store.save("result.html", result.to_html())
        gepa_tracking.ended(result)

    def _broken_off(self) -> Promotion:
        before, best = self.candidates[0].score, self.candidates[cheapest(self.candidates)].score
        return Promotion(False, f"it was broken off before the gate: {self.stopped}", before, best)

    def _about(self) -> dict[str, Any]:
        """What tells this compile from another one."""
        options = self.options
        splits = {"train": self.train, "val": self.val, "holdout": self.holdout or []}
        return {
            **about_program(self.student),
            **{name: example_digest({"": [item.digest for item in items]}) for name, items in splits.items()},
            "metric": options.judge.__name__,
            "reflection_lm": str(getattr(options.reflection_lm, "model", "")),
            **{name: getattr(options, name) for name in ("seed", "minibatch_size", "repeats", "weigh_cost", "hint")},
            "components": options.components if isinstance(options.components, str) else "function",
            "predictors": sorted(self.seed_candidate),
            "max_instruction_chars": options.max_instruction_chars,
            "scores": [options.failure_score, options.perfect_score],
        }

    def _search(self) -> None:
        import gepa

        options = self.options
        gepa.optimize(
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
        for number in range(len(self.candidates), len(state.program_candidates)):
            self.candidates.append(self._measured(state, number))
            gepa_tracking.measured(self.candidates[-1], used)
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
        elif self.reflection.failures >= _FAILURES:
            self.stopped = f"the reflecting model failed {self.reflection.failures} times: {self.reflection.failure}"
            if not self.proposals:
                raise Outage(f"{self.stopped}. With a folder, the same call goes on from here")
            logger.warning("%s", self.stopped)
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

    def _measured(self, state: Any, number: int) -> CandidateResult:
        instructions = dict(state.program_candidates[number])
        groups = [self.adapter.group(candidate_digest(instructions), item.digest) for item in self.val]
        changed = tuple(name for name, text in instructions.items() if text != self.seed_candidate[name])
        leaks = {name: _leaks(instructions[name], self.seed_candidate[name], self.labels) for name in changed}
        return CandidateResult(
            number=number,
            instructions=instructions,
            changed=changed,
            parents=tuple(one for one in state.parent_program_for_candidate[number] if one is not None),
            found_after=len(self.adapter.used),
            leaks={name: told for name, told in leaks.items() if told},
            **figures(groups),
        )

    def _gate(self, best: CandidateResult) -> Promotion:
        if best.score <= (student := self.candidates[0]).score:
            copied = not self.proposals and self.reflection.unchanged
            why = "the reflecting model said nothing new" if copied else "no candidate scored better than the student"
            return Promotion(False, why, student.score, best.score)
        items, options = self.holdout or self.val, self.options
        before, after = self._scores(self.seed_candidate, items), self._scores(best.instructions, items)
        return decide(before, after, alpha=options.alpha, held_out=bool(self.holdout), seed=options.seed)

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
    before, after = (list(one.objective_scores or []) for one in (proposal.eval_before, proposal.eval_after))
    # One unit for both: tokens where the price of any is unknown, and where nothing costs anything.
    known = [made.get("cost") for made in before + after]
    unit = "cost" if None not in known and any(known) else "tokens"
    took, takes = (-sum(made[unit] for made in some) for some in (before, after))
    return 0 < took and takes <= _CHEAPER * took


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
        try:
            example.inputs()
        except ValueError:
            raise ConfigurationError(
                f"an example of {name} does not say what its inputs are: .with_inputs(...)"
            ) from None
        digest = example_digest(example)
        seen[digest] += 1
        items.append(Item(example, digest if seen[digest] == 1 else f"{digest}.{seen[digest]}"))
    return items


def _labels(items: Sequence[Item]) -> set[str]:
    """Labels that one example alone has: what several have is a class, of which an instruction may well speak."""
    examples = {item.digest: item.example for item in items}
    found = Counter(text for one in examples.values() for text in {str(value) for value in one.labels().values()})
    return {text for text, count in found.items() if count == 1 and _LEAK <= len(text) <= 200}


def _leaks(text: str, before: str, labels: set[str]) -> tuple[str, ...]:
    """Labels of examples that an instruction has learned by heart."""
    return tuple(sorted(label for label in labels if label in text and label not in before))

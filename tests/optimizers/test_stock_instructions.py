"""DSPy's optimisers of instructions find facts in trajectories, and the prompts that they write for it stay small."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, optimizers
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, ScriptedLM, outputs

pytestmark = pytest.mark.usefixtures("no_leaks")

Proven = Callable[..., RLM]


def assert_prompts(proposer: ScriptedLM, most: int) -> None:
    """The proposer is asked, in at most ``most`` characters, and told nothing that is true of the runs alone."""
    prompts = [json.dumps(call.messages) for call in proposer.calls]
    assert prompts and max(map(len, prompts)) < most, max(map(len, prompts), default=0)
    assert not any("non-serializable" in prompt for prompt in prompts)
    assert not any("SHOW_VARS()" in prompt or "sub-LM calls, up to" in prompt for prompt in prompts)


@pytest.mark.heavy
def test_gepa(sandbox: Environment, toy: Any, root_lm: ScriptedLM, proven: Proven) -> None:
    seen: set[str] = set()

    def feedback(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        if pred_name is not None:
            seen.add(pred_name)
            assert len(pred_trace) == 1
        return toy.feedback(gold, pred, trace, pred_name, pred_trace)

    reflection = ScriptedLM(toy.propose)
    optimizer = dspy.GEPA(
        metric=feedback,
        max_metric_calls=60,
        reflection_lm=reflection,
        num_threads=2,
        component_selector="all",
        skip_perfect_score=False,
        seed=0,
    )
    big = toy.trainset(chars=1_000_000)
    with optimizers.evaluating():
        compiled = optimizer.compile(toy.program(sandbox), trainset=big, valset=toy.devset())
    assert seen == {"act", "sub"}
    assert compiled.act.signature.instructions == f"{toy.RULES['separator']} {toy.RULES['unit']}"
    assert compiled.sub.signature.instructions == toy.RULES["irony"]
    assert_prompts(reflection, 12_000)
    proven(compiled)


@pytest.mark.heavy
def test_miprov2(sandbox: Environment, toy: Any, root_lm: ScriptedLM, proven: Proven) -> None:
    pytest.importorskip("optuna", reason="needs the extra optimize")
    proposer = ScriptedLM(toy.propose)
    optimizer = optimizers.mended(
        dspy.MIPROv2(
            metric=toy.metric,
            auto=None,
            num_candidates=3,
            prompt_model=proposer,
            num_threads=2,
            max_bootstrapped_demos=3,
            max_labeled_demos=1,
            seed=3,
        )
    )
    big = toy.trainset(chars=1_000_000)
    with optimizers.evaluating():
        compiled = optimizer.compile(
            toy.program(sandbox),
            trainset=big,
            valset=toy.devset(),
            num_trials=8,
            minibatch=False,
        )
    assert_prompts(proposer, 16_000)
    # The dataset is described, from previews.
    assert any("1,000," in call.prompt and "characters" in call.prompt for call in proposer.calls)
    proven(compiled)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:set_lm:UserWarning")
@pytest.mark.parametrize("max_demos", [3, 0])
def test_simba(sandbox: Environment, toy: Any, max_demos: int, proven: Proven) -> None:
    """Demonstrations, or rules alone: then it takes a model that is sometimes lucky to have two runs to compare."""
    luck = itertools.count()

    def moody(call: Call) -> str:
        lucky = max_demos == 0 and next(luck) % 3 == 0
        return str(toy.every_role(call, toy.FACTS if lucky else ()))

    advisor = ScriptedLM(toy.propose)
    optimizer = optimizers.mended(
        dspy.SIMBA(
            metric=toy.metric,
            bsize=6,
            num_candidates=2 if max_demos else 3,
            max_steps=2,
            max_demos=max_demos,
            num_threads=1,
            prompt_model=advisor,
        )
    )
    big = toy.trainset(chars=300_000)[-6:]
    with dspy.context(lm=ScriptedLM(moody)), optimizers.evaluating():
        compiled = optimizer.compile(toy.program(sandbox), trainset=big, seed=1)
    if max_demos == 0:
        # Most of it are the two runs, turn by turn. Neither the inputs nor the source of the class are in it.
        assert_prompts(advisor, 60_000)
        assert all("class RecursiveProgram" in call.prompt for call in advisor.calls)
        assert toy.RULES["separator"] in compiled.act.signature.instructions
    else:
        assert compiled.act.demos and compiled.sub.demos
    proven(compiled)


@pytest.mark.heavy
def test_copro(sandbox: Environment, toy: Any, root_lm: ScriptedLM, proven: Proven) -> None:
    """It is shown no run and no example, so it can only guess; what it guessed right it keeps."""
    guesses = itertools.cycle(["Work with care.", *(toy.RULES[f] for f in toy.FACTS), " ".join(toy.RULES.values())])

    def guess(call: Call) -> str:
        assert toy.found(call.prompt) == []
        return outputs(proposed_instruction=next(guesses), proposed_prefix_for_output_field="Next:")

    optimizer = dspy.COPRO(metric=toy.metric, prompt_model=ScriptedLM(guess), breadth=6, depth=1)
    with optimizers.evaluating():
        compiled = optimizer.compile(
            toy.program(sandbox),
            trainset=toy.trainset()[-4:],
            eval_kwargs={"num_threads": 2, "display_progress": False},
        )
    proven(compiled)


def test_infer_rules(sandbox: Environment, toy: Any, proven: Proven) -> None:
    lm = ScriptedLM(toy.every_role)
    optimizer = optimizers.mended(
        dspy.InferRules(
            metric=toy.metric,
            num_candidates=1,
            num_rules=3,
            num_threads=2,
            max_bootstrapped_demos=6,
            max_labeled_demos=2,
            max_errors=10,
        )
    )
    with dspy.context(lm=lm), optimizers.evaluating():
        compiled = optimizer.compile(
            toy.program(sandbox), trainset=toy.trainset(chars=1_000_000), valset=toy.devset()[3:5]
        )
    asked = [call for call in lm.calls if "natural_language_rules" in call.system]
    # One for each predictor that was called; the others keep their instructions.
    assert len(asked) == 2 and max(len(call.prompt) for call in asked) < 20_000
    assert compiled.act.signature.instructions.endswith(f"{toy.RULES['separator']} {toy.RULES['unit']}")
    assert compiled.sub.signature.instructions.endswith(toy.RULES["irony"])
    assert "adhere" not in compiled.compact.signature.instructions
    # The rules do it without the demonstrations.
    for predictor in compiled.predictors():
        predictor.demos = []
    proven(compiled)

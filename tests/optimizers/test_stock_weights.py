"""DSPy's optimisers of weights: the rows that a provider is handed, and the program that it gives back.

The trained model knows the facts that the rows show.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, optimizers
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, ScriptedLM

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.filterwarnings("ignore:set_lm:UserWarning")]


def trainable(toy: Any, trainer: Any) -> ScriptedLM:
    """A model in all seats that knows what its training rows showed."""

    def policy(call: Call) -> str:
        known = set()
        if "-tuned-" in call.request.model:
            learned = "\n".join(row[-1]["content"] for row in trainer.rows(call.request.model))
            prompts = "\n".join(row[-2]["content"] for row in trainer.rows(call.request.model))
            known |= {"separator"} if "split(';;')" in learned else set()
            known |= {"unit"} if '"UNIT=thousand" in header' in learned else set()
            known |= {"irony"} if "!s" in prompts and "complaint" in learned else set()
        return str(toy.every_role(call, known))

    return ScriptedLM(policy, model="scripted/base", provider=trainer)


@pytest.mark.parametrize("ours", [True, pytest.param(False, marks=pytest.mark.heavy)])
def test_bootstrap_finetune(
    sandbox: Environment, toy: Any, trainer: Any, ours: bool, proven: Callable[..., RLM]
) -> None:
    """With an adapter of ours the rows are in the form in which the models are asked; without, in DSPy's markers."""
    lm = trainable(toy, trainer)
    student = toy.program(sandbox)
    student.set_lm(lm)
    assert toy.scores(student)["act"] == 0.0
    adapter = optimizers.TraceAdapter() if ours else None
    optimizer = dspy.BootstrapFinetune(metric=toy.metric, num_threads=2, adapter=adapter)
    with optimizers.evaluating():
        compiled = optimizer.compile(student, trainset=toy.trainset(chars=300_000))
    rows = trainer.rows()
    # One row a call of a predictor in a run that was right: three turns each of the root, as many of a child.
    assert len(rows) > 20
    roots = [row for row in rows if ("REPL" in row[0]["content"] if ours else "[[ ## code ## ]]" in row[-1]["content"])]
    assert len(roots) > 8 and len(rows) - len(roots) > 8
    for row in rows:
        roles = [message["role"] for message in row]
        assert roles == ["system", *["user", "assistant"] * (len(roles) // 2)]
        assert ours or len(row) == 3
    if ours:
        # The three turns of a run, each with those before it.
        assert {len(row) for row in roots} == {3, 5, 7}
        assert all(row[-1]["content"].endswith("\n```") and "[[ ##" not in json.dumps(row) for row in roots)
        assert {row[-1]["content"] for row in rows if row not in roots} == {"complaint", "praise"}
    assert all(row[-1]["content"].strip() for row in rows)
    assert max(len(json.dumps(row)) for row in rows) < 10_000
    text = json.dumps(rows)
    assert "SHOW_VARS" not in text and "quiet and nothing of note" not in text
    assert "split(';;')" in text and "complaint" in text
    assert {predictor.lm.model for predictor in compiled.predictors()} == {"scripted/base-tuned-0"}
    proven(compiled, lm=compiled.act.lm)


@pytest.mark.heavy
def test_better_together(
    sandbox: Environment, toy: Any, trainer: Any, root_lm: ScriptedLM, proven: Callable[..., RLM]
) -> None:
    """Prompts, then weights of a program that has learned by prompts."""
    lm = trainable(toy, trainer)
    student = toy.program(sandbox)
    student.set_lm(lm)
    optimizer = dspy.BetterTogether(
        metric=toy.metric,
        p=dspy.BootstrapFewShot(metric=toy.metric, max_bootstrapped_demos=6, max_labeled_demos=0),
        w=dspy.BootstrapFinetune(metric=toy.metric, num_threads=2, exclude_demos=True),
    )
    with optimizers.evaluating():
        compiled = optimizer.compile(
            student, trainset=toy.trainset(), valset=toy.devset(), strategy="p -> w", num_threads=2, seed=0
        )
    assert not compiled.flag_compilation_error_occurred
    found = {candidate["strategy"]: candidate["score"] for candidate in compiled.candidate_programs}
    assert found.keys() == {"", "p", "p -> w"}
    assert found["p"] > found[""] and found["p -> w"] >= found["p"]
    last = next(c["program"] for c in compiled.candidate_programs if c["strategy"] == "p -> w")
    assert last.act.demos == [] and last.act.lm.model.startswith("scripted/base-tuned")
    proven(last, lm=last.act.lm)

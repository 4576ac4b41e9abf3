"""DSPy's optimisers of demonstrations improve an RLM with sub-calls and children, and leave its contract whole."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from typing import Any

import dspy
import numpy as np
import pytest

from rlm_dspy import RLM, optimizers
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import ScriptedLM, code, outputs

pytestmark = pytest.mark.usefixtures("no_leaks")

Proven = Callable[..., RLM]


def test_labeled_few_shot(sandbox: Environment, toy: Any, root_lm: ScriptedLM, proven: Proven) -> None:
    """Answers show their unit, and nothing of how to find them: enough where that is all that is missing."""
    logs = [toy.example(300 + n, ("separator", "irony"), annex=n % 2 == 1, apart=False) for n in range(4)]
    assert all(log.hidden == ("unit",) for log in logs)
    student = toy.program(sandbox)
    compiled = dspy.LabeledFewShot(k=6).compile(student, trainset=toy.trainset())
    assert toy.scores(student, logs)["act"] == 0.0
    # The children's outputs are others than the task's, so theirs is not shown: logs without an annex are right.
    assert toy.scores(compiled, logs)["act"] == 0.5
    assert toy.scores(compiled, logs[::2])["act"] == 1.0
    proven(compiled, act=0.0, sub=0.0)
    loaded = toy.program(sandbox)
    loaded.load_state(compiled.dump_state())
    assert toy.scores(loaded, logs) == toy.scores(compiled, logs)


def test_bootstrap_few_shot(sandbox: Environment, toy: Any, proven: Proven) -> None:
    optimizer = dspy.BootstrapFewShot(metric=toy.metric, max_bootstrapped_demos=6, max_labeled_demos=8)
    compiled = optimizer.compile(toy.program(sandbox), trainset=toy.trainset())
    # Four whole runs were right; to `act` the labelled examples show the form of answers, to `sub` nothing.
    assert [len(compiled.act.fitting_demos()), len(compiled.sub.fitting_demos())] == [8, 4]
    proven(compiled)


def test_every_typed_sub_call_learns_by_its_own_name(sandbox: Environment, tmp_path: Any) -> None:
    """A signature and a module as sub-calls: each has demonstrations of its own, saved and loaded."""

    def program() -> RLM:
        return RLM(
            "notes: list[str] -> bad: int",
            sub_calls={"judge": "note -> verdict: Literal['good', 'bad']", "think": dspy.ChainOfThought("note -> why")},
            interpreter_factory=sandbox,
        )

    def policy(call: Any) -> str:
        if "REPL" in call.system:
            return code(
                "verdicts = judge_batched(notes)\nprint(think(note=notes[0]))\nSUBMIT(bad=verdicts.count('bad'))"
            )
        note = call.prompt.partition("[[ ## note ## ]]\n")[2].partition("\n")[0]
        if "verdict" not in call.system:
            return outputs(reasoning="r", why=f"because {note}")
        said = "bad" if "late" in note else "good"
        # That "!s" means the opposite is told by a demonstration, or by the note itself.
        shown = "".join(message["content"] for message in call.messages[:-1])
        ironic = "!s" in note and ("!s" in shown or "irony" in note)
        return outputs(verdict={"bad": "good", "good": "bad"}[said] if ironic else said)

    train = [dspy.Example(notes=["late, what an irony !s"] * 2, bad=0).with_inputs("notes")]
    held_out = dspy.Example(notes=["late !s", "late as ever !s", "late"], bad=1).with_inputs("notes")
    optimizer = dspy.BootstrapFewShot(metric=lambda gold, pred, trace=None: pred.bad == gold.bad)
    with dspy.context(lm=ScriptedLM(policy)):
        assert program()(**held_out.inputs()).bad == 3
        compiled = optimizer.compile(program(), trainset=train)
        learned = {
            name: predictor.fitting_demos() for name, predictor in compiled.named_predictors() if "judge" in name
        }
        assert learned["sub_calls['judge']"][0]["verdict"] == "good"
        think = dict(compiled.named_predictors())["sub_calls['think'].predict"]
        assert dict(think.demos[0])["why"].startswith("because late")
        assert compiled(**held_out.inputs()).bad == held_out.bad
        compiled.save(tmp_path / "program.json")
        fresh = program()
        fresh.load(tmp_path / "program.json")
        assert fresh(**held_out.inputs()).bad == held_out.bad


@pytest.mark.heavy
def test_random_search(sandbox: Environment, toy: Any, proven: Proven) -> None:
    optimizer = dspy.BootstrapFewShotWithRandomSearch(
        metric=toy.metric, max_bootstrapped_demos=4, num_candidate_programs=2, num_threads=2
    )
    with optimizers.evaluating():
        compiled = optimizer.compile(toy.program(sandbox), trainset=toy.trainset(), valset=toy.devset())
    # The zero-shot program, the labels-only one, the unshuffled one, and two by chance.
    found = [candidate["score"] for candidate in compiled.candidate_programs]
    assert len(found) == 5 and max(found) > min(found)
    proven(compiled)


def embed(texts: list[str]) -> Any:
    """Each text as the words it says of separators and units; what a real embedder would have in common, and more."""
    words = ("split by ;;", "thousands of euros", "irony", "ANNEX", "UNIT=one")
    return np.array([[float(word in text) for word in words] + [0.1] for text in texts], dtype=np.float32)


def test_knn_few_shot(sandbox: Environment, toy: Any, root_lm: ScriptedLM) -> None:
    """Demonstrations are bootstrapped anew for each call, from the nearest examples; so nothing of them is saved."""
    student = toy.program(sandbox)
    optimizer = dspy.KNNFewShot(
        10, toy.trainset(), dspy.Embedder(embed), metric=toy.metric, max_bootstrapped_demos=10, max_labeled_demos=0
    )
    compiled = optimizers.mended(optimizer).compile(student)
    scores = toy.scores(compiled, toy.heldout()[:1])
    assert scores["act"] == scores["all"] == 1.0
    example = toy.heldout()[2]
    assert asyncio.run(compiled.acall(**example.inputs())).amount == example.amount
    state = compiled.dump_state()
    assert state == student.dump_state()
    fresh = toy.program(sandbox)
    fresh.load_state(state)
    again = optimizers.mended(optimizer).compile(fresh)
    assert toy.scores(again, toy.heldout()[:1])["all"] == 1.0


def test_ensemble(sandbox: Environment, toy: Any, root_lm: ScriptedLM, tmp_path: Any) -> None:
    """Two programs that know against one that does not; their majority is right, saved and loaded as one program."""
    optimizer = dspy.BootstrapFewShot(metric=toy.metric, max_bootstrapped_demos=6, max_labeled_demos=0)
    first = optimizer.compile(toy.program(sandbox), trainset=toy.trainset())
    good = [first, first.deepcopy()]
    vote: Any = optimizers.mended(
        dspy.Ensemble(reduce_fn=functools.partial(dspy.majority, field="amount", normalize=None))
    )
    ensemble = vote.compile([good[0], toy.program(sandbox), good[1]])
    held_out = toy.heldout()[:2]
    assert toy.scores(ensemble, held_out) == {"act": 1.0, "sub": 1.0, "all": 1.0}
    ensemble.save(tmp_path / "ensemble.json")
    fresh = vote.compile([toy.program(sandbox) for _ in range(3)])
    assert toy.scores(fresh, held_out)["act"] == 0.0
    fresh.load(tmp_path / "ensemble.json")
    assert toy.scores(fresh, held_out) == {"act": 1.0, "sub": 1.0, "all": 1.0}
    text = (tmp_path / "ensemble.json").read_text()
    assert "SHOW_VARS" not in text and not re.search("quiet and nothing", text)

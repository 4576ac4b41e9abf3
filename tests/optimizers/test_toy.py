"""The toy task is what it says: unsolved at first, each fact lifts its own role, only trajectories show the facts."""

from __future__ import annotations

from typing import Any

import dspy

from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import ScriptedLM


def test_each_fact_is_needed_and_lifts_the_role_that_must_know_it(sandbox: Environment, toy: Any) -> None:
    rlm = toy.program(sandbox)
    with dspy.context(lm=ScriptedLM(toy.root)):
        held_out = toy.heldout()[1:4]
        assert toy.scores(rlm, held_out) == {"act": 0.0, "sub": 0.0, "all": 0.0}
        rlm.act.signature = rlm.act.signature.with_instructions(toy.RULES["separator"])
        assert toy.scores(rlm, held_out)["act"] == 0.0
        rlm.act.signature = rlm.act.signature.with_instructions(f"{toy.RULES['separator']} {toy.RULES['unit']}")
        assert toy.scores(rlm, held_out) == {"act": 1.0, "sub": 0.0, "all": 0.5}
        rlm.sub.signature = rlm.sub.signature.with_instructions(toy.RULES["irony"])
        assert toy.scores(rlm, held_out) == {"act": 1.0, "sub": 1.0, "all": 1.0}


def test_where_all_is_open_the_untaught_are_right(sandbox: Environment, toy: Any) -> None:
    opened = [example for example in toy.trainset() if not example.hidden]
    assert len(opened) >= 4
    with dspy.context(lm=ScriptedLM(toy.root)):
        rlm = toy.program(sandbox)
        predictions = [rlm(**example.inputs()) for example in opened]
    assert [toy.metric(e, p, trace=[]) for e, p in zip(opened, predictions, strict=True)] == [1.0] * len(opened)
    # The odd ones have an annex, which a child reads.
    assert sum(prediction.usage["children"] for prediction in predictions) >= 1


def test_the_splits_share_no_log_and_no_fact_can_be_read_from_an_example(toy: Any) -> None:
    examples = [*toy.trainset(), *toy.devset(), *toy.heldout()]
    assert len({example.log for example in examples}) == len(examples)
    assert toy.found(repr(examples)) == []
    assert all(set(example.hidden) == set(toy.FACTS) for example in toy.heldout())

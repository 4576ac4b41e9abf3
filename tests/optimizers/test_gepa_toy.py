"""`RLMGEPA` on the toy of all optimisers: three facts, two roles, children, a real sandbox, held-out examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy.environments.base import Environment
from rlm_dspy.optimizers import RLMGEPA
from rlm_dspy.testing import ScriptedLM


@pytest.mark.heavy
def test_root_and_sub_calls_both_learn(toy: Any, sandbox: Environment, tmp_path: Path) -> None:
    student = toy.program(sandbox)
    root = ScriptedLM(toy.root, model="scripted/root")
    with dspy.context(lm=root):
        before = toy.scores(student)
        optimizer = RLMGEPA(
            toy.metric,
            reflection_lm=ScriptedLM(toy.propose, model="scripted/reflection"),
            max_metric_calls=40,
            num_threads=2,
        )
        compiled = optimizer.compile(student, trainset=toy.trainset(), valset=toy.devset(), holdout=toy.heldout())
        assert before["act"] == 0.0 and before["sub"] < 0.5
        assert toy.scores(compiled) == {"act": 1.0, "sub": 1.0, "all": 1.0}
        assert optimizer.result is not None and optimizer.result.promotion.promoted
        assert any("Child (depth 1)" in rollout_text(call) for call in optimizer.reflection_lm.calls)
        compiled.save(str(tmp_path / "program.json"))
        fresh = toy.program(sandbox, max_llm_calls=23)
        fresh.load(str(tmp_path / "program.json"))
        asked = len(root.calls)
        fresh(**toy.heldout()[0].inputs())
        first = root.calls[asked]
    told = "\n".join(message["content"] for message in first.messages)
    assert [part for part in ("Variable `log`", "SUBMIT(amount=", "rlm_query(", "23 sub-LM") if part not in told] == []


def rollout_text(call: Any) -> str:
    """What the reflecting model was shown."""
    return "\n".join(message["content"] for message in call.messages)

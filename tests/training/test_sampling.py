"""A sampler answers all that it was asked before it is closed, and leaves nobody waiting after that."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra trl is not installed")
pytest.importorskip("peft", reason="the extra trl is not installed")


@pytest.mark.heavy
def test_nobody_waits_for_a_sampler_that_is_closed(tmp_path: Path) -> None:
    from rlm_dspy.training.local_model import load
    from rlm_dspy.training.sampling import Asked, Sampler
    from rlm_dspy.training.tiny import make_tiny_model

    sampler = Sampler(load(make_tiny_model(tmp_path)), width=2)
    answers = [sampler.ask(Asked([1, 2, 3], 4)) for _ in range(5)]
    sampler.close()
    assert [len(answer.result(0).ids) for answer in answers] == [4] * 5
    sampler.close()
    assert sampler.ask(Asked([1], 1)).cancelled()

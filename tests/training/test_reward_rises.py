"""Reinforcement learns: the benchmark's first seeds, by real rollouts of real tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

for module in ("torch", "trl", "peft", "datasets", "verifiers"):
    pytest.importorskip(module, reason="needs pip install 'rlm-dspy[train,trl]'")
pytestmark = pytest.mark.heavy


def test_the_reward_rises_in_each_of_three_seeds(tmp_path: Path) -> None:
    """The rewards are those of the task set, for what code gave that the model wrote itself."""
    import torch

    from benchmarks.local_training import Setting, learned, shown

    torch.set_num_threads(1)
    seeds = [learned(number, tmp_path / str(number), Setting()) for number in range(3)]
    lines = "\n".join(map(shown, seeds))
    assert all(seed.last > seed.first + 0.1 for seed in seeds), lines
    assert sum(seed.last - seed.first for seed in seeds) / 3 > 0.2, lines
    assert all(seed.gap < 1e-4 for seed in seeds), lines

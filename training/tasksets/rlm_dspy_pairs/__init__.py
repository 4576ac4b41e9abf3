"""The family ``pairs`` of rlm_dspy.tasks, for verifiers: ``vf-eval rlm-dspy-pairs``."""

from __future__ import annotations

from rlm_dspy.training import RLMEnv, RLMHarness, taskset

PairsTaskset = taskset("pairs")

__all__ = ["PairsTaskset", "RLMEnv", "RLMHarness"]

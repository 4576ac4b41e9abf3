"""The family ``needles`` of rlm_dspy.tasks, for verifiers: ``vf-eval rlm-dspy-needles``."""

from __future__ import annotations

from rlm_dspy.training import RLMEnv, RLMHarness, taskset

NeedlesTaskset = taskset("needles")

__all__ = ["NeedlesTaskset", "RLMEnv", "RLMHarness"]

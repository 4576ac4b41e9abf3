"""The family ``haystack`` of rlm_dspy.tasks, for verifiers: ``vf-eval rlm-dspy-haystack``."""

from __future__ import annotations

from rlm_dspy.training import RLMEnv, RLMHarness, taskset

HaystackTaskset = taskset("haystack")

__all__ = ["HaystackTaskset", "RLMEnv", "RLMHarness"]

"""The family ``repository`` of rlm_dspy.tasks, for verifiers: ``vf-eval rlm-dspy-repository``."""

from __future__ import annotations

from rlm_dspy.training import RLMEnv, RLMHarness, taskset

RepositoryTaskset = taskset("repository")

__all__ = ["RepositoryTaskset", "RLMEnv", "RLMHarness"]

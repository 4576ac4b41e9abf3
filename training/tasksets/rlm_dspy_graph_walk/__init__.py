"""The family ``graph_walk`` of rlm_dspy.tasks, for verifiers: ``vf-eval rlm-dspy-graph-walk``."""

from __future__ import annotations

from rlm_dspy.training import RLMEnv, RLMHarness, taskset

GraphWalkTaskset = taskset("graph_walk")

__all__ = ["GraphWalkTaskset", "RLMEnv", "RLMHarness"]

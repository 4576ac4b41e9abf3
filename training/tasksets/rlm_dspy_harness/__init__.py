"""The harness of rlm_dspy.training, as verifiers finds it: ``[env.agent.harness] id = "rlm-dspy-harness"``."""

from __future__ import annotations

from rlm_dspy.training.harness import RLMHarness

__all__ = ["RLMHarness"]

"""The published OOLONG-synth data, for verifiers: ``vf-eval rlm-dspy-oolong --env.taskset.source FILE``."""

from __future__ import annotations

from rlm_dspy.training import RLMEnv, RLMHarness
from rlm_dspy.training.oolong import OolongTaskset

__all__ = ["OolongTaskset", "RLMEnv", "RLMHarness"]

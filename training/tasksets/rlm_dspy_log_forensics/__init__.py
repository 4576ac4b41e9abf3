"""The family ``log_forensics`` of rlm_dspy.tasks, for verifiers: ``vf-eval rlm-dspy-log-forensics``."""

from __future__ import annotations

from rlm_dspy.training import RLMEnv, RLMHarness, taskset

LogForensicsTaskset = taskset("log_forensics")

__all__ = ["LogForensicsTaskset", "RLMEnv", "RLMHarness"]

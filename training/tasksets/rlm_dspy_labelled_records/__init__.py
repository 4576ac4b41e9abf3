"""The family ``labelled_records`` of rlm_dspy.tasks, for verifiers: ``vf-eval rlm-dspy-labelled-records``."""

from __future__ import annotations

from rlm_dspy.training import RLMEnv, RLMHarness, taskset

LabelledRecordsTaskset = taskset("labelled_records")

__all__ = ["LabelledRecordsTaskset", "RLMEnv", "RLMHarness"]

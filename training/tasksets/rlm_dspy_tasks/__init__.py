"""Any family of rlm_dspy.tasks, for verifiers: ``vf-eval rlm-dspy-tasks --env.taskset.family needles``.

Also the id of the environment, for task sets of other packages: ``[env] id = "rlm-dspy-tasks"``.
"""

from __future__ import annotations

from rlm_dspy.training import RLMEnv, RLMHarness
from rlm_dspy.training.factory import FamilyTaskset


class TasksTaskset(FamilyTaskset):
    """The family that the configuration names."""


__all__ = ["RLMEnv", "RLMHarness", "TasksTaskset"]

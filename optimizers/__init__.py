"""Improving an RLM by its prompts.

    RLMGEPA(metric, …)   GEPA on whole trajectories, with a front of score and cost, a gate, and resuming
    feedback(metric)     a task's metric that tells each predictor what went wrong in the trajectory
    diagnose(trajectory) what went wrong in a run, by predictor
    excerpt(trajectory)  a run as a text of bounded length

The files:

    diagnosis.py         what the events of a run show of its faults
    excerpts.py          a run as a text for a reflecting model
    metric_feedback.py   a metric with words for each predictor
    gepa_optimizer.py    `RLMGEPA`
    gepa_search.py       one compile by it
    gepa_adapter.py      candidates evaluated, and shown to the reflecting model
    gepa_reflection.py   new instructions
    gepa_result.py       what was tried
    rollouts.py          one run, as it is kept
    compile_folder.py    all runs and reflections on disk; going on after a crash
    promotion.py         the gate
    front.py             score against cost
"""

from __future__ import annotations

if __name__ != "rlm_dspy.optimizers":
    raise ImportError(
        "this folder is the package rlm_dspy.optimizers and cannot be imported as "
        f"{__name__!r}: install the project first (pip install -e .) and import rlm_dspy.optimizers"
    )

from rlm_dspy.optimizers.diagnosis import Finding, diagnose
from rlm_dspy.optimizers.excerpts import excerpt
from rlm_dspy.optimizers.front import pareto_front
from rlm_dspy.optimizers.gepa_optimizer import RLMGEPA
from rlm_dspy.optimizers.gepa_result import Attempt, CandidateResult, CompileResult
from rlm_dspy.optimizers.metric_feedback import Feedback, feedback
from rlm_dspy.optimizers.promotion import Promotion, paired_p
from rlm_dspy.optimizers.rollouts import Rollout

__all__ = [
    "Attempt",
    "CandidateResult",
    "CompileResult",
    "Feedback",
    "Finding",
    "Promotion",
    "RLMGEPA",
    "Rollout",
    "diagnose",
    "excerpt",
    "feedback",
    "paired_p",
    "pareto_front",
]

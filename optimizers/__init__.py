"""Improving an RLM by its prompts.

Every optimiser of DSPy compiles an RLM as it stands; here is what they need beside it, and what none of them does.

    evaluating           slow runs are not started twice
    feedback(metric)     a task's metric that tells each predictor what went wrong in the trajectory
    diagnose(trajectory) what went wrong in a run, by predictor
    excerpt(trajectory)  a run as a text of bounded length

    evaluating.py        `evaluating`
    diagnosis.py         what the events of a run show of its faults
    excerpts.py          a run as a text for a reflecting model
    metric_feedback.py   a metric with words for each predictor
"""

from __future__ import annotations

if __name__ != "rlm_dspy.optimizers":
    raise ImportError(
        "this folder is the package rlm_dspy.optimizers and cannot be imported as "
        f"{__name__!r}: install the project first (pip install -e .) and import rlm_dspy.optimizers"
    )

from rlm_dspy.optimizers.diagnosis import Finding, diagnose
from rlm_dspy.optimizers.evaluating import evaluating
from rlm_dspy.optimizers.excerpts import excerpt
from rlm_dspy.optimizers.metric_feedback import Feedback, feedback

__all__ = ["Feedback", "Finding", "diagnose", "evaluating", "excerpt", "feedback"]

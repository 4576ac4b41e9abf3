"""Improving an RLM by its prompts.

Every optimiser of DSPy compiles an RLM as it stands; here is what they need beside it, and what none of them does.

    evaluating.py        `evaluating`: slow runs are not started twice
    previews.py          `previewed`: examples with large inputs that no proposer is shown whole
    trace_rows.py        `TraceAdapter`: rows of DSPy's fine-tuning in the form in which an RLM's models are asked
    workarounds.py       `mended`: stock optimisers put right where they misbehave by a bug of their own

    metric_feedback.py   `feedback`: a task's metric that tells each predictor what went wrong in the trajectory
    diagnosis.py         `diagnose`: what the events of a run show of its faults
    excerpts.py          `excerpt`: a run as a text of bounded length, for a reflecting model
    gepa_optimizer.py    `RLMGEPA`: GEPA on whole trajectories, with a front of score and cost, a gate, and resuming
    gepa_search.py       one compile by it
    gepa_adapter.py      candidates evaluated, and shown to the reflecting model
    gepa_reflection.py   new instructions
    gepa_result.py       what was tried
    gepa_tracking.py     what a compile says of itself to MLflow
    rollouts.py          one run, as it is kept
    compile_folder.py    all runs and reflections on disk; going on after a crash
    promotion.py         the gate
    measured.py          what something was worth on a set of examples, and what it took
    front.py             score against cost
    knobs.py             `search_knobs`: options of an RLM, measured by score and cost
    bootstrap.py         `BootstrapTrajectories`: demonstrations out of whole runs that succeeded
    demos.py             what a run, or a sub-call, is as a demonstration, and which to take
    distill.py           `sft_rows`, `write_rows`: training rows out of what a strong model did right
    finetune.py          `TrajectoryFinetune`: DSPy's fine-tuning on whole conversations
    attempts.py          `collect`: a program run over a training set, each run scored and kept
    watching.py          what predictors were asked and answered in a run
"""

from __future__ import annotations

if __name__ != "rlm_dspy.optimizers":
    raise ImportError(
        "this folder is the package rlm_dspy.optimizers and cannot be imported as "
        f"{__name__!r}: install the project first (pip install -e .) and import rlm_dspy.optimizers"
    )

from rlm_dspy.optimizers.attempts import collect
from rlm_dspy.optimizers.bootstrap import BootstrapTrajectories
from rlm_dspy.optimizers.diagnosis import Finding, diagnose
from rlm_dspy.optimizers.distill import sft_rows, write_rows
from rlm_dspy.optimizers.evaluating import evaluating
from rlm_dspy.optimizers.excerpts import excerpt
from rlm_dspy.optimizers.finetune import TrajectoryFinetune
from rlm_dspy.optimizers.front import pareto_front
from rlm_dspy.optimizers.gepa_optimizer import RLMGEPA
from rlm_dspy.optimizers.gepa_result import CandidateResult, CompileResult, Proposal
from rlm_dspy.optimizers.knobs import KnobResult, search_knobs
from rlm_dspy.optimizers.metric_feedback import Feedback, feedback
from rlm_dspy.optimizers.previews import previewed
from rlm_dspy.optimizers.promotion import Promotion, paired_p
from rlm_dspy.optimizers.rollouts import Rollout
from rlm_dspy.optimizers.trace_rows import TraceAdapter
from rlm_dspy.optimizers.workarounds import mended

__all__ = [
    "BootstrapTrajectories",
    "CandidateResult",
    "CompileResult",
    "Feedback",
    "Finding",
    "KnobResult",
    "Promotion",
    "Proposal",
    "RLMGEPA",
    "Rollout",
    "TraceAdapter",
    "TrajectoryFinetune",
    "collect",
    "diagnose",
    "evaluating",
    "excerpt",
    "feedback",
    "mended",
    "paired_p",
    "pareto_front",
    "previewed",
    "search_knobs",
    "sft_rows",
    "write_rows",
]

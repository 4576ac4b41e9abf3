"""Improving an RLM by its prompts.

Every optimiser of DSPy compiles an RLM as it stands; here is what they need beside it.

    evaluating.py    `evaluating`: slow runs are not started twice
    previews.py      `previewed`: examples with large inputs that no proposer is shown whole
    trace_rows.py    `TraceAdapter`: rows of DSPy's fine-tuning in the form in which an RLM's models are asked
    workarounds.py   `mended`: stock optimisers put right where they misbehave by a bug of their own
"""

from __future__ import annotations

if __name__ != "rlm_dspy.optimizers":
    raise ImportError(
        "this folder is the package rlm_dspy.optimizers and cannot be imported as "
        f"{__name__!r}: install the project first (pip install -e .) and import rlm_dspy.optimizers"
    )

from rlm_dspy.optimizers.evaluating import evaluating
from rlm_dspy.optimizers.previews import previewed
from rlm_dspy.optimizers.trace_rows import TraceAdapter
from rlm_dspy.optimizers.workarounds import mended

__all__ = ["TraceAdapter", "evaluating", "mended", "previewed"]

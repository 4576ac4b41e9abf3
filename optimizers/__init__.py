"""Improving an RLM by its prompts.

Empty in this version. Part 3 of the project fills this room: compiling an RLM with DSPy's optimisers as it stands,
trajectory-level feedback for GEPA, bootstrapping of whole trajectories, and the search over strategy and knobs for
accuracy against cost.
"""

from __future__ import annotations

if __name__ != "rlm_dspy.optimizers":
    raise ImportError(
        "this folder is the package rlm_dspy.optimizers and cannot be imported as "
        f"{__name__!r}: install the project first (pip install -e .) and import rlm_dspy.optimizers"
    )

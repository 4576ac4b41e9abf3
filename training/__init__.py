"""Improving an RLM by its weights.

Empty in this version. Part 4 of the project fills this room: the verifiers harness with two seats (the root and its
sub-calls), task sets, append-only conversations as training samples, and recipes for prime-rl and TRL.
"""

from __future__ import annotations

if __name__ != "rlm_dspy.training":
    raise ImportError(
        "this folder is the package rlm_dspy.training and cannot be imported as "
        f"{__name__!r}: install the project first (pip install -e .) and import rlm_dspy.training"
    )

"""Programs, metrics and optimisers as parameters of MLflow runs: small texts and numbers, never their data."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import dspy

from rlm_dspy.options import lms_of, model_name
from rlm_dspy.rlm import RLM
from rlm_dspy.tracking.runs import strategy

_LONGEST = 200


def described(program: Any) -> dict[str, Any]:
    """What ``program`` is: its class, signature, a hash of what optimisers change in it, its limits and models."""
    found: dict[str, Any] = {"program": type(program).__name__}
    if isinstance(program, dspy.Module):
        found["strategy"] = strategy(program)
        predictors = program.named_predictors()
        found["predictors"] = ", ".join(name for name, _ in predictors)[:_LONGEST]
    signature = getattr(program, "signature", None)
    if signature is not None and hasattr(signature, "signature"):
        found["signature"] = signature.signature
    lm = program.act.lm if isinstance(program, RLM) else getattr(program, "lm", None)
    if (lm := lm or dspy.settings.lm) is not None:
        found["lm"] = ", ".join(sorted({model_name(one) for one in lms_of(lm)}))
    if isinstance(program, RLM):
        sub = program.sub.lm or program.sub_lm
        if sub is not None:
            found["sub_lm"] = ", ".join(sorted({model_name(one) for one in lms_of(sub)}))
        found |= {name: value for name, value in program.limits.to_dict().items() if value is not None}
    return found


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of the options of an optimiser those that are short: numbers, switches, words; of functions their names."""
    found = {}
    for name, value in given.items():
        if name.startswith("_") or value is None:
            continue
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= _LONGEST):
            found[name] = value
        elif isinstance(value, dspy.BaseLM):
            found[name] = model_name(value)
        elif "metric" in name and callable(value):
            found[name] = name_of(value)
    return found


def name_of(function: Any) -> str:
    """What a metric is called."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)

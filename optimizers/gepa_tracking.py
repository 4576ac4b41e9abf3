"""What a compile says of itself to MLflow: figures of each candidate as it is measured, in the end the page of it all.

The run that it is logged to is the one that `rlm_dspy.tracking` begins for every ``compile``; rollouts and reflections
are traces in it. Where nothing is tracked this does nothing, and MLflow is not imported.
"""

from __future__ import annotations

import sys
from typing import Any

from rlm_dspy.optimizers.gepa_result import CandidateResult, CompileResult


def record() -> Any:
    """The tracked run that this is called in, a `rlm_dspy.tracking.Record`; None where nothing is tracked."""
    module = sys.modules.get("rlm_dspy.tracking.mlruns")
    return None if module is None else module.current()


def measured(candidate: CandidateResult, metric_calls: int) -> None:
    """A candidate was measured on the whole validation set, after ``metric_calls``."""
    if (run := record()) is not None:
        figures = {"score": candidate.score, "tokens": candidate.tokens, "seconds": candidate.seconds}
        if candidate.cost is not None:
            figures["cost"] = candidate.cost
        named = {f"candidate_{name}": value for name, value in figures.items()}
        run.log_metrics({**named, "metric_calls": metric_calls}, candidate.number)


def ended(result: CompileResult) -> None:
    """The compile has ended."""
    if (run := record()) is not None:
        gate = result.promotion
        figures = {"before": gate.before, "after": gate.after, "promoted": float(gate.promoted)}
        if gate.p is not None:
            figures["p"] = gate.p
        run.log_metrics({f"gate_{name}": value for name, value in figures.items()})
        run.log_metrics({"candidates": len(result.candidates), "reflection_calls": result.reflection_calls})
        run.log_text(result.to_html(), "compile.html")
        run.log_text(result.to_json(), "compile.json")

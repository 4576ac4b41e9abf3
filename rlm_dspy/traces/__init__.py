"""What MLflow has of runs (`rlm_dspy.tracking`), read back: trajectories, training sets.

    import rlm_dspy.traces as traces

    for run in traces.runs("attributes.status = 'OK'", feedback={"correct": True}):
        print(run.trace_id, run.outcome, run.trajectory)
    trainset = traces.trainset_from_traces(feedback={"correct": True})

Needs the extra ``mlflow``; nothing here loads it before it is used.

    store.py      finding traces in MLflow
    reading.py    the runs in a trace, by the events that its spans carry
    dataset.py    examples and training conversations
"""

from __future__ import annotations

from typing import Any

from rlm_dspy.errors import RecordingError
from rlm_dspy.traces.dataset import sft_from_traces, trainset_from_traces
from rlm_dspy.traces.reading import TracedRun, runs_of
from rlm_dspy.traces.store import Which, find, get, runs
from rlm_dspy.trajectory import Trajectory

__all__ = [
    "TracedRun",
    "Which",
    "find",
    "get",
    "runs",
    "runs_of",
    "sft_from_traces",
    "trainset_from_traces",
    "trajectory",
]


def trajectory(trace: Any, *, tracking_uri: str | None = None) -> Trajectory:
    """See `rlm_dspy.Trajectory.from_trace`. Of a trace with several runs, the first that none of the others started."""
    found = runs_of(get(trace, tracking_uri=tracking_uri) if isinstance(trace, str) else trace)
    if not found:
        raise RecordingError(
            "this trace holds no run of an RLM that was tracked: call rlm_dspy.tracking.enable() before the run"
        )
    return found[0].trajectory

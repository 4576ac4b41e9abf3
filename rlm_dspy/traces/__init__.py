"""What MLflow has of runs (`rlm_dspy.tracking`), read back: trajectories, training sets.

    import rlm_dspy.traces as traces

    for run in traces.runs("attributes.status = 'OK'", feedback={"correct": True}):
        print(run.trace_id, run.outcome, run.trajectory)
    trainset = traces.trainset_from_traces(feedback={"correct": True})

Needs the extra ``mlflow``; nothing here loads it before it is used.

    uri.py        the address of a store that is a file
    store.py      finding traces in MLflow
    reading.py    the runs in a trace, by the events that its spans carry
    dataset.py    examples and training conversations
    uri.py        the address of a store that is a file
"""

from __future__ import annotations

from rlm_dspy.traces.dataset import sft_from_traces, trainset_from_traces
from rlm_dspy.traces.reading import TracedRun, runs_of
from rlm_dspy.traces.store import Which, find, get, runs, trajectory_of

__all__ = [
    "TracedRun",
    "Which",
    "find",
    "get",
    "runs",
    "runs_of",
    "sft_from_traces",
    "trainset_from_traces",
    "trajectory_of",
]

"""What leans on private parts of MLflow. Tested by tests/tracking/test_compat.py.

| what | why there is no public way (MLflow 3.17) |
|---|---|
| `activate`, `deactivate` | ``mlflow.start_run`` asks the server about the run, and the program would wait for it |
| `experiment_id` | that of a new run, by ``set_experiment`` or the environment, is known only once there is one |
| `set_last_trace` | ``mlflow.get_last_active_trace_id`` knows the traces alone that end in the thread that asks |
| `forget_last` | on that trace MLflow logs scores of ``dspy.Evaluate``, whether it is the right one or not |

Public names that are not documented are listed in `rlm_dspy.tracking.spans`.
"""

from __future__ import annotations

import mlflow
from mlflow.tracing.fluent import _LAST_ACTIVE_TRACE_ID_THREAD_LOCAL, _set_last_active_trace_id
from mlflow.tracking.fluent import _active_run_stack, _get_experiment_id


def activate(run: mlflow.ActiveRun) -> None:
    """Make ``run`` what ``mlflow.active_run`` gives in this thread, without asking anybody."""
    _active_run_stack.get().append(run)


def deactivate(run: mlflow.ActiveRun | None) -> None:
    """Take ``run`` off again, wherever it lies; nothing happens where it is not."""
    stack = _active_run_stack.get()
    stack[:] = [one for one in stack if one is not run]


def experiment_id() -> str:
    """The experiment that a run belongs to which begins now."""
    return str(_get_experiment_id())


def set_last_trace(trace_id: str) -> None:
    """Make ``trace_id`` what ``mlflow.get_last_active_trace_id`` gives in this thread."""
    _set_last_active_trace_id(trace_id)


def forget_last() -> None:
    """Let no trace be the last one of this thread.

    MLflow logs what a metric of ``dspy.Evaluate`` gives on that one: which is not in the store yet, or that of a call
    before the evaluation. See `rlm_dspy.tracking.scores`.
    """
    _LAST_ACTIVE_TRACE_ID_THREAD_LOCAL.set(None)

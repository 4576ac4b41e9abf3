"""Finding traces in MLflow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from rlm_dspy.errors import ConfigurationError, MissingExtraError, RecordingError
from rlm_dspy.traces.reading import TracedRun, runs_of
from rlm_dspy.traces.uri import anchored
from rlm_dspy.trajectory import Trajectory

Wanted = Mapping[str, Any]
"""By the name of an assessment: its value, or a function that says whether a value is wanted."""


class Which(TypedDict, total=False):
    """Which runs of those that MLflow's filter lets through.

    Attributes:
        feedback: Whose trace was given each of these, such as ``{"correct": True, "score": lambda s: s > 3}``.
        where: Of which this is true.
        outcomes: That ended so.
        trace_ids: Of these traces alone; filter, experiment and max_traces then do not count.
        experiment: Of the experiments of these names; None for all of the store.
        tracking_uri: Of this store; None for the one that is in use.
        max_traces: Of at most so many traces.
        flush: Wait until what this process has tracked is written (the default), which takes MLflow some seconds.
    """

    feedback: Wanted | None
    where: Callable[[TracedRun], bool] | None
    outcomes: Sequence[str] | None
    trace_ids: Sequence[str] | None
    experiment: str | Sequence[str] | None
    tracking_uri: str | None
    max_traces: int | None
    flush: bool


def library() -> Any:
    """The module ``mlflow``.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import mlflow
    except ImportError:
        raise MissingExtraError("reading traces", "mlflow") from None
    return mlflow


def _flush(mlflow: Any) -> None:
    tracking = sys.modules.get("rlm_dspy.tracking")
    # Where this process tracks, what it has tracked has to get to MLflow first.
    (mlflow.flush_trace_async_logging if tracking is None else tracking.flush)()


def get(trace_id: str, *, tracking_uri: str | None = None) -> Any:
    """The MLflow trace with this id; what this process has still to write of it is written first.

    Raises:
        RecordingError: There is none.
        MissingExtraError: MLflow is not installed.
    """
    mlflow = library()
    client = mlflow.MlflowClient(tracking_uri=anchored(tracking_uri))
    trace, why = None, "there is none"
    for last in (False, True):
        try:
            trace = client.get_trace(trace_id, display=False)
        except mlflow.exceptions.MlflowException as error:
            why = error.message
        if trace is not None and trace.info.state != mlflow.entities.trace_state.TraceState.IN_PROGRESS:
            return trace
        if not last:
            # It takes MLflow seconds also where there is nothing to write.
            _flush(mlflow)
    if trace is not None:
        return trace
    place = tracking_uri or mlflow.get_tracking_uri()
    raise RecordingError(f"the trace {trace_id} could not be read from {place}: {why}")


def find(
    filter: str | None = None,
    *,
    experiment: str | Sequence[str] | None = None,
    tracking_uri: str | None = None,
    max_traces: int | None = None,
    flush: bool = True,
) -> Iterator[Any]:
    """The MLflow traces that fit, the newest first, read page by page.

    Args:
        filter: As MLflow writes it, such as ``"attributes.status = 'OK' AND tags.split = 'train'"``.
        experiment: Names of experiments; None for all of the store.
        tracking_uri: The store; None for the one that is in use.
        max_traces: At most so many.
        flush: Wait until what this process has tracked is written, which takes MLflow some seconds.

    Raises:
        ConfigurationError: There is no such experiment, or MLflow does not take the filter.
        MissingExtraError: MLflow is not installed.
    """
    mlflow = library()
    if flush:
        _flush(mlflow)
    client = mlflow.MlflowClient(tracking_uri=anchored(tracking_uri))
    places = _experiments(client, experiment)
    left, token = max_traces, None
    while places and (left is None or left > 0):
        try:
            page = client.search_traces(
                locations=places,
                filter_string=filter,
                max_results=100 if left is None else min(100, left),
                order_by=["timestamp_ms DESC"],
                page_token=token,
            )
        except mlflow.exceptions.MlflowException as error:
            raise ConfigurationError(f"MLflow refused the search: {error.message}") from None
        yield from page
        left = None if left is None else left - len(page)
        token = page.token
        if not token:
            return


def _experiments(client: Any, wanted: str | Sequence[str] | None) -> list[str]:
    if wanted is None:
        ids, token = [], None
        while True:
            page = client.search_experiments(page_token=token)
            ids += [experiment.experiment_id for experiment in page]
            token = page.token
            if not token:
                return ids
    found = []
    for name in [wanted] if isinstance(wanted, str) else wanted:
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            known = ", ".join(sorted(e.name for e in client.search_experiments())[:10]) or "none"
            raise ConfigurationError(f"there is no experiment {name!r}; there are: {known}")
        found.append(experiment.experiment_id)
    return found


def runs(filter: str | None = None, **which: Unpack[Which]) -> Iterator[TracedRun]:
    """The tracked runs that fit, the newest first; traces without one are passed over.

    Args:
        filter: As for `find`.
        **which: More of what they have to be, see `Which`.

    Raises:
        ConfigurationError, MissingExtraError: As for `find`.
        RecordingError: What a trace holds is damaged, or there is no such trace.
    """
    if unknown := which.keys() - Which.__annotations__.keys():
        raise TypeError(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(Which.__annotations__)}")
    uri, names = which.get("tracking_uri"), which.get("trace_ids")
    found: Iterator[Any]
    if names is not None:
        found = (get(name, tracking_uri=uri) for name in names)
    else:
        found = find(
            filter,
            experiment=which.get("experiment"),
            tracking_uri=uri,
            max_traces=which.get("max_traces"),
            flush=which.get("flush", True),
        )
    outcomes, where = which.get("outcomes"), which.get("where")
    for trace in found:
        for run in runs_of(trace):
            if outcomes is not None and run.outcome not in outcomes:
                continue
            if _given(run, which.get("feedback") or {}) and (where is None or where(run)):
                yield run


def _given(run: TracedRun, wanted: Wanted) -> bool:
    for name, value in wanted.items():
        assessment = run.assessments.get(name)
        if assessment is None:
            return False
        if not (value(assessment.value) if callable(value) else assessment.value == value):
            return False
    return True


def trajectory_of(trace: Any, *, tracking_uri: str | None = None) -> Trajectory:
    """See `rlm_dspy.Trajectory.from_trace`. Of a trace with several runs, the first that none of the others started."""
    found = runs_of(get(trace, tracking_uri=tracking_uri) if isinstance(trace, str) else trace)
    if not found:
        raise RecordingError(
            "this trace holds no run of an RLM that was tracked: call rlm_dspy.tracking.enable() before the run"
        )
    return found[0].trajectory

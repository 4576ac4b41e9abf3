"""Runs as MLflow traces.

    rlm_dspy.tracking.enable(experiment="contracts")
    rlm(context=text, query="…")            # a trace: RLM, its turns, what code called, every LM request

    spans.py       spans, from their beginning until they are written
    writer.py      the thread that writes them
    capped.py      large values as size, hash, head and tail; secrets hidden
    leaves.py      what the span of an LM request says
    runs.py        the spans of a run, made of its events
    callback.py    DSPy's callbacks as spans
    scores.py      scores of evaluations on traces
    record.py      an MLflow run, as the program sees it
    mlruns.py      MLflow runs: begun, nested, ended, beside the program
    evaluations.py a run for each evaluation and each compile
    programs.py    programs and optimisers as parameters
    datasets.py    sets of examples: size, digest, preview
    facts.py       what runs came to, put together
    outside.py     LM requests that no run accounts for
    scorers.py     scorers for ``mlflow.genai.evaluate``
    models.py      RLMs as MLflow models, without keys
    page.py        the page of a trajectory as an artefact
    versions.py    of the packages
    _compat.py     what leans on private parts of MLflow
    store.py       where traces go, and what is done about one that does not answer

Everything is made from the events of runs (`rlm_dspy.subscribe`) and from DSPy's callbacks. MLflow comes with the extra
``mlflow`` and is imported by `enable`, not before.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlm_dspy.errors import ConfigurationError, MissingExtraError
from rlm_dspy.tracking.capped import CAP
from rlm_dspy.tracking.record import Record

if TYPE_CHECKING:
    from rlm_dspy.tracking.callback import Tracker

__all__ = ["Record", "disable", "enable", "enabled", "flush", "log_model", "run"]

_quiet = False


def enable(
    experiment: str | None = None,
    tracking_uri: str | None = None,
    *,
    cap: int | None = CAP,
    redact: Callable[[str], str] | None = None,
    **autolog: Any,
) -> None:
    """Track every DSPy program of this process in MLflow from here on, RLMs with all that happens inside of them.

    Args:
        experiment: The name of an experiment, which is made where there is none. None for the one that is set.
        tracking_uri: Where to, such as ``"http://127.0.0.1:5000"``. None for what ``mlflow.set_tracking_uri`` or
            ``MLFLOW_TRACKING_URI`` say, else the file ``mlflow.db`` in the working directory.
        cap: Characters of one value up to which it is stored whole; of a larger one size, hash, head and tail are. None
            stores everything whole, inputs of any size too.
        redact: Called with every text before it is stored, after known secrets have been hidden in it; returns the text
            to store. Where it raises, the text is left out.
        **autolog: Options of ``mlflow.dspy.autolog``. Programs are tracked while optimisers compile them, too, unless
            ``log_traces_from_compile=False``.

    Each ``dspy.Evaluate`` and each ``compile`` of an optimiser is an MLflow run, nested where they are, see `run`.

    May be called before or after ``mlflow.dspy.autolog``, and again: nothing is tracked twice. Like ``dspy.configure``
    it belongs into the thread that configures DSPy. A server that is dead or slow fails and delays no run: there is one
    warning, and runs are tracked again when it answers.

    Raises:
        MissingExtraError: MLflow is not installed.
        ConfigurationError: An option that cannot be.
    """
    if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int) or cap < 1):
        raise ConfigurationError(f"cap must be a positive number of characters, or None for no cap, not {cap!r}")
    if redact is not None and not callable(redact):
        raise ConfigurationError(f"redact must be a function from text to text, not {redact!r}")
    if importlib.util.find_spec("mlflow") is None:
        raise MissingExtraError("tracking", "mlflow")
    import dspy
    import mlflow
    import mlflow.dspy
    from mlflow.dspy.callback import MlflowCallback

    from rlm_dspy.tracking import store as store_
    from rlm_dspy.tracking.callback import Tracker
    from rlm_dspy.tracking.capped import Clip
    from rlm_dspy.tracking.models import guard
    from rlm_dspy.tracking.writer import writer

    global _quiet
    store = store_.Store(experiment, tracking_uri)
    store.open()
    writer.flush_at_exit(mlflow.flush_trace_async_logging)
    if not _quiet:
        _quiet = True
        store_.quiet()
    others = [one for one in dspy.settings.callbacks or [] if not isinstance(one, MlflowCallback)]
    dspy.configure(callbacks=[*others, Tracker(Clip(cap, redact), store)])
    guard()
    # Off, MLflow would stop all tracing of the process while an optimiser compiles.
    mlflow.dspy.autolog(**{"log_traces_from_compile": True, **autolog})


@contextlib.contextmanager
def run(
    name: str, *, params: Mapping[str, Any] | None = None, tags: Mapping[str, Any] | None = None
) -> Iterator[Record]:
    """An MLflow run for what is done inside: a benchmark, a loop of your own.

    Traces that begin inside, also in threads of DSPy, are part of it; ``dspy.Evaluate``, ``compile`` and further runs
    are nested in it. At its end the figures of all of them are its metrics: runs, turns, sub-calls, tokens, cost
    (where it is known), outcomes, seconds. It is MLflow's active run meanwhile. Where nothing is tracked, or the server
    does not answer, the program goes on all the same.

    Args:
        name: Of the run.
        params: Logged at its beginning.
        tags: Of the run.

    Example:
        >>> with rlm_dspy.tracking.run("needles", params={"model": name}) as record:  # doctest: +SKIP
        ...     record.log_dataset(examples)
        ...     scores = [score(one, rlm(**one.inputs())) for one in examples]
        ...     record.log_metrics({"score": sum(scores) / len(scores)})
    """
    tracker = _tracker()
    if tracker is None:
        yield Record(name)
        return
    record = tracker.runs.begin(name, tags)
    if params:
        record.log_params(params)
    error: BaseException | None = None
    try:
        yield record
    except BaseException as raised:
        error = raised
        raise
    finally:
        tracker.runs.end(record, error)


def log_model(program: Any, name: str | None = None, **options: Any) -> Any:
    """``mlflow.dspy.log_model`` without any key, see `rlm_dspy.tracking.models.log_model`.

    Raises:
        MissingExtraError: MLflow is not installed.
        ConfigurationError: Some of it cannot be saved, or has a secret in it; nothing was written.
    """
    if importlib.util.find_spec("mlflow") is None:
        raise MissingExtraError("logging models", "mlflow")
    from rlm_dspy.tracking import models

    return models.log_model(program, name, **options)


def disable() -> None:
    """Track no more. What has been tracked is written; runs under way are tracked to their end."""
    if enabled():
        import dspy

        # The patches of autolog stay, and do nothing without a callback.
        dspy.configure(callbacks=[one for one in dspy.settings.callbacks if not _is_tracker(one)])
        flush()


def enabled() -> bool:
    """Whether runs are tracked."""
    import dspy

    return any(_is_tracker(one) for one in dspy.settings.callbacks or [])


def _tracker() -> Tracker | None:
    import dspy

    return next((one for one in dspy.settings.callbacks or [] if _is_tracker(one)), None)


def flush() -> None:
    """Wait until everything so far is in the store, such as before reading it."""
    if importlib.util.find_spec("mlflow") is None:
        raise MissingExtraError("tracking", "mlflow")
    import mlflow

    from rlm_dspy.tracking.writer import writer

    writer.flush()
    mlflow.flush_trace_async_logging()


def _is_tracker(callback: Any) -> bool:
    from sys import modules

    module = modules.get("rlm_dspy.tracking.callback")
    tracker: type[Tracker] | None = getattr(module, "Tracker", None)
    return tracker is not None and isinstance(callback, tracker)

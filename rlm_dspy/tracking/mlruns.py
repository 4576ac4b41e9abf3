"""MLflow runs: begun where traces come to be part of them, ended with what came of them.

No program waits for the store longer than it takes to be given an id, at most `PATIENCE` seconds once: all else is done
by the writer's thread, and nothing at all where a server does not answer.
"""

from __future__ import annotations

import getpass
import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import dspy
import mlflow
from mlflow.entities import Dataset, DatasetInput, Metric, Param, RunTag

from rlm_dspy._aio import threads
from rlm_dspy._compat import carried
from rlm_dspy.prices import Prices
from rlm_dspy.redact import error_text
from rlm_dspy.tracking._compat import activate, deactivate, experiment_id
from rlm_dspy.tracking.capped import Clip
from rlm_dspy.tracking.datasets import preview
from rlm_dspy.tracking.record import Record, Work
from rlm_dspy.tracking.store import PATIENCE, Store
from rlm_dspy.tracking.versions import versions
from rlm_dspy.tracking.writer import Writer

logger = logging.getLogger("rlm_dspy.tracking")

SETTING = "rlm_dspy_record"
"""The name in DSPy's settings, which DSPy hands on to threads of its own."""
_PARENT = "mlflow.parentRunId"
_REFUSED = re.compile(r"[^/\w.\- :]")
_AT_ONCE = 100
T = TypeVar("T")


def current() -> Record | None:
    """The innermost record of this context."""
    found = dspy.settings.get(SETTING)
    return found if isinstance(found, Record) else None


def source() -> str | None:
    """The id of the run that a trace which begins here is part of."""
    record = current()
    while record is not None and record.run_id is None:
        record = record.outer
    return None if record is None else record.run_id


class Runs:
    """Begins and ends MLflow runs.

    Args:
        store: Where.
        writer: In whose thread.
        clip: How values are stored.
    """

    def __init__(self, store: Store, writer: Writer, clip: Clip) -> None:
        self._store = store
        self._writer = writer
        self._clip = clip
        self._told = False
        # By the record: what makes it the innermost of its context, and MLflow's run, if it is one of ours.
        self._open: dict[int, tuple[Any, mlflow.ActiveRun | None]] = {}

    def begin(self, name: str, tags: Mapping[str, Any] | None = None, adopt: Any = None) -> Record:
        """A record, made the innermost of this context and its run MLflow's active one, until it is ended.

        Args:
            name: Of the run.
            tags: Of the run.
            adopt: A run that somebody else has begun, which takes the place of a new one.
        """
        outer = current()
        record = Record(name, outer)
        run = None
        if adopt is not None:
            record.attach(adopt.info.run_id, lambda work: self._later(record, work))
        elif self._store.ready() and (run := self._create(record, dict(tags or {}))) is not None:
            record.attach(run.info.run_id, lambda work: self._later(record, work))
            activate(run)
        if record.run_id is not None:
            record.log_params(versions())
        carrying = carried(SETTING, record)
        carrying.__enter__()
        self._open[id(record)] = carrying, run
        return record

    def end(self, record: Record, error: BaseException | None = None) -> None:
        """End it: its figures are logged, and its status."""
        carrying, run = self._open.pop(id(record), (None, None))
        try:
            if carrying is not None:
                carrying.__exit__(None, None, None)
        except ValueError:
            pass  # in a context of its own, which ends with it
        deactivate(run)
        seconds, at = time.time() - record.started, int(time.time() * 1000)
        why = None if error is None else error_text(error)

        def finish(to: _Sink, run_id: str) -> None:
            try:
                record.settle(_prices.of)
                to.metrics({**record.facts.metrics(), "seconds": seconds}, 0, at)
                if why is not None:
                    to.tags({"rlm_dspy.error": why})
            finally:
                if run is not None:
                    to.client.update_run(run_id, status="FINISHED" if error is None else _status(error))

        self._later(record, finish)

    def _create(self, record: Record, tags: dict[str, Any]) -> mlflow.ActiveRun | None:
        above = mlflow.active_run()
        within = record.outer
        while within is not None and within.run_id is None:
            within = within.outer
        if above is not None:
            tags[_PARENT] = above.info.run_id
        elif within is not None:
            # In a thread of DSPy's own, of which MLflow knows no active run.
            tags[_PARENT] = within.run_id
        tags |= {"mlflow.source.name": os.path.basename(sys.argv[0] or "python"), "mlflow.source.type": "LOCAL"}
        texts = _texts(tags, self._clip, 5_000)
        given_up: list[bool] = []

        def create() -> mlflow.ActiveRun:
            client = mlflow.MlflowClient(self._store.uri)
            experiment = above.info.experiment_id if above is not None else experiment_id()
            made = client.create_run(experiment, tags={"mlflow.user": _user(), **texts}, run_name=record.name)
            if given_up:
                client.update_run(made.info.run_id, status="KILLED")
            return mlflow.ActiveRun(made)

        try:
            if not self._store.uri.startswith(("http://", "https://")):
                return create()
            return threads.submit(create).result(PATIENCE)
        except TimeoutError:
            given_up.append(True)
            self._store.lost("it did not answer in time")
        except Exception as error:
            self._tell(f"the run {record.name!r} could not be begun", error)
        return None

    def _later(self, record: Record, work: Work) -> None:
        run_id = record.run_id
        if run_id is None:
            return

        def do() -> None:
            if not self._store.ready():
                return  # that has been said
            try:
                work(_Sink(mlflow.MlflowClient(self._store.uri), run_id, self._clip), run_id)
            except Exception as error:
                self._tell(f"something of the run {record.name!r} could not be logged", error)

        self._writer.later(do)

    def _tell(self, what: str, error: Exception) -> None:
        level = logging.DEBUG if self._told else logging.WARNING
        self._told = True
        logger.log(level, "%s: %s", what, error_text(error, 500))


class _Sink:
    """What is logged to one run, here and now."""

    def __init__(self, client: mlflow.MlflowClient, run_id: str, clip: Clip) -> None:
        self.client = client
        self._run_id = run_id
        self._clip = clip

    def params(self, params: Mapping[str, Any]) -> None:
        """Each at its first value: MLflow takes no other."""
        given = _texts({name: value for name, value in params.items() if value is not None}, self._clip, 500)
        known = self.client.get_run(self._run_id).data.params
        new = [Param(name, value) for name, value in given.items() if name not in known]
        for some in _batches(new):
            self.client.log_batch(self._run_id, params=some)

    def metrics(self, metrics: Mapping[str, float], step: int, at: int) -> None:
        """Finite ones."""
        numbers: dict[str, float] = {}
        for name, value in metrics.items():
            try:
                number = math.nan if value is None else float(value)
            except OverflowError:
                continue
            except (TypeError, ValueError):
                logger.warning("the metric %r is left out: %r is no number", str(name)[:100], type(value).__name__)
                continue
            if math.isfinite(number):
                numbers[named(self._clip.clean(str(name)))] = number
        for some in _batches([Metric(name, number, at, step) for name, number in numbers.items()]):
            self.client.log_batch(self._run_id, metrics=some)

    def tags(self, tags: Mapping[str, Any]) -> None:
        """All of them."""
        for some in _batches([RunTag(name, text) for name, text in _texts(tags, self._clip, 5_000).items()]):
            self.client.log_batch(self._run_id, tags=some)

    def text(self, text: str, file: str) -> None:
        """As an artefact."""
        self.client.log_text(self._run_id, self._clip.clean(text), file)

    def dataset(self, rows: list[Any], name: str, hashed: str) -> None:
        """Size, digest, preview."""
        shape = json.dumps({"num_rows": len(rows)})
        told = Dataset(name=name, digest=hashed, source_type="code", source="{}", profile=shape)
        self.client.log_inputs(self._run_id, [DatasetInput(told, [])])
        self.params({f"{name}.rows": len(rows), f"{name}.digest": hashed})
        self.text(preview(rows, self._clip), f"{name}_preview.json")


def named(name: str) -> str:
    """``name`` with what MLflow refuses in names replaced: one such name would cost all that is logged with it."""
    parts = _REFUSED.sub("_", name)[:250].split("/")
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "_"


def _texts(given: Mapping[str, Any], clip: Clip, most: int) -> dict[str, str]:
    """By names that MLflow takes, without secrets."""
    texts = {}
    for name, value in given.items():
        try:
            text = str(value)
        except Exception:  # of a class of the user's own
            text = type(value).__name__
        texts[named(clip.clean(str(name)))] = clip.clean(text)[:most]
    return texts


def _batches(items: list[T]) -> Iterator[list[T]]:
    """As many at once as MLflow takes."""
    for start in range(0, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]


def rows_of(given: Any) -> Iterable[Any] | None:
    """A set of examples, or None where it is none."""
    return given if isinstance(given, (list, tuple)) and given else None


_prices = Prices()


def _user() -> str:
    try:
        return getpass.getuser()
    except Exception:
        return "unknown"  # of a container without a name for its user


def _status(error: BaseException) -> str:
    return "FAILED" if isinstance(error, Exception) else "KILLED"

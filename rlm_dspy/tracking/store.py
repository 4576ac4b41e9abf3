"""Where traces go, and keeping what is slow or dead there from ever reaching a run.

Spans are handed to MLflow's exporter, which writes them in a thread of its own, in batches. Here that thread is given
a bounded buffer large enough for many runs at once; a server that does not answer is found out beside the runs, said
once, and left alone until it answers again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import mlflow

from rlm_dspy._aio import threads
from rlm_dspy.traces.uri import SQLITE, anchored

logger = logging.getLogger("rlm_dspy.tracking")

BUFFER = 20_000
"""Spans that wait to be written, of the whole process; beyond that the oldest are dropped."""
LOOK_SECONDS = 5.0
"""Between two looks at whether a server still answers; only while runs begin."""
PATIENCE = 3.0
"""Seconds in which a server has to answer such a look."""
SET_UP_SECONDS = 20.0
"""That `rlm_dspy.tracking.enable` waits for a store."""
DEFAULT_FILE = "mlflow.db"

# What MLflow takes from the environment and nowhere else; whatever the user has set stays.
_EVERYWHERE = {
    "MLFLOW_ASYNC_TRACE_LOGGING_MAX_SPAN_BATCH_SIZE": str(BUFFER),
    "MLFLOW_ASYNC_TRACE_LOGGING_MAX_INTERVAL_MILLIS": "1000",
    # Several at once close a trace before its spans are there, which MLflow then writes as files a second time.
    "MLFLOW_ASYNC_TRACE_LOGGING_MAX_WORKERS": "1",
}
_SERVER = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


class Store:
    """The store that traces go to.

    Args:
        experiment: Its name; None for the one that is set, else MLflow's default.
        uri: A tracking URI; None for the one that is set, else a SQLite file in the working directory.
    """

    def __init__(self, experiment: str | None, uri: str | None) -> None:
        self._experiment = experiment
        self.uri = _resolved(uri)
        self._server = self.uri.startswith(("http://", "https://"))
        self._alive = True
        self._set_up = False
        self._told = False
        self._looked = 0.0
        self._looking = threading.Lock()
        for name, value in {**_EVERYWHERE, **(_SERVER if self._server else {})}.items():
            os.environ.setdefault(name, value)

    def open(self) -> None:
        """Point MLflow at it; what does not answer in time is warned of, and tried again when runs begin.

        Raises:
            Exception: What a store that is no server says of why it cannot be used.
        """
        mlflow.set_tracking_uri(self.uri)
        # The exporter reads its settings when it is made; now, and not in the first run.
        mlflow.tracing.disable()
        mlflow.tracing.enable()
        if not self._server:
            self._connect()
            return
        self._looking.acquire()
        waiting = threads.submit(self._look)
        try:
            waiting.result(SET_UP_SECONDS)
        except TimeoutError:
            self.lost("it did not answer in time")

    def ready(self) -> bool:
        """Whether a trace may be begun; never waits."""
        if self._server and time.monotonic() - self._looked > LOOK_SECONDS and self._looking.acquire(blocking=False):
            threads.submit(self._look)
        return self._alive and self._set_up

    def _look(self) -> None:
        try:
            request = urllib.request.Request(f"{self.uri.rstrip('/')}/health")
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE):
                    pass
            except urllib.error.HTTPError:
                pass  # somebody answers; whether it is MLflow shows when it is used
            if not self._set_up:
                self._connect()
            self._alive = True
            if self._told:
                self._told = False
                logger.warning("the tracking server answers again: runs are tracked from here on")
        except Exception as error:
            self.lost(str(error) or type(error).__name__)
        finally:
            self._looked = time.monotonic()
            self._looking.release()

    def _connect(self) -> None:
        if self._experiment is not None:
            place = self._artifacts()
            if place is not None:
                client = mlflow.MlflowClient(self.uri)
                if client.get_experiment_by_name(self._experiment) is None:
                    with contextlib.suppress(mlflow.exceptions.MlflowException):  # another process was first
                        client.create_experiment(self._experiment, artifact_location=place)
            mlflow.set_experiment(self._experiment)
        self._set_up = True

    def _artifacts(self) -> str | None:
        """Where artefacts of a SQLite file go: beside it, and not into whatever folder a program was started in."""
        _, found, path = self.uri.partition(SQLITE)
        return (Path(path).absolute().parent / "mlartifacts").as_uri() if found and path else None

    def lost(self, why: str) -> None:
        """It does not answer: say so once, and begin nothing until it does."""
        self._alive = False
        if not self._told:
            self._told = True
            logger.warning(
                "the tracking server does not answer (%s): runs go on without being tracked until it does", why
            )


def _resolved(uri: str | None) -> str:
    if uri is None:
        uri = str(mlflow.get_tracking_uri()) if mlflow.is_tracking_uri_set() else f"{SQLITE}{DEFAULT_FILE}"
    return anchored(uri)


def quiet() -> Any:
    """Say once, and not for every span, that the buffer is full."""
    return logging.getLogger("opentelemetry.sdk._shared_internal").addFilter(_Once())


class _Once(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._said = False

    def filter(self, record: logging.LogRecord) -> bool:
        if "Queue full" not in str(record.msg):
            return True
        if not self._said:
            self._said = True
            logger.warning(
                "the store is too slow: %s spans wait to be written, older ones are dropped. Runs are not affected",
                f"{BUFFER:,}",
            )
        return False

"""A thread that writes ended spans, so that no run waits for it."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import mlflow
import mlflow.tracing

from rlm_dspy._compat import before_threads_end
from rlm_dspy.tracking.spans import Open

logger = logging.getLogger("rlm_dspy.tracking")

EXIT_SECONDS = 30.0
"""That the end of the process waits for the store, at most."""
MOST = 200_000
"""Spans that wait for the thread; more are dropped, and that is said once."""


class Writer:
    """Writes spans in the order in which they are given, one after the other."""

    def __init__(self) -> None:
        self._then: Callable[[], object] | None = None
        self._reset()

    def flush_at_exit(self, then: Callable[[], object]) -> None:
        """Have all written when the process ends, while MLflow can still send it.

        Args:
            then: Has what is written reach the store. It runs in the writer's thread, because a store that does not
                answer must not keep the process from ending.
        """
        first, self._then = self._then is None, then
        if first:
            before_threads_end(self._at_exit)

    def _at_exit(self) -> None:
        if self._thread is not None and self._pid == os.getpid():
            done = threading.Event()
            self._work.put(self._then)
            self._work.put(done)
            if not done.wait(EXIT_SECONDS):
                logger.warning("the store did not take what was tracked within %g seconds", EXIT_SECONDS)

    def _reset(self) -> None:
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._dropped = self._failed = False

    def put(self, spans: Sequence[Open]) -> None:
        """Have ``spans`` written; returns at once."""
        self.own()
        with self._lock:
            if self._waiting + len(spans) > MOST:
                if not self._dropped:
                    self._dropped = True
                    logger.warning("more than %s spans wait to be written: those of some runs are dropped", f"{MOST:,}")
                return
            self._waiting += len(spans)
            self._start()
        self._work.put(spans)

    def later(self, work: Callable[[], object]) -> None:
        """Have ``work`` done in the thread, after what was given before."""
        self.own()
        with self._lock:
            self._start()
        self._work.put(work)

    def own(self) -> None:
        """Before a span begins: in a process that was forked there is no thread, neither ours nor MLflow's,
        and what waited is its parent's."""
        if self._pid != os.getpid():
            self._reset()
            # Else MLflow would queue traces for a thread that is not there, and wait for it when they are flushed.
            mlflow.tracing.reset()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rlm-dspy-tracking", daemon=True)
            self._thread.start()

    def flush(self, seconds: float = 60.0) -> bool:
        """Wait until all that was given has been written; False if that takes longer than ``seconds``."""
        if self._thread is None or self._pid != os.getpid():
            return True
        done = threading.Event()
        self._work.put(done)
        return done.wait(seconds)

    def _run(self) -> None:
        while True:
            given = self._work.get()
            if isinstance(given, threading.Event):
                given.set()
                continue
            if callable(given):
                try:
                    given()
                except Exception:
                    logger.warning("the store could not be reached for what was tracked", exc_info=True)
                continue
            self.write(given)
            with self._lock:
                self._waiting -= len(given)

    def write(self, spans: Sequence[Open]) -> None:
        """Write them here and now; one that cannot be written costs the others nothing."""
        for span in spans:
            try:
                span.write()
            except Exception:
                if not self._failed:
                    self._failed = True
                    logger.warning("a span could not be written, and is left out", exc_info=True)


writer = Writer()
"""Of the process."""

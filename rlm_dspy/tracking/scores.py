"""Scores of ``dspy.Evaluate`` on the traces of the predictions that were scored.

MLflow logs each score as it is given, which fails where the trace is not in the store yet. Here they are logged
together when the evaluation has ended, beside the program.
"""

from __future__ import annotations

import logging
from typing import Any

import dspy
import mlflow

from rlm_dspy.redact import error_text
from rlm_dspy.tracking.capped import Clip
from rlm_dspy.tracking.writer import Writer

logger = logging.getLogger("rlm_dspy.tracking")


class Scores:
    """The evaluations under way, and which trace each of their predictions has.

    Args:
        writer: In whose thread they are logged.
        clip: How rationales are stored.
    """

    def __init__(self, writer: Writer, clip: Clip) -> None:
        self._writer = writer
        self._clip = clip
        self._told = False
        self._names: dict[str, str] = {}
        # With the prediction itself, so that no other one comes to have its id.
        self._traces: dict[int, tuple[Any, str]] = {}

    @property
    def wanted(self) -> bool:
        """Whether an evaluation is under way."""
        return bool(self._names)

    def begin(self, call_id: str, metric: Any) -> None:
        """An evaluation by ``metric`` begins."""
        self._names[call_id] = str(getattr(metric, "__name__", None) or type(metric).__name__)

    def predicted(self, prediction: Any, trace_id: str) -> None:
        """``prediction`` is what came of the trace."""
        if self.wanted:
            self._traces[id(prediction)] = prediction, trace_id

    def end(self, call_id: str, result: Any) -> dict[int, str]:
        """The evaluation has ended with ``result``: have its scores logged.

        Returns:
            The ids of traces by the id of the prediction.
        """
        name = self._names.pop(call_id, None)
        given, traces = [], {}
        for _, prediction, score in getattr(result, "results", None) or []:
            if id(prediction) in self._traces:
                traces[id(prediction)] = self._traces.pop(id(prediction))[1]
                given.append((traces[id(prediction)], score))
        if not self._names:
            self._traces.clear()
        if name is not None and given:
            self._writer.later(lambda: self._log(name, given))
        return traces

    def _log(self, name: str, given: list[tuple[str, Any]]) -> None:
        mlflow.flush_trace_async_logging()
        for trace_id, score in given:
            value, why = score, None
            if isinstance(score, dspy.Prediction):
                value, why = score.get("score"), score.get("feedback")
            try:
                rationale = None if why is None else self._clip.line(str(why))
                mlflow.log_feedback(trace_id=trace_id, name=name, value=value, rationale=rationale)
            except Exception as error:  # such as a score that is no number, which says nothing of the others
                level = logging.DEBUG if self._told else logging.WARNING
                self._told = True
                logger.log(level, "a score could not be logged: %s", error_text(error, 500))

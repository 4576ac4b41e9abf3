"""An MLflow run for each ``dspy.Evaluate`` and for each ``compile`` of an optimiser, nested as they are.

MLflow's own (``log_evals``, ``log_compiles`` of ``mlflow.dspy.autolog``) hold whole inputs. Where they are
asked for all the same, their runs are taken, and what is known here is logged to them: nothing is doubled.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any

import dspy
import mlflow
from mlflow.utils.autologging_utils import get_autologging_config

from rlm_dspy.redact import error_text
from rlm_dspy.tracking.capped import Clip
from rlm_dspy.tracking.facts import Facts
from rlm_dspy.tracking.mlruns import Runs, current, rows_of
from rlm_dspy.tracking.programs import described, name_of, settings
from rlm_dspy.tracking.record import Record

logger = logging.getLogger("rlm_dspy.tracking")

ROWS = 1_000
"""Rows of an evaluation whose results are stored one by one."""
_SHORT = 200
_STATE = 2_000_000
"""Characters of a compiled program's state up to which it is stored."""


class Evaluations:
    """The evaluations and compiles under way.

    Args:
        runs: Begins and ends their MLflow runs.
        clip: How values are stored.
    """

    def __init__(self, runs: Runs, clip: Clip) -> None:
        self._runs = runs
        self._clip = clip
        self._open: dict[str, tuple[Record, str, int]] = {}

    def evaluate(self, call_id: str, evaluate: Any, given: Mapping[str, Any], metric: Any) -> None:
        """``evaluate`` begins to score a program."""
        about = given.get("callback_metadata") or {}
        if about.get("disable_logging"):
            return
        outer, key = current(), str(about.get("metric_key") or "eval")
        step, name = 0, f"evaluate {type(given.get('program')).__name__}"
        if outer is not None and (outer.steps["compile"] or "metric_key" in about):
            step = outer.steps[key]
            outer.steps[key] += 1
            name = f"{key} {step}"
        record = self._runs.begin(name, {"rlm_dspy.kind": "evaluation"}, _theirs("log_evals"))
        self._open[call_id] = record, key, step

        def option(name: str) -> Any:
            return given.get(name) if given.get(name) is not None else getattr(evaluate, name, None)

        threads = option("num_threads") or dspy.settings.num_threads
        self._about(record, lambda: described(given.get("program")))
        record.log_params({"metric": name_of(metric), "num_threads": threads})
        if (rows := rows_of(option("devset"))) is not None:
            record.log_dataset(rows, "dataset")

    def evaluated(self, call_id: str, result: Any, error: BaseException | None, traces: Mapping[int, str]) -> None:
        """It has ended with ``result``; ``traces`` are ids of traces by the id of the prediction."""
        record, key, step = self._open.pop(call_id, (None, "", 0))
        if record is None:
            return
        score = getattr(result, "score", result if isinstance(result, (int, float)) else None)
        results = getattr(result, "results", None) or []
        if score is not None:
            record.log_metrics({"score": float(score)})
            if record.outer is not None and record.outer.steps["compile"]:
                record.outer.log_metrics({key: float(score)}, step)
        if results:
            failed = sum(isinstance(made, dspy.Prediction) and not len(made) for _, made, _ in results)
            record.log_metrics({"examples": len(results), "failed_examples": failed})
            record.log_text(self._table(results, traces), "results.json")
        self._runs.end(record, error)

    def compile(self, call_id: str, optimizer: Any, given: Mapping[str, Any]) -> None:
        """``optimizer`` begins to compile a program."""
        theirs = None if _compiling(current()) else _theirs("log_compiles")
        name = f"{type(optimizer).__name__} {type(given.get('student')).__name__}"
        record = self._runs.begin(name, {"rlm_dspy.kind": "compile"}, theirs)
        record.steps["compile"] = 1
        self._open[call_id] = record, "", 0
        self._about(record, lambda: described(given.get("student")))
        own = ("student", "teacher", "trainset", "valset")
        options = {**_options(optimizer), **{name: value for name, value in given.items() if name not in own}}
        record.log_params({"optimizer": type(optimizer).__name__, **settings(options)})
        for name in ("trainset", "valset"):
            if (rows := rows_of(given.get(name))) is not None:
                record.log_dataset(rows, name)

    def compiled(self, call_id: str, program: Any, error: BaseException | None) -> None:
        """It has ended with ``program``."""
        record, *_ = self._open.pop(call_id, (None, "", 0))
        if record is None:
            return
        if isinstance(program, dspy.Module):
            self._about(record, lambda: {"strategy_compiled": described(program)["strategy"]})
            try:
                state = json.dumps(program.dump_state(), indent=1, ensure_ascii=False, default=str)
                if len(state) <= _STATE:
                    record.log_text(state, "compiled_program.json")
            except Exception:
                logger.debug("the state of the compiled program is not stored", exc_info=True)
        self._runs.end(record, error)

    def _about(self, record: Record, make: Any) -> None:
        # A program of the user's own may have anything for an attribute.
        try:
            record.log_params(make())
        except Exception as error:
            logger.debug("a program could not be described: %s", error_text(error))

    def _table(self, results: list[Any], traces: Mapping[int, str]) -> str:
        """Results in the form of MLflow's tables; of values only a line each."""
        columns = ["row", "score", "feedback", "outcome", "turns", "cost", "trace_id", "expected", "given"]
        data = []
        for number, (example, prediction, score) in enumerate(results[:ROWS]):
            why = score.get("feedback") if isinstance(score, dspy.Prediction) else None
            value = score.get("score") if isinstance(score, dspy.Prediction) else score
            facts = _facts(prediction)
            labels = example.labels().toDict() if hasattr(example, "labels") else {}
            ours = getattr(prediction, "trajectory", None) is not None
            outputs = {
                name: item
                for name, item in (prediction.items() if isinstance(prediction, dspy.Prediction) else ())
                if name not in ("trajectory", "usage", "outcome", "final_reasoning") or not ours
            }
            row = [number, value, why, None, None, None, traces.get(id(prediction)), labels, outputs]
            if facts is not None:
                row[3:6] = [str(prediction.outcome), facts.usage.turns, facts.total.cost]
            data.append([one if _is_json(one) else self._short(one) for one in row])
        return json.dumps({"columns": columns, "data": data}, ensure_ascii=False)

    def _short(self, value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(self._clip.value(value), ensure_ascii=False, default=str)
        return self._clip.clean(text[: _SHORT + 4_096])[:_SHORT]


def _is_json(value: Any) -> bool:
    return value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _facts(prediction: Any) -> Facts | None:
    """Of the prediction of an RLM."""
    usage = getattr(prediction, "usage", None)
    if not isinstance(usage, Mapping) or "table" not in usage:
        return None
    found = Facts()
    found.spent(usage)
    return found


def _compiling(record: Record | None) -> bool:
    """Whether ``record`` is of a compile, or nested in one."""
    while record is not None and not record.steps["compile"]:
        record = record.outer
    return record is not None


def _theirs(option: str) -> Any:
    """The run that MLflow's own logging has begun, if that was asked for."""
    return mlflow.active_run() if get_autologging_config("dspy", option, False) else None


def _options(optimizer: Any) -> dict[str, Any]:
    try:
        return dict(optimizer.get_params())
    except Exception:
        return {}

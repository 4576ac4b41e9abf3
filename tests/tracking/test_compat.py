"""Each entry of ``rlm_dspy.tracking._compat`` against the MLflow that is installed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
_compat = pytest.importorskip("rlm_dspy.tracking._compat")


def test_a_run_is_active_in_its_thread_until_it_is_taken_off(tracked: Any) -> None:
    client = mlflow.MlflowClient()
    first, second = (mlflow.ActiveRun(client.create_run(_compat.experiment_id())) for _ in range(2))
    elsewhere: list[Any] = []
    try:
        _compat.activate(first)
        _compat.activate(second)
        assert mlflow.active_run() is second
        thread = threading.Thread(target=lambda: elsewhere.append(mlflow.active_run()))
        thread.start()
        thread.join()
        _compat.deactivate(first)
        assert mlflow.active_run() is second and elsewhere == [None]
    finally:
        _compat.deactivate(second)
    _compat.deactivate(None)
    assert mlflow.active_run() is None


def test_the_experiment_is_the_one_that_is_set(tracked: Any) -> None:
    before, chosen = _compat.experiment_id(), mlflow.set_experiment("another one").experiment_id
    assert _compat.experiment_id() == chosen != before


def test_the_last_trace_is_the_one_that_was_said() -> None:
    _compat.set_last_trace("tr-0123")
    assert mlflow.get_last_active_trace_id() == "tr-0123"
    _compat.forget_last()
    assert mlflow.get_last_active_trace_id(thread_local=True) is None

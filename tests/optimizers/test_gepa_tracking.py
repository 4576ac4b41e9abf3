"""A compile by `RLMGEPA` is one MLflow run: rollouts and reflections are traces in it, candidates its figures."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("mlflow", reason="the extra mlflow is not installed")

SCRIPT = """
import json, sys
from pathlib import Path
import dspy, mlflow
sys.path.insert(0, {here!r})
from test_gepa_compile import examples, optimizer, program, root
from rlm_dspy import tracking
from rlm_dspy.testing import ScriptedLM

tracking.enable("compiles", "sqlite:///mlflow.db")
large = "planted-zq " * 20_000
data = [one.copy(text=one.text + large).with_inputs("text") for one in examples(6)]
made = optimizer(folder="compile")
with dspy.context(lm=ScriptedLM(root, model="scripted/root")):
    made.compile(program(), trainset=data[:3], valset=data[:3], holdout=data[3:])
tracking.flush()
result = made.result
(run,) = mlflow.search_runs(experiment_names=["compiles"], output_format="list")
client = mlflow.MlflowClient()
history = client.get_metric_history(run.info.run_id, "candidate_score")
traces = mlflow.search_traces(run_id=run.info.run_id, return_type="list", max_results=500)
everything = mlflow.search_traces(return_type="list", max_results=500)
page = mlflow.artifacts.load_text(run.info.artifact_uri + "/compile.html")
told = mlflow.artifacts.load_dict(run.info.artifact_uri + "/compile.json")
stored = sum(path.read_bytes().count(b"planted-zq " * 1_000) for path in Path().rglob("*") if path.is_file())
print(json.dumps({{
    "metrics": run.data.metrics, "history": [(point.step, point.value) for point in history],
    "traces": len(traces), "all": len(everything), "rollouts": result.rollouts_run,
    "reflections": result.reflection_calls, "scores": [c.score for c in result.candidates],
    "page": page.startswith("<!DOCTYPE html>"), "same": told == json.loads(result.to_json()), "stored": stored,
}}))
"""


@pytest.mark.heavy
def test_a_compile_is_one_mlflow_run(in_python: Callable[..., subprocess.Popen[str]]) -> None:
    process = in_python(SCRIPT.format(here=str(Path(__file__).parent)))
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    told = json.loads(out.splitlines()[-1])
    assert told["history"] == [[number, score] for number, score in enumerate(told["scores"])]
    assert told["metrics"]["gate_promoted"] in (0.0, 1.0)
    assert told["metrics"]["candidates"] == len(told["scores"]) > 1
    assert told["metrics"]["reflection_calls"] == told["reflections"] > 0
    # Every rollout is a trace in the run, and so is every reflection; nothing is outside.
    assert told["traces"] == told["all"] == told["rollouts"] + told["reflections"]
    assert told["page"] and told["same"]
    assert told["stored"] == 0

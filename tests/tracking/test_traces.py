"""What a trace has of a run, read back: the trajectory, training data, the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, ConfigurationError, RecordingError, Trajectory, traces
from rlm_dspy.cli import exits, main
from rlm_dspy.environments.base import Environment
from rlm_dspy.rows import formed
from rlm_dspy.testing import Call, ScriptedLM, code

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
tracking = pytest.importorskip("rlm_dspy.tracking", reason="tracking is not there")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store. To make one takes MLflow seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}")
    client.create_experiment("traces", artifact_location=(path.parent / "artifacts").as_uri())
    return path


@pytest.fixture
def uri(empty: Path, tmp_path: Path) -> Iterator[str]:
    """A store of its own, and tracking off again after the test."""
    before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
    shutil.copy(empty, tmp_path / "mlflow.db")
    found = f"sqlite:///{tmp_path / 'mlflow.db'}"
    callbacks = dspy.settings.callbacks
    tracking.enable("traces", found)
    yield found
    tracking.disable()
    dspy.configure(callbacks=callbacks)
    mlflow.set_tracking_uri(before)


def root(call: Call) -> str:
    """Plays the root of a run and of its children."""
    if "count it" in call.own[0]["content"]:
        return code("SUBMIT(str(len(text)) + llm_query('inner'))", "Inner plan.")
    steps = [
        code("print(context[:9])\nprint('é' * 50)\n1/0", "Plan."),
        "no code here",
        code("print(rlm_query_batched([{'prompt': 'count it', 'text': t} for t in ['a', 'bb']]))", "Children."),
        code("print(llm_query('one'))\nprint('y' * 4_000)"),
        code("SUBMIT(answer='the end', n=3)"),
    ]
    return steps[call.turn]


def program(sandbox: Environment) -> RLM:
    """Its RLM."""
    lm = ScriptedLM(lambda call: "yes")
    return RLM("context, query -> answer, n: int", interpreter=sandbox, max_depth=2, sub_lm=lm)


def run(sandbox: Environment, context: str = "some text", query: str = "What?") -> tuple[ScriptedLM, dspy.Prediction]:
    """One run of it."""
    lm = ScriptedLM(root)
    with dspy.context(lm=lm):
        pred = program(sandbox)(context=context, query=query)
    tracking.flush()
    return lm, pred


def shown(events: Any) -> list[dict[str, Any]]:
    """Events without the values, which a trace does not have."""
    found = []
    for event in events:
        data = {k: v for k, v in json.loads(json.dumps(event.to_dict())).items() if k not in ("result", "outputs")}
        data = {k: v for k, v in data.items() if k not in ("inputs", "values", "events", "run_id", "parent_id")}
        found.append(data)
    return found


def last() -> str:
    """The newest trace's id."""
    return str(next(traces.find(max_traces=1, flush=False)).info.trace_id)


def test_a_trajectory_comes_back_from_its_trace(sandbox: Environment, uri: str) -> None:
    _, pred = run(sandbox)
    again = Trajectory.from_trace(last())
    assert again == pred.trajectory
    assert shown(again.events) == shown(pred.trajectory.events)
    assert [vars(turn) for turn in again] == [vars(turn) for turn in pred.trajectory]
    assert len(again.children) == 2
    for child, first in zip(again.children, pred.trajectory.children, strict=True):
        assert child.trajectory == first.trajectory and child.outcome == first.outcome
        assert shown(child.trajectory.events) == shown(first.trajectory.events)
    assert "Inner plan." in again.to_html()


def test_a_run_says_what_it_was(sandbox: Environment, uri: str) -> None:
    _, pred = run(sandbox)
    (found,) = traces.runs()
    assert found.outcome == pred.outcome and found.usage == json.loads(json.dumps(pred.usage))
    assert found.inputs == {"context": "some text", "query": "What?"} and found.missing == ()
    assert found.outputs == {"answer": "the end", "n": 3}
    assert found.about["outcome"] == "submitted" and found.run_id == found.about["run"]
    assert list(traces.runs(tracking_uri=uri, trace_ids=[found.trace_id])) == [found]


def test_long_texts_come_back_as_head_and_tail(sandbox: Environment, uri: str) -> None:
    lm = ScriptedLM([code("print('a' * 9_000 + 'b' * 9_000)"), code("SUBMIT('x')")])
    with dspy.context(lm=lm):
        RLM("context -> answer", interpreter=sandbox)(context="c" * 1_000_000)
    tracking.flush()
    again = Trajectory.from_trace(last())
    assert again[0].output.startswith("aaa") and again[0].output.endswith("bbb")
    assert "characters are not in the trace" in again[0].output and len(again[0].output) < 10_000
    (found,) = traces.runs(flush=False)
    assert found.inputs == {} and found.missing == ("context",)


@pytest.mark.heavy
def test_examples(sandbox: Environment, uri: str, caplog: pytest.LogCaptureFixture) -> None:
    run(sandbox, query="first")
    mlflow.log_feedback(trace_id=last(), name="correct", value=True)
    run(sandbox, query="second")
    mlflow.log_feedback(trace_id=last(), name="correct", value=False)
    mlflow.log_expectation(trace_id=last(), name="answer", value="what it should be")
    run(sandbox, context="z" * 100_000, query="third")
    large = last()
    found = traces.trainset_from_traces(flush=False)
    assert [example.query for example in found] == ["second", "first"]
    assert "1 runs were left out" in caplog.text and "'context'" in caplog.text
    second, first = found
    assert first.inputs().toDict() == {"context": "some text", "query": "first"}
    assert first.labels().toDict() == {"answer": "the end", "n": 3}
    assert second.labels().toDict() == {"answer": "what it should be", "n": 3}
    assert [e.query for e in traces.trainset_from_traces(flush=False, feedback={"correct": True})] == ["first"]
    assert [e.query for e in traces.trainset_from_traces(flush=False, feedback={"correct": lambda v: not v})] == [
        "second"
    ]
    assert traces.trainset_from_traces(flush=False, outcomes=["extracted"]) == []
    whole = traces.trainset_from_traces(
        flush=False, fill=lambda run: {"context": "Z"}, where=lambda run: run.trace_id == large
    )
    assert [(e.context, e.query) for e in whole] == [("Z", "third")]
    with pytest.raises(RecordingError, match="pass fill="):
        traces.trainset_from_traces(flush=False, missing="raise")
    with pytest.raises(ConfigurationError, match="no experiment 'none'"):
        traces.trainset_from_traces(flush=False, experiment="none")
    with pytest.raises(ConfigurationError, match="refused the search"):
        traces.trainset_from_traces("what?", flush=False)
    with pytest.raises(TypeError, match="unknown: outcome"):
        traces.trainset_from_traces(flush=False, outcome="submitted")  # type: ignore[call-arg]


def test_a_conversation_is_what_the_model_was_sent(sandbox: Environment, uri: str) -> None:
    lm, _ = run(sandbox)
    (row,) = traces.sft_from_traces(flush=False)
    sent = [call for call in lm.calls if "count it" not in call.own[0]["content"]][-1]
    told = [{name: m[name] for name in ("role", "content")} for m in row["messages"]]
    assert told == [*sent.messages, {"role": "assistant", "content": root(sent)}]
    # What stood in the prompt before the run began, the demonstration, is not trained on, and no turn that failed.
    weights = [m["weight"] for m in row["messages"] if m["role"] == "assistant"]
    assert row["turns"] == sum(weights) == 3 and not any(weights[:-3]) and sent.turn == 4
    (line,) = formed(row, "completion")
    assert [m["role"] for m in line["completion"]].count("assistant") == 3
    (whole,) = traces.sft_from_traces(flush=False, failed_turns=True)
    assert whole["turns"] == 5
    (bare,) = formed(whole, "roles", bare=True)
    assert [m["role"] for m in bare["messages"]].count("assistant") == 5
    assert row["outcome"] == "submitted" and row["trace_id"] == last()


def test_a_long_conversation_is_put_together_of_its_requests(sandbox: Environment, uri: str) -> None:
    """Of messages that were sent before, traces have only the hash."""
    # Words, because digits in a row are somebody's key in other tests, and hidden then.
    replies = [code(f"print('line {n}, ' * 1_100)") for n in range(9)]
    lm = ScriptedLM([*replies, code("SUBMIT('x')")])
    with dspy.context(lm=lm):
        RLM("query -> answer", interpreter=sandbox)(query="What?")
    tracking.flush()
    (row,) = traces.sft_from_traces(flush=False, missing="raise")
    assert [{"role": m["role"], "content": m["content"]} for m in row["messages"][:-1]] == lm.calls[-1].messages
    assert row["turns"] == 10


def test_a_conversation_that_the_trace_has_in_part_is_left_out(sandbox: Environment, uri: str) -> None:
    lm = ScriptedLM([code("print('a' * 5)", "p" * 20_000), code("SUBMIT('x')")])
    with dspy.context(lm=lm):
        RLM("query -> answer", interpreter=sandbox)(query="What?")
    tracking.flush()
    assert traces.sft_from_traces(flush=False) == []
    with pytest.raises(RecordingError, match="cap=None"):
        traces.sft_from_traces(flush=False, missing="raise")


def test_what_is_no_trace_of_ours(sandbox: Environment, uri: str) -> None:
    with pytest.raises(RecordingError, match="could not be read"):
        Trajectory.from_trace("tr-" + "0" * 32)
    with mlflow.start_span("other"):
        pass
    tracking.flush()
    assert list(traces.runs(flush=False)) == []
    with pytest.raises(RecordingError, match="no run of an RLM"):
        Trajectory.from_trace(last())


@pytest.mark.heavy
def test_the_command_line(
    sandbox: Environment, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, pred = run(sandbox, query="Which one?")
    name = last()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main(["traces", "list"]) == 0
    table = capsys.readouterr().out
    assert name in table and "submitted" in table and "Which one?" in table
    assert main(["traces", "list", "--json", "--filter", "attributes.status = 'OK'"]) == 0
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert row["trace_id"] == name and row["turns"] == 5 and row["calls"] == pred.usage["calls"]
    assert main(["traces", "show", name]) == 0
    assert "the end" in capsys.readouterr().out
    assert main(["traces", "show", name, "--html", "page.html"]) == 0
    assert "Inner plan." in (tmp_path / "page.html").read_text()
    assert main(["traces", "export", name, "--out", "t.jsonl"]) == 0
    assert Trajectory.from_jsonl(tmp_path / "t.jsonl") == pred.trajectory
    assert main(["traces", "show", "t.jsonl", "--html", "again.html"]) == 0
    assert "Inner plan." in (tmp_path / "again.html").read_text()
    for form in ("examples", "sft"):
        assert main(["traces", "export", "--form", form, "--out", f"{form}.jsonl"]) == 0
        (line,) = (tmp_path / f"{form}.jsonl").read_text().splitlines()
        assert json.loads(line)
    assert main(["traces", "export", "--form", "sft", "--feedback", "correct=true", "--out", "none.jsonl"]) == 0
    assert not (tmp_path / "none.jsonl").read_text().strip()
    assert "0 rows: only runs are taken that were answered and have the feedback correct=" in capsys.readouterr().err
    assert main(["traces", "show", "tr-" + "0" * 32]) == exits.USAGE
    assert main(["traces", "export", "--out", "x.jsonl"]) == exits.USAGE
    assert main(["traces", "list", "--tracking-uri", "sqlite:///none.db"]) == exits.USAGE
    assert not (tmp_path / "none.db").exists()
    said = capsys.readouterr().err
    assert "could not be read" in said and "export ID" in said and "no file none.db" in said


def test_where_nothing_was_tracked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main(["traces", "list"]) == exits.USAGE and main(["ui"]) == exits.USAGE
    assert "nothing was tracked here" in capsys.readouterr().err and not list(tmp_path.iterdir())
    assert main(["ui", "--tracking-uri", "http://127.0.0.1:9"]) == 0
    assert capsys.readouterr().out == "http://127.0.0.1:9\n"


def test_without_mlflow_the_extra_is_named(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['mlflow'] = None\n"
        "from rlm_dspy import MissingExtraError, Trajectory\n"
        "from rlm_dspy.cli import main\n"
        "try: Trajectory.from_trace('tr-1')\n"
        "except MissingExtraError as error: print(error)\n"
        "main(['traces', 'list'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert "pip install 'rlm-dspy[mlflow]'" in done.stdout and "rlm-dspy[mlflow]" in done.stderr, done.stderr

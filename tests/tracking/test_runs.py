"""MLflow runs for evaluations, compiles and loops of one's own, and what is on them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, tracking
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Reply, ScriptedLM, oracle, outputs
from rlm_dspy.tracking.datasets import digest
from rlm_dspy.tracking.writer import Writer

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")

PRICES = {"scripted/root": (1.0, 2.0), "scripted/sub": (3.0, 4.0)}
SECRET = "sk-planted0123456789abcdef"


def program(sandbox: Environment, **options: Any) -> RLM:
    sub = ScriptedLM(lambda call: f"<{call.prompt}>", model="scripted/sub")
    given = {"prices": PRICES, "guidance": False, **options}
    return RLM("context -> answer", sub_lm=sub, interpreter=sandbox, **given)


def root(*steps: str) -> ScriptedLM:
    steps = steps or ("print(llm_query(context[:3]))", "SUBMIT(answer=context.replace('x', 'y')[:5])")
    return ScriptedLM(oracle(*steps), model="scripted/root")


def metric(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> float:
    return float(prediction.answer == example.answer)


def examples(*texts: str) -> list[dspy.Example]:
    return [dspy.Example(context=text, answer=text).with_inputs("context") for text in texts]


def runs() -> dict[str, Any]:
    """The runs of the experiment by name; a second one of a name has a number after it."""
    tracking.flush()
    named: dict[str, Any] = {}
    for run in mlflow.search_runs(output_format="list", order_by=["attributes.start_time"]):
        name = run.info.run_name
        named[name if name not in named else f"{name} #{len(named)}"] = run
    return named


def traces(run: Any) -> list[Any]:
    return list(mlflow.search_traces(run_id=run.info.run_id, return_type="list"))


def parent(run: Any) -> str | None:
    found = run.data.tags.get("mlflow.parentRunId")
    return None if found is None else str(found)


def artefact(run: Any, name: str) -> str:
    return str(mlflow.artifacts.load_text(f"{run.info.artifact_uri}/{name}"))


def test_an_evaluation_is_a_run_with_the_figures_of_its_predictions(
    tracked: Any, sandbox: Environment, tmp_path: Path
) -> None:
    given: list[Any] = []

    def scored(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> float:
        given.append(prediction)
        return metric(example, prediction)

    large = SECRET + "x" * 3_000_000
    devset = examples("a", "b", "c", large)
    rlm = program(sandbox)
    with dspy.context(lm=root()):
        result = dspy.Evaluate(devset=devset, metric=scored, num_threads=3)(rlm)
        rlm(context="not part of it")
    assert mlflow.active_run() is None
    ((name, run),) = runs().items()
    assert (name, run.info.status, result.score) == ("evaluate RLM", "FINISHED", 75.0)
    params, metrics = run.data.params, run.data.metrics
    assert (params["program"], params["metric"], params["num_threads"]) == ("RLM", "scored", "3")
    assert (params["dataset.rows"], params["dataset.digest"]) == ("4", digest(devset))
    assert params["max_iters"] == "20" and len(params["strategy"]) == 16 and params["mlflow"] == mlflow.__version__
    usages = [prediction.usage for prediction in given]
    for mine, theirs in {"sub_calls": "calls", "turns": "turns", "lm_calls": "lm_calls", "cost": "cost"}.items():
        assert metrics[mine] == pytest.approx(sum(usage[theirs] for usage in usages), abs=1e-12)
    for same in ("input_tokens", "output_tokens", "cached_tokens"):
        assert metrics[same] == sum(usage[same] for usage in usages)
    assert metrics["score"] == 75.0 and metrics["outcome.submitted"] == metrics["runs"] == metrics["examples"] == 4
    assert metrics["failed_examples"] == metrics["sandbox_errors"] == 0 and metrics["seconds"] > 0
    assert metrics["delegated_calls"] == pytest.approx(1 / 3)
    (of,) = run.inputs.dataset_inputs
    assert (of.dataset.name, of.dataset.digest, json.loads(of.dataset.profile)) == (
        "dataset",
        digest(devset),
        {"num_rows": 4},
    )
    assert len(traces(run)) == 4 and len(tracked()) == 5
    table = json.loads(artefact(run, "results.json"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [row["score"] for row in rows] == [1, 1, 1, 0] and rows[0]["outcome"] == "submitted"
    assert {row["trace_id"] for row in rows} == {trace.info.trace_id for trace in traces(run)}
    # Each trace says where its page is, and the page is there.
    for trace in traces(run):
        page = mlflow.artifacts.load_text(trace.info.tags["rlm_dspy.page"])
        assert page.startswith("<!DOCTYPE html>") and "llm_query(context[:3])" in page
    # No large input, and no secret, in any file.
    stored = Path(mlflow.artifacts.download_artifacts(run.info.artifact_uri, dst_path=str(tmp_path)))
    files = [path.read_bytes() for path in stored.rglob("*") if path.is_file()]
    assert sum(map(len, files)) < 500_000 and not any(SECRET.encode() in content for content in files)


@pytest.mark.heavy
def test_a_compile_is_a_run_and_all_in_it_is_nested(tracked: Any, sandbox: Environment) -> None:
    rlm, trainset = program(sandbox), examples("a", "b")
    optimizer = dspy.BootstrapFewShotWithRandomSearch(
        metric=metric, num_candidate_programs=0, num_threads=2, max_bootstrapped_demos=1
    )
    with dspy.context(lm=root()):
        compiled = optimizer.compile(rlm, trainset=trainset, valset=examples("c"))
    found = runs()
    outer = found.pop("BootstrapFewShotWithRandomSearch RLM")
    assert {"eval 0", "eval 1", "eval 2"} <= set(found)
    params = outer.data.params
    assert (params["optimizer"], params["trainset.rows"], params["valset.rows"]) == (
        "BootstrapFewShotWithRandomSearch",
        "2",
        "1",
    )
    assert params["trainset.digest"] == digest(trainset) and params["metric"] == "metric"
    top = [run for run in found.values() if parent(run) == outer.info.run_id]
    assert top and all(parent(run) for run in found.values())
    assert outer.data.metrics["runs"] == sum(run.data.metrics["runs"] for run in top) == len(tracked())
    assert outer.data.metrics["eval"] == 100.0
    state = json.loads(artefact(outer, "compiled_program.json"))
    assert state["act"]["demos"] == json.loads(json.dumps(compiled.act.dump_state()))["demos"]


def test_a_run_of_ones_own_holds_loops_and_evaluations_and_plain_modules(tracked: Any, sandbox: Environment) -> None:
    rlm = program(sandbox)
    plain = dspy.Predict("text -> label")
    plain.lm = ScriptedLM(lambda call: outputs(label="good"), model="openai/no-price-of-this-is-known")
    with (
        dspy.context(lm=root()),
        tracking.run("bench", params={"seed": 3, "key": SECRET}, tags={"what": "x"}) as record,
    ):
        assert mlflow.active_run().info.run_id == record.run_id
        alone = rlm(context="one")
        together = dspy.Parallel(num_threads=2, disable_progress_bar=True)([(rlm, one) for one in examples("a", "b")])
        before = dict(record.facts.metrics())
        plain(text="t")
        dspy.Evaluate(devset=examples("c"), metric=metric)(rlm)
        record.log_metrics({"mine": 0.5, "nothing": float("nan")})
        record.log_dataset([{"context": "one"}], "mine")
        record.log_text(f"the key is {SECRET}", "note.txt")
    assert before["cost"] == pytest.approx(sum(one.usage["cost"] for one in (alone, *together)))
    found = runs()
    run, inner = found["bench"], found["evaluate RLM"]
    assert parent(inner) == run.info.run_id and parent(run) is None and mlflow.active_run() is None
    assert run.data.params["seed"] == "3" and run.data.params["key"] == "[hidden]" and run.data.tags["what"] == "x"
    metrics = run.data.metrics
    assert metrics["mine"] == 0.5 and "nothing" not in metrics
    # The plain module's request is counted, and as its price is not known, neither is that of all together.
    assert metrics["runs"] == 4 and metrics["lm_calls"] == 4 * 3 + 1 and metrics["unpriced_calls"] == 1
    assert "cost" not in metrics and metrics["known_cost"] == pytest.approx(before["cost"] * 4 / 3, rel=0.05)
    assert len(traces(run)) == 4 and len(traces(inner)) == 1
    assert artefact(run, "note.txt") == "the key is [hidden]"
    assert json.loads(artefact(run, "mine_preview.json")) == [{"context": "one"}]


def test_what_an_rlm_takes_in_the_place_of_an_lm_is_counted_once(tracked: Any, sandbox: Environment) -> None:
    inner = program(sandbox, prices={**PRICES})
    usages: list[Any] = []
    replies = ["print(llm_query('p'))", "SUBMIT('[[ ## answer ## ]]\\nyes')"]
    with tracking.run("bench") as record, dspy.context(lm=inner.as_lm(lm=root(*replies))):
        assert dspy.Predict("question -> answer")(question="q" * 100_000).answer == "yes"
        usages.append(record.facts.usage.to_dict())
    metrics = runs()["bench"].data.metrics
    assert metrics["lm_calls"] == 3 == usages[0]["lm_calls"] and metrics["input_tokens"] == usages[0]["input_tokens"]
    assert metrics["runs"] == 1 and metrics["cost"] == usages[0]["cost"] > 0


def test_large_examples_are_hashed_beside_what_is_written(tracked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlm_dspy.tracking import record as module

    monkeypatch.setattr(module, "AT_ONCE", 10)
    rows = examples("a" * 1_000, "b")
    with tracking.run("bench") as record:
        record.log_dataset(rows, "devset")
    deadline = time.monotonic() + 20
    while "devset.digest" not in (params := runs()["bench"].data.params) and time.monotonic() < deadline:
        pass  # flushing waits
    assert params["devset.digest"] == digest(rows)


def test_runs_side_by_side_have_their_own_traces(tracked: Any, sandbox: Environment) -> None:
    rlm, lm = program(sandbox), root("SUBMIT(answer=context)")

    def evaluation(number: int) -> None:
        with dspy.context(lm=lm), tracking.run(f"thread {number}"):
            for one in range(number + 1):
                rlm(context=f"thread {number} {one}")

    async def task(number: int) -> None:
        with tracking.run(f"task {number}"):
            await asyncio.gather(*(rlm.acall(context=f"task {number} {one}") for one in range(number + 1)))

    async def tasks() -> None:
        await asyncio.gather(*map(task, range(3)))

    threads = [threading.Thread(target=evaluation, args=(number,)) for number in range(3)]
    for one in threads:
        one.start()
    with dspy.context(lm=lm):
        asyncio.run(tasks())
    for one in threads:
        one.join()
    found = runs()
    assert len(found) == 6
    for name, run in found.items():
        contexts = {trace.data.spans[0].inputs["context"] for trace in traces(run)}
        assert contexts == {f"{name} {one}" for one in range(int(name[-1]) + 1)}
        assert run.data.metrics["runs"] == int(name[-1]) + 1 and run.info.status == "FINISHED"


def test_a_run_that_raises_has_failed_and_says_why(tracked: Any, sandbox: Environment) -> None:
    lm = ScriptedLM([Reply(error=ValueError("broken"))])
    with pytest.raises(Exception, match="broken"), dspy.context(lm=lm), tracking.run("bad"):
        program(sandbox)(context="c")
    with dspy.context(lm=ScriptedLM([Reply(error=ValueError("broken"))] * 9)):
        dspy.Evaluate(devset=examples("c"), metric=metric, max_errors=9)(program(sandbox))
    found = runs()
    assert found["bad"].info.status == "FAILED" and "broken" in found["bad"].data.tags["rlm_dspy.error"]
    assert found["bad"].data.metrics["outcome.failed"] == 1
    assert found["evaluate RLM"].info.status == "FINISHED"
    assert found["evaluate RLM"].data.metrics["failed_examples"] == 1


def test_an_optimizer_of_ones_own_that_fails_is_a_failed_run(tracked: Any) -> None:
    class Mine(dspy.teleprompt.Teleprompter):  # type: ignore[misc]
        def __init__(self, steps: int) -> None:
            self.steps, self.note, self.lm = steps, "x" * 10_000, None

        def compile(self, student: Any, *, trainset: Any, fail: bool = False, **kwargs: Any) -> Any:
            if fail:
                raise ValueError(f"no idea, but the key is {SECRET}")
            return student

    student, trainset = dspy.Predict("text -> label"), examples("a")
    Mine(5).compile(student, trainset=trainset)
    with pytest.raises(ValueError, match="no idea"):
        Mine(6).compile(student, trainset=trainset, fail=True)
    done, failed = sorted(runs().values(), key=lambda run: int(run.data.params["steps"]))
    assert (done.info.status, failed.info.status) == ("FINISHED", "FAILED")
    assert done.data.params["strategy"] == done.data.params["strategy_compiled"] and "note" not in done.data.params
    assert failed.data.tags["rlm_dspy.error"] == "ValueError: no idea, but the key is [hidden]"


@pytest.mark.heavy
@pytest.mark.parametrize("log", [{"log_evals": True}, {"log_compiles": True}])
def test_what_mlflow_logs_itself_is_not_doubled(
    enable: Callable[..., None], sandbox: Environment, log: dict[str, bool], monkeypatch: Any
) -> None:
    enable(**log)
    try:
        rlm = program(sandbox)
        with dspy.context(lm=root()):
            if "log_evals" in log:
                dspy.Evaluate(devset=examples("a", "x" * 50_000), metric=metric)(rlm)
            else:
                dspy.LabeledFewShot(k=1).compile(rlm, trainset=examples("a"))
        (run,) = runs().values()
        assert run.info.status == "FINISHED" and run.data.params["program"] == "RLM"
        if "log_evals" in log:
            assert run.data.metrics["eval"] == run.data.metrics["score"] == 50.0
            assert len(artefact(run, "result_table.json")) < 40_000
        else:
            assert run.data.params["optimizer"] == "LabeledFewShot"
    finally:
        mlflow.dspy.autolog(log_evals=False, log_compiles=False, log_traces_from_compile=True)


def test_evaluations_go_on_where_the_server_is_dead_or_says_nothing(
    enable: Callable[..., None], sandbox: Environment, caplog: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        enable(tracking_uri=f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        with dspy.context(lm=root()), tracking.run("bench") as record:
            assert dspy.Evaluate(devset=examples("a"), metric=metric)(program(sandbox)).score == 100.0
        assert record.run_id is None and time.monotonic() - began < 8
    assert sum("tracking server" in one.getMessage() for one in caplog.records) == 1


def test_what_is_logged_in_a_forked_process_is_written_there() -> None:
    """As by data loaders and job queues that fork."""
    ours = Writer()
    ours.later(lambda: None)
    assert ours.flush(10)
    reader, writer = os.pipe()
    if not (child := os.fork()):
        ours.later(lambda: os.write(writer, b"written"))
        ours.flush(10)
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b"written"


def test_what_is_given_to_be_logged_may_be_changed_at_once(tracked: Any) -> None:
    params, tags = {"seed": 3}, {"what": "x"}
    with tracking.run("changed") as record:
        held = threading.Event()
        record.do(lambda to: held.wait(10))
        record.log_params(params)
        record.set_tags(tags)
        params["seed"], tags["what"] = 4, "y"
        held.set()
    data = runs()["changed"].data
    assert (data.params["seed"], data.tags["what"]) == ("3", "x")


def test_without_tracking_a_run_does_nothing() -> None:
    with tracking.run("bench", params={"seed": 1}) as record:
        record.log_metrics({"x": 1.0})
        record.log_dataset([1, 2])
        assert record.run_id is None
        dspy.configure(rlm_dspy_test_setting=5)
    assert dspy.settings.rlm_dspy_test_setting == 5


def test_settings_made_inside_of_a_run_hold(tracked: Any) -> None:
    with tracking.run("bench"):
        dspy.configure(rlm_dspy_test_setting=7)
        assert dspy.settings.rlm_dspy_test_setting == 7


def test_a_digest_is_of_the_data_and_nothing_else() -> None:
    one = [dspy.Example(a="x", b=[1, 2.5, None, True], c={"k": {1, 2, 3}}).with_inputs("a")]
    same = [{"c": {"k": {3, 2, 1}}, "b": [1, 2.5, None, True], "a": "x"}]
    assert digest(one) == digest(same) == digest([dspy.Example(**one[0].toDict())])
    others = [[], [{}], ["x"], [b"x"], [["x"]], [{"x": "x"}], ["x", "x"], [("x", "x")], [1], ["1"], [object()]]
    assert len({digest(rows) for rows in [one, *others]}) == len(others) + 1
    assert digest([object()]) == digest([object()]) and digest(["\ud800" * 3])
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    assert digest(deep)


def test_a_name_or_value_that_mlflow_refuses_costs_nothing_else(tracked: Any) -> None:
    params = {"a<b>": 1, "x" * 300: 2, **{f"p{n}": n for n in range(150)}}
    with tracking.run("odd", params=params, tags={"t<": "1"}) as record:
        record.log_metrics({"score@1": 0.5, "good": 1.0, "a//../b": 2.0, "text": "bad", "large": 10**400, "none": None})  # type: ignore[dict-item]
        record.log_metrics({f"m{n}": n for n in range(1_200)})
    tracked()
    run = mlflow.MlflowClient().get_run(str(record.run_id))
    metrics, params = run.data.metrics, run.data.params
    assert (metrics["score_1"], metrics["good"], metrics["a/b"], metrics["m1199"]) == (0.5, 1.0, 2.0, 1199.0)
    assert params["a_b_"] == "1" and params["p149"] == "149" and run.data.tags["t_"] == "1"
    assert not {"text", "large", "none"} & metrics.keys() and run.info.status == "FINISHED"


def test_runs_that_fail_late_still_have_their_pages(
    tracked: Any, sandbox: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlm_dspy.tracking.page.MOST", 2)
    steps = "print(len(context))\nif context == 'good':\n    SUBMIT(answer=context)"
    rlm = program(sandbox, max_iters=1)
    with dspy.context(lm=root(steps)), tracking.run("loop"):
        outcomes = [str(rlm(context=text).outcome) for text in (*["good"] * 5, *["bad"] * 3)]
    pages = mlflow.artifacts.list_artifacts(f"{runs()['loop'].info.artifact_uri}/trajectories")
    assert sum(outcome == "submitted" for outcome in outcomes) == 5
    kinds = [Path(page.path).name.split("-")[1] for page in sorted(pages, key=lambda page: page.path)]
    assert kinds == ["submitted", "submitted", *outcomes[5:7]]

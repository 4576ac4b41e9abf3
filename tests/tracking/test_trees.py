"""One trace for each call, with everything where it happened."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, subscribe, tracking
from rlm_dspy.environments.base import Environment
from rlm_dspy.events import Event
from rlm_dspy.testing import Call, Reply, ScriptedLM, code, oracle, outputs

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")

SUB, ROOT = "scripted/sub", "scripted/root"


def echo(call: Call) -> str:
    return f"<{call.prompt}>"


def named(policy: Any, name: str) -> ScriptedLM:
    return ScriptedLM(policy, model=f"scripted/{name}")


def look(key: str) -> str:
    return key * 2


def test_turns_calls_and_requests_are_where_they_happened(tracked: Any, sandbox: Environment) -> None:
    rlm = RLM("context -> answer", tools=[look], sub_lm=named(echo, "sub"), interpreter=sandbox)
    replies = [code("print(look('a'))\nprint(llm_query_batched(['p', 'q']))"), "nothing", code("SUBMIT(answer='3')")]
    with dspy.context(lm=named(replies, "root")):
        rlm(context="c")
    (tree,) = tracked()
    act = ["act", ROOT]
    assert tree.shape() == [
        "RLM",
        ["turn 1", act, ["execute", "look", ["llm_query_batched", SUB], ["llm_query_batched", SUB]]],
        ["turn 2", act],
        ["turn 3", act, "execute"],
    ]
    execute = tree.all("execute")[0]
    assert execute.span.inputs == {"code": "print(look('a'))\nprint(llm_query_batched(['p', 'q']))"}
    assert "aa" in execute.span.outputs and "<q>" in execute.span.outputs
    look_, first, second = execute.below
    assert (look_.span.inputs, look_.span.outputs) == ({"key": "a"}, "aa")
    assert {(call.span.inputs["prompt"], call.span.outputs["response"]) for call in (first, second)} == {
        ("p", "<p>"),
        ("q", "<q>"),
    }
    assert tree.span.inputs == {"context": "c"} and tree.span.outputs == {"answer": "3"}
    assert tree.all("turn 2")[0].below[0].failed.startswith("AdapterParseError")
    assert [node.name for node in tree.all() if node.failed] == ["act"]
    for node in tree.all():
        for child in node.below:
            assert node.span.start_time_ns <= child.span.start_time_ns <= child.span.end_time_ns
            assert child.span.end_time_ns <= node.span.end_time_ns


def test_children_are_below_the_call_that_started_them(tracked: Any, sandbox: Environment) -> None:
    def policy(call: Call) -> str:
        if "zebra" in call.own[0]["content"]:
            return code("SUBMIT(llm_query('in the child ' + prompt))")
        return code("answers = rlm_query_batched(['zebra one', 'zebra two'])\nSUBMIT(answer=str(answers))")

    rlm = RLM("context -> answer", sub_lm=named(echo, "sub"), interpreter=sandbox, max_depth=2)
    with dspy.context(lm=named(policy, "root")):
        prediction = rlm(context="c")
    (tree,) = tracked()
    act = ["act", ROOT]
    child = ["rlm_query_batched", ["RLM", ["turn 1", act, ["execute", ["llm_query", SUB]]]]]
    assert tree.shape() == ["RLM", ["turn 1", act, ["execute", child, child]]]
    assert [node.get("rlm_dspy.depth") for node in tree.all("RLM")] == [0, 1, 1]
    assert tree.get("rlm_dspy.run")["usage"] == prediction.usage


def test_the_events_of_a_run_are_on_its_spans(tracked: Any, sandbox: Environment) -> None:
    log: list[tuple[str, Event]] = []
    rlm = RLM("context -> answer", sub_lm=named(echo, "sub"), interpreter=sandbox, max_depth=2)

    def policy(call: Call) -> str:
        if "zebra" in call.own[0]["content"]:
            return code("SUBMIT(llm_query('in the child'))")
        return [code("print(rlm_query('zebra'))"), code("SUBMIT(answer='x')")][call.turn]

    with dspy.context(lm=named(policy, "root")), subscribe(lambda event, run: log.append((run.id, event))):
        rlm(context="c")
    (tree,) = tracked()
    runs = tree.all("RLM")
    assert len(runs) == 2
    for run in runs:
        number = run.get("rlm_dspy.run")["run"]
        inner = {id(node) for other in run.all("RLM")[1:] for node in other.all()}
        found = [e for node in run.all() if id(node) not in inner for e in node.get("rlm_dspy.events") or []]
        found.sort(key=lambda event: event["seq"])
        mine = [event for owner, event in log if owner == number]
        assert [(e["seq"], e["kind"]) for e in found] == [(e.seq, e.kind) for e in mine]
        same = [e for e in mine if e.kind not in ("child_ended", "run_started")]
        told = {event["seq"]: event for event in found}
        for event in same:
            assert told[event.seq]["at"] == event.at


def test_the_span_that_failed_says_so(tracked: Any, sandbox: Environment) -> None:
    rlm = RLM("context -> answer", sub_lm=named([Reply(error=ValueError("no such key"))], "sub"), interpreter=sandbox)
    steps = oracle("print(llm_query('p'))", "1/0", "SUBMIT(answer='3')")
    with dspy.context(lm=named(steps, "root")):
        rlm(context="c")
    (tree,) = tracked()
    failed = {node.name: node.failed for node in tree.all() if node.failed}
    assert set(failed) == {SUB, "llm_query", "execute"}
    assert "no such key" in failed["llm_query"]
    assert tree.all("execute")[1].failed == "ZeroDivisionError: division by zero"


def test_a_limit_is_on_the_turn_that_it_struck_and_the_last_word_is_outside_of_it(
    tracked: Any, sandbox: Environment
) -> None:
    rlm = RLM("context -> answer", interpreter=sandbox, max_seconds=1.5, guidance=False)
    steps = oracle("while True: pass", answer={"answer": "best"})
    with dspy.context(lm=named(steps, "root")):
        prediction = rlm(context="c")
    assert prediction.outcome == "extracted"
    (tree,) = tracked()
    assert [node.name for node in tree.below] == ["turn 1", "extract"]
    assert tree.all("execute")[0].failed
    assert tree.failed is None and tree.get("rlm_dspy.outcome") == "extracted"
    assert tree.get("rlm_dspy.limit") == "max_seconds"


def test_a_run_that_raises_is_a_failed_trace(tracked: Any, sandbox: Environment) -> None:
    rlm = RLM("context -> answer", interpreter=sandbox)
    with dspy.context(lm=named([Reply(error=ValueError("broken"))], "root")), pytest.raises(Exception, match="broken"):
        rlm(context="c")
    (tree,) = tracked()
    assert tree.shape() == ["RLM", ["turn 1", ["act", ROOT]]]
    assert all("broken" in node.failed for node in tree.all())


@pytest.mark.parametrize("order", ["before", "after", "both", "twice"])
def test_nothing_is_doubled_by_autolog(
    enable: Callable[..., None], trees: Callable[[], list[Any]], sandbox: Environment, order: str
) -> None:
    if order in ("before", "both"):
        mlflow.dspy.autolog()
    enable()
    if order == "twice":
        enable()
    if order in ("after", "both"):
        mlflow.dspy.autolog()
    with dspy.context(lm=named([code("SUBMIT(answer='3')")], "root")):
        RLM("context -> answer", interpreter=sandbox)(context="c")
    (tree,) = trees()
    assert tree.shape() == ["RLM", ["turn 1", ["act", ROOT], "execute"]]


def test_modules_around_and_spans_inside_nest(tracked: Any, sandbox: Environment) -> None:
    ask = dspy.Predict("question -> answer")
    ask.lm = named(lambda call: outputs(answer="yes"), "tool")

    @mlflow.trace(name="mine")
    def look(key: str) -> str:
        return str(ask(question=key).answer)

    class Program(dspy.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.rlm = RLM("context -> answer", tools=[dspy.Tool(look, name="look")], interpreter=sandbox)
            self.rlm.act.lm = named([code("SUBMIT(answer=look('a'))")], "root")
            self.after = dspy.Predict("text -> answer")

        def forward(self, context: str) -> dspy.Prediction:
            return self.after(text=self.rlm(context=context).answer)

    with dspy.context(lm=named(lambda call: outputs(answer="yes"), "plain")):
        Program()(context="c")
    (tree,) = tracked()
    inside = ["look", ["mine", ["Predict", "scripted/tool"]]]
    assert tree.shape() == [
        "Program",
        ["RLM", ["turn 1", ["act", ROOT], ["execute", inside]]],
        ["Predict", "scripted/plain"],
    ]


def test_runs_in_threads_and_tasks_have_trees_of_their_own(tracked: Any, sandbox: Environment) -> None:
    rlm = RLM("context -> answer", sub_lm=named(echo, "sub"), interpreter=sandbox)
    root = named(oracle("print(llm_query(context))", "SUBMIT(answer=context)"), "root")

    async def tasks() -> None:
        await asyncio.gather(*(rlm.acall(context=f"task {n}") for n in range(4)))

    def thread(number: int) -> None:
        with dspy.context(lm=root):
            rlm(context=f"thread {number}")

    with dspy.context(lm=root):
        asyncio.run(tasks())
    threads = [threading.Thread(target=thread, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found = tracked()
    shape = ["RLM", ["turn 1", ["act", ROOT], ["execute", ["llm_query", SUB]]], ["turn 2", ["act", ROOT], "execute"]]
    assert [tree.shape() for tree in found] == [shape] * 8
    names = sorted(tree.span.inputs["context"] for tree in found)
    assert names == sorted([*(f"task {n}" for n in range(4)), *(f"thread {n}" for n in range(4))])
    for tree in found:
        # Each call is in the tree of its own run.
        assert [call.span.inputs["prompt"] for call in tree.all("llm_query")] == [tree.span.inputs["context"]]


def test_no_more_is_tracked_after_disable(tracked: Any, sandbox: Environment) -> None:
    tracking.disable()
    with dspy.context(lm=named([code("SUBMIT(answer='3')")], "root")):
        RLM("context -> answer", interpreter=sandbox)(context="c")
    assert tracked() == [] and not tracking.enabled()


def test_a_trace_of_somebody_else_has_all_of_the_run(tracked: Any, sandbox: Environment) -> None:
    rlm = RLM("context -> answer", sub_lm=named(echo, "sub"), interpreter=sandbox)
    steps = named(oracle("print(llm_query(context))", "SUBMIT(answer=context)"), "root")
    for number in range(3):
        with mlflow.start_span("theirs"), dspy.context(lm=steps):
            rlm(context=str(number))
    run = ["RLM", ["turn 1", ["act", ROOT], ["execute", ["llm_query", SUB]]], ["turn 2", ["act", ROOT], "execute"]]
    assert [tree.shape() for tree in tracked()] == [["theirs", run]] * 3


def test_scores_of_an_evaluation_are_on_the_traces_of_their_runs(tracked: Any, sandbox: Environment) -> None:
    def metric(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> float:
        return float(prediction.answer == example.context)

    rlm = RLM("context -> answer", interpreter=sandbox, guidance=False)
    devset = [dspy.Example(context=text).with_inputs("context") for text in ("a", "b", "c", "x")]
    lm = named(oracle("SUBMIT(answer=context.replace('x', 'y'))"), "root")
    with dspy.context(lm=lm):
        evaluate = dspy.Evaluate(devset=devset, metric=metric, num_threads=2, display_progress=False)
        assert evaluate(rlm).score == 75.0
    assert len(tracked()) == 4
    for found in mlflow.search_traces(return_type="list"):
        (score,) = (one for one in found.info.assessments if one.name == "metric")
        context = found.data.spans[0].inputs["context"] if found.data.spans[0].name == "RLM" else None
        assert score.feedback.value == (0.0 if context == "x" else 1.0)


def test_scores_are_on_no_trace_of_before_the_evaluation(tracked: Any) -> None:
    def metric(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> Any:
        return float("nan") if example.q == "1" else 1.0

    class Before(dspy.Module):
        def forward(self) -> None:
            pass

    lm = ScriptedLM(lambda call: outputs(answer="x"))
    with dspy.context(lm=lm):
        Before()()
        examples = [dspy.Example(q=str(n)).with_inputs("q") for n in (1, 0, 3)]
        dspy.Evaluate(devset=examples, metric=metric, num_threads=1, display_progress=False)(
            dspy.Predict("q -> answer")
        )
    tracked()
    scores = {
        trace.data.spans[0].name: [one for one in trace.info.assessments if one.name == "metric"]
        for trace in mlflow.search_traces(return_type="list")
    }
    assert scores["Before"] == [] and len(scores["Predict"]) == 1

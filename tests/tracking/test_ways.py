"""The tree is the same however a program is run: in parallel, in batches, as a stream, in a session, as an LM."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import dspy
import pytest

import rlm_dspy
from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.events import RunEnded
from rlm_dspy.testing import Call, ScriptedLM, code, oracle
from rlm_dspy.tracking import store
from rlm_dspy.tracking.capped import Clip
from rlm_dspy.tracking.spans import Open, Tree
from rlm_dspy.tracking.writer import Writer

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")

ROOT, SUB = "scripted/root", "scripted/sub"
ACT = ["act", ROOT]
SHAPE = ["RLM", ["turn 1", ACT, ["execute", ["llm_query", SUB]]], ["turn 2", ACT, "execute"]]
STEPS = ("print(llm_query(context))", "SUBMIT(answer=context)")


def lm(policy: Any, name: str = "root") -> ScriptedLM:
    return ScriptedLM(policy, model=f"scripted/{name}")


@pytest.fixture
def rlm(sandbox: Environment) -> RLM:
    return RLM("context -> answer", sub_lm=lm(lambda call: f"<{call.prompt}>", "sub"), interpreter=sandbox)


def contexts(trees: list[Any]) -> list[str]:
    """The inputs of the trees; the calls in each are those of its own run."""
    for tree in trees:
        for run in tree.all("RLM"):
            assert [call.span.inputs["prompt"] for call in run.all("llm_query")] == [run.span.inputs["context"]]
    return sorted(tree.span.inputs["context"] for tree in trees)


@pytest.mark.heavy
def test_many_at_once_by_dspys_own_means(tracked: Any, rlm: RLM) -> None:
    pairs = [(rlm, dspy.Example(context=f"p{n}").with_inputs("context")) for n in range(4)]
    with dspy.context(lm=lm(oracle(*STEPS))):
        dspy.Parallel(num_threads=4, disable_progress_bar=True)(pairs)
        rlm.batch([dspy.Example(context=f"b{n}").with_inputs("context") for n in range(4)], num_threads=4)
    trees = tracked()
    assert [tree.shape() for tree in trees] == [SHAPE] * 8
    assert contexts(trees) == [f"{kind}{n}" for kind in "bp" for n in range(4)]


def test_streams(tracked: Any, rlm: RLM) -> None:
    async def streamified(context: str) -> None:
        listeners = rlm_dspy.listeners(rlm)
        async for item in dspy.streamify(rlm, stream_listeners=listeners)(context=context):
            if isinstance(item, dspy.Prediction):
                assert item.answer == context

    async def streamed(context: str) -> None:
        kinds = [item async for item in rlm.stream(context=context)]
        assert isinstance(kinds[-1], dspy.Prediction) and any(isinstance(one, RunEnded) for one in kinds)

    async def together() -> None:
        await asyncio.gather(*(streamified(f"s{n}") for n in range(2)), *(streamed(f"t{n}") for n in range(2)))

    with dspy.context(lm=lm(oracle(*STEPS))):
        asyncio.run(together())
        assert list(rlm.stream(context="t2"))[-1].answer == "t2"
        for item in rlm.stream(context="left"):
            if item.kind == "call_started":
                break
    trees = tracked()
    whole, left = [tree for tree in trees if tree.span.inputs["context"] != "left"], trees[-1]
    assert [tree.all("RLM")[0].shape() for tree in whole] == [SHAPE] * 5
    assert contexts(whole) == ["s0", "s1", "t0", "t1", "t2"]
    # One that nobody wants any more is a trace that has ended, too.
    assert left.failed and all(node.span.end_time_ns for node in left.all())


def test_an_rlm_as_an_lm_is_below_the_request_that_it_answers(tracked: Any, sandbox: Environment) -> None:
    root = lm([code("print(llm_query('sub'))"), code("SUBMIT('[[ ## answer ## ]]\\nyes')")])
    inner = RLM("context -> answer", interpreter=sandbox, guidance=False, sub_lm=lm(lambda call: "s", "sub"))
    with dspy.context(lm=inner.as_lm(lm=root)):
        assert dspy.Predict("question -> answer")(question="q" * 100_000).answer == "yes"
    (tree,) = tracked()
    (predict,) = tree.all("Predict")
    (request,) = predict.below
    assert request.name.startswith("rlm/") and request.span.span_type == "CHAT_MODEL"
    (run,) = request.below
    assert run.shape() == ["RLM", ["turn 1", ACT, ["execute", ["llm_query", SUB]]], ["turn 2", ACT, "execute"]]
    usage = run.get("rlm_dspy.run")["usage"]
    (trace,) = mlflow.search_traces(return_type="list")
    assert trace.info.token_usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_every_call_of_a_session_is_a_trace_of_its_own(tracked: Any, sandbox: Environment) -> None:
    replies = [code("x = len(context)\nSUBMIT(answer=str(x))"), code("print(x)"), code("SUBMIT(answer=str(x + 1))")]
    rlm = RLM("context, query -> answer", interpreter=sandbox, guidance=False)
    with dspy.context(lm=lm(replies)), rlm.session() as session:
        assert session(context="four", query="How long?").answer == "4"
        assert session(query="And one more?").answer == "5"
    first, second = tracked()
    assert first.shape() == ["RLM", ["turn 1", ACT, "execute"]]
    assert second.shape() == ["RLM", ["turn 1", ACT, "execute"], ["turn 2", ACT, "execute"]]
    assert first.span.inputs == {"context": "four", "query": "How long?"}
    assert second.span.inputs == {"context": "four", "query": "And one more?"}


def test_a_summary_stands_between_the_turns(tracked: Any, sandbox: Environment) -> None:
    def policy(call: Call) -> str:
        if "Reply with the summary alone" in call.prompt:
            return "All is well."
        turns.append(len(turns) + 1)
        return code("SUBMIT(a='done')" if len(turns) == 8 else f"print('{len(turns)}' * 3_000)", f"step {len(turns)}")

    turns: list[int] = []
    with dspy.context(lm=lm(policy)):
        prediction = RLM("q -> a", interpreter=sandbox, context_window=6_000)(q="x")
    (tree,) = tracked()
    names = [node.name for node in tree.below]
    assert [name for name in names if name.startswith("turn")] == [f"turn {n}" for n in range(1, 9)]
    compact = tree.all("compact")
    assert compact and all(node.shape() == ["compact", ROOT] and node.span.outputs for node in compact)
    events = [event for node in tree.all() for event in node.get("rlm_dspy.events") or []]
    assert sum(event["kind"] == "compacted" for event in events) == len(compact)
    usage = tree.get("rlm_dspy.run")["usage"]
    assert usage == prediction.usage and usage["by_role"]["compact"]["lm_calls"] == len(compact)


def test_a_full_buffer_drops_spans_and_says_so_once(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlm_dspy.tracking import writer as module

    monkeypatch.setattr(module, "MOST", 3)
    held, written = threading.Event(), []
    writer = Writer()
    monkeypatch.setattr(writer, "write", lambda spans: written.extend(spans))
    with caplog.at_level(logging.WARNING):
        writer.later(held.wait)
        spans = [Open(str(n), "lm", "LLM", Clip(), Tree(writer)) for n in range(9)]
        for one in spans:
            writer.put([one])
        held.set()
        assert writer.flush()
        # There is room again.
        writer.put([spans[8]])
        assert writer.flush()
    assert written == [*spans[:3], spans[8]]
    assert len([one for one in caplog.records if "are dropped" in one.getMessage()]) == 1


def test_a_store_that_is_too_slow_is_told_of_once(caplog: Any) -> None:
    store.quiet()
    theirs = logging.getLogger("opentelemetry.sdk._shared_internal")
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            theirs.warning("Queue full, dropping %s", "Span")
        theirs.warning("something else")
    told = [one.getMessage() for one in caplog.records]
    assert sum("too slow" in one for one in told) <= 1 and sum("Queue full" in one for one in told) == 0
    assert "something else" in told

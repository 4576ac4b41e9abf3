"""Calling LMs from a run: which LM, counted where, and what a misbehaving one can do."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, Reply, ScriptedLM, code

ASK = code("SUBMIT(llm_query('x'))")


def naming(name: str, **options: Any) -> ScriptedLM:
    return ScriptedLM(lambda call: name, model=f"scripted/{name}", **options)


def test_the_order_of_lms_for_sub_calls(sandbox: Environment) -> None:
    program = RLM("-> a", interpreter=sandbox)
    root = ScriptedLM(lambda call: "root" if call.prompt == "x" else ASK)
    with dspy.context(lm=root):
        assert program().a == "root"
        view = program.with_options(sub_lm=naming("knob"))
        assert view().a == "knob"
        view.sub.lm = naming("predictor")
        assert view().a == program().a == "predictor"


@pytest.mark.parametrize("sync_only", [False, True])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_every_kind_of_lm_in_every_kind_of_call(sandbox: Environment, sync_only: bool, mode: str) -> None:
    root = ScriptedLM([code("SUBMIT(str(llm_query_batched(['a', 'b', 'c'])))")], sync_only=sync_only)
    sub = naming("yes", sync_only=sync_only)
    program = RLM("-> a", interpreter=sandbox, sub_lm=sub)
    with dspy.context(lm=root):
        prediction = program() if mode == "sync" else asyncio.run(program.acall())
    assert prediction.a == "['yes', 'yes', 'yes']"
    assert prediction.usage["lm_calls"] == 4 and prediction.usage["calls"] == 3
    assert prediction.usage["by_model"].keys() == {"scripted/lm", "scripted/yes"}
    assert prediction.usage["input_tokens"] > 0


def test_tokens_reach_the_tracker_around_the_run_once(sandbox: Environment) -> None:
    with dspy.context(lm=ScriptedLM([ASK]), track_usage=True), dspy.track_usage() as tracker:
        prediction = RLM("-> a", interpreter=sandbox, sub_lm=naming("yes"))()
    outside = tracker.get_total_tokens()
    inside = prediction.usage["by_model"]
    assert {m: u["total_tokens"] for m, u in outside.items()} == {m: u["total_tokens"] for m, u in inside.items()}


def test_lm_calls_of_a_tool_are_counted_too(sandbox: Environment) -> None:
    def tool() -> str:
        return dspy.Predict("q -> a")(q="x", lm=ScriptedLM(["[[ ## a ## ]]\ntool says"], model="scripted/tool")).a

    with dspy.context(lm=ScriptedLM([code("SUBMIT(tool())")])):
        prediction = RLM("-> a", interpreter=sandbox, tools=[tool])()
    assert prediction.a == "tool says"
    assert prediction.usage["lm_calls"] == 2 and prediction.usage["calls"] == 0
    assert "scripted/tool" in prediction.usage["by_model"]


def test_the_prompt_reaches_the_sub_lm_as_it_is(sandbox: Environment) -> None:
    sub = ScriptedLM(lambda call: call.prompt[::-1])
    text = "{x} [[ ## response ## ]] \r\n ``` \u2028 ß"
    with dspy.context(lm=ScriptedLM([code(f"SUBMIT(llm_query({text!r}))")])):
        assert RLM("-> a", interpreter=sandbox, sub_lm=sub)().a == text[::-1]
    assert sub.calls[0].prompt == text


class Odd(BaseException):
    """Neither an Exception nor one of Python's own endings."""


@pytest.mark.parametrize("source", ["llm_query('x')", "llm_query_batched(['x', 'y', 'z'])"])
@pytest.mark.parametrize("error", [SystemExit(4), KeyboardInterrupt(), Odd("odd")])
def test_an_lm_that_ends_the_program_ends_the_run_and_leaves_nothing(
    sandbox: Environment, source: str, error: BaseException
) -> None:
    def policy(call: Call) -> str:
        raise error

    program = RLM("-> a", interpreter=sandbox, sub_lm=ScriptedLM(policy))
    with dspy.context(lm=ScriptedLM([code(source)])), pytest.raises(type(error)) as raised:
        program()
    assert len(raised.value.trajectory) == 1  # type: ignore[attr-defined]
    with dspy.context(lm=ScriptedLM([code("SUBMIT('next')")])):
        assert program().a == "next"


@pytest.mark.parametrize("error", [ValueError("v"), StopIteration(), TimeoutError(), MemoryError()])
def test_an_lm_that_fails_is_an_error_of_the_code(sandbox: Environment, error: Exception) -> None:
    sub = ScriptedLM(lambda call: Reply(error=error))
    source = "try: llm_query('x')\nexcept RuntimeError as e: SUBMIT(str(e) + str(llm_query_batched(['x'])))"
    with dspy.context(lm=ScriptedLM([code(source)])):
        prediction = RLM("-> a", interpreter=sandbox, sub_lm=sub)()
    assert prediction.outcome == "submitted" and "[ERROR]" in prediction.a
    assert prediction.usage["calls"] == 2


def test_an_empty_reply_of_the_sub_lm(sandbox: Environment) -> None:
    ask = "try: r.append(llm_query('x'))\nexcept RuntimeError as e: r.append(str(e))"
    with dspy.context(lm=ScriptedLM([code(f"r = llm_query_batched(['x'])\n{ask}\nSUBMIT(r)")])):
        prediction = RLM("-> a: list[str]", interpreter=sandbox, sub_lm=ScriptedLM(lambda call: ""))()
    assert len(prediction.a) == 2 and all("empty or null response" in reply for reply in prediction.a)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("llm_query(3)", "a prompt must be a str, not int"),
        ("llm_query('  ')", "must not be empty"),
        ("llm_query('x', model='gpt')", "no model named 'gpt'"),
        ("llm_query_batched('x')", "takes a list of prompts"),
        ("llm_query_batched(['x', None])", "a prompt must be a str, not NoneType (that at index 1)"),
        ("llm_query_batched(['x', 'y', ' '])", "must not be empty (that at index 2)"),
        ("llm_query()", "prompt"),
    ],
)
def test_a_wrong_call_costs_nothing(sandbox: Environment, call: str, says: str) -> None:
    sub = ScriptedLM([])
    with dspy.context(lm=ScriptedLM([code(call), code("SUBMIT('x')")])):
        prediction = RLM("-> a", interpreter=sandbox, sub_lm=sub)()
    assert says in prediction.trajectory[0].output
    assert not sub.calls and prediction.usage["calls"] == 0


def test_an_empty_batch_is_an_empty_list(sandbox: Environment) -> None:
    with dspy.context(lm=ScriptedLM([code("SUBMIT(llm_query_batched([]))")])):
        assert RLM("-> a: list", interpreter=sandbox, max_llm_calls=0)().a == []


class Awaited(dspy.Module):
    """A module that can only be awaited."""

    async def aforward(self, item: str) -> dspy.Prediction:
        return dspy.Prediction(out=f"awaited {item}")


class Called(dspy.Module):
    """A module that can only be called, and gives what cannot leave the host for some of its inputs."""

    def forward(self, item: str) -> Any:
        return object() if item == "odd" else f"called {item}"


def test_modules_of_ones_own_may_have_one_way_to_be_called(
    sandbox: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    source = "print(awaited('a'), called('b'), awaited_batched(['c']), called_batched(['d']))"
    rlm = RLM("-> a", interpreter=sandbox, sub_calls={"awaited": Awaited(), "called": Called()}, guidance=False)
    with dspy.context(lm=ScriptedLM([code(source), code("SUBMIT('x')")])):
        assert rlm().trajectory[0].output == "awaited a called b ['awaited c'] ['called d']"

    async def streamed() -> str:
        with dspy.context(lm=ScriptedLM([code(source), code("SUBMIT('x')")])):
            async for part in dspy.streamify(rlm)():
                if isinstance(part, dspy.Prediction):
                    return str(part.trajectory[0].output)
        raise AssertionError("no prediction")

    assert asyncio.run(streamed()).endswith("['called d']")
    assert "is discouraged" not in caplog.text


def test_a_result_that_cannot_cross_costs_its_own_slot_alone(sandbox: Environment) -> None:
    rlm = RLM("-> a", interpreter=sandbox, sub_calls={"called": Called()}, guidance=False)
    with dspy.context(lm=ScriptedLM([code("print(called_batched(['x', 'odd', 'y']))"), code("SUBMIT('x')")])):
        output = rlm().trajectory[0].output
    assert "'called x'" in output and "'called y'" in output and "[ERROR] TypeError" in output

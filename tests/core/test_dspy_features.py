"""What DSPy offers to every module works on an RLM: LMs, usage, cache, callbacks, adapters."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace as Object
from typing import Any

import dspy
import pytest
from dspy.lm15 import Message, Request, Response, Usage
from dspy.utils import BaseCallback
from dspy.utils.callback import ACTIVE_CALL_ID

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")


def echo(call: Call) -> str:
    """Root and sub-LM in one: submits what the sub-LM says of the first line of the text."""
    if "REPL" not in call.system:
        return f"<{call.prompt}>"
    return code("SUBMIT(llm_query(text))")


def examples(count: int) -> list[dspy.Example]:
    return [dspy.Example(text=f"text{n}", answer=f"<text{n}>").with_inputs("text") for n in range(count)]


# ----------------------------------------------------------------------------------------------------------- LMs, usage


def test_dspy_context_chooses_the_lm_for_one_call(sandbox: Environment) -> None:
    rlm = RLM("query -> answer", interpreter_factory=sandbox)
    for name in ("one", "two"):
        with dspy.context(lm=ScriptedLM(lambda call, name=name: code(f"SUBMIT({name!r})"))):
            assert rlm(query="q").answer == name


def test_no_lm_is_dspys_own_error(sandbox: Environment) -> None:
    with dspy.context(lm=None), pytest.raises(ValueError, match="No LM is loaded"):
        RLM("query -> answer", interpreter_factory=sandbox)(query="q")


def test_track_usage_is_the_sum_of_all_calls(sandbox: Environment) -> None:
    """Root, sub-calls, a batch, a sub-agent, and a tool's own LM calls, on two models."""
    sub = ScriptedLM(lambda call: "[[ ## a ## ]]\nyes\n\n[[ ## completed ## ]]", model="scripted/sub")

    def tool(text: str) -> str:
        """Ask by itself, and keep an account of its own."""
        with dspy.track_usage() as own:
            answer = str(dspy.Predict("q -> a")(q=text, lm=sub).a)
        assert len(own.get_total_tokens()) == 1
        return answer

    source = """
import dspy
print(llm_query("one"), llm_query_batched(["two", "three"]), tool("four"), dspy.Predict("q -> a")(q="five").a)
"""
    lm = ScriptedLM([code(source), code("SUBMIT('x')")], model="scripted/root")
    rlm = RLM("query -> answer", tools=[tool], sub_lm=sub, interpreter_factory=sandbox)
    with dspy.context(lm=lm), dspy.track_usage() as tracker:
        prediction = rlm(query="q")
    assert len(lm.calls) == 2 and len(sub.calls) == 5
    total = tracker.get_total_tokens()
    assert total == prediction.usage["by_model"]
    for scripted in (lm, sub):
        spent = sum(sum(len(m["content"]) for m in call.messages) // 4 for call in scripted.calls)
        assert total[scripted.model]["prompt_tokens"] == spent
    assert prediction.usage["input_tokens"] == sum(model["prompt_tokens"] for model in total.values())
    assert prediction.usage["output_tokens"] == sum(model["completion_tokens"] for model in total.values())
    assert prediction.usage["lm_calls"] == 7 and prediction.usage["calls"] == 4


@pytest.mark.parametrize("way", ["sync", "async"])
def test_configured_usage_tracking_is_on_the_prediction(sandbox: Environment, way: str) -> None:
    rlm = RLM("text -> answer", interpreter_factory=sandbox)
    with dspy.context(lm=ScriptedLM(echo), track_usage=True):
        prediction = rlm(text="t") if way == "sync" else asyncio.run(rlm.acall(text="t"))
    assert prediction.get_lm_usage() == prediction.usage["by_model"]
    assert prediction.get_lm_usage()["scripted/lm"]["prompt_tokens"] > 0


def test_usage_of_nested_runs_is_counted_once(sandbox: Environment) -> None:
    child = RLM("text -> answer", interpreter_factory=sandbox)

    def ask(text: str) -> str:
        """Run a child."""
        return str(child(text=text).answer)

    parent = RLM("query -> answer", tools=[ask], interpreter_factory=sandbox)
    lm = ScriptedLM(lambda call: code("SUBMIT(ask('deep'))") if "`query`" in call.prompt else echo(call))
    with dspy.context(lm=lm), dspy.track_usage() as tracker:
        prediction = parent(query="q")
    assert prediction.answer == "<deep>"
    assert len(lm.calls) == 3 == prediction.usage["lm_calls"]
    assert tracker.get_total_tokens() == prediction.usage["by_model"]


# ---------------------------------------------------------------------------------------------------------------- cache


def test_the_same_call_twice_is_answered_from_the_cache(sandbox: Environment) -> None:
    lm = ScriptedLM(echo, cache=True, model="scripted/cached")
    rlm = RLM("text -> answer", interpreter_factory=sandbox)
    with dspy.context(lm=lm):
        first = rlm(text="text for the cache")
        asked = len(lm.calls)
        second = rlm(text="text for the cache")
        assert len(lm.calls) == asked == 2
        assert second.answer == first.answer == "<text for the cache>"
        assert second.trajectory == first.trajectory
        assert rlm(text="another text").answer == "<another text>"
        assert len(lm.calls) == 4


def test_large_inputs_with_the_same_ends_are_not_confused(sandbox: Environment) -> None:
    """The first request is the same for both, and may come from the cache; what the code sees never does."""
    lm = ScriptedLM(
        lambda call: code("print(text[3000])") if call.turn == 0 else code(f"SUBMIT({call.prompt.splitlines()[1]!r})"),
        cache=True,
        model="scripted/middle",
    )
    rlm = RLM("text -> answer", interpreter_factory=sandbox)
    with dspy.context(lm=lm):
        answers = [rlm(text="x" * 3000 + middle + "x" * 7000).answer for middle in "ab"]
    assert answers == ["a", "b"]
    assert len(lm.calls) == 3


# ------------------------------------------------------------------------------------------------------------ callbacks


class Recorder(BaseCallback):
    """Notes every callback with its parent, thread-safely."""

    def __init__(self) -> None:
        self.starts: list[tuple[str, str, Any]] = []
        self.ends: list[tuple[str, Any, Any]] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_") and name.endswith("_start"):
            return lambda call_id, instance, inputs: self.starts.append((name[3:-6], type(instance).__name__, inputs))
        if name.startswith("on_") and name.endswith("_end"):
            return lambda call_id, outputs, exception=None: self.ends.append((name[3:-4], outputs, exception))
        return super().__getattribute__(name)


def lookup(key: str) -> str:
    """Find a key."""
    return key.upper()


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("factory", ["ours", "foreign"])
def test_callbacks_fire_once_for_each_step(sandbox: Environment, way: str, factory: str) -> None:
    recorder = Recorder()
    lm = ScriptedLM([code("print(lookup(key='k'), llm_query('q'))"), "sub", code("1 / 0"), code("SUBMIT('x')")])
    rlm = RLM(
        "query -> answer", tools=[lookup], interpreter_factory=sandbox if factory == "ours" else dspy.LocalInterpreter
    )
    with dspy.context(lm=lm, callbacks=[recorder]):
        prediction = rlm(query="q") if way == "sync" else asyncio.run(rlm.acall(query="q"))
    assert prediction.answer == "x"
    started, ended = Counter(kind for kind, _, _ in recorder.starts), Counter(kind for kind, _, _ in recorder.ends)
    assert started == ended
    assert started["module"] == 1 + 3 + 1  # the RLM, `act` three times, `sub` once
    assert started["lm"] == 4 and started["tool"] == 1
    assert started["adapter_format"] == started["adapter_parse"] == 4
    assert started["interpreter_execute"] == 3 and started["interpreter_tool_call"] == 2
    assert started["interpreter_startup"] == started["interpreter_shutdown"] == 1
    codes = [inputs["code"] for kind, _, inputs in recorder.starts if kind == "interpreter_execute"]
    assert codes == ["print(lookup(key='k'), llm_query('q'))", "1 / 0", "SUBMIT('x')"]
    outputs = [(outputs, error) for kind, outputs, error in recorder.ends if kind == "interpreter_execute"]
    assert str(outputs[0][0]).strip() == "K sub"
    assert isinstance(outputs[1][1], dspy.CodeExecutionError) and "ZeroDivisionError" in str(outputs[1][1])
    assert type(outputs[2][0]).__name__ == "FinalOutput"
    tools = [inputs["tool_name"] for kind, _, inputs in recorder.starts if kind == "interpreter_tool_call"]
    assert tools == ["lookup", "llm_query"]


def test_callbacks_know_their_parents(sandbox: Environment) -> None:
    parents: dict[str, tuple[str, str | None]] = {}

    class Tree(BaseCallback):
        def on_module_start(self, call_id: str, instance: Any, inputs: Any) -> None:
            parents[call_id] = (type(instance).__name__, ACTIVE_CALL_ID.get())

        def on_lm_start(self, call_id: str, instance: Any, inputs: Any) -> None:
            parents[call_id] = ("LM", ACTIVE_CALL_ID.get())

        def on_interpreter_execute_start(self, call_id: str, instance: Any, inputs: Any) -> None:
            parents[call_id] = ("execute", ACTIVE_CALL_ID.get())

        def on_interpreter_tool_call_start(self, call_id: str, instance: Any, inputs: Any) -> None:
            parents[call_id] = (inputs["tool_name"], ACTIVE_CALL_ID.get())

    lm = ScriptedLM([code("SUBMIT(llm_query('q'))"), "sub"])
    with dspy.context(lm=lm, callbacks=[Tree()]):
        RLM("query -> answer", interpreter_factory=sandbox)(query="q")

    def path(call_id: str | None) -> list[str]:
        if call_id is None or call_id not in parents:
            return []
        name, parent = parents[call_id]
        return [*path(parent), name]

    assert {tuple(path(call_id)) for call_id in parents} >= {
        ("RLM",),
        ("RLM", "RolePredict", "LM"),
        ("RLM", "execute", "llm_query", "RolePredict", "LM"),
    }


# --------------------------------------------------------------------------------------------------------- kinds of LMs


def response(text: str) -> Response:
    return Response(
        id=None, model="m", message=Message.assistant(text), finish_reason="stop", usage=Usage(input_tokens=1)
    )


class Engine:
    """A user's own synchronous engine."""

    def complete(self, request: Request) -> Response:
        text = request.messages[-1].text or ""
        return response(code("SUBMIT(llm_query('sub'))") if "Variable `query`" in text else "from the engine")


class ForwardOnly(dspy.BaseLM):
    """A user's own LM as DSPy 2 and 3 took it: ``forward`` and nothing else."""

    def __init__(self) -> None:
        super().__init__(model="legacy/lm")
        self.threads: set[str] = set()

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        self.threads.add(threading.current_thread().name)
        text = messages[-1]["content"]
        text = text if isinstance(text, str) else text[0]["text"]
        reply = code("SUBMIT(llm_query('sub'))") if "Variable `query`" in text else "from forward"
        message = Object(content=reply, tool_calls=None, reasoning_content=None)
        return Object(
            choices=[Object(message=message, finish_reason="stop", logprobs=None)], usage={}, model="legacy/lm"
        )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", ["sync", "async", "in a loop"])
@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (lambda: dspy.LM("custom/m", engine=Engine(), cache=False), "from the engine"),
        (ForwardOnly, "from forward"),
        (lambda: ScriptedLM(lambda call: code("SUBMIT(llm_query('s'))") if "REPL" in call.system else "x"), "x"),
    ],
)
def test_lms_that_can_only_be_called_synchronously(
    sandbox: Environment, way: str, make: Callable[[], Any], answer: str
) -> None:
    rlm = RLM("query -> answer", interpreter_factory=sandbox)

    async def in_a_loop() -> Any:
        return rlm(query="q")

    with dspy.context(lm=make()):
        if way == "sync":
            prediction = rlm(query="q")
        elif way == "async":
            prediction = asyncio.run(rlm.acall(query="q"))
        else:
            prediction = asyncio.run(in_a_loop())
    assert prediction.answer == answer and prediction.outcome == "submitted" and prediction.usage["calls"] == 1


@pytest.mark.parametrize("whose", ["settings", "sub_lm", "own"])
def test_a_module_in_the_place_of_sub(sandbox: Environment, whose: str) -> None:
    """``rlm.sub = dspy.ChainOfThought(...)``: sub-calls, and sub-agents beside them, go on working."""

    def lm(name: str) -> ScriptedLM:
        def policy(call: Call) -> str:
            if "REPL" in call.system:
                return code("import dspy\nSUBMIT([llm_query('?'), dspy.Predict('q -> response')(q='?').response])")
            return f"[[ ## reasoning ## ]]\nwhy\n\n[[ ## response ## ]]\n{name}\n\n[[ ## completed ## ]]"

        return ScriptedLM(policy)

    sub_lm = None if whose == "settings" else lm("sub_lm")
    rlm = RLM("query -> answer: list[str]", interpreter_factory=sandbox, sub_lm=sub_lm)
    rlm.sub = dspy.ChainOfThought("prompt -> response")
    if whose == "own":
        rlm.sub.predict.lm = lm("own")
    with dspy.context(lm=lm("settings")):
        assert rlm(query="q").answer == [whose, whose]
    assert [name for name, _ in rlm.named_predictors()] == ["act", "sub.predict", "extract", "compact"]


def test_adapters_of_the_user_format_extract(sandbox: Environment) -> None:
    """The configured adapter is kept for the typed fields of ``extract``; the root's dialect stays."""
    lm = ScriptedLM([code("print(1)"), '{"answer": "from json", "n": 4}'])
    rlm = RLM("query -> answer: str, n: int", interpreter_factory=sandbox, max_iters=1)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        prediction = rlm(query="q")
    assert (prediction.answer, prediction.n) == ("from json", 4)
    assert "JSON" in lm.calls[1].prompt and "[[ ##" not in lm.calls[1].prompt

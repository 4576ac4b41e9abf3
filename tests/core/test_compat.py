"""Each entry of ``rlm_dspy._compat`` against the DSPy that is installed.

A failure here says which private part of DSPy has changed, and what stops working for it.
"""

from __future__ import annotations

import asyncio
import http.server
import importlib
import inspect
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy.lm15 import Message, Request, Response, Usage
from dspy.utils import DummyLM

from rlm_dspy import RLM, _compat
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")


class Engine:
    """A synchronous engine."""

    def complete(self, request: Request) -> Response:
        message = Message.assistant(code("SUBMIT('x')"))
        return Response(id=None, model="m", message=message, finish_reason="stop", usage=Usage())


class AsyncEngine:
    """An asynchronous engine."""

    async def complete(self, request: Request) -> Response:
        return Engine().complete(request)


class ForwardOnly(dspy.BaseLM):
    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        raise NotImplementedError


class AforwardOnly(dspy.BaseLM):
    async def aforward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        raise NotImplementedError


class Both(ForwardOnly, AforwardOnly):
    pass


class SyncSubclass(dspy.LM):
    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        return super().forward(prompt, messages, **kwargs)


SYNC, ASYNC, EITHER = frozenset({"sync"}), frozenset({"async"}), frozenset({"sync", "async"})


def test_the_table_lists_every_entry() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \|", _compat.__doc__ or "", flags=re.M))
    public = {
        name
        for name, value in vars(_compat).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == _compat.__name__
    }
    assert listed == public


# ---------------------------------------------------------------------------------------------------- ways_to_call


@pytest.mark.parametrize(
    ("make", "ways"),
    [
        (lambda: dspy.LM("openai/m"), EITHER),
        (lambda: dspy.LM("openai/m", engine="litellm"), EITHER),
        (lambda: dspy.LM("custom/m", engine=Engine()), SYNC),
        (lambda: dspy.LM("custom/m", engine=Engine(), async_engine=AsyncEngine()), EITHER),
        (lambda: SyncSubclass("openai/m"), SYNC),
        (lambda: ForwardOnly("m"), SYNC),
        (lambda: AforwardOnly("m"), ASYNC),
        (lambda: Both("m"), EITHER),
        (lambda: DummyLM([{"a": "b"}]), EITHER),
        (lambda: ScriptedLM([]), EITHER),
        (lambda: ScriptedLM([], sync_only=True), SYNC),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_ways_to_call(make: Callable[[], Any], ways: frozenset[str]) -> None:
    """What breaks: a sync-only LM would be awaited (an error), or an asynchronous one called in a thread."""
    assert _compat.ways_to_call(make()) == ways
    assert _compat.ways_to_call(make().copy()) == ways


def test_dspy_still_refuses_to_await_an_engine_without_an_async_twin() -> None:
    """Once DSPy can, `ways_to_call` may go."""
    lm = dspy.LM("custom/m", engine=Engine(), cache=False)
    assert lm("hello")
    with pytest.raises(dspy.LMError, match="async counterpart"):
        asyncio.run(lm.acall("hello"))


def test_a_run_on_a_sync_only_engine(sandbox: Environment) -> None:
    rlm = RLM("query -> answer", interpreter_factory=sandbox)
    with dspy.context(lm=dspy.LM("custom/m", engine=Engine(), cache=False)):
        assert asyncio.run(rlm.acall(query="q")).answer == "x"


# ----------------------------------------------------------------------------------------------- replays_reasoning


def assistant_messages(lm: dspy.LM, server: Any) -> list[dict[str, Any]]:
    """How an earlier reply with reasoning leaves for the endpoint."""
    lm(
        messages=[
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "the reply", "reasoning_content": "the thoughts"},
            {"role": "user", "content": "go on"},
        ]
    )
    return [m for m in json.loads(server.bodies[-1])["messages"] if m["role"] == "assistant"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("engine", "replays"), [("auto", False), ("litellm", True)])
def test_replays_reasoning_says_what_reaches_the_endpoint(
    endpoint: Callable[..., Any], engine: str, replays: bool
) -> None:
    """What breaks: reasoning would be written into the reply, which then is not the reply any more, or be lost."""
    server = endpoint(["ok"])
    lm = dspy.LM("openai/m", api_base=server.url, api_key="k", cache=False, engine=engine)
    assert _compat.replays_reasoning(lm) is replays
    (message,) = assistant_messages(lm, server)
    kept_apart = message.get("reasoning_content") == "the thoughts" and message["content"] == "the reply"
    assert kept_apart is replays


@pytest.mark.parametrize("model", ["openai/gpt-4o-mini", "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-pro", "x/y"])
def test_replays_reasoning_answers_for_any_model_without_a_request(model: str) -> None:
    assert _compat.replays_reasoning(dspy.LM(model, api_key="k")) in (True, False)


def test_custom_engines_get_reasoning_as_it_was() -> None:
    assert _compat.replays_reasoning(ScriptedLM([])) is True
    assert _compat.replays_reasoning(None) is True


# ------------------------------------------------------------------------------------------------------- SubAgents


def test_the_facade_installs_by_two_tools_and_one_cell() -> None:
    """What breaks: ``import dspy`` in the REPL. The note in the event log then says why; runs go on without it."""
    from dspy.primitives.facade import FacadeInvocation

    parameters = inspect.signature(FacadeInvocation.__init__).parameters
    assert {"tools", "interpreter_factory", "lm", "reserve"} <= set(parameters)
    agents = _compat.SubAgents({}, lambda: None, None, lambda count: None)
    assert set(agents.tools) == {"__dspy_construct__", "__dspy_call__"}
    assert all(callable(tool) for tool in agents.tools.values())
    compile(agents.code, "<facade>", "exec")
    assert all(isinstance(value, str) for value in agents.variables.values())


def test_the_facade_asks_before_each_lm_call() -> None:
    """What breaks: sub-agents could pass the limit of sub-calls."""
    asked: list[int] = []
    lm = ScriptedLM(lambda call: "[[ ## a ## ]]\nyes")
    agents = _compat.SubAgents({}, lambda: None, lm, asked.append)
    handle = agents.tools["__dspy_construct__"](kind="Predict", signature="q -> a", attr_name="p", kwargs={})
    assert agents.tools["__dspy_call__"](handle=handle, inputs={"q": "?"}) == {"a": "yes"}
    assert asked == [1] and len(lm.calls) == 1


def test_reserved_names_are_those_of_the_facade() -> None:
    """What breaks: a user's input or tool could take a name that ``import dspy`` needs."""
    from dspy.primitives.facade import is_reserved_sandbox_name

    from rlm_dspy import tools

    for name in ("dspy", "_dspy_x", "__dspy_call__", "__dspy_host_token", "dspyx", "_x", "x"):
        assert tools.is_reserved(name) == is_reserved_sandbox_name(name)
    assert dspy.RLM._RESERVED_SANDBOX_NAMES <= tools.CORE_NAMES
    assert dspy.RLM._RESERVED_RESULT_NAMES <= tools.RESULT_NAMES


# ----------------------------------------------------------------------------------------------- generation_config


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.3, "max_tokens": 99},
        {"temperature": 0.0, "top_p": 0.5, "stop": ["END"], "seed": 7, "presence_penalty": 0.5},
        {"api_key": "sk-1", "extra_headers": {"a": "b"}, "timeout": 3, "temperature": 1.0, "rollout_id": 3},
        {"logit_bias": {"5": 1.0}},
    ],
)
def test_generation_config_is_what_a_call_by_messages_sends(settings: dict[str, Any]) -> None:
    """What breaks: short requests to `rlm.as_lm()` go out without the settings of the LM behind it."""
    own = {name: value for name, value in settings.items() if name not in ("api_key", "extra_headers", "timeout")}
    lm = ScriptedLM(["x"], **own)
    lm("hello")
    assert _compat.generation_config(dspy.LM("openai/m", **settings)) == lm.calls[0].request.config


def test_generation_config_leaves_out_what_a_request_cannot_say() -> None:
    lm = dspy.LM("openai/m", temperature=0.3, functions=[{"name": "f"}])
    assert _compat.generation_config(lm).temperature == 0.3


# ---------------------------------------------------------------------------------------- public parts that we lean on


@pytest.mark.parametrize("max_cost", [None, 1.0])
def test_published_prices_are_fetched_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, endpoint: Callable[..., Any], sandbox: Environment, max_cost: float | None
) -> None:
    """DSPy fetches the list at first use; the server here answers only when the event loop has turned meanwhile."""
    from dspy.clients import model_metadata

    asked, turned = threading.Event(), threading.Event()
    in_time: list[bool] = []

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.set()
            in_time.append(turned.wait(4))
            self.send_error(503)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    async def turn() -> None:
        while not asked.is_set():
            await asyncio.sleep(0.001)
        turned.set()

    async def main() -> Any:
        turning = asyncio.create_task(turn())
        prediction = await RLM("text -> answer", interpreter_factory=sandbox, max_cost=max_cost).acall(text="x")
        await turning
        return prediction

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    try:
        monkeypatch.setattr(model_metadata, "_data", None)
        monkeypatch.setattr(_compat, "_facts_read", False)
        monkeypatch.delenv("LITELLM_LOCAL_MODEL_COST_MAP", raising=False)
        monkeypatch.setenv("LITELLM_MODEL_COST_MAP_URL", f"http://127.0.0.1:{server.server_port}/")
        lm = dspy.LM("openai/gpt-4o-mini", api_base=endpoint([code("SUBMIT('x')")]).url, api_key="k", cache=False)
        with dspy.context(lm=lm):
            prediction = asyncio.run(main())
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
    assert in_time == [True]
    assert prediction.answer == "x" and prediction.usage["cost"] is not None and _compat.facts_at_hand()


@pytest.mark.parametrize(
    "name",
    [
        "dspy.Adapter.format",
        "dspy.Adapter.parse",
        "dspy.CodeExecutionError",
        "dspy.CodeInterpreter",
        "dspy.CodeInterpreterError",
        "dspy.LocalInterpreter",
        "dspy.primitives.code_interpreter.FinalOutput",
        "dspy.primitives.sandbox_serializable.SandboxSerializable",
        "dspy.track_usage",
        "dspy.utils.callback.BaseCallback",
        "dspy.utils.exceptions.AdapterParseError",
        "dspy.utils.usage_tracker.UsageTracker",
        "dspy.utils.with_callbacks",
    ],
)
def test_public_names_are_there(name: str) -> None:
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for attribute in parts[split:]:
            found = getattr(found, attribute)
        return
    raise AssertionError(name)


def test_the_usage_tracker_is_the_setting_of_that_name() -> None:
    """What breaks: `rlm_dspy.calls.Meter` takes the tracker's place by this setting, and would count nothing."""
    with dspy.track_usage() as tracker:
        assert dspy.settings.usage_tracker is tracker
        with dspy.context(lm=ScriptedLM(["hello"], model="scripted/counted")):
            dspy.settings.lm("hi")
    assert tracker.get_total_tokens()["scripted/counted"]["total_tokens"] > 0


def test_streams_are_sent_to_the_setting_of_that_name() -> None:
    """What breaks: `rlm_dspy.streaming.Bridge` takes the stream's place by this setting."""
    seen: list[Any] = []

    class Probe(dspy.Module):
        def forward(self) -> dspy.Prediction:
            seen.append(dspy.settings.send_stream)
            return dspy.Prediction(answer="x")

    async def main() -> None:
        async for _ in dspy.streamify(Probe())():
            pass

    asyncio.run(main())
    assert dspy.settings.send_stream is None
    assert callable(seen[0].send) and seen[0].statistics().max_buffer_size >= 1


def test_which_lms_can_stream() -> None:
    class Streams(Engine):
        def stream(self, request: Request) -> Any: ...

    assert _compat.can_stream(dspy.LM("openai/m")) and _compat.can_stream(ScriptedLM([])) and _compat.can_stream(None)
    assert _compat.can_stream(dspy.LM("own/m", engine=Streams()))
    assert not _compat.can_stream(dspy.LM("own/m", engine=Engine()))
    assert not _compat.can_stream(dspy.LM("own/m", engine=Streams(), async_engine=AsyncEngine()))


def test_a_carried_setting_reaches_dspys_threads_and_freezes_no_other() -> None:
    seen: list[Any] = []

    class Probe(dspy.Module):  # type: ignore[misc]
        def forward(self) -> dspy.Prediction:
            seen.append(dspy.settings.get("rlm_dspy_probe"))
            return dspy.Prediction(answer="x")

    before = dspy.settings.max_errors
    try:
        with _compat.carried("rlm_dspy_probe", "here"):
            dspy.Parallel(num_threads=2, disable_progress_bar=True)([(Probe(), {})] * 3)
            dspy.configure(max_errors=before + 1)
            assert dspy.settings.max_errors == before + 1
            with _compat.carried("rlm_dspy_probe", "inside"), dspy.context(max_errors=3):
                assert (dspy.settings.get("rlm_dspy_probe"), dspy.settings.max_errors) == ("inside", 3)
    finally:
        dspy.configure(max_errors=before)
    assert seen == ["here"] * 3 and dspy.settings.get("rlm_dspy_probe") is None


def test_before_threads_end_comes_while_executors_still_work(in_python: Callable[..., Any]) -> None:
    process = in_python(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from rlm_dspy._compat import before_threads_end\n"
        "pool = ThreadPoolExecutor()\n"
        "before_threads_end(lambda: print(pool.submit(lambda: 'done').result()))\n"
    )
    assert process.communicate(timeout=60)[0].strip() == "done"

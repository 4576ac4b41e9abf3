"""What DSPy offers to every module works on an RLM: LMs, usage, cache, callbacks, threads, tasks, notebooks."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from types import SimpleNamespace as Object
from typing import Any

import dspy
import pytest
from dspy.lm15 import Message, Request, Response, Usage
from dspy.utils import BaseCallback
from dspy.utils.callback import ACTIVE_CALL_ID

from rlm_dspy import RLM
from rlm_dspy.environments import pool, sessions
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, Reply, ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")


def echo(call: Call) -> str:
    """Root and sub-LM in one: submits what the sub-LM says of the first line of the text."""
    if "REPL" not in call.system:
        return f"<{call.prompt}>"
    return code("SUBMIT(llm_query(text))")


def examples(count: int) -> list[dspy.Example]:
    return [dspy.Example(text=f"text{n}", answer=f"<text{n}>").with_inputs("text") for n in range(count)]


def longest_gap(work: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[Any, float]:
    """The result of ``await work()`` and the longest time, in seconds, that it kept the event loop from turning."""
    gaps = [0.0]

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.002)
            gaps.append(time.perf_counter() - last)
            last = time.perf_counter()

    async def main() -> Any:
        ticking = asyncio.create_task(tick())
        try:
            return await work()
        finally:
            ticking.cancel()

    return asyncio.run(main()), max(gaps)


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
        lambda call: code("print(text[5000])") if call.turn == 0 else code(f"SUBMIT({call.prompt[0]!r})"),
        cache=True,
        model="scripted/middle",
    )
    rlm = RLM("text -> answer", interpreter_factory=sandbox)
    with dspy.context(lm=lm):
        answers = [rlm(text="x" * 5000 + middle + "x" * 5000).answer for middle in "ab"]
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


# ------------------------------------------------------------------------------------------ threads: Evaluate, Parallel


def test_evaluate_in_threads(sandbox: Environment) -> None:
    rlm = RLM("text -> answer", interpreter_factory=sandbox)
    evaluate = dspy.Evaluate(
        devset=examples(12), metric=dspy.evaluate.answer_exact_match, num_threads=6, display_progress=False
    )
    with dspy.context(lm=ScriptedLM(echo)):
        assert evaluate(rlm).score == 100.0


def test_parallel_and_batch(sandbox: Environment) -> None:
    rlm = RLM("text -> answer", interpreter_factory=sandbox)
    with dspy.context(lm=ScriptedLM(echo)):
        parallel = dspy.Parallel(num_threads=4, disable_progress_bar=True)([(rlm, e.inputs()) for e in examples(8)])
        batch = rlm.batch(examples(8), num_threads=4, disable_progress_bar=True)
    assert [p.answer for p in parallel] == [p.answer for p in batch] == [e.answer for e in examples(8)]


def test_threads_leave_no_open_files_behind(
    sandbox: Environment, endpoint: Callable[..., Any], eventually: Callable[..., bool]
) -> None:
    """Each thread has an event loop and connections of its own; they go when the thread goes."""
    server = endpoint(code("SUBMIT('x')") for _ in range(1000))
    rlm = RLM("text -> answer", interpreter_factory=sandbox)
    lm = dspy.LM("openai/m", api_base=server.url, api_key="k", cache=False)

    def round_of_calls() -> None:
        with dspy.context(lm=lm):
            rlm.batch(examples(8), num_threads=8, disable_progress_bar=True)
        pool.close()

    def open_files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    round_of_calls()
    first = open_files()
    for _ in range(4):
        round_of_calls()
    assert eventually(lambda: open_files() <= first + 4), f"{first} open files became {open_files()}"


# ------------------------------------------------------------------------------------------------ tasks, the event loop


def test_asyncify(sandbox: Environment) -> None:
    rlm = dspy.asyncify(RLM("text -> answer", interpreter_factory=sandbox))

    async def main() -> list[Any]:
        return await asyncio.gather(*(rlm(text=f"text{n}") for n in range(4)))

    with dspy.context(lm=ScriptedLM(echo)):
        assert [p.answer for p in asyncio.run(main())] == [f"<text{n}>" for n in range(4)]


def test_aforward_never_blocks_the_loop(sandbox: Environment) -> None:
    """While code computes and sleeps, tools block, sync LMs answer slowly, and a large input crosses."""

    def slow_tool() -> str:
        """Block."""
        time.sleep(0.3)
        return "done"

    def slow_lm(call: Call) -> Reply:
        if "REPL" not in call.system:
            return Reply("sub", delay=0.3)
        first = code("import time; time.sleep(0.3); print(slow_tool(), llm_query('x'))")
        return Reply([first, code("SUBMIT('x')")][call.turn])

    rlm = RLM("text -> answer", tools=[slow_tool], interpreter_factory=sandbox)
    for lm in (ScriptedLM(slow_lm), ScriptedLM(slow_lm, sync_only=True)):
        with dspy.context(lm=lm):
            prediction, gap = longest_gap(lambda: rlm.acall(text="x" * 5_000_000))
        assert prediction.trajectory[0]["output"] == "done sub"
        assert gap < 0.2


def test_gathered_runs_overlap(sandbox: Environment) -> None:
    lm = ScriptedLM(lambda call: code("import time; time.sleep(0.4); SUBMIT(text)"))
    rlm = RLM("text -> answer", interpreter_factory=sandbox)

    async def main() -> list[Any]:
        return await asyncio.gather(*(rlm.acall(text=f"t{n}") for n in range(8)))

    started = time.monotonic()
    with dspy.context(lm=lm):
        predictions = asyncio.run(main())
    assert [p.answer for p in predictions] == [f"t{n}" for n in range(8)]
    assert time.monotonic() - started < 8 * 0.4


def test_sync_call_inside_a_running_loop_as_in_a_notebook(sandbox: Environment) -> None:
    rlm = RLM("text -> answer", interpreter_factory=sandbox)

    async def cell() -> list[Any]:
        with dspy.context(lm=ScriptedLM(echo)):
            return [rlm(text="one").answer, rlm(text="two").answer]

    assert asyncio.run(cell()) == ["<one>", "<two>"]


def test_sync_call_in_a_tool_of_an_async_run(sandbox: Environment) -> None:
    """A child run in a synchronous tool, three deep."""

    def dig(text: str) -> str:
        """Go deeper."""
        return str(deep(text=text).answer)

    deep = RLM("text -> answer", tools=[dig], interpreter_factory=sandbox)

    def policy(call: Call) -> str:
        if "REPL" not in call.system:
            return echo(call)
        return code("SUBMIT(dig(text + '.')) if len(text) < 3 else SUBMIT(llm_query(text))")

    with dspy.context(lm=ScriptedLM(policy)):
        assert asyncio.run(deep.acall(text=".")).answer == "<...>"


@pytest.mark.parametrize("way", ["sync", "async"])
def test_64_nested_synchronous_tools(sandbox: Environment, way: str) -> None:
    """Each waits in a thread for the next; a pool of fixed size would stand still for ever."""
    lock = threading.Lock()
    deepest = 0

    def nest(level: int) -> int:
        """Call itself through DSPy."""
        nonlocal deepest
        with lock:
            deepest = max(deepest, level)
        if level == 64:
            return level
        return int(dspy.Tool(nest)(level=level + 1))

    source = """
import threading
results = []
threads = [threading.Thread(target=lambda: results.append(nest(1))) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
SUBMIT(sum(results))
"""
    rlm = RLM("query -> answer: int", tools=[nest], interpreter_factory=sandbox)
    with dspy.context(lm=ScriptedLM([code(source)])):
        prediction = rlm(query="q") if way == "sync" else asyncio.run(rlm.acall(query="q"))
    assert prediction.answer == 256 and deepest == 64


def test_64_runs_nested_in_tools(sandbox: Environment) -> None:
    """Runs whose tools run children, all at once: none waits for a thread or a session that another one holds."""
    child = RLM("text -> answer", interpreter_factory=sandbox)

    def ask(text: str) -> str:
        """Run a child."""
        return str(child(text=text).answer)

    parent = RLM("query -> answer", tools=[ask], interpreter_factory=sandbox)
    lm = ScriptedLM(lambda call: code("SUBMIT(ask(query))") if "`query`" in call.prompt else echo(call))

    async def main() -> list[Any]:
        return await asyncio.gather(*(parent.acall(query=f"q{n}") for n in range(24)))

    with dspy.context(lm=lm):
        assert [p.answer for p in asyncio.run(main())] == [f"<q{n}>" for n in range(24)]


def test_a_tool_that_runs_many_runs_in_threads(sandbox: Environment) -> None:
    """``dspy.Parallel`` and ``batch`` inside of a tool."""
    child = RLM("text -> answer", interpreter_factory=sandbox)

    def fan_out(count: int) -> list[str]:
        """Run children."""
        done = child.batch(examples(count), num_threads=4, disable_progress_bar=True)
        return [str(prediction.answer) for prediction in done]

    async def asynchronous(text: str) -> str:
        """Await a child."""
        return str((await child.acall(text=text)).answer)

    def policy(call: Call) -> str:
        if "`query`" in call.prompt:
            return code("SUBMIT(fan_out(6) + [asynchronous('last')])")
        return echo(call)

    parent = RLM("query -> answer: list[str]", tools=[fan_out, asynchronous], interpreter_factory=sandbox, max_iters=1)
    with dspy.context(lm=ScriptedLM(policy)), dspy.track_usage() as tracker:
        prediction = parent(query="q")
    assert prediction.answer == [e.answer for e in examples(6)] + ["<last>"]
    assert prediction.usage["lm_calls"] == 1 + 7 * 2
    assert tracker.get_total_tokens() == prediction.usage["by_model"]


def test_concurrent_runs_do_not_see_each_others_context(sandbox: Environment) -> None:
    """Settings and context variables of the caller reach its tools and sub-calls, and nobody else's."""
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")

    def sync_tool() -> str:
        """Who calls?"""
        return f"{who.get()}/{dspy.settings.lm.model}"

    async def async_tool() -> str:
        """Who calls?"""
        return f"{who.get()}/{dspy.settings.lm.model}"

    rlm = RLM("query -> answer: list[str]", tools=[sync_tool, async_tool], interpreter_factory=sandbox)
    source = "SUBMIT([sync_tool(), async_tool(), llm_query('?'), *llm_query_batched(['?'])])"

    async def one(name: str) -> Any:
        who.set(name)
        policy = lambda call: code(source) if "REPL" in call.system else f"{who.get()}/{name}"  # noqa: E731
        with dspy.context(lm=ScriptedLM(policy, model=name)):
            return await rlm.acall(query="q")

    async def main() -> list[Any]:
        return await asyncio.gather(*(one(f"run{n}") for n in range(6)))

    for n, prediction in enumerate(asyncio.run(main())):
        assert prediction.answer == [f"run{n}/run{n}"] * 4
    assert who.get() == "nobody"


# --------------------------------------------------------------------------------------------------------- kinds of LMs


def response(text: str) -> Response:
    return Response(
        id=None, model="m", message=Message.assistant(text), finish_reason="stop", usage=Usage(input_tokens=1)
    )


class Engine:
    """A user's own synchronous engine."""

    def complete(self, request: Request) -> Response:
        text = request.messages[-1].text or ""
        return response(code("SUBMIT(llm_query('sub'))") if "# Variables" in text else "from the engine")


class ForwardOnly(dspy.BaseLM):
    """A user's own LM as DSPy 2 and 3 took it: ``forward`` and nothing else."""

    def __init__(self) -> None:
        super().__init__(model="legacy/lm")
        self.threads: set[str] = set()

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        self.threads.add(threading.current_thread().name)
        text = messages[-1]["content"]
        text = text if isinstance(text, str) else text[0]["text"]
        reply = code("SUBMIT(llm_query('sub'))") if "# Variables" in text else "from forward"
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
    assert prediction.answer == answer


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
    assert [name for name, _ in rlm.named_predictors()] == ["act", "sub.predict", "extract"]


def test_adapters_of_the_user_format_extract(sandbox: Environment) -> None:
    """The configured adapter is kept for the typed fields of ``extract``; the root's dialect stays."""
    lm = ScriptedLM([code("print(1)"), '{"answer": "from json", "n": 4}'])
    rlm = RLM("query -> answer: str, n: int", interpreter_factory=sandbox, max_iters=1)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        prediction = rlm(query="q")
    assert (prediction.answer, prediction.n) == ("from json", 4)
    assert "JSON" in lm.calls[1].prompt and "[[ ##" not in lm.calls[1].prompt


# ------------------------------------------------------------------------------------------------------------- at scale


@pytest.mark.heavy
def test_256_runs_at_once(sandbox: Environment, children: Callable[..., set[int]]) -> None:
    """In one process: all finish, with a bounded number of processes and little memory a run."""
    rlm = RLM("text -> answer", interpreter_factory=sandbox)
    most = 0

    def policy(call: Call) -> Reply:
        nonlocal most
        if "REPL" not in call.system:
            return Reply(f"<{call.prompt}>", delay=0.05)
        if call.number % 32 == 0:
            most = max(most, len(children()))
        return Reply([code("a = llm_query(text)"), code("print(a)"), code("SUBMIT(a)")][call.turn], delay=0.02)

    async def main() -> list[Any]:
        return await asyncio.gather(*(rlm.acall(text=f"t{n}") for n in range(256)))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with dspy.context(lm=ScriptedLM(policy)):
        predictions = asyncio.run(main())
    assert [p.answer for p in predictions] == [f"<t{n}>" for n in range(256)]
    assert 0 < most <= sessions.max_sessions() + 8
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 400, f"{grown:.0f} MiB"

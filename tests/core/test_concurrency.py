"""Runs in threads, in tasks, inside of one another, and many at once."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import resource
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import dspy
import pytest

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
            # A machine that is busy may stop a thread for as long, but not each time.
            gaps = []
            while len(gaps) < 5 and min(gaps, default=1.0) >= 0.2:
                prediction, gap = longest_gap(lambda: rlm.acall(text="x" * 5_000_000))
                gaps.append(gap)
                assert prediction.trajectory[0]["output"] == "done sub"
        assert min(gaps) < 0.2, gaps


def test_gathered_runs_overlap(sandbox: Environment) -> None:
    """All eight are in the middle of their code at one time."""
    meeting = asyncio.Barrier(8)

    async def meet() -> None:
        """Wait for the others."""
        async with asyncio.timeout(60):
            await meeting.wait()

    rlm = RLM("text -> answer", tools=[meet], interpreter_factory=sandbox)

    async def main() -> list[Any]:
        return await asyncio.gather(*(rlm.acall(text=f"t{n}") for n in range(8)))

    with dspy.context(lm=ScriptedLM(lambda call: code("meet(); SUBMIT(text)"))):
        predictions = asyncio.run(main())
    assert [(p.answer, p.usage["turns"]) for p in predictions] == [(f"t{n}", 1) for n in range(8)]


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


# ------------------------------------------------------------------------------------------------------------- at scale


@pytest.mark.heavy
@pytest.mark.alone
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

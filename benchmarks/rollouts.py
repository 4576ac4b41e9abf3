"""Many training rollouts at once in one process: do they mix, does the event loop wait, what memory do they take.

    python -m benchmarks.rollouts [--rollouts 100] [--turns 5] [--sub-calls 4] [--latency 1.0] [--environment local]

Each rollout is an episode of verifiers with a root and sub-calls, in a sandbox of its own; the model is a server in
another process that answers after the given time. An answer is right only if it is made of what that very rollout was
asked. The lag is how much later than asked a timer of 10 ms fires on the event loop that all of them share, beside
their interception servers; on a machine with other work that is theirs too. So the CPU that the loop's own thread used
meanwhile is beside it, which is what held the loop, and that of the whole process, whose other threads may have held
the interpreter. Needs ``pip install 'rlm-dspy[train]'``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import memory

BAR = 0.05
"""Seconds that the event loop should never be late."""
_TICK = 0.01


def _reply(messages: list[dict[str, Any]], turns: int, sub_calls: int) -> str:
    """The model: a root that asks its question in parts and submits what it heard, or a sub-LM that repeats."""
    if "No more code" in messages[-1]["content"] or not any("```" in m["content"] for m in messages):
        return f"heard {messages[-1]['content']}"
    first = max(n for n, m in enumerate(messages) if m["role"] == "user" and "`context`" in m["content"])
    turn = sum(m["role"] == "assistant" for m in messages[first:]) + 1
    if turn >= turns:
        return "```python\nSUBMIT(answer=heard[0])\n```"
    if turn == 1:
        source = f"heard = llm_query_batched([query] + [f'{{query}} {{n}}' for n in range({sub_calls - 1})])"
        return f"```python\n{source}\nprint(len(heard))\n```"
    return f"```python\nprint({turn}, len(context), len(set(context)))\n```"


async def _serve(turns: int, sub_calls: int, latency: float) -> None:
    from aiohttp import web

    async def chat(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        await asyncio.sleep(latency)
        text = _reply(body["messages"], turns, sub_calls)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100}
        about = {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"]}
        return web.json_response({**about, "choices": [choice], "usage": usage})

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2_048)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


@contextlib.contextmanager
def _server(options: argparse.Namespace) -> Iterator[str]:
    shape = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in ("turns", "sub_calls", "latency")]
    command = [sys.executable, "-m", "benchmarks.rollouts", "--serve", *shape]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.stdin.close()
        process.wait(20)


def _resident(pid: int | str = "self") -> int:
    """Bytes of memory that a process has, those that it shares with others by its part."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except OSError:
        return 0


def _below(others: set[int]) -> tuple[int, int]:
    """Memory and number of the processes that this one has started since."""
    found = memory.descendants(os.getpid()) - others
    return sum(map(_resident, found)), len(found)


async def _play(options: argparse.Namespace, url: str) -> int:
    import verifiers.v1 as vf

    harness = {
        "environment": options.environment,
        "signature": "context, query -> answer: str",
        "options": {"guidance": {"check_answers": False}, "max_llm_calls": 1_000},
    }
    subset = {"id": "rlm-dspy-needles", "num_tasks": options.rollouts, "tokens": options.tokens}
    env = vf.load_environment(vf.resolve_env_config({"taskset": subset, "agent": {"harness": harness}}))
    client = vf.EvalClientConfig(base_url=url, api_key_var="RLM_DSPY_NO_KEY")
    context = vf.ModelContext(client=client, model="m", sampling=vf.SamplingConfig())
    lags: list[float] = []
    own: list[float] = []
    process: list[float] = []
    sandboxes: list[tuple[int, int]] = []
    others = memory.descendants(os.getpid())

    async def tick() -> None:
        while True:
            due, held, used = time.perf_counter() + _TICK, time.thread_time(), time.process_time()
            await asyncio.sleep(_TICK)
            lags.append(time.perf_counter() - due)
            own.append(min(lags[-1], time.thread_time() - held))
            process.append(min(lags[-1], time.process_time() - used))

    async def look() -> None:
        while True:
            await asyncio.sleep(options.latency / 2 + 0.2)
            sandboxes.append(await asyncio.to_thread(_below, others))

    async with env.serving():
        chosen = list(env.taskset)
        # One before: imports, the first sandbox.
        await env.run_slot(env.slots(chosen[0], 1)[0], context)
        before = _resident()
        watching = [asyncio.create_task(tick()), asyncio.create_task(look())]
        used, started = time.process_time(), time.perf_counter()
        episodes = await asyncio.gather(*(env.run_slot(env.slots(task, 1)[0], context) for task in chosen))
        took, used = time.perf_counter() - started, time.process_time() - used
        for task in watching:
            task.cancel()
    roots = [trace for episode in episodes for trace in episode.traces if trace.agent.name == "agent"]
    told = [root.info.get("rlm", {}) for root in roots]
    right = sum((one.get("prediction") or {}).get("answer") == f"heard {one.get('query')}" for one in told)
    voids = [error.message for root in roots for error in root.errors]
    for values in (lags, own, process):
        values.sort()
    least = (options.turns + 1) * options.latency
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    most = max(sandboxes, default=(0, 0))
    print(f"{options.rollouts} rollouts at once, {options.turns} turns, {options.sub_calls} sub-calls each:")
    print(f"  right          {right} of {len(roots)}, {len(voids)} void")
    print(f"  wall time      {took:.1f} s; the model alone takes {least:.1f} s; {used:.1f} s of this process's CPU")
    print(f"  loop lag       p50 {_ms(lags, 0.5)}, p99 {_ms(lags, 0.99)}, most {_ms(lags, 1)} (bar {BAR * 1e3:.0f} ms)")
    print(f"  by its own CPU p50 {_ms(own, 0.5)}, p99 {_ms(own, 0.99)}, most {_ms(own, 1)}")
    print(f"  of the process p50 {_ms(process, 0.5)}, p99 {_ms(process, 0.99)}, most {_ms(process, 1)}")
    print(f"  this process   {before / 1e6:.0f} MB before, {peak / 1e6:.0f} MB at its peak")
    print(f"  its sandboxes  {most[0] / 1e6:.0f} MB at their peak, in {most[1]} processes")
    for message in voids[:3]:
        print(f"  void: {message[:300]}")
    return 0 if right == len(roots) == options.rollouts else 1


def _ms(values: list[float], share: float) -> str:
    return f"{values[min(len(values) - 1, int(share * len(values)))] * 1e3:.0f} ms" if values else "-"


def main() -> int:
    """The command; see the top of this module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollouts", description=__doc__.split("\n")[0])
    parser.add_argument("--rollouts", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--sub-calls", type=int, default=4)
    parser.add_argument("--latency", type=float, default=1.0, help="seconds of one reply")
    parser.add_argument("--tokens", type=int, default=4_000, help="of each context")
    parser.add_argument("--environment", default="local")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve(options.turns, options.sub_calls, options.latency))
        return 0
    with _server(options) as url:
        return asyncio.run(_play(options, url))


if __name__ == "__main__":
    sys.exit(main())

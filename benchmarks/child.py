"""One engine doing one work, in a process of its own; prints one JSON line. Started by `benchmarks.run`.

    python -m benchmarks.child ENGINE WORK ADDRESS [REPEATS]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from benchmarks import engines, memory
from benchmarks.work import by_name, context


def main(engine: str, name: str, address: str, repeats: str = "0") -> None:
    """Warm up with the smallest work, then time ``name``; where it is wanted, measure memory in a pass before."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no look for a price list on the network
    work = by_name(name)
    smallest = engines.prepare(engine, by_name("start"), address)
    for _ in range(2):
        smallest.before()
        smallest.run()
    prepared = engines.prepare(engine, work, address)
    result: dict[str, object] = {}
    if work.memory:
        base = memory.growth(smallest.run)
        found = memory.growth(prepared.run)
        result["host_growth"] = found.host
        result["workers_growth"] = max(0, found.workers - base.workers)
    seconds, cpu = [], []
    for _ in range(int(repeats) or work.repeats):
        prepared.before()
        started, used = time.perf_counter(), time.process_time()
        prepared.run()
        cpu.append(time.process_time() - used)
        seconds.append(time.perf_counter() - started)
    if engine == "ours" and work.context > 1_000_000:
        result["transfer"] = _transfer(work.context)
    print(json.dumps({"seconds": seconds, "cpu": cpu, **result}))


def _transfer(characters: int) -> float:
    """Seconds that a context of that size takes into a sandbox which is open already; the least of three."""
    from rlm_dspy import environments

    text = context(characters)

    async def once() -> float:
        session = environments.local()()
        await session.open()
        try:
            started = time.perf_counter()
            await session.set({"context": text})
            return time.perf_counter() - started
        finally:
            await session.close()

    return min(asyncio.run(once()) for _ in range(3))


if __name__ == "__main__":
    main(*sys.argv[1:])

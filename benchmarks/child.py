"""One engine doing one work, in a process of its own, a run at a time. Started by `benchmarks.process`.

    python -m benchmarks.child ENGINE WORK-AS-JSON ADDRESS

It warms up, says ``{"ready": ...}``, and then answers each line of its standard input with one line of JSON:
``memory`` (a run that is watched), ``run`` (a run that is timed), ``transfer``. It ends when its standard input does.
Whatever goes wrong is answered as ``{"reason": ...}``.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import engines, memory
from benchmarks.work import SMALLEST, Work, context, from_json

_PACKAGES = {"bare": "dspy", "rlms": "rlms", "dspy": "dspy", "ours": "rlm-dspy"}


def main(engine: str, work: str, address: str) -> None:
    """Serve until the standard input ends."""
    # The engines may print, or swap what they print to; the answers have a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(about: Callable[[], dict[str, Any]]) -> bool:
        try:
            answers.write(json.dumps(about()) + "\n")
        except BaseException as error:
            text = " ".join(str(error).split())[:300]
            answers.write(json.dumps({"reason": f"{type(error).__name__}: {text}"}) + "\n")
            return False
        return True

    player: list[_Player] = []

    def ready() -> dict[str, Any]:
        player.append(_Player(engine, from_json(work), address))
        return {"ready": f"{_PACKAGES[engine]} {importlib.metadata.version(_PACKAGES[engine])}"}

    if not answer(ready):
        return
    requests: dict[str, Callable[[], dict[str, Any]]] = {
        "memory": player[0].memory,
        "run": player[0].run,
        "transfer": player[0].transfer,
    }
    for line in sys.stdin:
        if not answer(requests[line.strip()]):
            return


class _Player:
    """An engine that has warmed up with the smallest work."""

    def __init__(self, engine: str, work: Work, address: str) -> None:
        self._work = work
        self._smallest = engines.prepare(engine, SMALLEST, address)
        for _ in range(2):
            self._smallest.before()
            self._smallest.run()
        self._prepared = engines.prepare(engine, work, address)
        memory.settle()

    def memory(self) -> dict[str, Any]:
        """One run, watched. Of workers that are started for it, what the smallest work needs is taken off."""
        warm = not self._work.cold
        base = 0 if warm else memory.growth(self._smallest.run).workers
        self._prepared.before()
        used = time.process_time()
        found = memory.growth(self._prepared.run, warm=warm)
        used = time.process_time() - used
        memory.settle()
        return {
            "host_growth": found.host,
            "workers_growth": max(0, found.workers - base),
            "workers_cpu": found.workers_cpu,
            "watched_seconds": found.seconds,
            "watched_cpu": used,
        }

    def run(self) -> dict[str, Any]:
        """One run, timed."""
        self._prepared.before()
        memory.settle()
        used, started = time.process_time(), time.perf_counter()
        self._prepared.run()
        seconds, used = time.perf_counter() - started, time.process_time() - used
        memory.settle()  # what is left of it would slow whoever comes next
        return {"seconds": seconds, "cpu": used}

    def transfer(self) -> dict[str, Any]:
        """Seconds that the context takes into a sandbox which is open already; the least of three."""
        from rlm_dspy import environments

        text = context(self._work.context)

        async def once() -> float:
            session = environments.local()()
            await session.open()
            try:
                started = time.perf_counter()
                await session.set({"context": text})
                return time.perf_counter() - started
            finally:
                await session.close()

        return {"transfer": min(asyncio.run(once()) for _ in range(3))}


if __name__ == "__main__":
    main(*sys.argv[1:])

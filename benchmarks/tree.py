"""A tree of RLMs: each run starts as many children as the tree is wide, and adds up what they say.

    python -m benchmarks.tree [--levels N] [--width N]      one JSON object

The LM is scripted and in the same process, so that what is left is the engine's: sandboxes, gates, the ledger, events.
It takes 50 ms for a reply, as long as it takes to see how many calls are made at once. It is measured in a process of
its own, see `measured`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from typing import Any

from benchmarks import memory
from benchmarks.process import ROOT

LEVELS, WIDTH = 3, 8
"""Of the row in the table: 1 + 8 + 64 + 512 runs."""
LM_SECONDS = 0.05
LIMIT = 300.0
"""Seconds that it may take."""

SOURCE = """\
children = rlm_query_batched([f"part {n}" for n in range(WIDTH)]) if budget()["depth"] else []
SUBMIT(str(1 + sum(map(int, children))))"""


def runs(levels: int = LEVELS, width: int = WIDTH) -> int:
    """How many runs the tree has."""
    return sum(width**level for level in range(levels + 1))


def most_sandboxes(levels: int, width: int, most: int) -> int:
    """How many sandboxes may be open at once, where ``most`` children of each depth are."""
    return sum(min(most, width**level) for level in range(levels + 1))


def measured(levels: int = LEVELS, width: int = WIDTH, limit: float = LIMIT) -> dict[str, Any]:
    """What `main` prints, or ``{"reason": ...}``."""
    command = [sys.executable, "-m", "benchmarks.tree", "--levels", str(levels), "--width", str(width)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"reason": f"stopped, not done within {limit:.0f} s"}
    if done.returncode != 0:
        return {"reason": f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1][:300]}"}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def once(levels: int, width: int) -> dict[str, Any]:
    """Run the tree once, and see what it takes."""
    import dspy

    from rlm_dspy import RLM, environments, subscribe
    from rlm_dspy.testing import Call, Reply, ScriptedLM, code

    lock = threading.Lock()
    now = most = 0

    def policy(call: Call) -> Reply:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        # Here and not by the reply's delay, so that it is counted.
        time.sleep(LM_SECONDS)
        with lock:
            now -= 1
        return Reply(code(SOURCE.replace("WIDTH", str(width))))

    def program(max_depth: int) -> RLM:
        return RLM(
            "query -> answer: str",
            interpreter=environments.local(),
            max_depth=max_depth,
            max_llm_calls=None,
            guidance=False,
        )

    open_now: set[str] = set()
    sandboxes = 0

    def watch(event: Any, run: Any) -> None:
        nonlocal sandboxes
        if event.kind == "session_opened":
            open_now.add(run.id)
            sandboxes = max(sandboxes, len(open_now))
        elif event.kind == "run_ended":
            open_now.discard(run.id)

    found: list[Any] = []

    def run() -> None:
        found.append(program(levels + 1)(query="all of it"))

    with dspy.context(lm=ScriptedLM(policy)):
        program(1)(query="all of it")  # imports, and what is looked up once
        most = 0
        used, started = time.process_time(), time.perf_counter()
        with subscribe(watch):
            grown = memory.growth(run)
        seconds, used = time.perf_counter() - started, time.process_time() - used
    (prediction,) = found
    usage, limits = prediction.usage, program(1).limits
    assert prediction.outcome == "submitted" and int(prediction.answer) == runs(levels, width), prediction
    assert usage["children"] + 1 == usage["lm_calls"] == runs(levels, width)
    assert most <= limits.max_concurrency
    return {
        "seconds": [seconds],
        "cpu": [used],
        "runs": runs(levels, width),
        "sandboxes": sandboxes,
        "most_sandboxes": most_sandboxes(levels, width, limits.max_children),
        "processes": grown.processes,
        "host_growth": grown.host,
        "workers_growth": grown.workers,
        "workers_cpu": grown.workers_cpu,
        "in_flight": most,
        "width": limits.max_concurrency,
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure in this process, and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tree", description="Measure a tree of RLMs.")
    parser.add_argument("--levels", type=int, default=LEVELS, help="levels below the root")
    parser.add_argument("--width", type=int, default=WIDTH, help="children of a run")
    options = parser.parse_args(arguments)
    print(json.dumps(once(options.levels, options.width)))


if __name__ == "__main__":
    main()

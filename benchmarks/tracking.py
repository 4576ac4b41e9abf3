"""What tracking in MLflow costs: the same runs with it off and on, taking turns.

    python -m benchmarks.tracking [--repeats 7]      exit status 1 if a bar is not met
    python -m benchmarks.engine --only tracking      the same as rows of the table

A run has 21 turns and 200 sub-calls, at once or one after the other, on a server that answers at once: what is left is
the engine's own time, of which tracking is the largest share that it can be. Every run of either kind begins when what
the one before left behind is written. The store is a SQLite file in a temporary folder. What the exporter does after a
run is not part of the run, and printed beside it. The second part is how much a large input adds to the store, and the
third by how much more this process grows with tracking on than with it off, over a short input and over a large one.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dspy

from benchmarks import server
from benchmarks.engines import Engine
from benchmarks.engines.ours import prepare
from benchmarks.memory import growth
from benchmarks.work import Work
from rlm_dspy import tracking

BAR = 1.25
"""How long a run may take with tracking on, over its time with it off."""
STORE_BAR = 100_000
"""Bytes that an input of 100 MB may add to the store, over those of a short one."""
MEMORY_BAR = 10_000_000
"""Bytes that this process may grow by more over a large input than over a short one, because of tracking."""
SHORT, LARGE = 1_000_000, 100_000_000
TURNS, SUB_CALLS = 21, 200
TRACKED = (
    Work("batch", f"{TURNS} turns, {SUB_CALLS} sub-calls at once", turns=TURNS, batch=SUB_CALLS, cold=False),
    Work("serial", f"{TURNS} turns, {SUB_CALLS} sub-calls one by one", turns=TURNS, serial=SUB_CALLS, cold=False),
)


def once(engine: Engine) -> float:
    """Seconds of one run."""
    engine.before()
    started = time.perf_counter()
    engine.run()
    return time.perf_counter() - started


def overhead(work: Work, address: str, repeats: int, uri: str) -> float:
    """Time with tracking on over that with it off: of the medians. Printed with the rest."""
    engine = prepare(work, address)
    took: dict[bool, list[float]] = {False: [], True: []}
    cpu: dict[bool, list[float]] = {False: [], True: []}
    written: list[float] = []
    tracking.enable("benchmark", uri)
    callbacks = dspy.settings.callbacks
    for number in range(repeats + 1):
        for on in (False, True) if number % 2 else (True, False):
            used = time.process_time()
            with dspy.context(callbacks=callbacks if on else []):
                seconds = once(engine)
            used = time.process_time() - used
            started = time.perf_counter()
            tracking.flush()
            if number:  # the first of each warms up
                took[on].append(seconds)
                cpu[on].append(used)
                if on:
                    written.append(time.perf_counter() - started)
    tracking.disable()
    ratio = statistics.median(took[True]) / statistics.median(took[False])
    least = min(took[True]) / min(took[False])
    off, on_ = (f"{statistics.median(took[on]):.2f} s (least {min(took[on]):.2f})" for on in (False, True))
    spent = statistics.median(cpu[True]) / statistics.median(cpu[False])
    print(
        f"{work.title}: off {off}, on {on_}: {ratio:.2f} × (of the least {least:.2f} ×, processor time {spent:.2f} ×), "
        f"then {statistics.median(written):.2f} s to write what is left"
    )
    return ratio


def added(address: str, folder: Path) -> int:
    """Bytes that the store of a run over a large input has more than that of one over a short input."""
    sizes = []
    for characters in (1_000, LARGE):
        work = Work("large", "one run", turns=2, context=characters, cold=False)
        file = folder / f"{characters}.db"
        tracking.enable("benchmark", f"sqlite:///{file}")
        engine = prepare(work, address)
        before = _bytes(folder)
        seconds = once(engine)
        tracking.flush()
        sizes.append(_bytes(folder) - before)
        print(f"an input of {characters:,} characters: {seconds:.2f} s, {sizes[-1]:,} bytes in the store")
        tracking.disable()
    return sizes[1] - sizes[0]


def grown(address: str, folder: Path) -> int:
    """Bytes that tracking takes of this process over a large input, less those over a short one."""
    more = []
    tracking.enable("benchmark", f"sqlite:///{folder}/memory.db")
    callbacks = dspy.settings.callbacks
    for characters in (SHORT, LARGE):
        engine = prepare(Work("large", "one run", turns=2, context=characters, cold=False), address)
        took: dict[bool, list[int]] = {False: [], True: []}
        for number in range(4):
            for on in (False, True):
                with dspy.context(callbacks=callbacks if on else []):
                    engine.before()
                    host = growth(functools.partial(_whole, engine)).host
                if number:  # the first of each warms up
                    took[on].append(host)
        more.append(min(took[True]) - min(took[False]))
        print(f"an input of {characters:,} characters: {more[-1] / 1e6:.1f} MB more of this process with tracking on")
    tracking.disable()
    return more[1] - more[0]


def _whole(engine: Engine) -> None:
    engine.run()
    tracking.flush()


def measured(repeats: int = 3) -> dict[str, Any]:
    """All of it as a result of the table; ``{"reason": …}`` where MLflow is not installed."""
    if importlib.util.find_spec("mlflow") is None:
        return {"reason": "mlflow is not installed"}
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with tempfile.TemporaryDirectory() as folder, server.running() as address:
        ratios = {work.name: overhead(work, address, repeats, f"sqlite:///{folder}/mlflow.db") for work in TRACKED}
        return {"ratios": ratios, "stored": added(address, Path(folder)), "memory": grown(address, Path(folder))}


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(argv: list[str] | None = None) -> int:
    """Measure and print; 1 where a bar is not met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracking", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each kind")
    repeats = parser.parse_args(argv).repeats
    found = measured(repeats)
    if "reason" in found:
        print(found["reason"], file=sys.stderr)
        return 1
    ratio, more, memory = max(found["ratios"].values()), found["stored"], found["memory"]
    print(f"bars: {ratio:.2f} × ≤ {BAR} ×; for 100 MB {more:,} bytes in the store < {STORE_BAR:,}, ", end="")
    print(f"{memory / 1e6:.1f} MB in memory ≤ {MEMORY_BAR / 1e6:.0f} MB")
    return int(ratio > BAR or more >= STORE_BAR or memory > MEMORY_BAR)


if __name__ == "__main__":
    sys.exit(main())

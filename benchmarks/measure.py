"""Who is measured when: engines take turns, so that a machine that changes its pace changes it for all."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import server
from benchmarks.process import ROOT, START_LIMIT, Process
from benchmarks.work import Work

BENCH_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
PEERS = ("rlms", "dspy")
"""The engines of the other environment."""

Result = dict[str, Any]
"""Of one engine and work: ``seconds`` and ``cpu`` of each repeat, what else was measured, or a ``reason``."""


def say(text: str) -> None:
    """Progress, for who waits."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Clock:
    """How much time is left.

    Args:
        minutes: In all, from now.
    """

    minutes: float
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.minutes * 60

    def left(self) -> float:
        """Seconds, 0 when it is up."""
        return max(0.0, self._end - time.monotonic())


def measure(
    work: Work, engines: Sequence[str], address: str, clock: Clock, versions: dict[str, str]
) -> dict[str, Result]:
    """Every engine does ``work``, a run each in turn, and in another order each time.

    Args:
        work: What to do; what an engine skips is left out.
        engines: Which.
        address: Of the server.
        clock: No run is begun when it is up, none lasts longer.
        versions: What each engine turned out to be is put in here.

    Returns:
        By engine; without those for which there was no time left.
    """
    reasons = dict(work.skip)
    chosen = [name for name in engines if name not in reasons and not (name == "bare" and work.record)]
    found: dict[str, Result] = {}
    for name in [name for name in chosen if name in PEERS and not BENCH_PYTHON.exists()]:
        found[name] = {"reason": "not measured: there is no .venv-bench; `make bench` makes it"}
    chosen = [name for name in chosen if name not in found]
    # Points of a curve may need most of the memory, and differ by far more than the machine does.
    groups = [[name] for name in chosen] if work.curve else [chosen]
    for group in groups:
        with contextlib.ExitStack() as stack:
            players = {name: stack.enter_context(_start(name, work, address)) for name in group}
            for name, player in players.items():
                version = player.ready(min(START_LIMIT, clock.left()))
                if version is not None:
                    versions[name] = version
            found |= _rounds(work, players, clock)
    if work.record:
        for name in found:
            found[name] |= server.prefixes(address).get(work.root_model(name), {})
    return found


def _start(name: str, work: Work, address: str) -> Process:
    return Process(str(BENCH_PYTHON) if name in PEERS else sys.executable, name, work, address)


def _rounds(work: Work, players: dict[str, Process], clock: Clock) -> dict[str, Result]:
    results: dict[str, Result] = {name: {"seconds": [], "cpu": []} for name in players}
    spent = dict.fromkeys(players, 0.0)

    def ask(name: str, request: str, then: Callable[[Result, Result], None]) -> None:
        began = time.monotonic()
        answer = players[name].ask(request, max(0.1, min(work.limit, clock.left())))
        spent[name] += time.monotonic() - began
        if answer is not None:
            then(results[name], answer)

    if work.memory:
        for name in players:
            ask(name, "memory", lambda result, answer: _watched(result, answer, work))
    for turn in range(1 if work.record else work.repeats):
        names = list(players)
        order = names[turn % len(names) :] + names[: turn % len(names)] if names else []
        for name in order:
            if clock.left() > 0 and not (spent[name] > work.enough and results[name]["seconds"]):
                ask(name, "run", _timed)
    if "ours" in players and work.context > 1_000_000 and not work.curve:
        ask("ours", "transfer", lambda result, answer: result.update(answer))
    found: dict[str, Result] = {}
    for name, result in results.items():
        if result["seconds"]:
            found[name] = result
            if players[name].reason and clock.left() > 0:
                result["note"] = f"after {len(result['seconds'])} of {work.repeats} repeats: {players[name].reason}"
        elif clock.left() > 0:
            found[name] = {"reason": players[name].reason or "not measured"}
    return found


def _timed(result: Result, answer: Result) -> None:
    result["seconds"].append(answer["seconds"])
    result["cpu"].append(answer["cpu"])


def _watched(result: Result, answer: Result, work: Work) -> None:
    seconds, cpu = answer.pop("watched_seconds"), answer.pop("watched_cpu")
    result.update(answer)
    # A point that takes so long is not done again for the sake of the little that watching takes.
    if work.curve and seconds > work.enough:
        result["seconds"].append(seconds)
        result["cpu"].append(cpu)


def short(result: Result | None) -> str:
    """A result in a few words."""
    if result is None:
        return "no time left"
    if "seconds" not in result:
        return str(result["reason"])
    return " ".join(f"{seconds:.3f}" for seconds in result["seconds"]) + " s"

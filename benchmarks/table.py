"""The table: what was measured, the bars, and whether they are met."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.engines import ENGINES
from benchmarks.work import WORKS, Work

Results = Mapping[tuple[str, str], Mapping[str, Any]]
"""By engine and work: what `benchmarks.child` printed, or ``{"reason": why there is nothing}``."""

HEAD = ("work", "bare", "rlms", "dspy.RLM", "ours", "bar", "met")


@dataclass(frozen=True)
class Machine:
    """Numbers of the machine itself, seconds: a bare sandbox (None without one) and the command's ``--help``."""

    sandbox: float | None
    help: float


def best(results: Results, engine: str, work: str) -> float | None:
    """The least time of an engine for a work, seconds; None where there is none."""
    seconds = results.get((engine, work), {}).get("seconds")
    return min(seconds) if seconds else None


def rows(results: Results, machine: Machine) -> list[tuple[str, ...]]:
    """All lines of the table, as `HEAD`."""
    found: list[tuple[str, ...]] = []
    for work in WORKS:
        if not any((engine, work.name) in results for engine in ENGINES):
            continue
        found.append(_row(work, results, machine))
        ours = results.get(("ours", work.name), {})
        if "host_growth" in ours:
            grown = (ours["host_growth"] + ours["workers_growth"]) / work.context
            cells = [_growth(results.get((engine, work.name), {})) for engine in ENGINES]
            found.append(("- growth, host + worker", *cells, "≤ 4 × the context", _met(grown, 4)))
        if "cpu" in ours and work.batch:
            cells = [_cpu(results.get((engine, work.name), {}), work.batch) for engine in ENGINES]
            used = min(ours["cpu"]) / work.batch
            found.append(("- CPU a sub-call, host", *cells, "goal 2 ms", _met(used, 0.002)))
    found.append(("rlm-dspy --help", "", "", "", f"{machine.help:.2f} s", "≤ 0.3 s", _met(machine.help, 0.3)))
    return found


def markdown(lines: list[tuple[str, ...]]) -> str:
    """The table as Markdown, columns aligned."""
    every = [HEAD, *lines]
    widths = [max(len(line[column]) for line in every) for column in range(len(HEAD))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in every]
    shown = [f"| {' | '.join(cells)} |" for cells in padded]
    shown.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(shown)


def _row(work: Work, results: Results, machine: Machine) -> tuple[str, ...]:
    ours, bare = best(results, "ours", work.name), best(results, "bare", work.name)
    if work.record:
        cells = [_prefix(results.get((engine, work.name), {})) for engine in ENGINES]
        reused = results.get(("ours", work.name), {}).get("reused")
        return (work.title, *cells, "≥ 0.97, as messages", "" if reused is None else "yes" if reused >= 0.97 else "NO")
    cells = [_time(results.get((engine, work.name), {})) for engine in ENGINES]
    text, bar = _bar(work.name, bare, results, machine)
    return (work.title, *cells, text, "" if bar is None or ours is None else _met(ours, bar))


def _bar(name: str, bare: float | None, results: Results, machine: Machine) -> tuple[str, float | None]:
    """What ours must not be above: in words with its value, and the value."""
    if name == "context":
        return "≤ 0.8 s", 0.8
    if bare is None:
        return "", None
    if name == "start":
        if machine.sandbox is None:
            return "no bwrap here", None
        return _said("bare + 1.5 × bwrap python -I", bare + 1.5 * machine.sandbox)
    if name == "pooled":
        return _said("bare + 0.01 s", bare + 0.01)
    if name == "turns":
        started, once = best(results, "ours", "start"), best(results, "bare", "start")
        transfer = results.get(("ours", "turns"), {}).get("transfer")
        if started is None or once is None or transfer is None:
            return "needs start", None
        return _said("1.2 × bare + one start + one transfer", 1.2 * bare + (started - once) + transfer)
    factor = 1.2 if name == "runs" else 1.1
    return _said(f"{factor} × bare", factor * bare)


def _said(words: str, bar: float) -> tuple[str, float]:
    return f"≤ {words} = {bar:.3g} s", bar


def _met(value: float, bar: float) -> str:
    """Whether, and how much of the bar is used up."""
    return f"{'yes' if value <= bar else 'NO'} ({value / bar:.2f} ×)"


def _time(result: Mapping[str, Any]) -> str:
    if "seconds" not in result:
        return "–"
    return f"{min(result['seconds']):.3g} ({statistics.median(result['seconds']):.3g}) s"


def _growth(result: Mapping[str, Any]) -> str:
    if "host_growth" not in result:
        return ""
    return f"{result['host_growth'] / 1e6:.0f} + {result['workers_growth'] / 1e6:.0f} MB"


def _cpu(result: Mapping[str, Any], calls: int) -> str:
    return f"{min(result['cpu']) / calls * 1000:.1f} ms" if "cpu" in result else ""


def _prefix(result: Mapping[str, Any]) -> str:
    return f"{result['reused']:.2f}, {result['messages']} messages" if "reused" in result else ""

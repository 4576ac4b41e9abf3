"""The table of the bars: what was measured, what ours must not be above, and whether it is."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.engines import ENGINES
from benchmarks.store import Results
from benchmarks.work import WORKS, Work

HEAD = ("work", "bare", "rlms", "dspy.RLM", "ours", "bar", "met")

HELP = "help"
"""The row that no engine does: how long the command takes to say what it can."""


TREE = "tree"
"""The row of a tree of runs, which no other engine has; see `benchmarks.tree`."""
TRACKING = "tracking"
"""The rows of tracking in MLflow, which no other engine has; see `benchmarks.tracking`."""


def best(results: Results, engine: str, work: str) -> float | None:
    """The least time of an engine for a work, seconds; None where there is none."""
    seconds = results.get((engine, work), {}).get("seconds")
    return min(seconds) if seconds else None


def rows(results: Results) -> list[tuple[str, ...]]:
    """All lines of the table, as `HEAD`."""
    found: list[tuple[str, ...]] = []
    for work in WORKS:
        if not any((engine, work.name) in results for engine in ENGINES):
            continue
        found.append(_row(work, results))
        ours = results.get(("ours", work.name), {})
        if work.memory:
            cells = [growth(results.get((engine, work.name), {})) for engine in ENGINES]
            grown = grown_by(ours, work)
            found.append(("- growth, host + worker", *cells, "≤ 4 × the context", _met(grown, 4)))
        if work.batch:
            cells = [_cpu(results.get((engine, work.name), {}), work.batch) for engine in ENGINES]
            used = min(ours["cpu"]) / work.batch if ours.get("cpu") else None
            found.append(("- CPU a sub-call, host", *cells, "goal 2 ms", _met(used, 0.002)))
    took = best(results, "ours", HELP)
    if took is not None:
        found.append(("rlm-dspy --help", "", "", "", _time(results["ours", HELP]), "≤ 0.3 s", _met(took, 0.3)))
    if best(results, "ours", TREE) is not None:
        found += _tree(results["ours", TREE])
    if "ratios" in results.get(("ours", TRACKING), {}):
        found += _tracking(results["ours", TRACKING])
    return found


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table as Markdown, columns aligned."""
    every = [head, *lines]
    widths = [max(len(line[column]) for line in every) for column in range(len(head))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in every]
    shown = [f"| {' | '.join(cells)} |" for cells in padded]
    shown.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(shown)


def bar(name: str, results: Results) -> tuple[str, float | None]:
    """What ours must not be above in the work ``name``, seconds: in words with its value, and the value."""
    if name == "context":
        return "≤ 0.8 s", 0.8
    bare = best(results, "bare", name)
    if bare is None:
        return "needs bare", None
    if name == "start":
        sandbox = results.get(("ours", name), {}).get("sandbox")
        if sandbox is None:
            return "no bwrap here", None
        return _said("bare + 1.5 × bwrap python -I", bare + 1.5 * sandbox)
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


def grown_by(result: Mapping[str, Any], work: Work) -> float | None:
    """By how many times the context host and worker grew; None if it was not measured."""
    if "host_growth" not in result:
        return None
    return float(result["host_growth"] + result["workers_growth"]) / work.context


def growth(result: Mapping[str, Any]) -> str:
    """How far host and worker grew, in words."""
    if "host_growth" not in result:
        return ""
    return f"{result['host_growth'] / 1e6:.0f} + {result['workers_growth'] / 1e6:.0f} MB"


def _row(work: Work, results: Results) -> tuple[str, ...]:
    if work.record:
        cells = [_prefix(results.get((engine, work.name), {})) for engine in ENGINES]
        reused = results.get(("ours", work.name), {}).get("reused")
        return (work.title, *cells, "≥ 0.97, as messages", "" if reused is None else "yes" if reused >= 0.97 else "NO")
    cells = [_time(results.get((engine, work.name), {})) for engine in ENGINES]
    text, most = bar(work.name, results)
    ours = best(results, "ours", work.name)
    return (work.title, *cells, text, "" if most is None else _met(ours, most))


def _own(name: str, value: str, bound: str = "", met: str = "") -> tuple[str, ...]:
    """A row that no other engine has."""
    return (name, "", "", "", value, bound, met)


def _tracking(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The rows of tracking: what it takes of a run, of the store and of memory."""
    ratios, stored, memory = result["ratios"], max(0, result["stored"]), max(0, result["memory"])
    return [
        _own(
            f"tracking on: 21 turns, 200 sub-calls, {how}",
            f"{ratios[name]:.2f} × off",
            "≤ 1.25 ×",
            _met(ratios[name], 1.25),
        )
        for name, how in (("batch", "at once"), ("serial", "one by one"))
    ] + [
        _own("- 100 MB of input, in the store", f"{stored / 1e3:.1f} KB", "< 100 KB", _met(stored, 1e5)),
        _own("- and in memory, over that of 1 MB", f"{memory / 1e6:.1f} MB", "≤ 10 MB", _met(memory, 1e7)),
    ]


def _tree(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The rows of the tree: how long it takes, and that it takes no more of anything than its limits say."""
    row = _own
    boxes, most = result["sandboxes"], result["most_sandboxes"]
    calls, width = result["in_flight"], result["width"]
    return [
        row(f"a tree of {result['runs']} runs, each of 50 ms", _time(result)),
        row("- sandboxes at once", f"{boxes}, {result['processes']} processes", f"≤ {most}", _met(boxes, most)),
        row("- LM calls at once", str(calls), f"≤ {width}", _met(calls, width)),
        row("- growth, host + workers", growth(result)),
        row("- CPU, host + workers", f"{min(result['cpu']):.3g} + {result['workers_cpu']:.3g} s"),
    ]


def _said(words: str, most: float) -> tuple[str, float]:
    return f"≤ {words} = {most:.3g} s", most


def _met(value: float | None, most: float) -> str:
    """Whether, and how much of the bar is used up."""
    return "" if value is None else f"{'yes' if value <= most else 'NO'} ({value / most:.2f} ×)"


def _time(result: Mapping[str, Any]) -> str:
    if "seconds" not in result:
        return "–"
    return f"{min(result['seconds']):.3g} ({statistics.median(result['seconds']):.3g}) s"


def _cpu(result: Mapping[str, Any], calls: int) -> str:
    return f"{min(result['cpu']) / calls * 1000:.1f} ms" if result.get("cpu") else ""


def _prefix(result: Mapping[str, Any]) -> str:
    return f"{result['reused']:.2f}, {result['messages']} messages" if "reused" in result else ""

"""RESULTS.md, made of results.json alone: the bars, the curves, and under what circumstances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import table
from benchmarks.curves import CURVES, Curve, label
from benchmarks.engines import ENGINES, TITLES
from benchmarks.store import Store
from benchmarks.work import WORKS


def whole(store: Store, plots: Path) -> str:
    """The file.

    Args:
        store: Everything that was ever kept.
        plots: The folder with the plots, beside the file; those that are there are shown.
    """
    parts = ["# Results", ""]
    parts += ["Made by `make bench`, see [README.md](README.md); the numbers are in `results.json`.", ""]
    if text := bars(store):
        parts += ["## The bars", "", text, ""]
        if (plots / "bars.svg").exists():
            parts += ["![The bars](plots/bars.svg)", ""]
    if text := curves(store, plots):
        parts += ["## Scaling", "", text, ""]
    return "\n".join(parts)


def bars(store: Store) -> str:
    """The table of the bars, with what it was measured on; empty when there is nothing."""
    lines = table.rows(store.results)
    if not lines:
        return ""
    names = {work.name: work.title for work in WORKS}
    names |= {table.HELP: "rlm-dspy --help", table.TREE: "tree", table.TRACKING: "tracking"}
    parts = [*_sessions(store, names), ""]
    parts += ["Least (median) of the repeats; the engines took turns, each in a process of its own.", ""]
    parts.append(table.markdown(table.HEAD, lines))
    parts += _remarks(store, names)
    return "\n".join(parts)


def curves(store: Store, plots: Path | None = None) -> str:
    """A table and, where it has been drawn, a plot of each curve; empty when there is nothing."""
    names = {point.name: point.title for curve in CURVES for point in curve.points}
    if not any(work in names for _, work in store.results):
        return ""
    parts = [*_sessions(store, names), ""]
    parts += ["Each cell: the least time · growth of host + workers · processor time of host + workers.", ""]
    for curve in CURVES:
        lines = list(_points(store, curve))
        if not lines:
            continue
        parts += [f"### {curve.title}", ""]
        if plots is not None and (plots / f"{curve.name}.svg").exists():
            parts += [f"![{curve.title}](plots/{curve.name}.svg)", ""]
        parts += [table.markdown((curve.axis, *(TITLES[engine] for engine in ENGINES)), lines), ""]
    parts += _remarks(store, names)
    return "\n".join(parts).rstrip()


def _points(store: Store, curve: Curve) -> Iterable[tuple[str, ...]]:
    for point in curve.points:
        found = [store.results.get((engine, point.name)) for engine in ENGINES]
        if any(found):
            yield (label(curve.name, point.size), *(_cell(result) for result in found))


def _cell(result: Mapping[str, Any] | None) -> str:
    if result is None or "seconds" not in result:
        return "–"
    parts = [f"{min(result['seconds']):.3g} s", table.growth(result)]
    if "workers_cpu" in result:
        parts.append(f"{min(result['cpu']):.2g} + {result['workers_cpu']:.2g} s")
    return " · ".join(part for part in parts if part)


def _sessions(store: Store, names: Mapping[str, str]) -> list[str]:
    """When, by which command, on what. If not all was measured at once: what is from when."""
    found = list(store.of(names))
    lines = []
    for date, works in found:
        about = store.sessions[date]
        lines.append(f"- {date}, `{about['command']}`" + (f", at {about['commit']}" if about.get("commit") else ""))
        lines.append(f"  - {about['machine']}")
        lines += [f"  - {about[key]}" for key in ("noise", "starts") if key in about]
        versions = [f"{TITLES[name]}: {version}" for name, version in about.get("versions", {}).items()]
        if versions:
            lines.append(f"  - {', '.join(versions)}")
        if len(found) > 1:
            lines.append(f"  - measured then: {'; '.join(names[work] for work in works)}")
    return lines


def _remarks(store: Store, names: Mapping[str, str]) -> list[str]:
    """Why what is not there is not there. One line for what is said of many points."""
    said: dict[tuple[str, str], list[str]] = {}
    for name, title in names.items():
        for engine in ENGINES:
            result = store.results.get((engine, name), {})
            for word in ("reason", "note"):
                if word in result:
                    said.setdefault((engine, result[word]), []).append(title)
    lines = [f"- {TITLES[engine]}, {', '.join(titles)}: {reason}" for (engine, reason), titles in said.items()]
    return ["", *lines] if lines else []

"""The plots, drawn from results.json by the environment of the peers, which has matplotlib.

    python -m benchmarks.plots FOLDER      reads FOLDER/results.json, writes FOLDER/plots/*.svg
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib  # type: ignore[import-not-found, unused-ignore]

from benchmarks import table
from benchmarks.curves import CURVES, Curve, label
from benchmarks.engines import ENGINES, TITLES
from benchmarks.store import Results, Store
from benchmarks.work import WORKS

matplotlib.use("svg")

from matplotlib import pyplot, ticker  # type: ignore[import-not-found, unused-ignore]

# Told apart also by those who see no red or green (Okabe and Ito's palette).
COLOURS = {"bare": "#7f7f7f", "rlms": "#009e73", "dspy": "#d55e00", "ours": "#0072b2"}
MARKERS = {"bare": "D", "rlms": "s", "dspy": "^", "ours": "o"}

PANELS: tuple[tuple[str, str, Callable[[Mapping[str, Any]], float | None]], ...] = (
    ("wall time", "s", lambda result: min(result["seconds"])),
    ("memory: growth of host + workers", "MB", lambda result: _memory(result)),
    ("processor time: host + workers", "s", lambda result: min(result["cpu"]) + result.get("workers_cpu", 0)),
)

SMALLEST_MB = 1.0
"""Less than this is noise of the allocator; it is drawn as this."""


def main(folder: str) -> None:
    """Draw whatever has results."""
    # The same numbers make the same file, byte for byte.
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "rlm-dspy",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica", "sans-serif"],
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": "#666666",
            "axes.titlesize": 11,
            "axes.titlelocation": "left",
            "figure.facecolor": "white",
        }
    )
    results = Store(Path(folder) / "results.json").results
    plots = Path(folder) / "plots"
    plots.mkdir(exist_ok=True)
    for curve in CURVES:
        if any("seconds" in results.get((engine, point.name), {}) for engine in ENGINES for point in curve.points):
            _save(_curve(curve, results), plots / f"{curve.name}.svg")
    if any("seconds" in results.get(("ours", work.name), {}) for work in WORKS):
        _save(_bars(results), plots / "bars.svg")


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    # It ends lines with spaces, which a version control system complains about.
    path.write_text("".join(f"{line.rstrip()}\n" for line in path.read_text().splitlines()))
    pyplot.close(figure)


def _memory(result: Mapping[str, Any]) -> float | None:
    if "host_growth" not in result:
        return None
    return max(SMALLEST_MB, (result["host_growth"] + result["workers_growth"]) / 1e6)


def _curve(curve: Curve, results: Results) -> Any:
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(15, 4.6), layout="constrained")
    figure.suptitle(curve.title, x=0.01, ha="left", fontsize=13)
    for axis, (title, unit, value) in zip(axes, PANELS, strict=True):
        ends: list[tuple[float, float, str, str]] = []
        for engine in ENGINES:
            found = [(point, results.get((engine, point.name), {})) for point in curve.points]
            drawn = [
                (float(point.size), number)
                for point, result in found
                if "seconds" in result and (number := value(result)) is not None
            ]
            if not drawn:
                continue
            xs, ys = zip(*drawn, strict=True)
            thick = 2.4 if engine == "ours" else 1.6
            axis.plot(xs, ys, color=COLOURS[engine], marker=MARKERS[engine], markersize=5, linewidth=thick)
            if any("reason" in result for _, result in found):
                # Beyond its end the others go on: its name stands before it.
                name = f"{TITLES[engine]} ×"
                near = {"xytext": (-7, 5), "textcoords": "offset points", "ha": "right", "va": "bottom"}
                axis.annotate(name, (xs[-1], ys[-1]), color=COLOURS[engine], **near)
            else:
                ends.append((xs[-1], ys[-1], TITLES[engine], COLOURS[engine]))
        _dress(axis, curve, title, unit)
        _label(axis, ends)
    if any("reason" in results.get((engine, point.name), {}) for engine in ENGINES for point in curve.points):
        figure.text(0.99, 0.985, "×: does no more, see below the tables", ha="right", va="top", color="#444444")
    return figure


def _dress(axis: Any, curve: Curve, title: str, unit: str) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_title(f"{title}, {unit}")
    axis.set_xticks([point.size for point in curve.points])
    axis.set_xticks([], minor=True)
    axis.set_xticklabels([label(curve.name, point.size) for point in curve.points])
    axis.set_xlabel(curve.axis.partition(",")[0])
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda number, _: f"{number:g}"))
    axis.grid(axis="y", color="#dddddd", linewidth=0.8)
    axis.set_axisbelow(True)
    sizes = [point.size for point in curve.points]
    # Room for the names at the ends of the lines.
    axis.set_xlim(sizes[0] / 1.5, sizes[-1] * (sizes[-1] / sizes[0]) ** 0.24)


def _label(axis: Any, ends: list[tuple[float, float, str, str]]) -> None:
    """The names at the ends of the lines, moved apart where they would cover each other."""
    bottom, top = axis.get_ylim()
    top *= (top / bottom) ** 0.04
    axis.set_ylim(bottom, top)
    step = (top / bottom) ** 0.065
    last = 0.0
    for x, y, text, colour in sorted(ends, key=lambda end: end[1]):
        last = max(y, last * step)
        axis.annotate(
            text,
            (x, y),
            xytext=(x * (axis.get_xlim()[1] / axis.get_xlim()[0]) ** 0.02, last),
            textcoords="data",
            color=colour,
            va="center",
            fontweight="bold" if text.startswith(TITLES["ours"]) else "normal",
        )


def _bars(results: Results) -> Any:
    works = [work for work in WORKS if not work.record and table.best(results, "ours", work.name) is not None]
    figure, axis = pyplot.subplots(figsize=(11, 1.5 + 0.55 * len(works)), layout="constrained")
    for place, work in enumerate(reversed(works)):
        axis.axhline(place, color="#eeeeee", linewidth=1, zorder=0)
        _, most = table.bar(work.name, results)
        if most is not None:
            axis.plot([most, most], [place - 0.28, place + 0.28], color="black", linewidth=2, zorder=2)
        for engine in ENGINES:
            took = table.best(results, engine, work.name)
            if took is not None:
                big = 10 if engine == "ours" else 7
                axis.plot(took, place, MARKERS[engine], color=COLOURS[engine], markersize=big, zorder=3, alpha=0.9)
    axis.set_yticks(range(len(works)), [work.title for work in reversed(works)])
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda number, _: f"{number:g}"))
    axis.set_xlabel("least wall time, s")
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    for engine in ENGINES:
        axis.plot([], [], MARKERS[engine], color=COLOURS[engine], label=TITLES[engine], linestyle="none")
    mark: dict[str, Any] = {"color": "black", "markersize": 12, "markeredgewidth": 2, "linestyle": "none"}
    axis.plot([], [], "|", label="ours must not be above", **mark)
    axis.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=5, frameon=False)
    return figure


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The scaling curves: the same work at growing sizes, each point a `benchmarks.work.Work`."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.work import PROCESS_WIDE, Work


@dataclass(frozen=True)
class Curve:
    """One axis.

    Attributes:
        name: As ``--only`` takes it.
        title: As the report shows it.
        axis: What grows, with its unit.
        points: From the smallest to the largest.
    """

    name: str
    title: str
    axis: str
    points: tuple[Work, ...]


def size(number: int) -> str:
    """Characters of a context in words: ``"10 MB"``."""
    for factor, unit in ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "KB")):
        if number >= factor:
            return f"{number / factor:g} {unit}"
    return f"{number} B"


def label(curve: str, number: int) -> str:
    """A size on a curve in words: ``"10 MB"`` of context, ``"1 000"`` sub-calls."""
    return size(number) if curve == "context" else f"{number:,}".replace(",", " ")


def _context(characters: int) -> Work:
    return Work(
        f"context-{characters}",
        f"3 turns, {size(characters)} context",
        turns=3,
        context=characters,
        repeats=3,
        enough=5,
        memory=True,
        curve="context",
        size=characters,
    )


def _calls(number: int) -> Work:
    return Work(
        f"calls-{number}",
        f"{label('calls', number)} sub-call{'s' if number > 1 else ''} of 50 ms, width 64",
        turns=2,
        batch=number,
        width=64,
        sub_ms=50,
        repeats=3,
        limit=100,
        enough=5,
        memory=True,
        curve="calls",
        size=number,
    )


def _runs(number: int) -> Work:
    return Work(
        f"runs-{number}",
        f"{number} run{'s' if number > 1 else ''} at once, 5 turns of 50 ms",
        turns=5,
        root_ms=50,
        runs=number,
        repeats=3,
        limit=90,
        enough=5,
        cold=False,
        memory=True,
        skip=(PROCESS_WIDE,),
        curve="runs",
        size=number,
    )


CURVES = (
    Curve(
        "context",
        "Size of the context: 3 turns, the LM answers at once",
        "context, bytes",
        tuple(_context(10**power) for power in range(3, 10)),
    ),
    Curve(
        "calls",
        "Number of sub-calls: of 50 ms each, 64 at once where the engine can",
        "sub-calls",
        tuple(_calls(10**power) for power in range(5)),
    ),
    Curve(
        "runs",
        "Runs at once: 5 turns of 50 ms each",
        "runs at once",
        tuple(_runs(4**power) for power in range(5)),
    ),
)

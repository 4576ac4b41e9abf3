"""One module an engine, each with ``prepare(work, address) -> Engine``; each runs in a process of its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.work import Work

TITLES = {"bare": "bare", "rlms": "rlms", "dspy": "dspy.RLM", "ours": "ours"}
"""Every engine, as ``--engines`` takes it and as tables show it."""

ENGINES = tuple(TITLES)


@dataclass(frozen=True)
class Engine:
    """How one engine does one work.

    Attributes:
        run: Does it once.
        before: Called before each timed run, not timed.
    """

    run: Callable[[], object]
    before: Callable[[], object] = lambda: None


def prepare(name: str, work: Work, address: str) -> Engine:
    """The engine ``name``, set up for ``work`` against the server at ``address``."""
    engine: Engine = importlib.import_module(f"benchmarks.engines.{name}").prepare(work, address)
    return engine

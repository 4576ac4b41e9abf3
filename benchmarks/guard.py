"""Whether ours became much slower: small works, ours over bare, with room for any machine.

    python -m benchmarks.guard      exit status 1 if it did, twice

Nothing is said in seconds: a bar is made of what bare DSPy and a bare sandbox take on this machine at this time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks import machine, server, table
from benchmarks.measure import Clock, measure, say
from benchmarks.store import Results, Store
from benchmarks.work import WORKS, Work

FACTOR = 2.5
"""How often its bar a work may take."""

MEMORY = 5.0
"""How often the context host and worker may grow; the bar is 4."""

_SMALL: dict[str, dict[str, int]] = {
    "start": {"repeats": 5},
    "turns": {"repeats": 3},
    "context": {"repeats": 1, "context": 20_000_000},
    "serial": {"repeats": 3, "serial": 60},
    "batch": {"repeats": 3, "batch": 150},
    "runs": {"repeats": 3, "runs": 16},
}

SMALL: tuple[Work, ...] = tuple(replace(work, **_SMALL[work.name]) for work in WORKS if work.name in _SMALL)  # type: ignore[arg-type]
"""The works, smaller than in the table; the warm pool's is left out, since its bar is in seconds."""


def broken(results: Results, works: Sequence[Work] = SMALL) -> dict[str, str]:
    """By the name of the work, what is wrong; nothing of a work whose bar cannot be told on this machine."""
    found: dict[str, str] = {}
    for work in works:
        for engine in ("bare", "ours"):
            result = results.get((engine, work.name), {"reason": "not measured, no time left"})
            if "reason" in result:
                found[work.name] = f"{work.title}: {engine} {result['reason']}"
        if work.memory:
            grown = table.grown_by(results.get(("ours", work.name), {}), work)
            if grown is not None and grown > MEMORY:
                found[work.name] = f"{work.title}: grew by {grown:.1f} × the context, not ≤ {MEMORY:g} ×"
            continue
        words, most = table.bar(work.name, results)
        took = table.best(results, "ours", work.name)
        if most is not None and took is not None and took > FACTOR * most:
            times = f"{took / most:.1f} × its bar ({words}), not ≤ {FACTOR:g} ×"
            found[work.name] = f"{work.title}: {took:.3g} s is {times}"
    return found


def main(works: Sequence[Work] = SMALL) -> int:
    """Measure, and what is too slow once more: 1 if it is again."""
    store = Store()
    wrong = dict.fromkeys(work.name for work in works)
    found: dict[str, str] = {}
    for _ in range(2):
        sandbox = machine.bwrap_start()
        with server.running() as address:
            for work in works:
                # The bar of another work is made of the first one.
                if work.name in wrong or work.name == "start":
                    for engine, result in measure(work, ("bare", "ours"), address, Clock(4), {}).items():
                        store.put("", engine, work.name, {**result, "sandbox": sandbox})
        found = broken(store.results, works)
        for text in found.values():
            say(text)
        if not found:
            return 0
        wrong = dict.fromkeys(found)
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""Programs measured on tasks, one beside the other, in a way that can be gone on with; a program on every row of a
file.

    from rlm_dspy import RLM, evaluation, tasks

    batch = tasks.generate(n=20, tokens=250_000, seed=1, family="needles")
    programs = [evaluation.get("rlm", max_iters=10), evaluation.get("truncate", window=32_000)]
    report = evaluation.evaluate(programs, batch, tasks.score, out="results", threads=4)
    print(report.table())

    measuring.py   examples, programs, a report
    programs.py    the programs to compare: direct, truncate, chunks, dspy.RLM, import paths
    chunks.py      the hand-written loop over chunks
    texts.py       inputs as text, and texts in pieces
    calling.py     one call of a program, measured
    account.py     what it used; the money of a job
    faults.py      whose fault a failure is
    results.py     results on disk, continued
    report.py      figures for people and machines
    intervals.py   95 % intervals
    lines.py       JSON lines that survive a kill
    work.py        many calls at once, and stopping them
    mapping.py     a program on every row of a file
    rows.py        rows of JSON Lines and CSV
    ordered.py     lines in order, whatever order they are made in
    on_ray.py      the calls on the machines of a Ray cluster
    ray_address.py whether there is one

The command line is ``rlm-dspy eval`` and ``rlm-dspy map``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlm_dspy.evaluation.intervals import bootstrap, interval, wilson
    from rlm_dspy.evaluation.mapping import Mapped, map_rows
    from rlm_dspy.evaluation.measuring import evaluate
    from rlm_dspy.evaluation.on_ray import Ray
    from rlm_dspy.evaluation.programs import NAMES, Program, get
    from rlm_dspy.evaluation.report import Report, Summary, summary
    from rlm_dspy.evaluation.work import Stop

__all__ = [
    "NAMES",
    "Mapped",
    "Program",
    "Ray",
    "Report",
    "Stop",
    "Summary",
    "bootstrap",
    "evaluate",
    "get",
    "interval",
    "map_rows",
    "summary",
    "wilson",
]

_WHERE = {
    **dict.fromkeys(("NAMES", "Program", "get"), "programs"),
    **dict.fromkeys(("Report", "Summary", "summary"), "report"),
    **dict.fromkeys(("bootstrap", "interval", "wilson"), "intervals"),
    **dict.fromkeys(("Mapped", "map_rows"), "mapping"),
    "Ray": "on_ray",
    "Stop": "work",
    "evaluate": "measuring",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)

"""What an evaluation came to: figures for each program, for people and for machines."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlm_dspy.evaluation.intervals import interval
from rlm_dspy.pages.text import money, seconds

__all__ = ["Report", "Summary", "summary"]

Row = Mapping[str, Any]
GROUPS = ("family", "kind", "tokens")
"""Fields of examples by which figures are told apart."""


@dataclass(frozen=True)
class Summary:
    """The figures of some results.

    Attributes:
        n: Results that count: answers, right or wrong, and failures of the program.
        errors: Results that do not, because what the program runs on failed.
        score: The mean, None where nothing counts.
        low, high: Its 95 % interval.
        method: ``"wilson"`` or ``"bootstrap"``, see `rlm_dspy.evaluation.intervals`.
        right: Results with a score of 1.
        outcomes: How often each outcome was.
        input_tokens, output_tokens, cached_tokens, lm_calls: Sums, those of errors included.
        cost: US dollars in all; None if any is unknown. ``known_cost`` is the part that is known.
        unpriced_calls: LM calls whose cost is unknown.
        seconds, turns: Medians of what counts; None where there are none.
        lm_errors: LM requests that failed, those included that ended no run.
    """

    n: int
    errors: int
    score: float | None
    low: float
    high: float
    method: str
    right: int
    outcomes: dict[str, int]
    lm_calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    known_cost: float
    unpriced_calls: int
    seconds: float | None
    turns: float | None
    lm_errors: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


def summary(rows: Iterable[Row]) -> Summary:
    """The figures of ``rows``, as `rlm_dspy.evaluation.results` has them."""
    every = list(rows)
    counted = [row for row in every if row["score"] is not None]
    scores = [float(row["score"]) for row in counted]
    low, high, method = interval(scores)
    unpriced = sum(int(row.get("unpriced_calls") or 0) for row in every)
    known = sum(float(_cost(row) or 0.0) for row in every)
    turns = [row["turns"] for row in counted if row["turns"] is not None]
    return Summary(
        n=len(counted),
        errors=len(every) - len(counted),
        score=statistics.fmean(scores) if scores else None,
        low=low,
        high=high,
        method=method,
        right=sum(score == 1.0 for score in scores),
        outcomes=dict(Counter(_outcome(row) for row in every).most_common()),
        lm_calls=_sum(every, "lm_calls"),
        input_tokens=_sum(every, "input_tokens"),
        output_tokens=_sum(every, "output_tokens"),
        cached_tokens=_sum(every, "cached_tokens"),
        cost=None if unpriced else known,
        known_cost=known,
        unpriced_calls=unpriced,
        seconds=statistics.median(row["seconds"] for row in counted) if counted else None,
        turns=statistics.median(turns) if turns else None,
        lm_errors=_sum(every, "lm_errors"),
    )


def _sum(rows: Sequence[Row], name: str) -> int:
    return sum(int(row.get(name) or 0) for row in rows)


def _cost(row: Row) -> Any:
    return row["cost"] if row.get("cost") is not None else row.get("known_cost")


def _outcome(row: Row) -> str:
    return f"{row['outcome']} ({row['limit']})" if row.get("limit") else str(row["outcome"])


@dataclass(frozen=True)
class Report:
    """The results of an evaluation.

    Attributes:
        rows: One for each program and example, in the order of the examples.
        asked: How many examples there were for each program.
        stopped: Why it ended before all of them; None where it did not.
        spent: US dollars of all calls, those included that were not brought to an end; of what is known.
    """

    rows: list[dict[str, Any]]
    asked: int
    stopped: str | None = None
    spent: float = 0.0
    programs: tuple[str, ...] = field(default=())

    @property
    def score(self) -> float | None:
        """The mean over all that counts."""
        return summary(self.rows).score

    @property
    def complete(self) -> bool:
        """Whether every program was called with every example, and none ended by an error of what it runs on."""
        return len(self.rows) == self.asked * len(self.programs) and all(row["score"] is not None for row in self.rows)

    def of(self, program: str, **fields: Any) -> list[dict[str, Any]]:
        """The results of one program, with these fields, such as ``kind="count"``."""
        return [
            row
            for row in self.rows
            if row["program"] == program and all(row.get(name) == value for name, value in fields.items())
        ]

    def values(self, label: str) -> list[Any]:
        """What the examples have in that field, one of `GROUPS`, each value once."""
        return list(dict.fromkeys(row[label] for row in self.rows if row.get(label) is not None))

    def to_dict(self) -> dict[str, Any]:
        """Plain data: figures of each program, also by `GROUPS`, and the rows."""
        programs = []
        for name in self.programs:
            mine = self.of(name)
            groups = {
                f"by_{label}": {
                    str(value): summary(self.of(name, **{label: value})).to_dict() for value in self.values(label)
                }
                for label in GROUPS
            }
            won, lost = self.against(name)
            programs.append(
                {
                    "program": name,
                    **summary(mine).to_dict(),
                    "missing": self.asked - len(mine),
                    "won": won,
                    "lost": lost,
                    **groups,
                }
            )
        return {
            "asked": self.asked,
            "complete": self.complete,
            "stopped": self.stopped,
            "spent": self.spent,
            "programs": programs,
            "rows": self.rows,
        }

    def against(self, program: str) -> tuple[int, int]:
        """Examples on which ``program`` scored more, and less, than the first one did."""
        first = {row["key"]: row["score"] for row in self.of(self.programs[0])} if self.programs else {}
        pairs = [
            (row["score"], first[row["key"]])
            for row in self.of(program)
            if row["score"] is not None and first.get(row["key"]) is not None
        ]
        return sum(mine > other for mine, other in pairs), sum(mine < other for mine, other in pairs)

    def table(self) -> str:
        """The figures as text for people."""
        head = ["program", "score", "95 %", "right", "errors", "tokens in", "out", "cost", "time", "turns", "won/lost"]
        rows = [head]
        for name in self.programs:
            rows.append([name, *_cells(summary(self.of(name))), self._won(name)])
        parts = [_aligned(rows)]
        for label in GROUPS:
            if len(values := self.values(label)) > 1:
                shown = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
                by = [["score by " + label, *shown]]
                for name in self.programs:
                    by.append([name, *(_score(summary(self.of(name, **{label: value}))) for value in values)])
                parts.append(_aligned(by))
        outcomes = [
            f"{name}: " + ", ".join(f"{count} {outcome}" for outcome, count in found.items())
            for name in self.programs
            if (found := summary(self.of(name)).outcomes)
        ]
        return "\n\n".join([*parts, "\n".join(outcomes)]).rstrip()

    def _won(self, name: str) -> str:
        if name == self.programs[0]:
            return ""
        won, lost = self.against(name)
        return f"+{won} -{lost}"


def _cells(found: Summary) -> list[str]:
    unknown = "?" if not found.known_cost else f"> {money(found.known_cost)}"
    return [
        "-" if found.score is None else f"{found.score:.3f}",
        f"{found.low:.2f}–{found.high:.2f}" if found.n else "-",
        f"{found.right} of {found.n}",
        str(found.errors),
        f"{found.input_tokens:,}",
        f"{found.output_tokens:,}",
        unknown if found.cost is None else money(found.cost),
        "-" if found.seconds is None else seconds(found.seconds),
        "-" if found.turns is None else f"{found.turns:g}",
    ]


def _score(found: Summary) -> str:
    return "-" if found.score is None else f"{found.score:.2f} [{found.low:.2f}–{found.high:.2f}]"


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )

"""The live area of a terminal: the tree of runs as it is now, in few lines however many runs there are.

    ⠹ turn 2/20, running code: 3 in flight, 12 done, 8 s
        answers = llm_query_batched([ask + part for part in parts])
        llm_query_batched: Which clauses name a deadline? 14. The tenant… (and 2 more)
      ├ [3f2a] turn 1/20, asking the model, 2 s: Sum up the complaints
      └ [91c0] turn 3/20, running code, 8 in flight: llm_query_batched(asks), 5 s: Sum up the praise
        spent: 21 of 50 sub-calls, 40,210 of 200,000 tokens, $0.031 of $0.50, 8 of 300 s
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlm_dspy.render import one_line, printable

if TYPE_CHECKING:
    from rlm_dspy.run import Run

ROWS = 8
"""Runs that are shown; more are counted."""
CODE_LINES = 3
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
BRANCHES = ("├ ", "└ ", "│ ")
ASCII_FRAMES = "|/-\\"
ASCII_BRANCHES = ("|- ", "`- ", "|  ")
_ASKS = re.compile(r"\b(?:\w*query(?:_batched)?|predict(?:_batched)?|\w+_batched)\(")

Line = tuple[str, str]
"""A line's text and its style."""


@dataclass(eq=False)
class Row:
    """One run in the live area.

    Attributes:
        label: What it is about, such as ``"turn 2/20"``.
        doing: What is going on now.
        about: What it was asked, for a child.
        parent: The row of the run that started it.
        code: What is being run.
        calls: The sub-calls that are in flight.
        spent: Says what has been used of the limits, when asked; None for a child, which has its parent's.
        since: `time.monotonic` when the run began; the row shows the seconds since.
    """

    label: str = ""
    doing: str = ""
    about: str = ""
    parent: Row | None = None
    code: str = ""
    calls: tuple[str, ...] = ()
    spent: Callable[[], str] | None = None
    since: float = field(default_factory=time.monotonic)

    def text(self) -> str:
        """The row without what is before it."""
        parts = [part for part in (self.label, self.doing, f"{time.monotonic() - self.since:.0f} s") if part]
        about = f": {self.about}" if self.about else ""
        return printable(", ".join(parts) + about).replace("\n", " ")


def area(rows: Sequence[Row], height: int, frame: str, branches: Sequence[str] = BRANCHES) -> list[Line]:
    """The lines of the live area, at most ``height`` of them.

    Args:
        rows: In the order in which the runs began.
        height: At least 1.
        frame: What stands before a root.
        branches: Before a child, before the last one, and before those below one that is not the last.
    """
    shown = set(rows)
    below: dict[Row | None, list[Row]] = {}
    for row in rows:
        below.setdefault(row.parent if row.parent in shown else None, []).append(row)
    roots = below.get(None, [])
    head: list[Line] = []
    foot: list[Line] = []
    if len(roots) == 1:
        root = roots[0]
        spent = root.spent() if root.spent is not None else ""
        room = height - 1
        foot = [(f"    spent: {spent}", "dim")] if spent and room > 1 else []
        room -= len(foot) + min(len(rows) - 1, 2)
        details = [*((f"    {line}", "") for line in _code(root.code)), *((f"    {c}", "magenta") for c in root.calls)]
        head = details[: max(0, room)]
    room = height - len(head) - len(foot)
    walked = list(_walk(roots, below, branches))
    # A line is kept for how many more there are.
    told = walked if len(walked) <= min(ROWS, room) else walked[: max(1, min(ROWS, room - 1))]
    lines = []
    for row, before in told:
        lines.append((f"{before or f'{frame} '}{row.text()}", "" if before else "cyan"))
        if len(roots) == 1 and row is roots[0]:
            lines += head
    left = [row for row, _ in walked[len(told) :]]
    if left:
        doing = Counter(re.split("[:,]", row.doing.rpartition("] ")[2])[0] for row in left)
        what = ", ".join(f"{count} {text}" for text, count in doing.most_common(3))
        before = branches[1] if len(roots) == 1 else ""
        lines.append((f"  {before}and {len(left)} more runs{f': {what}' if what else ''}", "dim"))
    return (lines + foot)[:height]


def _walk(
    rows: Sequence[Row], below: dict[Row | None, list[Row]], branches: Sequence[str], before: str = ""
) -> Iterator[tuple[Row, str]]:
    """Each row after the one above it, with what stands before it in its line; nothing before a root."""
    for number, row in enumerate(rows):
        last = number == len(rows) - 1
        yield row, f"{before}{branches[1] if last else branches[0]}" if before else ""
        deeper = f"{before}{' ' * len(branches[2]) if last else branches[2]}" if before else "  "
        yield from _walk(below.get(row, ()), below, branches, deeper)


def _code(code: str) -> list[str]:
    """The first lines of ``code``, or those up to where it asks other models."""
    lines = [line for line in code.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) <= CODE_LINES:
        return lines
    at = next((number for number, line in enumerate(lines) if _ASKS.search(line)), 0)
    first = max(0, min(at - 1, len(lines) - CODE_LINES + 1))
    shown = lines[first : first + CODE_LINES - 1]
    return [*shown, f"… {len(lines) - len(shown)} more lines"]


def telling(code: str) -> str:
    """The one line of ``code`` that says most of what it is doing: where it asks other models, else its last."""
    lines = [line.strip() for line in code.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    return one_line(next((line for line in lines if _ASKS.search(line)), lines[-1] if lines else ""), 60)


def spent(run: Run) -> str:
    """What ``run`` and all below it have used, beside the limits where there are any."""
    from rlm_dspy.prices import PICO

    usage, limits = run.ledger.usage(), run.limits
    total = usage.total
    tokens = total.input_tokens + total.output_tokens
    parts = []
    for used, most, form, noun in (
        (usage.calls, limits.max_llm_calls, "{:,}".format, " sub-calls"),
        (tokens, limits.max_tokens, "{:,}".format, " tokens"),
        (total.picodollars / PICO, limits.max_cost, _dollars, ""),
        (usage.seconds, limits.max_seconds, "{:,.0f}".format, " s"),
    ):
        if most is not None:
            parts.append(f"{form(used)} of {form(most)}{noun}")
        elif used and noun != " s":
            parts.append(f"{form(used)}{noun}")
    return ", ".join(parts)


def _dollars(amount: float) -> str:
    return f"${amount:,.2f}" if amount >= 0.1 or not amount else f"${amount:.4f}"

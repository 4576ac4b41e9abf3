"""What runs of RLMs came to, put together: figures for an MLflow run, an evaluation, or one prediction.

Nothing here needs MLflow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlm_dspy import events as ev
from rlm_dspy.usage import Tally, Usage, read_row, summed

ROOT_ROLES = ("act", "extract", "compact", "direct")
"""What the root itself asks an LM for. All else was delegated: sub-calls, children, LM calls of tools."""
OUTSIDE = "outside"
"""The role of LM requests that no run made: those of plain modules, of optimisers, of judges."""
_SUMMED = ("turns", "calls", "tool_calls", "errors", "children")
_SANDBOX = ("CodeInterpreterError", "SandboxUnavailableError", "SessionError")


@dataclass
class Facts:
    """Sums over runs.

    Attributes:
        runs: Runs of RLMs that were called; children are part of theirs.
        outcomes, limits: How many ended so, and how many by which limit.
        usage: Of all of them, and of LM requests that no run made.
        code_errors: Executions in which code raised, children's included.
        sandbox_errors: Sessions that were lost to an execution (killed, out of time, out of memory), and runs that an
            error of the sandbox ended.
    """

    runs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    limits: Counter[str] = field(default_factory=Counter)
    usage: Usage = field(default_factory=Usage)
    code_errors: int = 0
    sandbox_errors: int = 0

    def add(self, events: Iterable[ev.Event]) -> Facts:
        """Add a run by its events, those of a `rlm_dspy.Trajectory` or of a trace; without its end it adds nothing."""
        log = tuple(events)
        ended = next((event for event in log if isinstance(event, ev.RunEnded)), None)
        if ended is None:
            return self
        self.runs += 1
        self.outcomes[ended.outcome] += 1
        if ended.limit:
            self.limits[ended.limit] += 1
        self.spent(ended.usage)
        self.code_errors += sum(bool(event.error) for event in _executions(log))
        self.sandbox_errors += sum(bool(event.lost) for event in _executions(log))
        self.sandbox_errors += (ended.error or "").startswith(_SANDBOX)
        return self

    def spent(self, usage: Mapping[str, Any]) -> None:
        """Add what `rlm_dspy.usage.Usage.to_dict` gave."""
        mine = self.usage
        for name in _SUMMED:
            setattr(mine, name, getattr(mine, name) + int(usage.get(name) or 0))
        mine.deepest = max(mine.deepest, int(usage.get("deepest") or 0))
        mine.peak_width = max(mine.peak_width, int(usage.get("peak_width") or 0))
        for row in usage.get("table") or ():
            mine.record(*read_row(row))

    def share(self, of: str = "tokens") -> float | None:
        """Share of ``"tokens"`` or ``"calls"`` of the LMs in runs that was not the root's own; None without any."""
        own, total = 0, 0
        for key, tally in self.usage.table.items():
            if key.role == OUTSIDE:
                continue
            amount = tally.calls if of == "calls" else tally.input_tokens + tally.output_tokens
            total += amount
            own += amount if key.depth == 0 and key.role in ROOT_ROLES else 0
        return (total - own) / total if total else None

    @property
    def total(self) -> Tally:
        """Tokens and money of all LM requests."""
        return summed(self.usage.table.values())

    def metrics(self) -> dict[str, float]:
        """Numbers by name, as MLflow takes them. ``cost`` is left out where it is unknown, never 0 then."""
        usage, total = self.usage, self.total
        found: dict[str, float | None] = {
            "runs": self.runs,
            "turns": usage.turns,
            "sub_calls": usage.calls,
            "tool_calls": usage.tool_calls,
            "children": usage.children,
            "lm_calls": total.calls,
            "input_tokens": total.input_tokens,
            "output_tokens": total.output_tokens,
            "cached_tokens": total.cached_tokens,
            "cached_share": total.cached_tokens / total.input_tokens if total.input_tokens else None,
            "cost": total.cost,
            "turn_errors": usage.errors,
            "code_errors": self.code_errors,
            "sandbox_errors": self.sandbox_errors,
            "peak_width": usage.peak_width,
            "delegated_tokens": self.share(),
            "delegated_calls": self.share("calls"),
        }
        if total.unpriced:
            found |= {"unpriced_calls": total.unpriced, "known_cost": total.to_dict()["known_cost"]}
        found |= {f"outcome.{name}": number for name, number in self.outcomes.items()}
        found |= {f"limit.{name}": number for name, number in self.limits.items()}
        return {name: float(value) for name, value in found.items() if value is not None}


def _executions(log: Iterable[ev.Event]) -> Iterable[ev.Executed]:
    for event in log:
        if isinstance(event, ev.Executed):
            yield event
        elif isinstance(event, ev.ChildEnded):
            yield from _executions(event.events)

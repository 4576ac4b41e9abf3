"""What was used: `Usage`, whose token and money columns are one table by role, model and depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlm_dspy.prices import PICO

STAND_IN = "rlm/"
"""How the names of LMs begin that an RLM plays (`rlm_dspy.as_lm`): what they take is reported by the LMs behind."""


class Key(NamedTuple):
    """Who made an LM call: the role (``"act"``, ``"sub"``, the name of a typed sub-call, ``"extract"``, …, ``"tool"``
    for what tools and sub-agents call by themselves), the model's name, and the depth in the tree."""

    role: str
    model: str
    depth: int


@dataclass
class Tally:
    """A cell of the table.

    Attributes:
        calls: LM requests; answers from DSPy's cache count nowhere.
        input_tokens, output_tokens: As the LMs reported them. Where they did not: what had been reserved for the call
            if tokens or money are limited, else 0.
        cached_tokens: Part of the input that was read from the provider's prompt cache.
        picodollars: What the calls of a known price cost.
        unpriced: Calls whose cost is unknown: that of the model, or how many tokens it took.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    picodollars: int = 0
    unpriced: int = 0

    def add(self, other: Tally) -> None:
        """Add ``other`` to this one."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def cost(self) -> float | None:
        """US dollars; None if any call's price is unknown."""
        return None if self.unpriced else self.picodollars / PICO

    def to_dict(self) -> dict[str, Any]:
        """Plain data: calls, tokens, ``cost`` (None if unknown) and, where that is so, what is known of it."""
        data: dict[str, Any] = {
            "lm_calls": self.calls,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "cost": self.cost,
        }
        if self.unpriced:
            data |= {"unpriced_calls": self.unpriced, "known_cost": self.picodollars / PICO}
        return data


@dataclass
class Usage:
    """What a run and all that it started have used so far.

    Attributes:
        turns: Actions that roots were asked for, children's included.
        calls: LM calls that were made for code: sub-calls, and LM calls of children. Failed ones are included.
        tool_calls: Calls of the user's tools.
        errors: Turns that ended in an error.
        children: Children that were started.
        deepest: Depth of the deepest run, 0 for a run without children.
        seconds: Wall time of the run.
        peak_width: Most LM calls in flight at once.
        table: Tokens and money of every LM request, as seen where LMs are called.
    """

    turns: int = 0
    calls: int = 0
    tool_calls: int = 0
    errors: int = 0
    children: int = 0
    deepest: int = 0
    seconds: float = 0.0
    peak_width: int = 0
    table: dict[Key, Tally] = field(default_factory=dict)

    @property
    def total(self) -> Tally:
        """The sum of the table."""
        return summed(self.table.values())

    def record(self, key: Key, tally: Tally) -> None:
        """Add ``tally`` to the cell of ``key``."""
        self.table.setdefault(key, Tally()).add(tally)

    def by(self, column: Callable[[Key], Any]) -> dict[Any, Tally]:
        """The table summed over all but one column, such as ``usage.by(lambda key: key.role)``."""
        sums: dict[Any, Tally] = {}
        for key, tally in self.table.items():
            sums.setdefault(column(key), Tally()).add(tally)
        return sums

    def to_dict(self) -> dict[str, Any]:
        """Plain data: totals, then ``by_role`` and ``by_depth``, and ``table``, a list of all cells.

        Keys are texts, depths too: DSPy optimisers write predictions as JSON.
        """
        depths = sorted(self.by(lambda key: key.depth).items())
        return {
            "turns": self.turns,
            "calls": self.calls,
            "tool_calls": self.tool_calls,
            **self.total.to_dict(),
            "errors": self.errors,
            "children": self.children,
            "deepest": self.deepest,
            "seconds": self.seconds,
            "peak_width": self.peak_width,
            "by_role": {role: tally.to_dict() for role, tally in self.by(lambda key: key.role).items()},
            "by_depth": {str(depth): tally.to_dict() for depth, tally in depths},
            "table": [{**key._asdict(), **tally.to_dict()} for key, tally in sorted(self.table.items())],
        }


def read_row(row: Mapping[str, Any]) -> tuple[Key, Tally]:
    """One row of the ``table`` that `Usage.to_dict` gave."""
    dollars = row.get("cost") if row.get("cost") is not None else row.get("known_cost")
    tally = Tally(
        calls=_count(row.get("lm_calls")),
        input_tokens=_count(row.get("input_tokens")),
        output_tokens=_count(row.get("output_tokens")),
        cached_tokens=_count(row.get("cached_tokens")),
        picodollars=round(float(dollars or 0.0) * PICO),
        unpriced=_count(row.get("unpriced_calls")),
    )
    return Key(str(row["role"]), str(row["model"]), int(row["depth"])), tally


def summed(tallies: Any) -> Tally:
    """The sum of ``tallies``."""
    total = Tally()
    for tally in tallies:
        total.add(tally)
    return total


def reported(entry: Mapping[str, Any]) -> tuple[int, int, int, int, float | None]:
    """Input, output, cached and written tokens, and the provider's own price in US dollars, of one usage entry.

    Args:
        entry: As DSPy's usage tracker gets it, in the words of OpenAI's API. Anthropic's counters, which leave what was
            read from or written to the cache out of the input, are put into the same form by DSPy.
    """
    details = entry.get("prompt_tokens_details")
    if details is not None and not isinstance(details, Mapping):
        details = getattr(details, "model_dump", dict)()
    details = details or {}
    cached = entry.get("cache_read_input_tokens") or details.get("cached_tokens") or 0
    written = entry.get("cache_creation_input_tokens") or details.get("cache_creation_tokens") or 0
    cost = entry.get("cost")
    known = isinstance(cost, (int, float)) and not isinstance(cost, bool) and cost > 0
    return (
        _count(entry.get("prompt_tokens")),
        _count(entry.get("completion_tokens")),
        _count(cached),
        _count(written),
        float(cost) if known and cost is not None else None,
    )


def _count(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else 0

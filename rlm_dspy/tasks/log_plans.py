"""What a question about a log plants in it, which entries it means, and how its answer is kept while it is written.

A question is decided before the log is: its `Plan` says which entries to plant and which it means. `write` writes
ordinary entries round the planted ones and shows every entry, as it is written, to the plan's `Tally`, which holds the
answer at the end. Where a plan is *exclusive*, ordinary entries that it would mean are replaced by harmless ones, so
that what it means is what it planted: items of a list, and counts that are compared, are then as decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.log_world import Record, World

__all__ = ["Builder", "Plan", "Tally", "shares", "write"]


@dataclass(frozen=True)
class Plan:
    """One question, before its log is written.

    Attributes:
        query: The question.
        plants: Entries to write, each as fields that differ from a harmless request. Besides a `Record`'s fields:
            ``on`` (index of the day it is on), ``at`` (hour of the day).
        match: Whether the question means an entry.
        value: What of the entry it asks for.
        exclusive: Keep ordinary entries from matching.
        least: Ask for the rarest value, not the most frequent one.
        weigh: Compare the largest of these, not how many entries there are.
    """

    query: str
    plants: Sequence[dict[str, Any]]
    match: Callable[[Record], bool]
    value: Callable[[Record], str] = lambda record: ""
    exclusive: bool = True
    least: bool = False
    weigh: Callable[[Record], int] | None = None


Builder = Callable[[World, Draw], Plan]


@dataclass
class Tally:
    """The entries that a plan means, counted by what it asks for."""

    plan: Plan
    counts: dict[str, int] = field(default_factory=dict)

    def see(self, record: Record) -> None:
        """Takes note of an entry that the plan means."""
        value = self.plan.value(record)
        if self.plan.weigh is None:
            self.counts[value] = self.counts.get(value, 0) + 1
        else:
            self.counts[value] = max(self.plan.weigh(record), self.counts.get(value, 0))

    def answer(self, kind: str) -> int | str | list[str]:
        """The gold of a question of this kind.

        Raises:
            AssertionError: The plan does not give its question exactly one answer, which would be a bug of the plan.
        """
        if kind == "count":
            assert sum(self.counts.values()) > 0, self.plan.query
            return sum(self.counts.values())
        if kind == "list":
            assert 3 <= len(self.counts) <= 8, (self.plan.query, self.counts)
            return list(self.counts)
        if kind == "find":
            assert len(self.counts) == 1, (self.plan.query, self.counts)
            return next(iter(self.counts))
        ranked = sorted(self.counts, key=lambda key: self.counts[key], reverse=not self.plan.least)
        assert len(ranked) > 1, self.plan.query
        assert abs(self.counts[ranked[0]] - self.counts[ranked[1]]) >= 2, (self.plan.query, self.counts)
        return ranked[0]


def write(
    world: World, plan: Plan, render: Callable[[Record], str], characters: int
) -> tuple[str, Tally, list[float]]:
    """The log of a plan.

    Args:
        world: Whose log.
        plan: The question.
        render: One of `rlm_dspy.tasks.log_formats.FORMATS`.
        characters: Size of the log, met to within one entry.

    Returns:
        The text, the tally of all its entries, and where the planted entries that match stand, as shares of the text.
    """
    random, match, tally = world.draw.random, plan.match, Tally(plan)
    queue = sorted((_when(world, plant), place, plant) for place, plant in enumerate(plan.plants))
    queue.append((2.0, len(queue), {}))
    lines: list[str] = []
    depths: list[float] = []
    written, waiting = 0, 0
    step = 100 / characters
    while written < characters or waiting < len(queue) - 1:
        passed = written / characters
        if queue[waiting][0] <= passed or written >= characters:
            record = world.timed(_planted(world, queue[waiting][2]), queue[waiting][0])
            waiting += 1
            if match(record):
                depths.append(min(passed, 1.0))
        else:
            record = world.ordinary()
            world.timed(record, min(passed + random() * step, queue[waiting][0]))
            if plan.exclusive and match(record):
                record = world.timed(world.harmless(), min(passed, queue[waiting][0]))
        if match(record):
            tally.see(record)
        line = render(record)
        lines.append(line)
        written += len(line) + 1
    lines.append("")
    return "\n".join(lines), tally, depths


def _when(world: World, plant: dict[str, Any]) -> float:
    """Where a planted entry stands, as a share of the log's days."""
    draw = world.draw
    if "on" not in plant and "at" not in plant:
        return 0.01 + 0.98 * draw.random()
    day = plant["on"] if "on" in plant else draw.below(len(world.days))
    share = 0.02 + 0.96 * draw.random()
    return (day + ((plant["at"] + share) / 24 if "at" in plant else share)) / len(world.days)


def _planted(world: World, plant: dict[str, Any]) -> Record:
    record = world.harmless()
    fields = {key: value for key, value in plant.items() if key not in ("on", "at", "level", "status", "error")}
    if "service" in fields:
        record.host = world.draw.choice(world.hosts_of[fields["service"]])
    if "host" in fields:
        record.service = world.service_of[fields["host"]]
    level, status = plant.get("level", ""), plant.get("status", 0)
    if level or status:
        level = level or ("ERROR" if status >= 500 else "WARN" if status >= 400 else "INFO")
        world.went(record, level, status)
    for key, value in fields.items():
        setattr(record, key, value)
    if plant.get("error"):
        if not level:
            world.went(record, "ERROR")
        world.threw(record, plant["error"])
    return record


def shares(world: World, draw: Draw, keys: Sequence[Any], least: bool = False) -> dict[Any, int]:
    """How often each of some keys shall occur, the first one most (or least) and by a margin of 2 and of a tenth.

    Keys that there is no room for in a short log are left out.
    """
    room = max(6, world.lines // 14)
    if least:
        fewest = draw.between(1, max(1, room // (3 * len(keys))))
        rest = [fewest + max(2, fewest // 8 + 1) + draw.below(1 + fewest) for _ in keys[1:]]
        return dict(zip(keys, (fewest, *rest), strict=True))
    keys = keys[: max(2, room // 3)]
    usual = max(1, room // (len(keys) + 1))
    rest = [max(1, usual - draw.below(1 + usual // 2)) for _ in keys[1:]]
    most = max(rest) + max(2, max(rest) // 8 + 1) + draw.below(1 + usual // 3)
    return dict(zip(keys, (most, *rest), strict=True))

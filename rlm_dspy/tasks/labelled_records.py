"""Aggregation over labelled records: the family ``labelled_records``.

Thousands of short texts, each with a date, a user and a label that is nowhere written down: it follows from what the
text says, so that each has to be read (by a sub-LM) before code can count. The label is decided first, so the gold is
known; where a question would have two right answers, a few records are changed until it has one.

    count      over all records: how many, the most and least frequent label, which of two is more frequent
    user       over what users wrote: how many, whose are most, which label leads
    timeline   over dates: how many in a range, first and last, before and after, month by month

Whoever answers the same to all questions of a template is right in about one of three (which of two users or labels:
every second or third; numbers, dates and users: nearly never).
"""

from __future__ import annotations

from rlm_dspy.tasks import record_counts, record_dates, record_users
from rlm_dspy.tasks.base import Batches, Spot, Task
from rlm_dspy.tasks.record_world import World, instruct, write
from rlm_dspy.tasks.scoring import score

__all__ = ["KINDS", "NAME", "TEMPLATES", "example", "generate", "score"]

NAME = "labelled_records"
TEMPLATES = {"count": record_counts.TEMPLATES, "user": record_users.TEMPLATES, "timeline": record_dates.TEMPLATES}
KINDS = tuple(TEMPLATES)


def _build(spot: Spot) -> Task:
    world = World(spot.draw, spot.characters)
    ask = TEMPLATES[spot.kind][spot.template](world, spot.draw)
    extra = {"theme": world.theme.noun, "records": world.size}
    signature = f"context, query -> answer: {ask.type}"
    return Task(write(world, spot.characters), instruct(world, ask), ask.answer, extra, signature)


_BATCHES = Batches(NAME, TEMPLATES, _build)
generate, example = _BATCHES.generate, _BATCHES.example

"""Logs of a company's services, and what happened in them: the family ``log_forensics``.

A log holds entries of six to nine services over one to two weeks, in order of time (UTC): requests, failures with stack
traces, and noise. How it is written (``plain``, ``keyvalue``, ``json``) and whether messages echo levels, statuses and
services of other entries (one log in three, where a search for a word alone miscounts) depend on the seed; both
are fields of the example: ``format`` and ``echoes``. ``depths``, for find and list, says where the entries that the
question means stand, as shares of the text.

    count     how many entries or requests, under one or two conditions                  int
    find      one fact from one entry, in other words than the entry's                   str
    list      all distinct users, hosts, services, ids, paths, exceptions or dates, 3–8  list of str
    compare   which has the most, the fewest, the longest; by a margin                   str
"""

from __future__ import annotations

from rlm_dspy.tasks import log_compare, log_count, log_find, log_list
from rlm_dspy.tasks.base import Batches, Spot, Task
from rlm_dspy.tasks.log_formats import FORMATS, LENGTHS
from rlm_dspy.tasks.log_plans import write
from rlm_dspy.tasks.log_world import World
from rlm_dspy.tasks.scoring import score

__all__ = ["KINDS", "NAME", "TEMPLATES", "example", "generate", "score"]

NAME = "log_forensics"
TEMPLATES = {
    "count": log_count.TEMPLATES,
    "find": log_find.TEMPLATES,
    "list": log_list.TEMPLATES,
    "compare": log_compare.TEMPLATES,
}
KINDS = tuple(TEMPLATES)


def _build(spot: Spot) -> Task:
    draw = spot.draw
    style = draw.choice(tuple(FORMATS))
    echoes = draw.chance(1 / 3)
    world = World(draw, spot.characters // LENGTHS[style], echoes)
    plan = TEMPLATES[spot.kind][spot.template](world, draw)
    text, tally, depths = write(world, plan, FORMATS[style], spot.characters)
    extra = {"format": style, "echoes": echoes, "depths": depths if spot.kind in ("find", "list") else []}
    return Task(text, plan.query, tally.answer(spot.kind), extra)


_BATCHES = Batches(NAME, TEMPLATES, _build)
generate, example = _BATCHES.generate, _BATCHES.example

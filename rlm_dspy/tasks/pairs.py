"""Pairs of users that meet a condition: the family ``pairs``.

The records are those of `rlm_dspy.tasks.labelled_records`: short texts with a date, a user and a label that has to be
read out of the text. Asked are all pairs of users for which something holds of what both wrote, a set that grows with
the square of the users. So each record has to be labelled, and code has to pair the users.

    pairs    all pairs of users    list of pairs of int, scored by F1

Fewer than a third of all pairs are right, so that naming all pairs is worth 0.0, as is naming none.
"""

from __future__ import annotations

from itertools import combinations

from rlm_dspy.tasks.base import Batches, Spot, Task
from rlm_dspy.tasks.pair_plans import TEMPLATES, Crowd
from rlm_dspy.tasks.record_world import Ask, instruct, write
from rlm_dspy.tasks.scoring import score

__all__ = ["KINDS", "NAME", "example", "generate", "score"]

NAME = "pairs"
KINDS = ("pairs",)


def _build(spot: Spot) -> Task:
    crowd = Crowd(spot.draw, spot.characters)
    condition = TEMPLATES[spot.template](crowd)
    world = crowd.world
    mine = crowd.written()
    right = [
        sorted((int(world.users[one]), int(world.users[other])))
        for one, other in combinations(range(len(world.users)), 2)
        if condition.holds(mine[one], mine[other]) or condition.holds(mine[other], mine[one])
    ]
    query = (
        f"List all pairs of different users for whom this is true: {condition.text}. Give every pair once, as two user "
        "numbers, in any order."
    )
    ask = Ask(query, sorted(right), "list[tuple[int, int]]")
    extra = {"theme": world.theme.noun, "records": world.size, "users": len(world.users)}
    signature = f"context, query -> answer: {ask.type}"
    return Task(write(world, spot.characters), instruct(world, ask), ask.answer, extra, signature)


_BATCHES = Batches(NAME, {"pairs": TEMPLATES}, _build)
generate, example = _BATCHES.generate, _BATCHES.example

"""Facts hidden in long prose: the family ``needles``.

The prose is a chronicle in which nobody has a name; a needle is a sentence about a named person, place, barge or inn.
Sentences that look alike but are about others stand beside it, and some about the same one that say something else.
``depths`` of an example says where its needles stand, as shares of the text, in the order of the text.

    count     how many needles of a sort                            int
    find      one needle's fact, in other words than the needle's   str
    list      the facts of 3 to 8 needles of a sort                 list of str
    compare   two needles' numbers, which differ by a tenth or more str

The needles of a `find` batch come in the four quarters of the text in turn; several needles of one text lie each in a
stretch of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.base import Batches, Spot, Task
from rlm_dspy.tasks.needle_facts import ASIDES, POOLS, THEMES, Theme
from rlm_dspy.tasks.prose import document
from rlm_dspy.tasks.scoring import score

__all__ = ["KINDS", "NAME", "example", "generate", "score"]

NAME = "needles"
KINDS = tuple(THEMES)


def _build(spot: Spot) -> Task:
    draw, theme = spot.draw, THEMES[spot.kind][spot.template]
    query, answer, needles, others = _MAKERS[spot.kind](theme, draw, spot.characters)
    theirs = [statement for statement, _ in needles]
    if spot.kind == "find":
        places = [(spot.turn % 4 + 0.02 + 0.96 * draw.random()) / 4]
    else:
        strata = draw.shuffled(range(len(theirs)))
        places = [(stratum + 0.03 + 0.94 * draw.random()) / len(theirs) for stratum in strata]
    planted = list(zip(places, theirs, strict=True))
    planted += [(0.01 + 0.98 * draw.random(), statement) for statement in others]
    text, starts = document(draw, spot.characters, planted)
    if isinstance(answer, list):
        order = sorted(range(len(theirs)), key=lambda place: starts[place])
        answer = [needles[place][1] for place in order]
    return Task(text, query, answer, {"depths": sorted(starts[: len(theirs)])})


# A needle is its sentence and the value in it.
_Made = tuple[str, "int | str | list[str]", list[tuple[str, str]], list[str]]


def _say(theme: Theme, draw: Draw, entity: str, value: str = "") -> str:
    return draw.choice(theme.statements).format(E=entity, V=value)


def _company(draw: Draw, characters: int) -> int:
    """How many others have a fact of the same sort: 2 or more, up to 16 in a long text."""
    return draw.between(2, 4 + min(12, characters // 100_000))


def _entities(theme: Theme, draw: Draw, count: int) -> list[str]:
    return draw.sample(POOLS[theme.entity], count)


def _asides(theme: Theme, draw: Draw, entity: str) -> list[str]:
    return [text.format(E=entity) for text in draw.sample(ASIDES[theme.entity], draw.between(1, 2))]


def _values(theme: Theme, draw: Draw, count: int, but: Sequence[str]) -> list[str]:
    """Distinct values, none of them one of the entities."""
    assert isinstance(theme.value, str)
    return draw.sample([value for value in POOLS[theme.value] if value not in but], count)


def _find(theme: Theme, draw: Draw, characters: int) -> _Made:
    entity, *others = entities = _entities(theme, draw, 1 + _company(draw, characters))
    value, *rest = _values(theme, draw, len(entities), entities)
    false = [_say(theme, draw, other, its) for other, its in zip(others, rest, strict=True)]
    query = draw.choice(theme.queries).format(E=entity)
    return query, value, [(_say(theme, draw, entity, value), value)], false + _asides(theme, draw, entity)


def _list(theme: Theme, draw: Draw, characters: int) -> _Made:
    entity, *others = entities = _entities(theme, draw, 1 + _company(draw, characters))
    values = _values(theme, draw, draw.between(3, 8), entities)
    needles = [(_say(theme, draw, entity, value), value) for value in values]
    false = [_say(theme, draw, other, _values(theme, draw, 1, entities)[0]) for other in others for _ in range(2)]
    query = draw.choice(theme.queries).format(E=entity)
    return query, values, needles, false + _asides(theme, draw, entity)


def _count(theme: Theme, draw: Draw, characters: int) -> _Made:
    entity, *others = _entities(theme, draw, 1 + _company(draw, characters))
    count = draw.between(2, 6 + min(14, characters // 4000))
    needles = [(_say(theme, draw, entity), "") for _ in range(count)]
    false = [_say(theme, draw, other) for other in others for _ in range(draw.between(1, 3))]
    elsewhere = draw.choice([one for one in THEMES["count"].values() if one is not theme])
    false += [_say(elsewhere, draw, entity) for _ in range(draw.between(1, 3))]
    query = draw.choice(theme.queries).format(E=entity)
    return query, count, needles, false + _asides(theme, draw, entity)


def _compare(theme: Theme, draw: Draw, characters: int) -> _Made:
    entities = _entities(theme, draw, 2 + _company(draw, characters))
    assert isinstance(theme.value, tuple)
    low, high = theme.value
    larger = draw.between(low * 10 // 9 + 2, high)
    smaller = draw.between(low, larger * 9 // 10)
    numbers = draw.shuffled((smaller, larger))
    first, second, *others = entities
    needles = [(_say(theme, draw, one, str(n)), str(n)) for one, n in zip((first, second), numbers, strict=True)]
    false = [_say(theme, draw, other, str(draw.between(low, high))) for other in others]
    wanted = min(numbers) if theme.least else max(numbers)
    query = draw.choice(theme.queries).format(A=first, B=second)
    answer = (first, second)[numbers.index(wanted)]
    return query, answer, needles, false + _asides(theme, draw, draw.choice((first, second)))


_MAKERS = {"find": _find, "list": _list, "count": _count, "compare": _compare}


_BATCHES = Batches(NAME, THEMES, _build)
generate, example = _BATCHES.generate, _BATCHES.example

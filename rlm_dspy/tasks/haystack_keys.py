"""Keys and their numbers, in prose or among nothing but keys and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlm_dspy.tasks._draw import Draw, Permutation
from rlm_dspy.tasks.base import Spot, Task
from rlm_dspy.tasks.prose import document

__all__ = ["TEMPLATES", "spread"]

_STATEMENT = "The locker number of {} is {}."
_LINE = len(_STATEMENT.format("x" * 8, "7" * 7)) + 1


class _Keys:
    """Keys by their place: names of eight hexadecimal digits, numbers of seven digits, none twice."""

    def __init__(self, draw: Draw) -> None:
        self._names, self._values = Permutation(draw, 2**32), Permutation(draw, 9_000_000)

    def name(self, place: int) -> str:
        return f"{self._names(place):08x}"

    def value(self, place: int) -> int:
        return 1_000_000 + self._values(place)

    def say(self, key: int, value: int) -> str:
        return _STATEMENT.format(self.name(key), self.value(value))


def spread(draw: Draw, number: int) -> list[float]:
    """So many places in a text, as shares of it and in order, each in a stretch of its own."""
    return [(place + 0.03 + 0.94 * draw.random()) / number for place in range(number)]


def _prose(spot: Spot, keys: _Keys, wanted: Sequence[tuple[int, int]], others: int) -> tuple[str, list[float]]:
    """Prose with statements in it: those wanted, as places of key and value, and others about other keys."""
    draw = spot.draw
    if len(wanted) == 1:  # in the four quarters in turn
        places = [(spot.turn % 4 + 0.02 + 0.96 * draw.random()) / 4]
    else:
        places = spread(draw, len(wanted))
    planted = [(place, keys.say(*one)) for place, one in zip(places, wanted, strict=True)]
    first = 1 + max(max(one) for one in wanted)
    planted += [(0.01 + 0.98 * draw.random(), keys.say(other, other)) for other in range(first, first + others)]
    text, starts = document(draw, spot.characters, planted)
    return text, sorted(starts[: len(wanted)])


def _lines(spot: Spot, keys: _Keys, wanted: Sequence[tuple[int, int]]) -> tuple[str, list[float]]:
    """A statement a line about as many other keys as there is room for, and those wanted among them."""
    draw = spot.draw
    size = max(len(wanted) + 8, -(-spot.characters // _LINE))
    first = 1 + max(max(one) for one in wanted)
    places = [int(share * size) for share in spread(draw, len(wanted))]
    at = dict(zip(places, wanted, strict=True))
    lines = (keys.say(*at.get(place, (first + place, first + place))) for place in range(size))
    text = "\n".join(lines) + "\n"
    return text, [place * _LINE / len(text) for place in places]


def _task(spot: Spot, keys: _Keys, wanted: Sequence[tuple[int, int]], query: str, many: bool) -> Task:
    draw = spot.draw
    if spot.template == "prose":
        others = 0 if spot.kind == "single" else draw.between(4, 8 + min(60, spot.characters // 20_000))
        text, depths = _prose(spot, keys, wanted, others)
    else:
        text, depths = _lines(spot, keys, wanted)
    values = [keys.value(value) for _, value in wanted]
    signature = f"context, query -> answer: {'list[int]' if many else 'int'}"
    return Task(text, query, values if many else values[0], {"depths": depths}, signature)


def _one(spot: Spot) -> Task:
    keys = _Keys(spot.draw)
    return _task(spot, keys, [(0, 0)], f"What is the locker number of {keys.name(0)}?", False)


def _values(spot: Spot) -> Task:
    keys = _Keys(spot.draw)
    wanted = [(0, value) for value in range(spot.draw.between(4, 8))]
    return _task(spot, keys, wanted, f"What are all the locker numbers of {keys.name(0)}?", True)


def _queries(spot: Spot) -> Task:
    keys = _Keys(spot.draw)
    wanted = [(key, key) for key in range(spot.draw.between(3, 5))]
    *names, last = (keys.name(key) for key in spot.draw.shuffled(range(len(wanted))))
    return _task(spot, keys, wanted, f"What are the locker numbers of {', '.join(names)} and {last}?", True)


#: Kind to the names of its templates and what makes a task of them.
TEMPLATES: dict[str, Mapping[str, Callable[[Spot], Task]]] = {
    "single": {"prose": _one},
    "multi_key": {"prose": _one, "lines": _one},
    "multi_value": {"prose": _values, "lines": _values},
    "multi_query": {"prose": _queries, "lines": _queries},
}

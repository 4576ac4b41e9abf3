"""Lists of made-up words: which occur most often, and how often?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlm_dspy.tasks._draw import Draw, Permutation
from rlm_dspy.tasks.base import Spot, Task

__all__ = ["TEMPLATES"]

_SYLLABLES = tuple(first + second for first in "bdfgklmnprstvwyz" for second in "aeiou")
_ALL = len(_SYLLABLES) ** 3
_ROW = 12


def _words(draw: Draw, number: int) -> list[str]:
    """So many different words of six letters."""
    order = Permutation(draw, _ALL)
    out = []
    for place in range(number):
        rest, first = divmod(order(place), len(_SYLLABLES))
        third, second = divmod(rest, len(_SYLLABLES))
        out.append(_SYLLABLES[first] + _SYLLABLES[second] + _SYLLABLES[third])
    return out


def _text(draw: Draw, counts: list[int], words: list[str]) -> str:
    """Words as often as is said, in a drawn order."""
    order = draw.shuffled([word for word, count in zip(words, counts, strict=True) for _ in range(count)])
    return "".join(" ".join(order[at : at + _ROW]) + "\n" for at in range(0, len(order), _ROW))


def _total(spot: Spot) -> int:
    return -(-spot.characters // 7)


def _common(spot: Spot) -> Task:
    """Ten words that occur four times as often as most, beside ten that occur twice as often."""
    total = _total(spot)
    rare = min(20_000, total // 5)
    usual = total // (rare + 60)
    counts = [4 * usual] * 10 + [2 * usual] * 10 + [usual] * rare
    left = total - sum(counts)
    while left > 0:  # the rest are words that occur at most as often as most
        counts.append(min(usual, left))
        left -= counts[-1]
    words = _words(spot.draw, len(counts))
    query = "The context is a list of words. Which ten words occur most often in it?"
    return Task(_text(spot.draw, counts, words), query, sorted(words[:10]), {}, "context, query -> answer: list[str]")


def _ranked(spot: Spot) -> tuple[str, list[str], list[int]]:
    """A text whose words become rarer, rank by rank; its words by rank and their counts."""
    draw, total = spot.draw, _total(spot)
    counts: list[int] = []
    first = draw.between(80, 160)
    while sum(counts) < total // 2:
        at = first + 60 * len(counts)
        gap = 10 * total // at - 10 * total // (at + 60)
        counts.append(max(1, 10 * total // at - draw.below(1 + gap // 2)))
    rare = max(1, counts[-1] // 2)
    left = total - sum(counts)
    while left > 0:
        counts.append(min(rare, left))
        left -= counts[-1]
    words = _words(draw, len(counts))
    return _text(draw, counts, words), words, counts


def _frequent(spot: Spot) -> Task:
    text, words, _ = _ranked(spot)
    query = "The context is a list of words. Which three words occur most often in it?"
    return Task(text, query, sorted(words[:3]), {}, "context, query -> answer: list[str]")


def _times(spot: Spot) -> Task:
    text, _, counts = _ranked(spot)
    query = "The context is a list of words. How often does the word occur that occurs most often in it?"
    return Task(text, query, counts[0], {}, "context, query -> answer: int")


TEMPLATES: Mapping[str, Callable[[Spot], Task]] = {"common": _common, "frequent": _frequent, "times": _times}

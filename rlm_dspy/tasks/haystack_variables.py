"""Variables that get a number or the value of an earlier variable: which ones have a number in the end?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rlm_dspy.tasks._draw import Draw, Permutation
from rlm_dspy.tasks.base import Spot, Task
from rlm_dspy.tasks.haystack_keys import spread
from rlm_dspy.tasks.prose import document

__all__ = ["TEMPLATES"]

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NUMBERS = 90_000
#: Chains that are written at the same time where all of the text is assignments.
_AT_ONCE = 300


class _Chains:
    """Chains of assignments: the first one of a chain is of a number, each other of an earlier variable of the chain.

    Variables are six letters, none twice, and numbers five digits. The first chain is the one that is asked for, and no
    other has its number.
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._names, self._values = Permutation(draw, 26**6), Permutation(draw, _NUMBERS)
        self._variables = 0
        self._chains = 0

    def new(self) -> _Chain:
        """Another chain, of five to nine variables."""
        number = 10_000 + self._values(self._chains and 1 + (self._chains - 1) % (_NUMBERS - 1))
        self._chains += 1
        return _Chain(number, self._draw.between(5, 9))

    def step(self, chain: _Chain) -> tuple[str, str]:
        """The next assignment of a chain: the variable, and what it gets."""
        rest, letters = self._names(self._variables), []
        for _ in range(6):
            rest, letter = divmod(rest, 26)
            letters.append(_LETTERS[letter])
        self._variables += 1
        got = self._draw.choice(chain.names) if chain.names else str(chain.number)
        chain.names.append("".join(letters))
        return chain.names[-1], got


@dataclass
class _Chain:
    """What has one value.

    Attributes:
        number: The value.
        length: How many variables shall have it.
        names: Those that have it already.
    """

    number: int
    length: int
    names: list[str] = field(default_factory=list)


def _task(text: str, asked: _Chain) -> Task:
    query = (
        f"Which variables have the value {asked.number}, be it that they are given the number itself or the value of "
        "another variable that has it?"
    )
    return Task(text, query, asked.names, {}, "context, query -> answer: list[str]")


def _prose(spot: Spot) -> Task:
    """Assignments as sentences in prose, of one chain and two to five others."""
    draw, planted = spot.draw, []
    made = _Chains(draw)
    chains = [made.new() for _ in range(draw.between(3, 6))]
    for chain in chains:
        for place in spread(draw, chain.length):
            planted.append((place, "The variable {} is set to {}.".format(*made.step(chain))))
    return _task(document(draw, spot.characters, planted)[0], chains[0])


def _lines(spot: Spot) -> Task:
    """A text of nothing but assignments: one chain goes through all of it, others through parts of it."""
    draw = spot.draw
    made = _Chains(draw)
    asked = made.new()
    due = [int(place * spot.characters) for place in spread(draw, asked.length)]
    blocks, written = [], 0
    while written < spot.characters:
        others = [made.new() for _ in range(_AT_ONCE)]
        lines: list[str] = []
        for other in draw.shuffled([one for one in others for _ in range(one.length)]):
            chain = other
            if due and written >= due[0]:
                chain = asked
                del due[0]
            lines.append("{} = {}\n".format(*made.step(chain)))
            written += len(lines[-1])
            if written >= spot.characters:
                break
        blocks.append("".join(lines))
    blocks += ["{} = {}\n".format(*made.step(asked)) for _ in due]
    return _task("".join(blocks), asked)


TEMPLATES: Mapping[str, Callable[[Spot], Task]] = {"prose": _prose, "lines": _lines}

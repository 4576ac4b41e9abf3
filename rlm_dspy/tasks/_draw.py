"""Draws that are the same on every machine and Python: everything is made from ``random.Random.random``.

Python promises the sequence of ``random()`` for an integer seed and nothing more (the library reference, "Notes on
Reproducibility" of `random`): ``choice``, ``sample`` and ``shuffle`` have changed before. So they are made here.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A source of draws.

    Args:
        *parts: What the draws depend on, such as a name, a seed and an index; their ``str`` is hashed.

    Attributes:
        random: A float in [0, 1).
    """

    def __init__(self, *parts: object) -> None:
        digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
        self.random = random.Random(int.from_bytes(digest, "big")).random

    def below(self, n: int) -> int:
        """A whole number from 0 to ``n - 1``."""
        return int(self.random() * n)

    def between(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included; ``low`` where ``high`` is smaller."""
        return low + int(self.random() * max(1, high - low + 1))

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random() < probability

    def choice(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[int(self.random() * len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in a drawn order (Fisher and Yates)."""
        out = list(items)
        for last in range(len(out) - 1, 0, -1):
            other = int(self.random() * (last + 1))
            out[last], out[other] = out[other], out[last]
        return out

    def sample(self, items: Sequence[T], k: int) -> list[T]:
        """``k`` of the items, none twice; all of them where there are fewer."""
        return self.shuffled(items)[:k]

    def distinct(self, low: int, high: int, k: int) -> list[int]:
        """``k`` different whole numbers from ``low`` to ``high``, both included, few of those there are."""
        out: dict[int, None] = {}
        while len(out) < k:
            out[self.between(low, high)] = None
        return list(out)

    def hexadecimal(self, digits: int) -> str:
        """A text of lower-case hexadecimal digits, at most 13 of them."""
        return f"{int(self.random() * 16**digits):0{digits}x}"


class Permutation:
    """The whole numbers below ``size`` in a drawn order, of which each is computed alone: names without repeats.

    Multiplying by an odd number and adding the upper half of the bits to the lower both go through all numbers below a
    power of two; what falls outside of ``size`` is mapped again.

    Args:
        draw: Where the order comes from.
        size: How many; at most 2**40.
    """

    def __init__(self, draw: Draw, size: int) -> None:
        self.size = size
        bits = max(2, (size - 1).bit_length())
        self._mask, self._half = (1 << bits) - 1, (bits + 1) // 2
        self._odd = tuple(2 * draw.below(1 << (bits - 1)) + 1 for _ in range(2))
        self._shift = draw.below(1 << bits)

    def __call__(self, place: int) -> int:
        """The number at a place below ``size``."""
        mask, half, (first, second) = self._mask, self._half, self._odd
        while True:
            place = (place * first + self._shift) & mask
            place ^= place >> half
            place = place * second & mask
            place ^= place >> half
            if place < self.size:
                return place

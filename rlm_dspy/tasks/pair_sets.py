"""How right a set of pairs is: F1, the harmonic mean of precision and recall, over pairs without order.

A pair is any two values that are compared as `rlm_dspy.tasks.values.normalised` texts, so ``[48213, "50017"]`` is
``("50017", 48213.0)``. Pairs come as lists, tuples, sets, or models and dataclasses of two fields; or all of them as a
text: a JSON list, ``(a, b)`` one after the other, or ``a, b`` one a line. Anything else among them is one wrong pair.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from rlm_dspy.tasks.values import LONGEST, MANY, normalised, plain

__all__ = ["f1", "is_pairs"]

Pair = tuple[str, str]

_WORD = r"['\"]?([\w-]+)['\"]?"
_BRACKETED = re.compile(rf"[(\[]\s*{_WORD}\s*,\s*{_WORD}\s*[)\]]")
_LINE = re.compile(rf"\s*(?:[-*•]\s+)?{_WORD}\s*,\s*{_WORD}\s*")


def is_pairs(gold: Any) -> bool:
    """Whether a gold is a set of pairs: a list with items, each of them two values."""
    return bool(gold) and all(isinstance(item, (list, tuple)) and len(item) == 2 for item in gold)


def f1(gold: Sequence[Sequence[Any]], answer: Any, most: int) -> float:
    """2 × right / (pairs of the gold + pairs of the answer); 0.0 for an answer of more than ``most`` pairs.

    Raises:
        Exception: Whatever the methods of a hostile answer raise.
    """
    wanted = {pair for pair in map(_pair, gold) if pair is not None}
    answer = plain(answer)
    if isinstance(answer, str):
        answer = _read(answer) if len(answer) <= LONGEST else []
    if not isinstance(answer, (list, tuple, set, frozenset)) or len(answer) > MANY:
        return 0.0
    if _flat(answer):  # one pair, without the list round it
        answer = [answer]
    read = [_pair(item) for item in answer]
    found = {pair for pair in read if pair is not None}
    size = len(found) + read.count(None)
    if size > most:
        return 0.0
    return 2 * len(wanted & found) / (len(wanted) + size)


def _flat(answer: Any) -> bool:
    return isinstance(answer, (list, tuple)) and len(answer) == 2 and _pair(answer) is not None


def _pair(item: Any) -> Pair | None:
    """A pair in its order of text; None for what is none, and for a value paired with itself."""
    item = plain(item)
    if isinstance(item, str):
        match = _BRACKETED.fullmatch(item.strip()) or _LINE.fullmatch(item)
        item = match.groups() if match else None
    if not isinstance(item, (list, tuple, set, frozenset)) or len(item) != 2:
        return None
    first, second = (normalised(plain(side)) for side in item)
    if first is None or second is None or first == second:
        return None
    return (first, second) if first < second else (second, first)


def _read(text: str) -> list[Any]:
    """The pairs of a text that is nothing but pairs, else none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, list):
        return value
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and all(_LINE.fullmatch(line) for line in lines):
        return list(lines)
    if re.sub(r"[\s,;\[\]*•-]", "", _BRACKETED.sub("", text)):
        return []
    return [match.groups() for match in _BRACKETED.finditer(text)]

"""How right an answer is.

    gold    right (1.0)                                                    otherwise
    int     the same whole number                                          0.0
    str     the same text once both are normalised                         0.0
    list    the same set of texts once all are normalised                  |both| / |either| (Jaccard), below 1.0

Normalised: Unicode NFKC, case folded, runs of whitespace made one space, and everything that is neither letter nor
digit cut off both ends. What a program answers in another type than asked is read as that type where only one reading
exists:

    for an int     a float without fraction; a text that is a whole number and nothing else (``"1,234"``, ``"42.0"``)
    for a str      a number, as its text
    for either     a list of one item, as that item
    for a list     a tuple or set; a text that is a JSON list, or else items apart by new lines, semicolons or commas
                   (a leading ``-``, ``*`` or ``1.`` is no part of an item); a number, as one item

Anything else (None, a missing field, True for 1, a sentence round the answer) is 0.0. No prediction makes it raise.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from rlm_dspy.errors import ConfigurationError

__all__ = ["normalised", "score"]

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:[,_\u00a0 ]\d{3})+|\d+)(?:\.0*)?")
_BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,3}[.)])\s+")
_NOTHING = object()


def score(
    example: Any, prediction: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
) -> float:
    """A DSPy metric (the last three arguments are what DSPy's optimisers hand to one, and make no difference).

    Args:
        example: With the gold in ``answer``.
        prediction: With the answer in ``answer``: a `dspy.Prediction`, any object, or a mapping.

    Returns:
        0.0 to 1.0, by the table of this module.

    Raises:
        ConfigurationError: The example has no gold of the three types; no prediction makes it raise.
    """
    gold = _answer(example)
    if isinstance(gold, bool) or not isinstance(gold, (int, str, list, tuple)):
        raise ConfigurationError("the example has no gold: its `answer` must be an int, a str or a list of str")
    try:
        answer = _answer(prediction)
        if isinstance(gold, int):
            return float(_whole(answer) == gold)
        if isinstance(gold, str):
            return float(normalised(_single(answer)) == normalised(gold))
        return _overlap({normalised(item) for item in gold}, _items(answer))
    except Exception:  # whatever a prediction holds, its own methods failing included: it is no right answer
        return 0.0


def normalised(value: Any) -> str | None:
    """A text as it is compared; None for what is neither text nor number."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    folded = " ".join(unicodedata.normalize("NFKC", str(value)).casefold().split())
    first = next((n for n, letter in enumerate(folded) if letter.isalnum()), None)
    if first is None:
        return folded or None
    last = next(n for n in range(len(folded), 0, -1) if folded[n - 1].isalnum())
    return folded[first:last]


def _answer(holder: Any) -> Any:
    if isinstance(holder, Mapping):
        return holder.get("answer")
    return getattr(holder, "answer", None)


def _single(answer: Any) -> Any:
    return answer[0] if isinstance(answer, (list, tuple)) and len(answer) == 1 else answer


def _whole(answer: Any) -> int | object:
    answer = _single(answer)
    if isinstance(answer, bool):
        return _NOTHING
    if isinstance(answer, int):
        return answer
    if isinstance(answer, float):
        return int(answer) if math.isfinite(answer) and answer == int(answer) else _NOTHING
    if isinstance(answer, str) and _NUMBER.fullmatch(answer.strip()):
        return int(re.sub(r"[,_\u00a0 ]|\.0*$", "", answer.strip()))
    return _NOTHING


def _items(answer: Any) -> set[str | None]:
    if isinstance(answer, str):
        answer = _split(answer)
    elif isinstance(answer, (int, float)):
        answer = [answer]
    if not isinstance(answer, (list, tuple, set, frozenset)):
        return set()
    return {normalised(item) for item in answer}


def _split(text: str) -> list[Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, list):
        return value
    stripped = text.strip()
    if stripped[:1] == "[" and stripped[-1:] == "]":
        stripped = stripped[1:-1]
    separator = next((mark for mark in ("\n", ";", ",") if mark in stripped), "\n")
    return [_BULLET.sub("", item) for item in stripped.split(separator) if item.strip()]


def _overlap(gold: set[str | None], answer: set[str | None]) -> float:
    either = gold | answer
    return len(gold & answer) / len(either) if either else 1.0

"""How right an answer is.

    gold     right (1.0)                                                    otherwise
    int      the same whole number                                          0.0
    str      the same text once both are normalised                         0.0
    list     the same set of texts once all are normalised                  |both| / |either| (Jaccard), below 1.0
    pairs    the same set of pairs, each without order                      F1, below 1.0; see `pair_sets`

Normalised: Unicode NFKC, case folded, runs of whitespace made one space, and everything that is neither letter nor
digit cut off both ends. What a program answers in another type than asked is read as that type where only one reading
exists:

    for an int     a float without fraction; a text that is a whole number and nothing else (``"1,234"``, ``"42."``)
    for a str      a number, as its text; a date, as ISO text
    for either     a list of one item, as that item
    for a list     a tuple or set; a text that is a JSON list, or else items apart by new lines, semicolons or commas
                   (a leading ``-``, ``*`` or ``1.`` is no part of an item); a number, as one item
    for all        a member of an enumeration, as its value; a model or dataclass of one field, as that field

Anything else (None, a missing field, NaN, True for 1, ``"forty-two"``, ``"A or B"``, a sentence round the answer) is
0.0: what is asked is a typed field, and its type is in the signature. A list with more than `MOST` times as many
items as the gold is 0.0 too: naming everything is no answer. No prediction makes it raise.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.tasks import pair_sets
from rlm_dspy.tasks.values import LONGEST, MANY, items_of_text, normalised, plain, single

__all__ = ["MOST", "normalised", "score"]

#: How many times as many items as the gold has an answer may have before it is worth nothing.
MOST = 3

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:[,_\u00a0 ]\d{3})+|\d+)(?:\.0*)?")
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
        raise ConfigurationError(
            "the example has no gold: its `answer` must be an int, a str, a list of str or a list of pairs"
        )
    try:
        answer = _answer(prediction)
        if isinstance(gold, int):
            return float(_whole(answer) == gold)
        if isinstance(gold, str):
            return float(normalised(single(answer)) == normalised(gold))
        if pair_sets.is_pairs(gold):
            return pair_sets.f1(gold, answer, MOST * len(gold))
        return _overlap({normalised(item) for item in gold}, _items(answer))
    except Exception:  # whatever a prediction holds, its own methods failing included: it is no right answer
        return 0.0


def _answer(holder: Any) -> Any:
    if isinstance(holder, Mapping):
        return holder.get("answer")
    return getattr(holder, "answer", None)


def _whole(answer: Any) -> int | object:
    answer = single(answer)
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
    answer = plain(answer)
    if isinstance(answer, str):
        answer = _split(answer) if len(answer) <= LONGEST else []
    elif isinstance(answer, (int, float)):
        answer = [answer]
    if not isinstance(answer, (list, tuple, set, frozenset)) or len(answer) > MANY:
        return set()
    return {normalised(plain(item)) for item in answer}


def _split(text: str) -> list[Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, list) else items_of_text(text)


def _overlap(gold: set[str | None], answer: set[str | None]) -> float:
    if len(answer) > MOST * len(gold):
        return 0.0
    either = gold | answer
    return len(gold & answer) / len(either) if either else 1.0

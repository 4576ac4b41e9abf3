"""Answers that have the right type and cannot be meant: the name that was asked about, pieces of lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlm_dspy.data import Data
from rlm_dspy.first_look import matches
from rlm_dspy.signatures.dialect import string_constants
from rlm_dspy.words import names

_ITEMS = 200
_LEAST = 3
"""Characters from which on a text that was searched for tells."""


def asked_about(outputs: Mapping[str, Any], data: Data, task: str, telling: Mapping[str, int]) -> str | None:
    """Why an answer is no answer that is the one name in the task, or None.

    Where the task names two, it may ask which of them.

    Args:
        outputs: The answer.
        data: The largest input.
        task: What is asked.
        telling: The words of the task that stand in ``data``.
    """
    asked = names(telling)
    answers = [value.strip() for value in outputs.values() if isinstance(value, str)]
    if len(asked) != 1 or answers != asked or len(outputs) != 1:
        return None
    found = matches(data, task)
    said = "\n".join(["Answer from this, if it says it:", *found]) if found else "Print what the data says of it."
    return f"{asked[0]!r} is what the task asks about, so it is not the answer. {said}"


def pieces(outputs: Mapping[str, Any], code: str, task: str) -> str | None:
    """Why a list is no answer whose items are longer pieces of lines than was asked for, or None.

    They are where each of them has a text in it by which the lines were searched for, among other words.

    Args:
        outputs: The answer.
        code: What led to it.
        task: What is asked; a text that it names may well be a part of its answer.
    """
    for value in outputs.values():
        items = value[:_ITEMS] if isinstance(value, (list, tuple)) else []
        if not items or not all(isinstance(item, str) and " " in item.strip() for item in items):
            continue
        for text in string_constants(code):
            searched = text.strip()
            if len(searched) >= _LEAST and searched not in task and all(searched in item for item in items):
                return (
                    f"every item has {searched!r} in it, which was only searched for: they are longer than what is "
                    rf"asked for. Cut them at the right place, such as with (\S+) in place of (.+)."
                )
    return None

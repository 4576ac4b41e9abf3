"""Values as they are compared: what answers of many types come to, where only one reading exists."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re
import unicodedata
from typing import Any

import pydantic

__all__ = ["LONGEST", "MANY", "items_of_text", "normalised", "plain", "single"]

#: Characters of a text, and items of a list, beyond which it is not looked into: no answer is that long.
LONGEST, MANY = 100_000, 10_000

_BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,3}[.)])\s+")


def normalised(value: Any) -> str | None:
    """A text as it is compared; None for what is neither text nor number."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    if isinstance(value, str) and len(value) > LONGEST:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    folded = " ".join(unicodedata.normalize("NFKC", str(value)).casefold().split())
    first = next((n for n, letter in enumerate(folded) if letter.isalnum()), None)
    if first is None:
        return folded or None
    last = next(n for n in range(len(folded), 0, -1) if folded[n - 1].isalnum())
    return folded[first:last]


def plain(value: Any) -> Any:
    """A typed value as data: a member of an enumeration as its value, a date as ISO text, a model or dataclass with one
    field as that field, one with several as the list of them; anything else as it is."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, datetime.date):
        return value.isoformat() if type(value) is datetime.date else value
    if isinstance(value, pydantic.BaseModel):
        names = list(type(value).model_fields)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in dataclasses.fields(value)]
    else:
        return value
    fields = [plain(getattr(value, name)) for name in names]
    return fields[0] if len(fields) == 1 else fields


def single(answer: Any) -> Any:
    """A list of one item as that item."""
    answer = plain(answer)
    return plain(answer[0]) if isinstance(answer, (list, tuple)) and len(answer) == 1 else answer


def items_of_text(text: str) -> list[str]:
    """The items of a text that is a list: apart by new lines, else semicolons, else commas; without bullets."""
    stripped = text.strip()
    if stripped[:1] == "[" and stripped[-1:] == "]":
        stripped = stripped[1:-1]
    separator = next((mark for mark in ("\n", ";", ",") if mark in stripped), "\n")
    return [_BULLET.sub("", item) for item in stripped.split(separator) if item.strip()]

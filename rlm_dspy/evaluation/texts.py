"""Inputs as the text that a prompt would hold, and that text in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

__all__ = ["head_and_tail", "longest", "pieces", "text_of"]

CUT = "\n[… {left:,} characters left out …]\n"


def text_of(value: Any) -> str:
    """``value`` as text: a text as it is, files by name one after another, all else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values()):
        return "\n".join(f"===== {name} =====\n{text}" for name, text in value.items())
    return json.dumps(to_jsonable_python(value, fallback=str, bytes_mode="base64"), ensure_ascii=False)


def longest(inputs: Mapping[str, Any]) -> str:
    """The name of the input whose text is the longest."""
    return max(inputs, key=lambda name: len(text_of(inputs[name])))


def head_and_tail(text: str, characters: int) -> str:
    """At most ``characters`` of ``text``: its beginning and its end, and between them how much is missing."""
    if len(text) <= characters:
        return text
    room = max(0, characters - len(CUT) - 12)
    head = room - room // 2
    return text[:head] + CUT.format(left=len(text) - room) + (text[len(text) - room // 2 :] if room > 1 else "")


def pieces(text: str, characters: int) -> Iterator[str]:
    """``text`` in pieces of at most ``characters``, cut at ends of lines where there are any in the last third."""
    start = 0
    while start < len(text):
        end = min(start + characters, len(text))
        if end < len(text):
            line = text.rfind("\n", start + characters * 2 // 3, end)
            end = line + 1 if line >= 0 else end
        yield text[start:end]
        start = end

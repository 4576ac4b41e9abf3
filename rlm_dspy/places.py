"""In which part of a record a word stands, so that code can ask for it there and nowhere else.

``'502'`` stands in many numbers of a log, and ``'status=502'`` in those lines that are meant; in JSON lines a word is
the value of one field. Said is what most of the lines with the word have in common, nothing where they have nothing.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from rlm_dspy.passages import around, occurrences

SAMPLED = 300
"""Lines with the word that are looked at."""

_MOST = 0.8
_SHOWN = 60
_EDGES = "\"'()[]{}<>,;"


def place(text: str, word: str, form: Literal["records", "json", "prose"]) -> str:
    """Such as ``"as 'status=502'"`` or ``"in the field 'svc'"``, or ``""`` where ``word`` has no usual place.

    Args:
        text: The data.
        word: As it stands in ``text``.
        form: How ``text`` is written; prose has no places.
    """
    if form == "prose":
        return ""
    lines = [text[slice(*around(text, at))] for at in itertools.islice(occurrences(text, word), SAMPLED)]
    return _field(lines, word) if form == "json" else _token(lines, word)


def _field(lines: list[str], word: str) -> str:
    found = [_first_field(line, word) for line in lines]
    best = _usual(found)
    if best is None:
        return ""
    path, how = best
    name = "".join(f"[{key!r}]" for key in path) if len(path) > 1 else repr(path[0])
    return {
        "number": f"as a number in the field {name}",
        "whole": f"in the field {name}",
        "begins": f"at the beginning of the field {name}",
        "part": f"in the text of the field {name}",
    }[how]


def _first_field(line: str, word: str) -> tuple[tuple[str, ...], str] | None:
    """The keys that lead to the value that has ``word``, and how it has it; the whole value before a part of one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    part = None
    for path, value in _values(row):
        said = value if isinstance(value, str) else json.dumps(value)
        if said == word:
            return path, "whole" if isinstance(value, str) else "number"
        if part is None and isinstance(value, str) and word in value:
            part = path, "begins" if value.startswith(word) else "part"
    return part


def _values(row: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of an object and of the objects in it."""
    if isinstance(row, dict):
        for key, value in row.items():
            if isinstance(value, dict) and len(path) < 2:
                yield from _values(value, (*path, key))
            elif isinstance(value, (str, int, float, bool)):
                yield (*path, key), value


def _token(lines: list[str], word: str) -> str:
    """The token with the word where it is nearly always the same, else what stands before the word in it."""
    tokens, heads = [], []
    for line in lines:
        token = next((token for token in line.split() if word in token), "")
        tokens.append(token.strip(_EDGES) if len(token) <= _SHOWN else "")
        before = token[: token.find(word)].lstrip(_EDGES)
        heads.append(before if len(before) <= _SHOWN else "")
    token_, head = _usual(tokens), _usual(heads)
    if token_ and token_ != word:
        return f"as {token_!r}"
    if head and not re.search(r"\d", head):
        return f"as {head + word!r}"
    return ""


def _usual(found: Iterable[Any]) -> Any:
    """What nearly all of ``found`` are, or None."""
    listed = list(found)
    value, number = Counter(listed).most_common(1)[0] if listed else (None, 0)
    return value if number >= _MOST * len(listed) else None

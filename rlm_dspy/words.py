"""Words: how one is spelled in a text, and whether a task names it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_STEM = 5
_PARTS = re.compile(r"[^\W_]+")


def is_plain(word: str) -> bool:
    """Whether ``word`` is one of the language, and no name, number or code: it stands in a text by accident."""
    return word.isalpha() and word.islower()


def names(words: Iterable[str]) -> list[str]:
    """Those of ``words`` that are no plain words of the language."""
    return [word for word in words if not is_plain(word)]


def spelled(word: str, text: str) -> str:
    """``word`` as ``text`` has it: as it is, or in other capitals; ``""`` if it has it in none."""
    for spelling in dict.fromkeys((word, word.upper(), word.lower(), word.capitalize(), word.title())):
        if spelling in text:
            return spelling
    return ""


def named(term: str, task: str) -> bool:
    """Whether a word of ``term`` is one of ``task``, as far as both are as long as a stem; True where it has none."""
    if not _words(task):
        return True
    parts = [part.lower() for part in _PARTS.findall(term)]
    return not parts or any(part == word or _same_stem(part, word) for part in parts for word in _words(task))


@lru_cache(maxsize=8)
def _words(task: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.lower() for word in _PARTS.findall(task)))


def _same_stem(part: str, word: str) -> bool:
    return len(part) >= 3 and len(word) >= 3 and part[:_STEM] == word[:_STEM]

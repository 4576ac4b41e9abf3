"""Why code found nothing: how often the texts that it looks for stand in the data, and which one rules out the rest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rlm_dspy.first_look import COMMON, SEARCHED
from rlm_dspy.signatures.dialect import string_constants

NEVER = "never"
CONFLICT = "No line has all of these"
_TERMS = 6
_PARTS = 20


def counts(code: str, name: str, text: str) -> str:
    """How often the texts that ``code`` looks for stand in ``text``, the variable ``name``; ``""`` if there are none.

    Of a text that stands nowhere the longest part that does is named. Where each stands somewhere and no line has all
    of them, it is said without which one lines would be found.
    """
    found = dict.fromkeys(term for term in string_constants(code) if 2 <= len(term.strip()) <= 80)
    terms = list(found)[:_TERMS]
    if not terms or len(text) > SEARCHED:
        return ""
    said = [_count(term, text) for term in terms]
    explained = f"In {name}: {', '.join(said)}."
    if any(NEVER in each for each in said) or len(terms) < 2:
        return explained
    return f"{explained}{_conflict(terms, text)}"


def _count(term: str, text: str) -> str:
    if number := text.count(term):
        return f"{term!r} {number:,} times"
    for part in itertools.islice(_parts_of(term), _PARTS):
        if number := text.count(part):
            return f"{term!r} {NEVER}: use {part!r} in its place, which stands there {number:,} times"
    return f"{term!r} {NEVER}: leave it out or shorten it"


def _parts_of(term: str) -> Iterator[str]:
    """The parts of a text of several words, the longest first: a wording is guessed at, a name in it is not."""
    words = term.split(" ")
    for length in range(len(words) - 1, 0, -1):
        for start in range(len(words) - length + 1):
            part = " ".join(words[start : start + length])
            if len(part) > 2 and part.lower() not in COMMON:
                yield part


def _conflict(terms: list[str], text: str) -> str:
    """Which term to leave out so that some line has all the others, where no line has all; else ``""``."""
    without = dict.fromkeys(terms, 0)
    for line in text.split("\n"):
        lacking = [term for term in terms if term not in line]
        if not lacking:
            return ""
        if len(lacking) == 1:
            without[lacking[0]] += 1
    term = max(without, key=lambda each: without[each])
    if not without[term]:
        return ""
    return f" {CONFLICT}; without {term!r} {without[term]:,} lines do."

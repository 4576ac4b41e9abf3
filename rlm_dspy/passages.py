"""Passages of a text that have words in them: where a word stands, the line or sentence round it, those that have all.

The first look, the explanation of an empty result and the remarks on one show passages; all of them find them here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence

from rlm_dspy.signatures.contract import Form

WIDTH = 240
"""Characters that are shown of one line."""

SEARCHED = 16_000_000
"""Characters of a text in which words are looked for; a longer one would take 10 ms a word."""

COUNTED = 200_000
"""Places of a word that are looked at."""

SENTENCES = 5_000
"""Places of a word in prose that are looked at: the ends of a sentence cost more than those of a line."""

LONGEST = 20_000
"""Characters before and behind a word in which the ends of its line are looked for."""

Span = tuple[int, int]

_STOP = re.compile(r"[.!?][\"'»”]?\s")


def occurrences(text: str, word: str) -> Iterator[int]:
    """Where ``word`` stands, once a line."""
    at = text.find(word)
    while at >= 0:
        yield at
        end = text.find("\n", at + len(word), at + len(word) + LONGEST)
        at = text.find(word, max(end, at + len(word)))


def around(text: str, place: int, reach: int = 4 * WIDTH) -> Span:
    """Start and end of the line round ``place``, looked for as far as ``reach``; near it where they are further."""
    near = max(0, place - reach)
    start = text.rfind("\n", near, place) + 1 or (near and place - WIDTH // 2)
    end = text.find("\n", place, place + reach)
    return start, end if end >= 0 else min(len(text), place + WIDTH)


def line(text: str, place: int) -> Span:
    """Start and end of the whole line round ``place``, of one that is longer than two times `LONGEST` a part."""
    return around(text, place, LONGEST)


def sentence(text: str, place: int) -> Span:
    """Start and end of the sentence round ``place``, neither further away than a line's shown width."""
    start, end = around(text, place)
    before = list(_STOP.finditer(text, max(start, place - WIDTH), place))
    after = _STOP.search(text, place, min(end, place + WIDTH))
    return before[-1].end() if before else start, after.end() if after else end


def bounds(form: Form) -> Callable[[str, int], Span]:
    """What a passage is: the sentence of prose, the line of anything else."""
    return sentence if form == "prose" else line


def cut(text: str, span: Span, words: Sequence[str] = ()) -> str:
    """A passage as it is shown; of a long one the part round the first of ``words`` in it."""
    passage = text[slice(*span)].rstrip()
    if len(passage) <= WIDTH:
        return passage
    lower = passage.lower()
    at = min((found for word in words if (found := lower.find(word.lower())) >= 0), default=0)
    begin = max(0, at - WIDTH // 2)
    return ("… " if begin else "") + passage[begin : begin + WIDTH]


def having(text: str, terms: Collection[str], form: Form) -> list[Span]:
    """The passages of ``text`` that have all of ``terms``, in order; at most `COUNTED` are looked at."""
    if not terms or len(text) > SEARCHED:
        return []
    rarest = min(terms, key=lambda term: (text.count(term), -len(term)))
    round_ = bounds(form)
    places = _everywhere(text, rarest) if form == "prose" else occurrences(text, rarest)
    most = SENTENCES if form == "prose" else COUNTED
    spans = dict.fromkeys(round_(text, at) for at in itertools.islice(places, most))
    return [span for span in spans if all(text.find(term, *span) >= 0 for term in terms)]


def _everywhere(text: str, word: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + len(word))

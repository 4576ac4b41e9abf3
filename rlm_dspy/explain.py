"""Why code found nothing: how often the texts that it looks for stand in the data, and what comes closest to them."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlm_dspy import columns
from rlm_dspy.data import Data
from rlm_dspy.fields import names
from rlm_dspy.first_look import COMMON, task_words
from rlm_dspy.passages import COUNTED, SEARCHED, SENTENCES, having
from rlm_dspy.places import find, where
from rlm_dspy.record_errors import as_records
from rlm_dspy.repair import numbers_asked
from rlm_dspy.signatures.dialect import has_meta, literals, parse, string_constants
from rlm_dspy.words import is_plain, spelled
from rlm_dspy.words import names as names_in

_TERMS = 6
_PARTS = 20
_LONGEST = 80
_LINES, _SENTENCES, _SAID = 2, 6, 10
_NAMES = 4
"""Names that are looked for together."""
_SHOW = "\nprint(len(hits))\nfor row in hits[:10]:\n    print(row)"


@dataclass(frozen=True)
class Explained:
    """Why code found nothing.

    Attributes:
        text: For the root.
        missed: Why the code cannot have found anything: ``"never"``, a text of it stands nowhere; ``"conflict"``, no
            line has all of them; ``""``, none of these.
    """

    text: str
    missed: Literal["never", "conflict", ""]


def nothing(code: str, data: Data, task: str = "") -> Explained | None:
    """How often the texts that ``code`` looks for stand in ``data``; None if there are none.

    Of a text that stands nowhere another spelling is named, or the longest part that does stand there. What has all of
    them comes next; where nothing has, what has all but one.
    """
    text = data.text
    types = "".join(f"\n{each}" for each in _types(code, data)) if data.rows is not None else ""
    terms = list(_terms(code, data))[:_TERMS]
    if not terms or len(text) > SEARCHED:
        return Explained(types.strip(), "") if types else None
    kind = data.form
    folds = ".lower()" in code or ".casefold()" in code or "IGNORECASE" in code
    said, live = [], []
    for term in terms:
        what, stands = _count(term, data, folds)
        said.append(what)
        live += [stands] if stands else []
    stand = [each.lower() for each in live] == [each.lower() for each in terms] if folds else live == terms
    missed: Literal["never", "conflict", ""] = "" if stand else "never"
    elsewhere = "" if data.name in code else f"The code does not read `{data.name}`, where the data are. "
    explained = f"{elsewhere}In {data.name}: {'; '.join(said)}.{types}"
    live = list(dict.fromkeys(live))
    found = having(text, live, kind)
    unit = data.unit
    closest = ""
    if found and (missed or len(live) > 1):
        closest = f" With {_listed(live)}: {_number(len(found), unit)}"
    elif not found and len(live) > 1:
        missed = missed or "conflict"
        rest = {term: having(text, [other for other in live if other != term], kind) for term in live}
        # A condition that the task does not name is the first to go.
        term = max(live, key=lambda each: (bool(rest[each]), each.lower() not in task.lower(), len(rest[each])))
        if found := rest[term]:
            closest = f" No {unit} has all of these; without {term!r}: {_number(len(found), unit)}"
        else:
            # More than one is too many. A plain word of the language stands in lines by accident.
            term = min(live, key=lambda each: (is_plain(each), text.count(each)))
            found = having(text, [term], kind)
            closest = f" No {unit} has all of these; with {term!r} alone: {_number(len(found), unit)}"
    if closest:
        words = task_words(task)
        most = _SENTENCES if kind == "prose" else _LINES
        passages = [data.passage(span, words) for span in _best(text, found, words)[:most]]
        explained += "\n".join([f"{closest}{', such as' if len(found) > len(passages) else ''}:", *passages])
    return Explained(explained, missed)


def start(data: Data, words: Mapping[str, int]) -> str:
    """Code that prints what in ``data`` has the telling ``words``; ``""`` without any."""
    if not words:
        return ""
    name, kind = data.name, data.form
    rarest = _together(data, words)
    if kind == "prose":
        pattern = rf"[^.\n]*{re.escape(rarest[0])}[^.\n]*".replace("\\ ", " ")
        return f"import re\nhits = re.findall({pattern!r}, {name})\nprint(len(hits))\nprint('\\n'.join(hits[:20]))"
    if kind == "rows":
        conditions = " and ".join(_condition(data, word) for word in rarest)
        hits = f"hits = [row for row in {name} if {conditions}]"
        return f"{hits}{_SHOW}"
    if kind == "json" and all((at := find(data, word)) and len(at.path) == 1 for word in rarest):
        conditions = " and ".join(_condition(data, word) for word in rarest)
        return f"{as_records(data)}\nhits = [row for row in rows if {conditions}]{_SHOW}"
    conditions = " and ".join(f"{_written(data, word)!r} in line" for word in rarest)
    hits = f"hits = [line for line in {name}.splitlines() if {conditions}]"
    return f"{hits}\nprint(len(hits))\nprint('\\n'.join(hits[:10]))"


def output(data: Data, words: Mapping[str, int]) -> str:
    """About what the code of `start` prints; ``""`` without any telling words."""
    if not words:
        return ""
    rarest = _together(data, words)
    found = having(data.text, rarest, data.form)
    passages = [data.passage(span, rarest) for span in found[:_SAID]]
    return "\n".join([f"{_number(len(found), data.unit)} with {_listed(rarest)}:", *passages])


def _together(data: Data, words: Mapping[str, int]) -> list[str]:
    """The telling words that are looked for together, the rarest first: as many as stand together somewhere.

    Names, numbers and capitals before plain words of the language, which stand in lines by accident.
    """
    names = names_in(words)
    rarest = sorted(names or words, key=lambda word: words[word])[: _NAMES if names else 2]
    if data.form == "prose" and " " in rarest[0]:
        return rarest[:1]
    while len(rarest) > 1 and not having(data.text, rarest, data.form):
        rarest.pop()
    return rarest


def _types(code: str, data: Data) -> list[str]:
    """What is said of conditions that compare a number with a field of texts."""
    said = []
    for number, keys in numbers_asked(code)[:_TERMS]:
        value = float(number) if "." in number else int(number)
        if len(keys) == 1 and (meant := columns.other_type(data, str(keys[0]), value)) is not None:
            said.append(f"The values of {keys[0]!r} are texts: compare with {meant!r}, not with {number}.")
    return list(dict.fromkeys(said))


def _written(data: Data, word: str) -> str:
    """A number with what it always stands behind, lest it is found in longer ones; other words as they are."""
    place = find(data, word) if word.isdigit() else None
    return place.token if place is not None and word in place.token else word


def _condition(data: Data, word: str) -> str:
    """That a record has ``word``, in the field where it stands, as code."""
    place = find(data, word)
    if place is None or len(place.path) != 1:
        return f"{word!r} in str(row)"
    field = f"row.get({place.path[0]!r})"
    if place.how == "whole":
        return f"{field} == {word!r}"
    return f"{word!r} in str({field})" if place.how != "number" else f"str({field}) == {word!r}"


def _terms(code: str, data: Data) -> Iterator[str]:
    """The texts that ``code`` looks for, once each; of a regular expression the parts that stand for themselves."""
    text = data.text
    # The name of a field that there is is no text that is looked for.
    seen = set(data.fields)
    constants = string_constants(code)
    if data.rows is not None:
        # Nor is one that there is not.
        seen |= set(names(parse(code) or ast.Module([], [])))
        constants += [number for number, _ in numbers_asked(code)]
    for constant in constants:
        literal = constant in text or not has_meta(constant)
        for term in [constant] if literal else literals(constant):
            if 2 <= len(term.strip()) <= _LONGEST and any(map(str.isalnum, term)) and term not in seen:
                seen.add(term)
                yield term


def _count(term: str, data: Data, folds: bool) -> tuple[str, str]:
    """What is said of a term, and what to look for in its place: itself, a spelling or part of it, or ``""``."""
    text = data.text
    if number := text.count(term):
        return f"{term!r} {number:,} times{where(data, term)}", term
    if spelling := spelled(term, text):
        as_written = "" if folds else f"{term!r} never, but "
        return f"{as_written}{spelling!r} {text.count(spelling):,} times", spelling
    for part in itertools.islice(_parts_of(term), _PARTS):
        if number := text.count(part):
            return f"{term!r} never: use {part!r} in its place, which stands there {number:,} times", part
    return f"{term!r} never: leave it out or shorten it, or the answer is none", ""


def _parts_of(term: str) -> Iterator[str]:
    """The parts of a text of several words, the longest first: a wording is guessed at, a name in it is not."""
    words = term.split(" ")
    for length in range(len(words) - 1, 0, -1):
        parts = [" ".join(words[start : start + length]) for start in range(len(words) - length + 1)]
        # Of parts of one length, that with names in it.
        for part in sorted(parts, key=lambda part: -sum(map(str.isupper, part))):
            if len(part) > 2 and part.lower() not in COMMON:
                yield part


def _best(text: str, spans: Sequence[tuple[int, int]], words: Sequence[str]) -> list[tuple[int, int]]:
    """Passages in their order, but those with more words of the task before those with fewer."""
    return sorted(spans, key=lambda span: -sum(word.lower() in text[slice(*span)].lower() for word in words))


def _listed(terms: Sequence[str]) -> str:
    return ", ".join(map(repr, terms))


def _number(number: int, unit: str) -> str:
    most = SENTENCES if unit == "sentence" else COUNTED
    return f"{'at least ' if number >= most else ''}{number:,} {unit}{'s' if number != 1 else ''}"

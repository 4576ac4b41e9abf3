"""How the conditions of a piece of code differ from those of the task: forgotten, made up, or worded too narrowly."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from rlm_dspy.first_look import form, json_keys, task_words, telling_words
from rlm_dspy.passages import SEARCHED, cut, having
from rlm_dspy.signatures.dialect import compared, literals, string_constants

_STEM = 5
_OTHERS = 6
_PARTS = re.compile(r"[^\W_]+")


@dataclass
class Differences:
    """What is to be said of the conditions of code that found something.

    Attributes:
        remarks: For the root, one a line.
        doubts: Why a number that rests on this code may be wrong, as the rest of a sentence.
    """

    remarks: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def differences(code: str, before: str, name: str, text: str, task: str) -> Differences:
    """How the conditions of ``code`` differ from those of ``task``.

    Args:
        code: What found something in ``text``, the variable ``name``.
        before: All code that was run before it.
    """
    found = Differences()
    if len(text) > SEARCHED:
        return found
    _forgotten(found, f"{before}\n{code}".lower(), name, text, task)
    _made_up(found, code, text, task)
    _narrow(found, code, text, task)
    return found


def _forgotten(found: Differences, done: str, name: str, text: str, task: str) -> None:
    """Words of the task that stand in the data and that no code has used, where it has used others."""
    words = telling_words(text, task)
    lacking = [f"{word!r} ({n:,} times)" for word, n in words.items() if not _used(word.lower(), done)]
    if lacking and len(lacking) < len(words):
        listed = ", ".join(lacking)
        found.remarks.append(
            f"These words of the task stand in {name} too, and the code does not use them: {listed}."
        )
        found.doubts.append(f"does not use {listed}, of the task. If it is a condition, use it")


def _used(word: str, done: str) -> bool:
    return word in done or all(part in done for part in word.split())


def _made_up(found: Differences, code: str, text: str, task: str) -> None:
    """Conditions that the task does not name, beside some that it does: copied from a line that was shown."""
    known = [word.lower() for word in _PARTS.findall(task)]
    terms = [term for term in dict.fromkeys(compared(code)) if len(term.strip()) > 1 and term in text]
    # `'level' in row` is no condition.
    keys = json_keys(text[:10_000].partition("\n")[0])
    strange = [term for term in terms if term not in keys and not _named(term, known)]
    rest = [term for term in terms if term not in strange and term not in keys]
    if not strange or not rest:
        return
    number = len(having(text, rest, form(text)))
    listed = ", ".join(map(repr, strange))
    asked = ", ".join(map(repr, rest))
    found.remarks.append(
        f"The task does not say {listed}: with {asked} alone there are {number:,}. Leave out what the task does not "
        "ask for."
    )
    found.doubts.append(f"asks for {listed}, which the task does not say. Leave that out unless it is needed")


def _named(term: str, known: Collection[str]) -> bool:
    """Whether a word of ``term`` is one of the task's, as far as both are as long as a stem."""
    parts = [part.lower() for part in _PARTS.findall(term)]
    return not parts or any(
        part == word or (len(part) >= 3 and len(word) >= 3 and part[:_STEM] == word[:_STEM])
        for part in parts
        for word in known
    )


def _narrow(found: Differences, code: str, text: str, task: str) -> None:
    """A name of the task that is looked for only as a part of one wording, in prose that has it in others too."""
    if form(text) != "prose":
        return
    names = [word for word in task_words(task) if " " in word and word in text]
    for name in names:
        longer = [term for constant in string_constants(code) for term in literals(constant) if name in term]
        wordings = [term for term in longer if term.strip() != name]
        if not wordings or len(wordings) < len(longer):
            continue
        others = [
            span
            for span in having(text, [name], "prose")
            if not any(text.find(term.strip(), *span) >= 0 for term in wordings)
        ]
        if others:
            words = [word.lower() for word in task_words(task) if word != name]
            others.sort(key=lambda span: -sum(word in text[slice(*span)].lower() for word in words))
            wording = ", ".join(repr(term.strip()) for term in wordings)
            passages = [cut(text, span, [name]) for span in others[:_OTHERS]]
            said = f"{len(others):,} more sentences have {name!r}, and may say it in other words than {wording}:"
            found.remarks.append("\n".join([said, *passages]))
            found.doubts.append(f"looks for {wording} alone, and other sentences have {name!r} too")
            return


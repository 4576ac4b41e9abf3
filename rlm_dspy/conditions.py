"""How the conditions of a piece of code differ from those of the task: forgotten, made up, or worded too narrowly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlm_dspy.data import Data
from rlm_dspy.first_look import task_words
from rlm_dspy.passages import SEARCHED, having
from rlm_dspy.repair import CONDITIONS, LONGEST, tightened
from rlm_dspy.signatures.dialect import compared, literals, string_constants
from rlm_dspy.words import named

_OTHERS = 6
_WORD = 4
"""Letters of a term that is no abbreviation, such as a country's code."""


@dataclass
class Differences:
    """What is to be said of the conditions of code that found something.

    Attributes:
        remarks: For the root, one a line.
        doubts: Why an answer that rests on this code may be wrong, as the rest of a sentence.
        made_up: The code has conditions that the task does not name.
        loose: The code looks for a word anywhere in a line that has its place in it.
    """

    remarks: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    made_up: bool = False
    loose: bool = False


def differences(
    code: str, before: str, data: Data, task: str, words: Mapping[str, int]
) -> Differences:
    """How the conditions of ``code`` differ from those of ``task``.

    Args:
        code: What was run over ``data``.
        before: All code that was run before it.
        words: The telling words of ``task`` in ``data``.
    """
    found = Differences()
    if len(data.text) > SEARCHED or len(code) > LONGEST:
        return found
    _made_up(found, code, data, task)
    _loose(found, code, data, task, words)
    _forgotten(found, f"{before}\n{code}".lower(), data.name, words)
    _narrow(found, code, data, task)
    return found


def _forgotten(found: Differences, done: str, name: str, words: Mapping[str, int]) -> None:
    """Words of the task that stand in the data and that no code has used, where it has used others."""
    lacking = [f"{word!r} ({n:,} times)" for word, n in words.items() if not _used(word.lower(), done)]
    if lacking and len(lacking) < len(words):
        listed = ", ".join(lacking)
        found.remarks.append(
            f"These words of the task stand in {name} too, and the code does not use them: {listed}."
        )
        found.doubts.append(f"does not use {listed}, of the task. If it is a condition, use it")


def _used(word: str, done: str) -> bool:
    return word in done or all(part in done for part in word.split())


def _made_up(found: Differences, code: str, data: Data, task: str) -> None:
    """Conditions that the task does not name, beside some that it does: copied from a line that was shown."""
    text = data.text
    terms = [term for term in dict.fromkeys(compared(code)) if len(term.strip()) > 1 and term in text][:CONDITIONS]
    # `'level' in row` is no condition.
    keys = data.fields
    strange = [term for term in terms if term not in keys and not named(term, task)]
    rest = [term for term in terms if term not in strange and term not in keys]
    # Where there is no other, it may be how the task's own word is written in the data.
    if not strange or not rest:
        return
    found.made_up = True
    listed = ", ".join(map(repr, strange))
    alone = f"with {', '.join(map(repr, rest))} alone there are {len(having(text, rest, data.form)):,}"
    found.remarks.append(f"The task does not say {listed}: {alone}. Is it how the data say a word of the task?")
    if any(len(term.strip()) >= _WORD for term in strange):
        found.doubts.append(f"asks for {listed}, which the task does not say. Leave that out unless it is meant")


def _loose(found: Differences, code: str, data: Data, task: str, words: Mapping[str, int]) -> None:
    """A word that is looked for anywhere in a line and stands in other places than its own too."""
    other, pairs = tightened(code, data, task, words)
    if not other:
        return
    before, after = (list(dict.fromkeys(compared(each)))[:CONDITIONS] for each in (code, other))
    text, kind = data.text, data.form
    number, meant = len(having(text, before, kind)), len(having(text, after, kind))
    if not 0 < meant < number:
        return
    found.loose = True
    said = "; ".join(f"{old!r} stands in other places than {new!r} too" for old, new in pairs)
    counts = f"{number:,} lines, and {meant:,} with that"
    found.remarks.append(f"{said}: {counts}. Where that is meant:\n```python\n{other}\n```")
    found.doubts.append(f"looks for {', '.join(repr(old) for old, _ in pairs)} in the whole line: {said}")


def _narrow(found: Differences, code: str, data: Data, task: str) -> None:
    """A name of the task that is looked for only as a part of one wording, in prose that has it in others too."""
    text = data.text
    if data.form != "prose":
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
            passages = [data.passage(span, [name]) for span in others[:_OTHERS]]
            said = f"{len(others):,} more sentences have {name!r}, and may say it in other words than {wording}:"
            found.remarks.append("\n".join([said, *passages]))
            found.doubts.append(f"looks for {wording} alone, and other sentences have {name!r} too")
            return


"""Reflection: a language model reads runs and writes a better instruction for one predictor of an RLM.

Two things are kept from it. The contract (variables, functions, limits, output fields) is stated to the root by the
program itself at every run, so an instruction that repeats it can only go stale; the reflecting model is told so. And
the length: what is longer than the cap is asked for again, shorter, and cut at a paragraph if that does not help.

A small model copies what it is to rewrite. Where nothing comes back changed twice in a row, it is asked for a lesson to
be added instead, by a prompt in which there is nothing to copy.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from rlm_dspy.optimizers.compile_folder import Folder
from rlm_dspy.optimizers.diagnosis import role_of_predictor
from rlm_dspy.redact import error_text, redact
from rlm_dspy.render import shorten
from rlm_dspy.signatures.conversation import sendable
from rlm_dspy.window import overflowed

MAX_CHARS = 4_000
"""Characters of an instruction unless told otherwise."""
_ATTEMPTS = 3
_LEAST = 2_000
_COPIES = 2
"""Rounds in a row that gave everything back as it was, after which lessons are asked for; and rounds in a row in which
these were what helped, after which nothing else is."""
_LESSON = 600
"""Characters of a lesson."""
_Records = Sequence[Mapping[str, Any]]
_Way = Callable[[str, str, _Records], str]

_ROLES = {
    "act": (
        "the root of a Recursive Language Model. It never sees its inputs whole: they are variables in a Python "
        "session. Turn by turn it writes code that looks at them, computes, and asks sub-models about parts, until it "
        "submits the answer. Children, which its code may start on parts of the input, follow the same instruction."
    ),
    "sub": (
        "a sub-model that code calls with a prompt. It sees that prompt and nothing else: not the task, not the data, "
        "not the other calls."
    ),
    "extract": "the last look, when a limit ended a run: it makes the best answer of the turns that there were.",
    "compact": "the summary of a conversation that became too long: the root goes on from it, and its variables stay.",
    "direct": "a single call that answers a task whose inputs are short.",
}
_TYPED = "a typed sub-model that code calls with its inputs; it sees these and nothing else."


class ProposeInstruction(dspy.Signature):
    """Improve the instruction of one part of a program, from runs of that program.

    Read in the runs what the data and the task are like, where the part went wrong and what would have helped, and what
    went well. Then write the new instruction: keep what works in the current one, add each fact about the data or the
    task, and each way of working, that these runs show and later runs will need. State facts exactly, with the marks,
    names and formats as they stand in the runs. Say nothing that holds for one input alone, and no answers.
    Where the runs give no reason for a change, return the current instruction as it is."""

    part: str = dspy.InputField(desc="What this part of the program is")
    current_instruction: str = dspy.InputField()
    runs: str = dspy.InputField(desc="Runs of the program, the worst first, with what is to be said of them")
    tried: str = dspy.InputField(desc="Instructions that were tried in its place, and what came of them")
    rules: str = dspy.InputField(desc="What the new instruction must keep to")
    new_instruction: str = dspy.OutputField(desc="The whole new instruction, and nothing else")


class LearnLesson(dspy.Signature):
    """Read runs of a program that went wrong, and say what it should be told before its next run.

    Say what these runs show about the data and the task (marks, formats, names, in their exact words), or which way of
    working would have helped. One to three short sentences, as orders. No answers, and nothing that holds for one input
    alone."""

    part: str = dspy.InputField(desc="What this part of the program is")
    runs: str = dspy.InputField(desc="Runs of the program, the worst first, with what is to be said of them")
    rules: str = dspy.InputField(desc="What the lesson must keep to")
    lesson: str = dspy.OutputField(desc="One to three sentences, and nothing else")


class Reflection:
    """Proposes instructions; gepa's ``propose_new_texts``.

    Args:
        lm: The reflecting model.
        folder: Where proposals are kept and looked up.
        max_chars: Of an instruction.
        hint: What the user wants said to the reflecting model beside the rules.

    Attributes:
        calls: Requests to the model so far, looked-up ones not counted.
        failures: How many of the last requests failed, one after the other; ``failure`` is the last error, as text.
        unchanged: Rounds in which nothing new was said.
    """

    def __init__(self, lm: dspy.BaseLM, folder: Folder, max_chars: int = MAX_CHARS, hint: str = "") -> None:
        self._lm, self._folder, self._most, self._hint = lm, folder, max_chars, hint.strip()
        self._rewrite, self._learn = dspy.Predict(ProposeInstruction), dspy.Predict(LearnLesson)
        self._attempts: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self._copied = self._taught = 0
        self.calls = self.failures = self.unchanged = 0
        self.failure = ""

    def __call__(
        self,
        candidate: Mapping[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: Sequence[str],
    ) -> dict[str, str]:
        """New instructions for those of ``components_to_update`` that have runs; what is unchanged is left out."""
        wanted = {name: records for name in components_to_update if (records := reflective_dataset.get(name))}
        if not wanted:
            return {}
        if self._taught < _COPIES:
            if texts := self._changed(self._rewritten, candidate, wanted):
                self._copied = self._taught = 0
                return texts
            self._copied += 1
        # Once may mean that these runs gave no reason for a change.
        if self._copied >= _COPIES and (texts := self._changed(self._added, candidate, wanted)):
            self._taught += 1
            return texts
        self.unchanged += 1
        return {}

    @staticmethod
    def _changed(way: _Way, candidate: Mapping[str, str], wanted: Mapping[str, _Records]) -> dict[str, str]:
        texts = {name: way(name, candidate[name], records) for name, records in wanted.items()}
        return {name: text for name, text in texts.items() if text and text != candidate[name].strip()}

    def tell(self, before: Mapping[str, str], after: Mapping[str, str], result: str) -> None:
        """What became of a proposal, for later ones in the same place.

        Args:
            before, after: The candidate it was made for, and the one it made.
            result: In words.
        """
        for name, text in after.items():
            if text != before.get(name):
                self._attempts.setdefault((name, before.get(name, "")), []).append((text, result))

    def _rewritten(self, name: str, current: str, records: _Records) -> str:
        """The instruction, rewritten from runs."""
        attempts = self._attempts.get((name, current), [])[-_ATTEMPTS:]
        asked = {
            "part": _part(name),
            "current_instruction": current,
            "runs": _runs(records),
            "tried": "\n\n".join(f"{text}\n-> {result}" for text, result in attempts) or "none",
            "rules": self._rules(self._most),
        }
        text = _clean(self._ask(name, self._rewrite, asked))
        if len(text) > self._most:
            shorter = f"The last one had {len(text)} characters: say the same in at most {self._most}."
            asked = {**asked, "current_instruction": text, "rules": f"{asked['rules']} {shorter}"}
            text = _clean(self._ask(name, self._rewrite, asked))
        # What was tried, copied with what came of it, is no proposal; without that it is one, for other runs.
        copied = any(text.endswith(f"\n-> {result}") for _, result in attempts)
        return current if copied else redact(_cut(text, self._most))

    def _added(self, name: str, current: str, records: _Records) -> str:
        """The instruction with a lesson from runs at its end; as it is where there is no room or nothing new."""
        room = min(_LESSON, self._most - len(current) - 1)
        if room < _LESSON // 4:
            return current
        known = [text.removeprefix(current).strip() for text, _ in self._attempts.get((name, current), [])]
        said = "".join(f"\nSay something else than: {text}" for text in known[-_ATTEMPTS:] if len(text) <= _LESSON)
        asked = {"part": _part(name), "runs": _runs(records), "rules": f"{self._rules(room)}{said}"}
        lesson = _cut(_clean(self._ask(name, self._learn, asked)), room)
        return current if not lesson or lesson in current else redact(f"{current.rstrip()}\n{lesson}")

    def _rules(self, most: int) -> str:
        return (
            f"At most {most} characters. Which variables, functions, limits and output fields a run has, and how "
            "an answer is submitted, is told to every run by the program: do not repeat it, and rely on no names of "
            "one run." + (f" {self._hint}" if self._hint else "")
        )

    def _ask(self, name: str, predict: dspy.Predict, asked: dict[str, str]) -> str:
        """What the model says, or said when it was asked the same before."""
        told = repr((str(getattr(self._lm, "model", "")), name, sorted(asked.items())))
        key = hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:24]
        if key not in self._folder.proposals:
            try:
                text = self._answer(predict, asked)
            except Exception as error:
                self.failures += 1
                self.failure = error_text(error, 500)
                raise
            self.failures = 0
            self._folder.propose(key, name, text)
        return self._folder.proposals[key]

    def _answer(self, predict: dspy.Predict, asked: dict[str, str]) -> str:
        """One request; shorter ones where the model's window is too small for all runs."""
        (output,) = predict.signature.output_fields
        while True:
            self.calls += 1
            try:
                with dspy.context(lm=self._lm, trace=[]):
                    return str(predict(**asked)[output] or "")
            except AdapterParseError as error:
                # A small model forgets the form, and says the right thing.
                if not (text := _without_form(error.lm_response or "")):
                    raise
                return text
            except Exception as error:
                if not overflowed(error) or len(asked["runs"]) < _LEAST:
                    raise
                asked = {**asked, "runs": shorten(asked["runs"], len(asked["runs"]) // 2)}


def _part(name: str) -> str:
    return f"`{name}`: {_ROLES.get(role_of_predictor(name), _TYPED)}"


def _runs(records: _Records) -> str:
    return sendable("\n\n".join(_shown(number, record) for number, record in enumerate(records, 1)))


def _shown(number: int, record: Mapping[str, Any]) -> str:
    lines = [f"# Run {number}"]
    for title, value in record.items():
        items = value if isinstance(value, list) else [value]
        lines += [f"## {title}", *(str(item) for item in items)]
    return "\n".join(lines)


def _without_form(reply: str) -> str:
    """The text of a reply that was to have one field: what stands in fences, or what is left without markers."""
    if found := re.search(r"```[\w-]*\n(.*?)\n?```", reply, re.DOTALL):
        return found[1].strip()
    return re.sub(r"\[\[ ## \w+ ## \]\]", "", reply).strip()


def _clean(text: str) -> str:
    """The instruction without fences or quotes round it."""
    text = sendable(text.strip())
    if found := re.fullmatch(r"```[\w-]*\n(.*?)\n?```", text, re.DOTALL):
        text = found[1].strip()
    if len(text) > 1 and text[0] == text[-1] == '"' and '"' not in text[1:-1]:
        text = text[1:-1].strip()
    return text


def _cut(text: str, most: int) -> str:
    """The beginning of ``text``, up to the end of a paragraph, line or sentence within ``most`` characters."""
    if len(text) <= most:
        return text
    head = text[:most]
    for end in ("\n\n", "\n", ". "):
        at = head.rfind(end)
        if at > most // 2:
            return head[: at + (end == ". ")].rstrip()
    return head.rstrip()

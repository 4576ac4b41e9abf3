"""The contract: the facts of one run, rendered once for its first message.

Variables, functions, output fields and limits are made from the live run, never from a signature's instructions and
never from saved state; nothing here is optimised, traced or saved.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

Form = Literal["records", "columns", "json", "csv", "prose", "rows"]
"""How a text is written: one record a line (``key=value`` or words of its own), the same columns in every line, one
JSON object a line, CSV with a header, or prose; ``"rows"`` is a list of dicts."""

PREVIEW = 500
SHORT = 1_000
NOTHING = re.compile(r"(\s|\b0(\.0)?\b|\[\]|\{\}|\(\)|set\(\)|\bNone\b|''|Counter\(\)|\bnan\b|,)*", re.ASCII)
"""What an output is that shows that nothing was found, see `is_nothing`."""

NOTHING_MOST = 100
"""Characters from which on an output is something."""

REFUSED = "[Error] SUBMIT was refused: "
"""What the reason of a refusal stands behind, in the output of a turn."""

NO_CODE = "There is no Python code in your reply"
"""How the output of a turn begins, after "[Error] ", whose reply had none."""

REPEATED = 400
"""Characters of the task that are repeated after each output."""


@dataclass(frozen=True)
class VariableInfo:
    """One input as the root may know it.

    Attributes:
        name: Its name in the REPL.
        type: Such as ``"str"`` or ``"list"``.
        size: Such as ``"12,582,912 characters, 180,442 lines"``.
        preview: Python literal of the whole value where it is short, of its head and tail otherwise.
        whole: True if ``preview`` is the whole value.
        desc: The field's description, ``""`` if it has none.
        look: Lines of a large text as they are, or what many records hold, shown in place of ``preview``; ``""``
            without a first look.
        form: How a large text is written, or that it is records.
        words: Words of the task that tell something in large texts or records, and how often they stand there.
        searched: It was searched for them; what is too long is not.
    """

    name: str
    type: str
    size: str
    preview: str
    whole: bool
    desc: str = ""
    look: str = ""
    form: Form = "records"
    words: tuple[tuple[str, int], ...] = ()
    searched: bool = False

    def summary(self) -> str:
        """Type and size on one line."""
        return f"{self.type}, {self.size}" if self.size else self.type


@dataclass(frozen=True)
class FunctionInfo:
    """A host function: its call in Python notation, such as ``"lookup(key: str) -> list[str]"``, and its doc."""

    call: str
    doc: str = ""


@dataclass(frozen=True)
class OutputInfo:
    """An output field: name, Python type as text, description, and JSON schema where the type is a model."""

    name: str
    type: str
    desc: str = ""
    schema: dict[str, Any] | None = None


@dataclass(frozen=True)
class Contract:
    """All facts of one run that the root is told.

    Attributes:
        task: The user's own instructions (the signature's docstring), verbatim.
        limits: One fact a line, such as ``"20 turns"``.
        environment: What the interpreter says of itself (``execution_instructions``), or ``""``.
        question: The short text inputs, which say what is asked where the instructions say it of every call; ``""`` if
            there are none.
    """

    task: str
    variables: tuple[VariableInfo, ...]
    functions: tuple[FunctionInfo, ...]
    outputs: tuple[OutputInfo, ...]
    limits: tuple[str, ...] = ()
    environment: str = ""
    notes: tuple[str, ...] = field(default=())
    question: str = ""

    def render(self, short: bool = False) -> str:
        """The text of the run's first message.

        Args:
            short: In few lines, the task last, in place of a titled section for each kind of fact.
        """
        return self._short() if short else self._long()

    def reminder(self, failed: bool = False, output: str = "?", found: bool = True) -> str:
        """The task in short and what to do next, as they are repeated after an output.

        Args:
            failed: The code ended in an error.
            output: What is shown of it.
            found: The code found something.
        """
        if REFUSED in output:
            advice = "Look at the data again with code, print what says the answer, and submit it then."
        elif f"[Error] {NO_CODE}" in output:
            # Nothing has failed: told so, small models look for a fault, and give up what they had.
            advice = f"{self._submit_line('If you have the answer, reply')} If not, reply with code that looks for it."
        elif failed:
            advice = "The code failed. Look at how the data is written and reply with corrected code."
        elif not found or is_nothing(output):
            advice = (
                "Nothing was found, which may mean that the code looks for the wrong thing. Print some lines that come "
                f"close and try again. {self._submit_line('Only if it is right, reply')}"
            )
        else:
            advice = f"{self._submit_line('If this output gives the answer itself, reply')} If not, go on with code."
        return f"{self.restated()}\n{advice}"

    def restated(self) -> str:
        """The task in short."""
        return f"Task: {cut_line(self._asked())}"

    def _asked(self) -> str:
        return "\n".join(part for part in (self.task.strip(), self.question.strip()) if part)

    def _short(self) -> str:
        parts = []
        if self.functions:
            parts.append("Functions you may call:\n" + "\n".join(map(_function, self.functions)))
        about = " ".join(self.environment.split())
        if self.limits:
            about = f"{about} Limits: {'; '.join(self.limits)}.".strip()
        if about:
            parts.append(about)
        parts.extend(self.notes)
        parts += [_brief_variable(variable, self.question) for variable in self.variables]
        parts.append(f"Task: {self._asked()}\n{self._submit_line('Give the answer')}{self._output_notes()}")
        return "\n\n".join(parts)

    def _submit_line(self, how: str) -> str:
        types = "; ".join(f"{output.name}: {output.type}" for output in self.outputs)
        return f"{how} with {self.submit_example()}, {types}."

    def _output_notes(self) -> str:
        notes = [f"\n- {output.name}: {output.desc}" for output in self.outputs if output.desc]
        notes += [
            f"\n- {output.name} follows the JSON schema {json.dumps(output.schema, ensure_ascii=False)}"
            for output in self.outputs
            if output.schema
        ]
        return "".join(notes)

    def _long(self) -> str:
        parts = [f"# Task\n{self.task.strip()}"]
        if self.variables:
            parts.append("# Variables\nAlready set in the REPL:\n" + "\n".join(map(_variable, self.variables)))
        if self.functions:
            parts.append("# Functions\nCallable in the REPL:\n" + "\n".join(map(_function, self.functions)))
        parts.append(self._answer())
        if self.environment.strip():
            parts.append(f"# Environment\n{self.environment.strip()}")
        if self.limits:
            parts.append("# Limits\n" + "\n".join(f"- {limit}" for limit in self.limits))
        parts.extend(self.notes)
        return "\n\n".join(parts)

    def submit_call(self) -> str:
        """How an answer is given, such as ``"SUBMIT(answer: str, score: float)"``."""
        return f"SUBMIT({', '.join(f'{output.name}: {output.type}' for output in self.outputs)})"

    def submit_example(self) -> str:
        """How an answer is given, as code with gaps: ``SUBMIT(answer=...)``."""
        return f"SUBMIT({', '.join(f'{output.name}=...' for output in self.outputs)})"

    def _answer(self) -> str:
        call = f"Call `{self.submit_call()}` in code to give the answer; that ends the run."
        return f"# Answer\n{call}{self._output_notes()}"


def is_nothing(output: str) -> bool:
    """True if ``output`` shows that nothing was found: ``0``, ``[]``, ``None``, or several of these."""
    return len(output) < NOTHING_MOST and NOTHING.fullmatch(output) is not None


def _variable(variable: VariableInfo) -> str:
    line = f"- `{variable.name}`: {variable.summary()}"
    if variable.desc:
        line += f" - {variable.desc}"
    if variable.look:
        return f"{line}\n{variable.look}"
    return f"{line}\n  {'=' if variable.whole else 'begins and ends'} {variable.preview}"


def _brief_variable(variable: VariableInfo, question: str = "") -> str:
    if variable.whole and variable.type == "str" and ast.literal_eval(variable.preview) == question:
        return f"Variable `{variable.name}`: the text of the task below."
    about = f" - {variable.desc}" if variable.desc else ""
    if variable.whole:
        return f"Variable `{variable.name}` = {variable.preview}  # {variable.type}{about}"
    look = variable.look or f"It begins and ends: {variable.preview}"
    return f"Variable `{variable.name}` is already set: {variable.summary()}{about}\n{look}"


def cut_line(text: str, limit: int = REPEATED) -> str:
    """``text`` on one line, its end left out where it is longer than ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[:limit].rstrip()} …"


def _function(function: FunctionInfo) -> str:
    doc = " ".join(function.doc.split())
    return f"- `{function.call}`" + (f" - {doc}" if doc else "")

"""The contract: the facts of one run, rendered once for its first message.

Variables, functions, output fields and limits are made from the live run, never from a signature's instructions and
never from saved state; nothing here is optimised, traced or saved.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

PREVIEW = 500
SHORT = 1_000


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
    """

    name: str
    type: str
    size: str
    preview: str
    whole: bool
    desc: str = ""

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
    """

    task: str
    variables: tuple[VariableInfo, ...]
    functions: tuple[FunctionInfo, ...]
    outputs: tuple[OutputInfo, ...]
    limits: tuple[str, ...] = ()
    environment: str = ""
    notes: tuple[str, ...] = field(default=())

    def render(self) -> str:
        """The text of the run's first message."""
        parts = [f"# Task\n{self.task.strip()}"]
        if self.variables:
            parts.append("# Variables\nAlready set in the REPL:\n" + "\n".join(map(_variable, self.variables)))
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

    def _answer(self) -> str:
        lines = [f"# Answer\nCall `{self.submit_call()}` in code to give the answer; that ends the run."]
        for output in self.outputs:
            if output.desc:
                lines.append(f"- {output.name}: {output.desc}")
            if output.schema:
                lines.append(f"- {output.name} follows the JSON schema {json.dumps(output.schema, ensure_ascii=False)}")
        return "\n".join(lines)


def _variable(variable: VariableInfo) -> str:
    line = f"- `{variable.name}`: {variable.summary()}"
    if variable.desc:
        line += f" - {variable.desc}"
    return f"{line}\n  {'=' if variable.whole else 'begins and ends'} {variable.preview}"


def _function(function: FunctionInfo) -> str:
    doc = " ".join(function.doc.split())
    return f"- `{function.call}`" + (f" - {doc}" if doc else "")

"""The rules of a reply, and taking code out of whatever a model really wrote.

The dialect is plain on purpose: prose, then a fenced block of Python. Every model knows it, it costs no marker tokens,
and a reply can be sent back byte for byte. Salvage is wide: any fence counts, also one that never closes; DSPy's field
markers and JSON objects with a ``code`` key are read too; a reply that is nothing but code is code.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass

DIALECT = """\
You work in a Python REPL. Reply with a short plan in plain words, then one fenced block:
```python
# code
```
The block is run and you are shown what it printed, the value of its last expression, and any traceback. Then it is \
your turn again. Variables, functions and imports stay from turn to turn. Long output is cut in the middle."""

_FENCE = re.compile(r"^[ \t]*(?P<marks>`{3,}|~{3,})[ \t]*(?P<info>[^\n`]*?)[ \t]*$")
_PYTHON = frozenset({"", "python", "py", "python3", "py3", "repl", "ipython", "pycon", "tool_code", "code"})
_SECTION = re.compile(r"\[\[ ## (\w+) ## \]\]")


@dataclass(frozen=True)
class Reply:
    """A model's reply, taken apart: the prose and the code (``""`` where there is none)."""

    reasoning: str
    code: str


def compiles(code: str) -> bool:
    """True if ``code`` is Python that the worker could compile, top-level ``await`` included."""
    try:
        compile(code, "<reply>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True


def find_code(text: str) -> Reply:
    """Take prose and code out of ``text``.

    Several Python blocks are one piece of code, in their order. A fence inside a string of the code does not end the
    block as long as a later closing fence makes it compile.
    """
    sections = _sections(text)
    if sections and "code" in sections:
        inner = find_code(sections["code"])
        return Reply(sections.get("reasoning", "").strip(), inner.code or _unlabelled(sections["code"]))
    fields = _json_fields(text)
    if fields is not None:
        inner = find_code(fields["code"])
        return Reply(fields.get("reasoning", "").strip(), inner.code or _unlabelled(fields["code"]))
    prose, blocks = _blocks(text)
    if blocks:
        return Reply("\n".join(prose).strip(), "\n\n".join(blocks))
    bare = text.strip()
    if _is_code(bare):
        return Reply("", _unlabelled(bare))
    return Reply(bare, "")


def _sections(text: str) -> dict[str, str]:
    """The fields of a reply in DSPy's chat format, ``[[ ## name ## ]]``."""
    parts = _SECTION.split(text)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _json_fields(text: str) -> dict[str, str] | None:
    """The fields of a reply that is one JSON object with a ``code`` key, else None."""
    bare = text.strip()
    fenced = re.fullmatch(r"```(?:json)?\s*\n(.*?)\n?```", bare, flags=re.DOTALL)
    bare = fenced[1].strip() if fenced else bare
    if not (bare.startswith("{") and bare.endswith("}")):
        return None
    try:
        fields = json.loads(bare)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("code"), str):
        return None
    return {name: value for name, value in fields.items() if isinstance(value, str)}


def _blocks(text: str) -> tuple[list[str], list[str]]:
    """Prose lines and Python blocks of ``text``; blocks in another language count as prose."""
    lines = text.splitlines()
    prose: list[str] = []
    blocks: list[str] = []
    at = 0
    while at < len(lines):
        opening = _FENCE.match(lines[at])
        if opening is None:
            prose.append(lines[at])
            at += 1
            continue
        marks, info = opening["marks"], opening["info"]
        closings = [
            number
            for number in range(at + 1, len(lines))
            if (fence := _FENCE.match(lines[number]))
            and not fence["info"]
            and fence["marks"][0] == marks[0]
            and len(fence["marks"]) >= len(marks)
        ]
        language = info.split(maxsplit=1)[0].strip("{}.").lower() if info else ""
        first = closings[0] if closings else len(lines)
        if language not in _PYTHON:
            prose.extend(lines[at : first + 1])
            at = first + 1
            continue
        # The first closing fence after which the code compiles; a fence inside a string does not.
        end = next((n for n in closings if compiles(_dedent(lines[at + 1 : n]))), first)
        code = _unlabelled(_dedent(lines[at + 1 : end]))
        if code:
            blocks.append(code)
        at = end + 1
    return prose, blocks


def _dedent(lines: list[str]) -> str:
    """Lines as one text, less the indentation they share (a fence in a list item is indented as a whole)."""
    code = "\n".join(lines)
    if compiles(code):
        return code
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    least = min(indents, default=0)
    return "\n".join(line[least:] for line in lines) if least else code


def _unlabelled(code: str) -> str:
    """Code whose first line is a stray language name, as weak models write it, without that line."""
    first, _, rest = code.strip().partition("\n")
    if first.strip().lower() in _PYTHON - {""} and rest.strip():
        return rest
    return code.strip()


def _is_code(text: str) -> bool:
    """True if ``text`` is Python that does something: prose that happens to parse, such as one word, is not."""
    try:
        tree = ast.parse(_unlabelled(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    acts = (ast.Call, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Import, ast.ImportFrom, ast.FunctionDef)
    return any(isinstance(node, acts) for node in ast.walk(tree))

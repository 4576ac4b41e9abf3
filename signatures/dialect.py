"""The rules of a reply, and taking code out of whatever a model really wrote.

The dialect is plain on purpose: prose, then a fenced block of Python. Every model knows it, it costs no marker tokens,
and a reply can be sent back byte for byte. Salvage is wide: any fence counts, also one that never closes; DSPy's field
markers and JSON objects with a ``code`` key are read too; a reply that is nothing but code is code.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from dataclasses import dataclass

DIALECT = """\
You solve a task by writing Python in a REPL. Reply with a short plan in plain words, then one fenced block:
```python
# code
```
The block is run and you are shown what it printed, the value of its last expression, and any traceback. Then it is \
your turn again. Variables, functions and imports stay. Long output is cut in the middle. When the printed value is \
the answer, call SUBMIT with it."""

MARKED_DIALECT = """\
You work in a Python REPL. Reply in this form, and nothing after it:
[[ ## reasoning ## ]]
a short plan in plain words

[[ ## code ## ]]
Python code

[[ ## completed ## ]]
The code is run and you are shown what it printed, the value of its last expression, and any traceback. Then it is \
your turn again. Variables, functions and imports stay from turn to turn. Long output is cut in the middle."""
"""`DIALECT` in the field markers of DSPy's ``ChatAdapter``."""

_PYTHON = frozenset({"", "python", "py", "python3", "py3", "repl", "ipython", "pycon", "tool_code", "code"})
_SECTION = re.compile(r"^[ \t]*\[\[ ## (\w+) ## \]\]", re.MULTILINE)
# What may hold quotes or backticks within one line of Python: a comment, a string, the opening of a longer string.
_LEXEME = re.compile(r"""#.*|('{3}|"{3})|'(?:[^'\\]|\\.)*+(?:'|\\?$)|"(?:[^"\\]|\\.)*+(?:"|\\?$)""")
_STRING_END = {quotes: re.compile(rf"(?:[^\\]|\\.)*?{quotes}") for quotes in ("'''", '"""')}
_META = re.compile(r"\[[^\[\]]{0,200}\]|\\[a-zA-Z]|[\\^$.|?*+(){}\[]")
_TWICE = 300_000
"""Characters of a reply that may be read a second time to settle where blocks end: bounds the time of hostile ones."""


_ATTEMPTS = 100
"""Attempts to parse: Python 3.11 fails at it now and then while another thread parses too (CPython issue 106905)."""


@dataclass(frozen=True)
class Reply:
    """A model's reply, taken apart: the prose and the code (``""`` where there is none)."""

    reasoning: str
    code: str


def compiles(code: str) -> bool:
    """True if ``code`` is Python that the worker could compile, top-level ``await`` included."""
    return parse(code) is not None


def find_code(text: str) -> Reply:
    """Take prose and code out of ``text``, in time linear in its length.

    Several Python blocks are one piece of code, in their order. A fence inside a string of the code does not end the
    block. Line ends become ``\n``, as Python reads source text.
    """
    text = _lf(text)
    thought, _, rest = text.partition("</think>")
    if rest and (thought.lstrip().startswith("<think>") or (thought.endswith("\n") and rest.startswith("\n"))):
        # What a model tried out while it was thinking is not what it wants to be run.
        said = _find(rest)
        if said.code:
            return Reply(f"{thought.strip().removeprefix('<think>').strip()}\n{said.reasoning}".strip(), said.code)
    return _find(text)


def labelled_code(text: str) -> Reply:
    """Prose and code of a reply that keeps to the form: closed fences labelled as Python, or DSPy's field markers."""
    parts = _SECTION.split(_lf(text))
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    if "code" in sections:
        return Reply(sections.get("reasoning", "").strip(), sections["code"].strip("\n"))
    prose: list[str] = []
    blocks: list[str] = []
    block: list[str] | None = None
    for line in _lf(text).split("\n"):
        if block is None and line.strip() == "```python":
            block = []
        elif block is not None and line.strip() == "```":
            blocks.append("\n".join(block))
            block = None
        else:
            (prose if block is None else block).append(line)
    return Reply("\n".join(prose).strip(), "\n\n".join(blocks))


def _find(text: str) -> Reply:
    lines = text.split("\n")
    first = next((number for number, line in enumerate(lines) if _fence(line)), len(lines))
    if _SECTION.search("\n".join(lines[:first])):
        parts = _SECTION.split(text)
        sections = dict(zip(parts[1::2], parts[2::2], strict=True))
        if "code" in sections:
            return Reply(sections.get("reasoning", "").strip(), _code_of(sections["code"]))
    fields = _json_fields(text)
    if fields is not None:
        return Reply(fields.get("reasoning", "").strip(), _code_of(fields["code"]))
    bare = text.strip()
    if _whole(lines, first) and _is_code(bare):
        return Reply("", _unlabelled(bare))
    prose, blocks = _blocks(lines)
    if blocks:
        return Reply("\n".join(prose).strip(), "\n\n".join(blocks))
    return Reply(bare, "")


def _lf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _code_of(field: str) -> str:
    """The code of a field that holds nothing else: what its fences hold, or all of it."""
    field = _unlabelled(_lf(field))
    lines = field.split("\n")
    first = next((number for number, line in enumerate(lines) if _fence(line)), len(lines))
    if first == len(lines) or (_whole(lines, first) and compiles(field)):
        return field
    return "\n\n".join(_blocks(lines)[1]) or field


def _whole(lines: list[str], first: int) -> bool:
    """True if ``lines`` may be one program: the ``first`` fence, if there is any, stands in a string of it."""
    if first == len(lines):
        return True
    string: str | None = None
    for line in lines[:first]:
        string = _string_after(line, string)
    return string is not None and sum(map(len, lines)) <= _TWICE


def _json_fields(text: str) -> dict[str, str] | None:
    """The fields of a reply that is one JSON object with a ``code`` key, else None."""
    bare = text.strip()
    label, _, rest = bare.partition("\n")
    if label.strip() in ("```json", "```") and rest.endswith("```"):
        bare = rest[:-3].strip()
    if not (bare.startswith("{") and bare.endswith("}")):
        return None
    try:
        fields = json.loads(bare, strict=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("code"), str):
        return None
    return {name: value for name, value in fields.items() if isinstance(value, str)}


def _fence(line: str) -> tuple[str, str] | None:
    """The marks and the info text of a line that opens or closes a block, else None."""
    line = line.strip(" \t")
    if not line.startswith(("```", "~~~")):
        return None
    info = line.lstrip(line[0])
    if line[0] == "`" and "`" in info:
        return None
    return line[: len(line) - len(info)], info.strip()


def _language(info: str) -> str:
    words = info.split(maxsplit=1)
    return words[0].strip("{}.").lower() if words else ""


def _blocks(lines: list[str]) -> tuple[list[str], list[str]]:
    """Prose lines and Python blocks of ``lines``; blocks in another language count as prose."""
    prose: list[str] = []
    blocks: list[tuple[str, str]] = []
    budget = _Budget(_TWICE)
    at = 0
    while at < len(lines):
        opening = _fence(lines[at])
        if opening is None:
            inline = _one_line(lines[at])
            if inline:
                blocks.append(("python", inline))
            else:
                prose.append(lines[at])
            at += 1
            continue
        language = _language(opening[1])
        content, after = _read_block(lines, at, opening[0], language in _PYTHON, budget)
        if language in _PYTHON:
            code = _unlabelled(_dedent(content, lines[at]))
            if code:
                blocks.append((language, code))
        else:
            prose.extend(lines[at:after])
        at = after
    if any(language for language, _ in blocks):
        # A block without a language beside blocks with one may as well be a sample of the output.
        blocks = [(language, code) for language, code in blocks if language or compiles(code)]
    return prose, [code for _, code in blocks]


class _Budget:
    """How much may still be read twice."""

    def __init__(self, characters: int) -> None:
        self.left = characters

    def spend(self, characters: int) -> bool:
        """True if there was enough left."""
        self.left -= characters
        return self.left >= 0


def _read_block(
    lines: list[str], opening: int, marks: str, python: bool, budget: _Budget
) -> tuple[list[str], int]:
    """The lines of the block that opens at line ``opening``, and the number of the line after it.

    No line outside of a string of Python begins or ends with a fence, so one that does ends the block, also where it
    opens the next one because a closing fence was forgotten.
    """
    string: str | None = None
    first: int | None = None
    for number in range(opening + 1, len(lines)):
        line = lines[number]
        fence = _fence(line)
        ends = fence is not None and fence[0].startswith(marks) and (not fence[1] or _language(fence[1]) in _PYTHON)
        if ends and string is None:
            content = lines[opening + 1 : number]
            if first is not None:
                code = _dedent(content, lines[opening])
                if not (budget.spend(len(code)) and compiles(code)):
                    break
            return content, number + (fence is not None and not fence[1])
        if ends and first is None and not (fence and fence[1]):
            first = number
        if first is not None and not budget.spend(len(line) + 1):
            break
        if python:
            was, string = string, _string_after(line, string)
            if was is None and string is None and _closes_inline(line, marks):
                cut = line.rstrip().rstrip(marks[0])
                return [*lines[opening + 1 : number], cut], number + 1
    else:
        content = lines[opening + 1 :]
        if first is None or compiles(_dedent(content, lines[opening])):
            return content, len(lines)
    # The strings do not add up: the code is broken, and the first fence that can close it does.
    assert first is not None
    return lines[opening + 1 : first], first + 1


def _string_after(line: str, string: str | None) -> str | None:
    """The quotes of the string of many lines that is open after ``line``, given those open before it, or None."""
    at = 0
    while True:
        found = _STRING_END[string].match(line, at) if string else _LEXEME.search(line, at)
        if found is None:
            return string
        at = found.end()
        string = None if string else found[1]


def _closes_inline(line: str, marks: str) -> bool:
    return line.rstrip().endswith(marks) and _LEXEME.sub("", line).rstrip().endswith(marks)


def _one_line(line: str) -> str:
    """The code of a block that stands on one line with both of its fences, ``""`` if it is none."""
    line = line.strip()
    if not (line.startswith("```") and line.endswith("```")):
        return ""
    inner = line.strip("`").strip()
    label, _, rest = inner.partition(" ")
    code = rest.strip() if label.lower() in _PYTHON else inner
    return code if _is_code(code) else ""


def _dedent(lines: list[str], opening: str) -> str:
    """Lines as one text, less the indentation of the block (a fence in a list item is indented as a whole)."""
    code = "\n".join(lines)
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    if not indents or indents[0] == 0:
        return code
    if least := min(indents):
        return "\n".join(line[least:] for line in lines)
    # Lines of a string stand further left than the code: as in Markdown, each line loses what indentation it has.
    for indent in (0, len(opening) - len(opening.lstrip()), indents[0]):
        shifted = "\n".join(line[min(indent, len(line) - len(line.lstrip())) :] for line in lines)
        if compiles(shifted):
            return shifted
    return code


def _unlabelled(code: str) -> str:
    """Code less empty lines around it, and less a stray language name on its first line, as weak models write it."""
    code = _trimmed(code)
    first, _, rest = code.partition("\n")
    if first.strip().lower() in _PYTHON and (rest := _trimmed(rest)):
        return rest
    return code


def _trimmed(code: str) -> str:
    code = code[code.rfind("\n", 0, len(code) - len(code.lstrip())) + 1 :]
    bare = code.rstrip()
    # A backslash at the end joins the last line with the empty one after it.
    return code if bare.endswith("\\") else bare


def parse(code: str) -> ast.AST | None:
    """The tree of ``code``, top-level ``await`` allowed, or None if it is no Python."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
    for _ in range(_ATTEMPTS):
        try:
            tree: ast.AST = compile(code, "<reply>", "exec", flags=flags, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            return None
        except SystemError:
            continue
        return tree
    return None


def string_constants(code: str) -> list[str]:
    """The texts that stand in ``code`` as they are, in order; not docstrings, nor what is only printed or submitted."""
    tree = parse(code) or ast.Module([], [])
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "SUBMIT"):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            given += [part for value in given if isinstance(value, ast.JoinedStr) for part in value.values]
            skipped.update(map(id, given))
    texts = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped
    ]
    return [str(node.value) for node in sorted(texts, key=lambda node: (node.lineno, node.col_offset))]


def compared(code: str) -> list[str]:
    """The texts that ``code`` compares something with (``in``, ``==``, ``startswith``), in order: its conditions."""
    found: list[ast.Constant] = []
    for node in ast.walk(parse(code) or ast.Module([], [])):
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare) and all(isinstance(op, (ast.In, ast.Eq)) for op in node.ops):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            sides = node.args if node.func.attr in ("startswith", "endswith") else []
        found += [side for side in sides if isinstance(side, ast.Constant) and isinstance(side.value, str)]
    return [str(node.value) for node in sorted(found, key=lambda node: (node.lineno, node.col_offset))]


def literals(pattern: str) -> list[str]:
    """The parts of a regular expression that stand for themselves: ``"born in "`` of ``r"born in (\\w+)"``."""
    return [part for part in _META.split(pattern) if part.strip()]


def has_meta(text: str) -> bool:
    """Whether ``text`` would be more than itself as a regular expression."""
    return _META.search(text) is not None


def only_constants(code: str) -> bool:
    """True if ``code`` is nothing but calls on constants, such as ``SUBMIT(answer=0)``: it computes nothing."""
    tree = parse(code)
    if not isinstance(tree, ast.Module):
        return False
    calls = [line.value for line in tree.body if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call)]
    functions = {id(call.func) for call in calls}
    return len(calls) == len(tree.body) and all(
        isinstance(node, _CONSTANT) or (isinstance(node, ast.Name) and id(node) in functions)
        for call in calls
        for node in ast.walk(call)
    )


def typed_numbers(code: str) -> set[float]:
    """The numbers that ``SUBMIT`` in ``code`` was given, as far as it was given nothing but constants.

    Under a condition they are as good as computed.
    """
    numbers: set[float] = set()
    tree = parse(code)
    statements = tree.body if isinstance(tree, ast.Module) else []
    for node in (statement.value for statement in statements if isinstance(statement, ast.Expr)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "SUBMIT":
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            typed = [value.value for value in values if isinstance(value, ast.Constant)]
            if len(typed) == len(values):
                # No output shows a number that is too long for a float.
                with contextlib.suppress(OverflowError):
                    numbers.update(
                        float(v) for v in typed if isinstance(v, (int, float)) and not isinstance(v, bool)
                    )
    return numbers


def types_in(code: str, name: str) -> bool:
    """True if ``code`` sets the variable ``name`` to a text that it spells out, also where it breaks off in it."""
    if re.search(rf"^{re.escape(name)}[ \t]*(:[^=\n]*)?=[ \t]*\(?\s*[rRfFuU]?[\"']", code, re.MULTILINE) is None:
        return False
    tree = parse(code)
    if not isinstance(tree, ast.Module):
        return _breaks_off(code, name)
    for line in tree.body:
        if isinstance(line, (ast.Assign, ast.AnnAssign)):
            targets = line.targets if isinstance(line, ast.Assign) else [line.target]
            if _is_text(line.value) and any(isinstance(t, ast.Name) and t.id == name for t in targets):
                return True
    return False


def lists_in(code: str, name: str) -> bool:
    """As `types_in`, of a list of dicts that is spelled out."""
    if re.search(rf"^{re.escape(name)}[ \t]*(:[^=\n]*)?=[ \t]*\[\s*\{{", code, re.MULTILINE) is None:
        return False
    tree = parse(code)
    if not isinstance(tree, ast.Module):
        # It goes on until the reply may be no longer.
        return True
    assigned = (line for line in tree.body if isinstance(line, (ast.Assign, ast.AnnAssign)))
    lists = (
        line.value
        for line in assigned
        if any(
            isinstance(target, ast.Name) and target.id == name
            for target in (line.targets if isinstance(line, ast.Assign) else [line.target])
        )
    )
    return any(
        isinstance(value, ast.List) and all(isinstance(node, _CONSTANT) for node in ast.walk(value)) for value in lists
    )


def _breaks_off(code: str, name: str) -> bool:
    """Whether the text that ``name`` is set to has no end, or nothing behind it: other broken code is just broken."""
    opening = re.search(rf"^{re.escape(name)}[^=\n]*=[ \t]*\(?\s*[rRfFuU]?('{{3}}|\"{{3}}|'|\")", code, re.MULTILINE)
    if opening is None:
        return True
    quotes = opening[1]
    rest = code[opening.end() :] if len(quotes) == 3 else code[opening.end() :].partition("\n")[0]
    _, found, behind = rest.partition(quotes)
    return not found or not behind.partition("\n")[0].strip()


_RETYPED = 1
"""Characters of a text that an input may be typed in again as: one that is set to ``""`` is done with."""


def _is_text(value: ast.expr | None) -> bool:
    if isinstance(value, ast.JoinedStr):
        # One with a variable in it is computed.
        return not any(isinstance(node, ast.Name) for node in ast.walk(value))
    return isinstance(value, ast.Constant) and isinstance(value.value, str) and len(value.value) >= _RETYPED


_CONSTANT = (
    *(ast.Call, ast.keyword, ast.Constant, ast.Load),
    *(ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp, ast.unaryop),
)


_ACTS = (
    *(ast.Call, ast.Await, ast.Assign, ast.AugAssign, ast.NamedExpr, ast.Delete, ast.Import, ast.ImportFrom),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.While, ast.With, ast.AsyncFor, ast.AsyncWith),
)


def _is_code(text: str) -> bool:
    """True if ``text`` is Python that does something: prose that happens to parse (``Answer: 42``) is not."""
    tree = parse(_unlabelled(text))
    if tree is None:
        return False
    nodes = ast.walk(tree)
    return any(isinstance(n, _ACTS) or (isinstance(n, ast.AnnAssign) and n.value is not None) for n in nodes)

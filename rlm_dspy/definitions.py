"""Where code defined what: the source of functions, classes and the like in a session's cells, by name.

Cells may be IPython's: their magics and commands are no Python, but the definitions beside them are.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """A statement that binds a name: its place among all of them, its source, and whether that only defines something,
    a function or a class."""

    order: int
    name: str
    source: str
    defining: bool


# Cell magics whose body is Python that runs in the session.
_PYTHON_MAGICS = ("%%time", "%%capture", "%%prun", "%%debug")
_MAGIC = re.compile(
    r"(?P<indent>\s*)(?:[%!?].*|(?:[A-Za-z_][\w.,\s*]*=\s*)?(?:![^=]|%[A-Za-z_]).*|[\w.*]+\?\??\s*)", re.DOTALL
)


def definitions(cells: Iterable[str]) -> dict[str, Definition]:
    """The last definition of each name in ``cells``, which are in the order they ran.

    Functions and classes wherever a module may have them, also below an ``if``, and assignments of one name. Cells
    that are no Python are passed over, as are magics beside Python.
    """
    found: dict[str, Definition] = {}
    order = 0
    for cell in cells:
        tree = _parsed(cell) or _parsed(_plain(cell))
        if tree is None:
            continue
        for node in _statements(tree.body):
            for name in _names(node):
                order += 1
                found[name] = Definition(order, name, _source(cell, node), _defines(node))
    return found


def _parsed(cell: str) -> ast.Module | None:
    try:
        return ast.parse(cell)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _plain(cell: str) -> str:
    """A cell of IPython's with ``pass`` in the place of magics and commands, line by line."""
    lines = cell.splitlines()
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    if lines and lines[first].startswith("%%"):
        if not lines[first].startswith(_PYTHON_MAGICS):
            return ""
        lines[first] = ""
    going_on = False
    for i, line in enumerate(lines):
        found = _MAGIC.fullmatch(line)
        if going_on:
            # Of the command before.
            lines[i] = ""
        elif found is not None:
            lines[i] = found["indent"] + "pass"
        else:
            continue
        going_on = line.endswith("\\")
    return "\n".join(lines)


def _defines(node: ast.stmt) -> bool:
    defining = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return isinstance(node, defining) or isinstance(getattr(node, "value", None), ast.Lambda)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for inner in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, inner, None) or [])
        for handler in getattr(node, "handlers", None) or []:
            yield from _statements(handler.body)


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _source(cell: str, node: ast.stmt) -> str:
    """The statement as it was written, magics included; as Python writes it where it is not alone on its lines."""
    if node.col_offset == 0:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        lines = cell.splitlines()[first - 1 : node.end_lineno]
        text = "\n".join(lines)
        tree = _parsed(text) or _parsed(_plain(text))
        if tree is not None and len(tree.body) == 1:
            return text
        # several statements on one line
    return ast.unparse(node)

"""Where code defined what: the source of functions, classes and the like in a session's cells, by name."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """A statement that binds a name: its place among all of them, and its source."""

    order: int
    name: str
    source: str


def definitions(cells: Iterable[str]) -> dict[str, Definition]:
    """The last definition of each name in ``cells``, which are in the order they ran.

    Functions and classes wherever a module may have them, also below an ``if``, and assignments of one name. Cells
    that are no Python, and magics, are passed over.
    """
    found: dict[str, Definition] = {}
    order = 0
    for cell in cells:
        try:
            tree = ast.parse(cell)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in _statements(tree.body):
            for name in _names(node):
                order += 1
                found[name] = Definition(order, name, _source(cell, node))
    return found


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
    if node.col_offset == 0:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        lines = cell.splitlines()[first - 1 : node.end_lineno]
        text = "\n".join(lines)
        try:
            if len(ast.parse(text).body) == 1:
                return text
        except SyntaxError:
            pass  # several statements on one line
    return ast.unparse(node)

"""Which field of a row an expression reads: ``row['a']['b']``, ``row.get('a')``, ``row[3].lower()``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_SAME = ("lower", "upper", "casefold", "strip")

Path = tuple[str | int, ...]


def base(subject: ast.expr) -> str:
    """The variable that ``subject`` reads, ``""`` if it is more than fields of one."""
    root = row(subject)
    return root.id if isinstance(root, ast.Name) else ""


def row(subject: ast.expr) -> ast.expr:
    """What ``subject`` reads a field of."""
    while (read := _step(subject)) is not None:
        subject, _ = read
    return subject


def path(subject: ast.expr) -> Path:
    """The keys that ``row['a']['b']``, ``row[3]`` or ``row.get('a')`` reads a field by; none for a whole row."""
    keys: list[str | int] = []
    while (read := _step(subject)) is not None:
        subject, key = read
        keys[:0] = [] if key is None else [key]
    return tuple(keys)


def at(subject: ast.expr, keys: Path) -> ast.expr:
    """The field that ``keys`` lead to, of the row that ``subject`` reads."""
    subject = row(subject)
    for key in keys:
        subject = ast.Subscript(subject, ast.Constant(key), ast.Load())
    return subject


def names(tree: ast.AST) -> Iterator[str]:
    """The names of fields that code reads anywhere, in no order, each as often as it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and (read := _step(node)) is not None and isinstance(read[1], str):
            yield read[1]


def _step(subject: ast.expr) -> tuple[ast.expr, str | int | None] | None:
    """What ``subject`` reads a field of, and the field; None for a method that leaves the value what it is."""
    if isinstance(subject, ast.Call) and isinstance(subject.func, ast.Attribute) and subject.func.attr in _SAME:
        return subject.func.value, None
    key: object = None
    if isinstance(subject, ast.Subscript) and isinstance(subject.slice, ast.Constant):
        read, key = subject.value, subject.slice.value
    elif isinstance(subject, ast.Call) and isinstance(subject.func, ast.Attribute) and subject.func.attr == "get":
        read, key = subject.func.value, getattr(next(iter(subject.args), None), "value", None)
    return (read, key) if isinstance(key, (str, int)) else None

"""The types that code in the sandbox may write, read from their syntax tree; nothing is evaluated or looked up."""

from __future__ import annotations

import ast
import datetime
import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin

MAX_NODES = 500
"""Names and constants in the types of one field."""
MAX_DEPTH = 8
"""Levels of types in types that are written out."""
_SIMPLE: dict[str, Any] = {
    **{kind.__name__: kind for kind in (str, int, float, bool, list, dict, tuple, set)},
    **{"Any": Any, "None": None, "date": datetime.date, "datetime": datetime.datetime, "time": datetime.time},
    "timedelta": datetime.timedelta,
}
_GENERIC = {"List": "list", "Dict": "dict", "Tuple": "tuple", "Set": "set", "frozenset": "set", "FrozenSet": "set",
            "Sequence": "list", "Iterable": "list", "Mapping": "dict", "Optional": "Optional", "Union": "Union",
            "Literal": "Literal", "list": "list", "dict": "dict", "tuple": "tuple", "set": "set"}  # fmt: skip
BUILT_IN = frozenset({*_SIMPLE, *_GENERIC})
"""The names of types that cannot be given to others."""
KNOWN = "str, int, float, bool, list[...], dict[str, ...], tuple[...], set[...], Literal['a', 'b'], X | None, date, " \
        "datetime, time, timedelta, Any"
"""The types that a signature may name, as errors list them."""
_MEANT = {"string": "str", "text": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list",
          "object": "dict[str, Any]", "json": "dict[str, Any]", "enum": "Literal['a', 'b']", "double": "float",
          "bytes": "str", "null": "None", "any": "Any", "Decimal": "float", "Enum": "Literal['a', 'b']"}  # fmt: skip
_HASHED = (str, int, float, bool, datetime.date, datetime.datetime, datetime.time, datetime.timedelta, None, type(None))


def read_type(written: str, built: Mapping[str, Any], place: str) -> tuple[Any, str | None]:
    """The type that ``written`` stands for, and its name where it is one of ``built``.

    Args:
        written: Such as ``"list[Person] | None"``.
        built: Further types by name.
        place: What the type is of, for errors.

    Raises:
        ValueError: It is no type, or none that is known; the text says what to write.
    """
    try:
        tree = ast.parse(f"(\n{written}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{place}: {shortened(written)} is no type; {_known(built)}") from None
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise ValueError(f"{place}: a type of more than {MAX_NODES} parts; describe it in types= and name it here")
    annotation = _Reader(place, built).read(tree, 0)
    return annotation, tree.id if isinstance(tree, ast.Name) and tree.id in built else None


class _Reader:
    """Reads the syntax tree of a type.

    Args:
        name: The field's, for errors.
        built: Further types.
    """

    def __init__(self, name: str, built: Mapping[str, Any]) -> None:
        self._name = name
        self._built = built

    def read(self, node: ast.expr, depth: int) -> Any:
        """The type that ``node`` stands for.

        Raises:
            ValueError: It is none that is known.
        """
        if depth > MAX_DEPTH:
            raise self._error(f"types are nested deeper than {MAX_DEPTH} levels; describe them in types=")
        if isinstance(node, ast.Name):
            return self._simple(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("datetime", "typing", "dt", "t"):
                return self._simple(node.attr)
        if isinstance(node, ast.Constant):
            if node.value is None:
                return None
            if isinstance(node.value, str) and node.value.strip() in {*self._built, *_SIMPLE}:
                return self._simple(node.value.strip())
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self._union(self._alternatives(node), depth)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, depth)
        if isinstance(node, ast.List) and len(node.elts) == 1 and not isinstance(node.elts[0], ast.Constant):
            raise self._error(f"write list[{_source(node.elts[0])}] in place of {_source(node)}")
        constants = node.elts if isinstance(node, (ast.List, ast.Set, ast.Tuple)) else [node]
        if constants and all(isinstance(part, ast.Constant) for part in constants):
            raise self._error(f"write Literal[{', '.join(map(_source, constants))}] in place of {_source(node)}")
        raise self._error(f"{_source(node)} is no type; {_known(self._built)}")

    def _simple(self, word: str) -> Any:
        if word in self._built:
            return self._built[word]
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word in ("Optional", "Union", "Literal"):
            raise self._error(f"{word} needs brackets: {word}['a', 'b']" if word == "Literal" else
                              f"{word} needs brackets; write X | None")
        if word in _GENERIC:
            return _SIMPLE[_GENERIC[word]]
        if word in ("Image", "Audio", "File", "History", "Tool"):
            raise self._error(f"dspy.{word} is not available here; pass text")
        meant = _MEANT.get(word) or _MEANT.get(word.lower())
        if not meant:
            close = difflib.get_close_matches(word, [*self._built, *_SIMPLE, *_GENERIC], n=1)
            meant = close[0] if close else None
        hint = f"write {meant}, or " if meant else ""
        raise self._error(f"unknown type {shortened(word)}; {hint}{_known(self._built)}")

    def _alternatives(self, node: ast.expr) -> list[ast.expr]:
        found: list[ast.expr] = []
        waiting = [node]
        while waiting:
            part = waiting.pop()
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.BitOr):
                waiting += [part.right, part.left]
            else:
                found.append(part)
        return found

    def _union(self, parts: list[ast.expr], depth: int) -> Any:
        return Union[tuple(self.read(part, depth + 1) for part in parts)]  # noqa: UP007

    def _subscript(self, node: ast.Subscript, depth: int) -> Any:
        base = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        kind = _GENERIC.get(base)
        parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not parts:
            raise self._error(f"{base} needs something in its brackets; {_known(self._built)}")
        if kind == "Literal":
            return Literal[tuple(self._constant(part) for part in parts)]
        if kind == "Union":
            return self._union(parts, depth)
        if kind == "tuple":
            many = len(parts) == 2 and isinstance(parts[1], ast.Constant) and parts[1].value is ...
            inner = tuple(self.read(part, depth + 1) for part in (parts[:1] if many else parts))
            holder: Any = tuple
            return holder[inner[0], ...] if many else holder[inner]
        wanted = {"list": 1, "set": 1, "Optional": 1, "dict": 2}.get(kind or "")
        if wanted is None:
            return self._simple(base) if base and base not in {*self._built, *_SIMPLE} else self._bare(node, base)
        if len(parts) != wanted:
            raise self._error(f"{base} takes {wanted} type{'s' * (wanted > 1)}: {_FORMS[str(kind)]}")
        types = [self.read(part, depth + 1) for part in parts]
        if kind == "Optional":
            return Optional[types[0]]  # noqa: UP045
        if kind in ("set", "dict") and not _hashable(types[0]):
            raise self._error(f"{_source(parts[0])} cannot be {'in a set' if kind == 'set' else 'a key'}; "
                              f"write {'list[...]' if kind == 'set' else 'dict[str, ...]'}")
        builtin: Any = {"list": list, "set": set, "dict": dict}[str(kind)]
        return builtin[tuple(types)] if kind == "dict" else builtin[types[0]]

    def _bare(self, node: ast.Subscript, base: str) -> Any:
        raise self._error(f"{base or _source(node.value)} takes no brackets; {_known(self._built)}")

    def _constant(self, node: ast.expr) -> Any:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            value = node.operand.value
            if type(value) is int:
                return -value
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, bool, type(None))):
            return node.value
        if isinstance(node, ast.Name):
            raise self._error(f"Literal takes values: write Literal['{node.id}']; a list in a variable cannot be named")
        raise self._error(f"Literal takes texts, whole numbers, True, False and None, not {_source(node)}")

    def _error(self, text: str) -> ValueError:
        return ValueError(f"{self._name}: {text}")


_FORMS = {"list": "list[str]", "set": "set[str]", "dict": "dict[str, int]", "Optional": "Optional[str]"}


def _hashable(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Literal:
        return True
    if origin is Annotated:
        return _hashable(get_args(annotation)[0])
    if origin in (tuple, Union):
        return all(part is ... or _hashable(part) for part in get_args(annotation))
    return annotation in _HASHED


def _known(built: Mapping[str, Any]) -> str:
    more = f", and of types=: {', '.join(built)}" if built else "; others are described by types={name: JSON Schema}"
    return f"the types are {KNOWN}{more}"


def _source(node: ast.AST) -> str:
    return shortened(ast.unparse(node), bare=True)


def shortened(value: Any, bare: bool = False) -> str:
    """``repr(value)``, or a text itself if ``bare``, on one line of at most 80 characters."""
    text = value if bare and isinstance(value, str) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:79] + "…"

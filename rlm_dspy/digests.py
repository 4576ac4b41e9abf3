"""A digest of examples, by all that is in them: the same for the same data, in any process."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pydantic

__all__ = ["digest", "fields_of"]

DIGEST = 16
"""Hexadecimal digits of a digest: MLflow takes 36."""
_PIECE = 1 << 20
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def digest(rows: Iterable[Any]) -> str:
    """A hash over the rows in their order: the same for the same data, in any process.

    Args:
        rows: ``dspy.Example`` objects, mappings, or any other data. Texts and bytes are hashed in pieces, so that
            nothing of their size is made.
    """
    total = hashlib.sha256()
    for row in rows:
        _feed(total, row, 0)
    return total.hexdigest()[:DIGEST]


def _feed(total: Any, value: Any, depth: int) -> None:
    if isinstance(value, str):
        total.update(b"s%d:" % len(value))
        for start in range(0, len(value), _PIECE):
            total.update(value[start : start + _PIECE].encode("utf-8", "surrogatepass"))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        total.update(b"b%d:" % len(value))
        total.update(value)
    elif depth > 20:
        total.update(b"deep")
    elif isinstance(value, (set, frozenset)):
        inner = []
        for item in value:
            one = hashlib.sha256()
            _feed(one, item, depth + 1)
            inner.append(one.digest())
        total.update(b"e%d:" % len(inner) + b"".join(sorted(inner)))
    elif isinstance(value, (list, tuple)):
        total.update(b"l%d:" % len(value))
        for item in value:
            _feed(total, item, depth + 1)
    elif (items := fields_of(value)) is not None:
        total.update(b"m%d:" % len(items))
        for name in sorted(items, key=str):
            _feed(total, str(name), depth + 1)
            _feed(total, items[name], depth + 1)
    else:
        total.update(type(value).__name__.encode("utf-8", "surrogatepass") + b":")
        whole = _whole(value)
        if whole is not None:
            _feed(total, whole, depth + 1)
        else:
            total.update(f"{_text(value)};".encode("utf-8", "surrogatepass"))


def _text(value: Any) -> str:
    try:
        return _ADDRESS.sub("", repr(value))
    except Exception:  # of a class of somebody's own; its name is all that tells of it
        return ""


def _whole(value: Any) -> Any:
    """All of an array or a table, whose own text leaves most of a large one out; None of anything else."""
    if not isinstance(value, type):
        for form in ("to_csv", "tolist", "to_dict"):
            with contextlib.suppress(Exception):
                return getattr(value, form)()
    return None


def fields_of(value: Any) -> dict[Any, Any] | None:
    """What has named parts, by name: mappings, examples and predictions, pydantic models, dataclasses; else None."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, pydantic.BaseModel):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    items = getattr(value, "items", None)
    if callable(items) and hasattr(value, "toDict"):
        # ``dspy.Example`` and what is made of it.
        return dict(items())
    return None

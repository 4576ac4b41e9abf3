"""Sets of examples as MLflow runs name them: how many rows, a digest of all of them, a preview of a few.

The rows themselves are never stored: an input of an RLM may be of any size.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pydantic

from rlm_dspy.tracking.capped import Clip, size

DIGEST = 16
"""Characters of a digest that are shown: MLflow takes 36."""
PREVIEW = 3
"""Rows that a preview has."""
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
        total.update(f"{type(value).__name__}:{_ADDRESS.sub('', repr(value))};".encode("utf-8", "surrogatepass"))


def weight(rows: Iterable[Any]) -> int:
    """Characters and bytes of the texts that the rows have for fields: about what hashing them costs."""
    return sum(size(value) for row in rows for value in (fields_of(row) or {"": row}).values())


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


def preview(rows: Iterable[Any], clip: Clip) -> str:
    """The first few rows as JSON, large values as size, hash, head and tail, without secrets."""
    shown: list[Any] = []
    for row in rows:
        if len(shown) == PREVIEW:
            break
        fields = fields_of(row)
        shown.append(clip.value(row) if fields is None else clip.fields(fields))
    return json.dumps(shown, indent=1, ensure_ascii=False, default=str)

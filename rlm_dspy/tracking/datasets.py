"""Sets of examples as MLflow runs name them: how many rows, a digest of all of them, a preview of a few.

The rows themselves are never stored: an input of an RLM may be of any size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rlm_dspy.digests import digest, fields_of
from rlm_dspy.tracking.capped import Clip, size

__all__ = ["digest", "fields_of", "preview", "weight"]

PREVIEW = 3
"""Rows that a preview has."""


def weight(rows: Iterable[Any]) -> int:
    """Characters and bytes of the texts that the rows have for fields: about what hashing them costs."""
    return sum(size(value) for row in rows for value in (fields_of(row) or {"": row}).values())


def preview(rows: Iterable[Any], clip: Clip) -> str:
    """The first few rows as JSON, large values as size, hash, head and tail, without secrets."""
    shown: list[Any] = []
    for row in rows:
        if len(shown) == PREVIEW:
            break
        fields = fields_of(row)
        shown.append(clip.value(row) if fields is None else clip.fields(fields))
    return json.dumps(shown, indent=1, ensure_ascii=False, default=str)

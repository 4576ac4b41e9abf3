"""An answer that a root states in words, as the call that would submit it."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from typing import Any

_LONGEST = 600
"""Characters of a reply that states an answer and does not discuss one."""

_NUMBER = re.compile(r"(?<![\w.,-])-?\d+(?:,\d{3})*(?:\.\d+)?(?![\w,]*\d|[-/:.]\d)")
_LIST = re.compile(r"\[[^\[\]]*\]")


def submission(reply: str, outputs: Mapping[str, Any], names: Collection[str]) -> str | None:
    """Such as ``"SUBMIT(answer=26)"`` for ``"The answer is 26."``, or None where it is not clear what is stated.

    Args:
        reply: Without code.
        outputs: The task's outputs and their types; of more than one it is not clear which is meant.
        names: What the task names, one of which may be the answer where there are more.
    """
    if len(outputs) != 1 or len(reply) > _LONGEST:
        return None
    ((name, annotation),) = outputs.items()
    value: Any = None
    if annotation in (int, float):
        found = {number.replace(",", "") for number in _NUMBER.findall(reply)}
        value = _read(found.pop()) if len(found) == 1 else None
        value = value if type(value) is int or annotation is float else None
    elif annotation is str and len(names) > 1:
        said = [one for one in names if one in reply]
        value = said[0] if len(said) == 1 else None
    elif annotation in (list, list[str], list[int], list[float]):
        lists = _LIST.findall(reply)
        value = _read(lists[0]) if len(lists) == 1 else None
        value = value if isinstance(value, list) else None
    return None if value is None else f"SUBMIT({name}={value!r})"


def _read(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None

"""The types that the text of a signature names, found where the text was written.

DSPy looks for them along the stack of calls as well, but only for a name right after a colon: ``x: Ticket``, not
``x: list[Ticket]``. And the first names that it meets are those of the module that made the signature, so that a
user's own ``Run`` would be ours. What is found here goes in by ``dspy.Signature(text, custom_types=...)``.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import typing
from collections.abc import Iterator
from types import FrameType
from typing import Any

import dspy

MAX_FRAMES = 100
"""Calls that are looked through, as in DSPy."""
_OURS = ("rlm_dspy", "dspy")


def read(text: str) -> type[dspy.Signature]:
    """The signature that ``text`` is, with the types that its names have where this package was called from.

    Raises:
        ValueError, SyntaxError: As DSPy finds it wrong.
    """
    found = _found(set(_names(text)))
    # Without any DSPy adds names of its own to those it knows.
    return dspy.Signature(text, custom_types=found) if found else dspy.Signature(text)


def _names(text: str) -> Iterator[str]:
    """Names in the annotations of ``text`` that are not Python's own."""
    for side in text.split("->"):
        try:
            tree = ast.parse(f"def f({side}): pass")
        except (SyntaxError, ValueError):
            return  # DSPy says what is wrong with it
        for node in ast.walk(tree):
            annotation = node.annotation if isinstance(node, ast.arg) else None
            for part in ast.walk(annotation) if annotation is not None else ():
                if isinstance(part, ast.Name) and not hasattr(builtins, part.id) and part.id not in vars(typing):
                    yield part.id


def _found(names: set[str]) -> dict[str, Any]:
    """What ``names`` are in the innermost call outside of this package and DSPy that knows them."""
    found: dict[str, Any] = {}
    frame: FrameType | None = inspect.currentframe()
    try:
        for _ in range(MAX_FRAMES):
            if frame is None or not names - found.keys():
                break
            if str(frame.f_globals.get("__name__", "")).split(".")[0] not in _OURS:
                for name in names - found.keys():
                    for scope in (frame.f_locals, frame.f_globals):
                        if name in scope:
                            found[name] = scope[name]
                            break
            frame = frame.f_back
    finally:
        del frame
    return found

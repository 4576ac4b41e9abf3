"""What was written to disk, read back: checked before it is used, because anybody may have edited or torn it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, TypeVar

from rlm_dspy.errors import RecordingError, RLMError

T = TypeVar("T")

_KINDS: dict[str, type | tuple[type, ...]] = {
    **{"str": str, "bool": bool, "int": int, "float": (int, float)},
    **{"dict": dict, "tuple": tuple, "list": list},
}


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Errors that damaged data causes inside become a `RecordingError` that names ``what``; our own stay."""
    try:
        yield
    except RLMError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())[:300]
        raise RecordingError(f"{what} is damaged: {why}") from None


def made(kind: type[T], data: Mapping[str, Any]) -> T:
    """An instance of the dataclass ``kind``, whose plain fields are of their types.

    Raises:
        TypeError: One is missing, unknown, or of another type.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"a {type(data).__name__} in the place of a {kind.__name__}")
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in data and not _fits(str(field.type), data[field.name]):
            raise TypeError(f"{kind.__name__}.{field.name} is no {field.type}")
    return kind(**data)


def _fits(annotation: str, value: Any) -> bool:
    """Whether ``value`` is what an annotation such as ``"dict[str, str] | None"`` says; True of types unknown here."""
    parts = [part.strip().removesuffix("]").partition("[") for part in annotation.split("|")]
    if value is None:
        return any(kind == "None" for kind, _, _ in parts)
    for kind, _, inner in parts:
        if kind == "None":
            continue
        if kind not in _KINDS:
            return True
        if isinstance(value, _KINDS[kind]) and isinstance(value, bool) == (kind == "bool"):
            wanted = [part.strip() for part in inner.split(",") if part.strip()]
            items: Any = list(value.values()) if isinstance(value, dict) else value
            plain = wanted[1:] if kind == "dict" else wanted[:1]
            if isinstance(value, float) and not math.isfinite(value):
                return False
            return plain != ["str"] or all(isinstance(item, str) for item in items)
    return False


def claimed(file: BinaryIO) -> bool:
    """Make an open file this process's own until it is closed; False where somebody else has it.

    On Windows, where there is no such lock, always True: the user has to see to it.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True

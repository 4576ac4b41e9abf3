"""What code in the sandbox sees in place of the host's own objects, and in place of a failed call.

This module travels into the sandbox as source text: standard library only, Python 3.8 syntax.
"""

# ruff: noqa: UP031
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class FailedCall(str):
    """The result of one call of a batch that failed: a text that says so, with the bare message in ``.error``.

    A str, so that code which joins or prints a batch's results goes on; test with ``isinstance(r, FailedCall)``.
    """

    __slots__ = ()

    @property
    def error(self) -> str:
        """The error's message."""
        return str(self)

    def __repr__(self) -> str:
        return "FailedCall(%s)" % str.__repr__(self)


class Record:
    """A dataclass instance, pydantic model or named tuple of the host, as code in the sandbox sees it.

    Fields by attribute and by key; ``dict(record)`` and ``record.model_dump()``; a named tuple also by position.
    """

    __slots__ = ("__dict__", "_kind", "_name")
    _kind: str
    _name: str

    def __init__(self, _name: str = "Record", _kind: str = "dataclass", **fields: Any) -> None:
        object.__setattr__(self, "_name", _name)
        object.__setattr__(self, "_kind", _kind)
        self.__dict__.update(fields)

    def keys(self) -> list[str]:
        """The names of the fields."""
        return list(self.__dict__)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.__dict__[key]
        if self._kind == "namedtuple":
            return tuple(self.__dict__.values())[key]
        raise KeyError(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.__dict__[key] = value

    def __iter__(self) -> Iterator[Any]:
        if self._kind == "namedtuple":
            return iter(self.__dict__.values())
        if self._kind == "model":
            return iter(self.__dict__.items())
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)

    def __contains__(self, key: Any) -> bool:
        return key in (self.__dict__.values() if self._kind == "namedtuple" else self.__dict__)

    def get(self, key: str, default: Any = None) -> Any:
        """The field ``key``, or ``default``."""
        return self.__dict__.get(key, default)

    def items(self) -> list[tuple[str, Any]]:
        """The fields as pairs."""
        return list(self.__dict__.items())

    def model_dump(self) -> dict[str, Any]:
        """The fields as a plain dict, records inside it too."""
        return {name: _plain(value) for name, value in self.__dict__.items()}

    _asdict = model_dump

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return self._name == other._name and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((self._name, tuple(self.__dict__.values())))

    def __repr__(self) -> str:
        return "%s(%s)" % (self._name, ", ".join("%s=%r" % item for item in self.__dict__.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.model_dump()
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value

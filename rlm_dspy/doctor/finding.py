"""What a check finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What, in a word or two, such as ``"open files"``.
        status: ``"ok"``; ``"warning"``, something is less than it could be; ``"problem"``, something does not work.
        found: What was found, a sentence or less. No secrets.
        fixes: What to do about it, each a command or a sentence; any one of them helps, the best comes first.
        details: More of what was found, a line each.
    """

    name: str
    status: Status
    found: str
    fixes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able data."""
        return {**asdict(self), "fixes": list(self.fixes), "details": list(self.details)}


Check = Callable[[], Iterable[Finding]]
"""A check: looks at one thing, and may raise anything."""


def ok(name: str, found: str, *fixes: str, details: Iterable[str] = ()) -> Finding:
    """All is well; ``fixes`` say how to have more."""
    return Finding(name, "ok", found, fixes, tuple(details))


def warning(name: str, found: str, *fixes: str, details: Iterable[str] = ()) -> Finding:
    """Less than it could be."""
    return Finding(name, "warning", found, fixes, tuple(details))


def problem(name: str, found: str, *fixes: str, details: Iterable[str] = ()) -> Finding:
    """Something does not work."""
    return Finding(name, "problem", found, fixes, tuple(details))

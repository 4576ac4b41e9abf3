"""Values as spans show them: small ones whole, large ones as size, hash, head and tail; never a secret."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pydantic

from rlm_dspy.inputs import repr_fits, short_repr
from rlm_dspy.redact import HIDDEN, redactor

logger = logging.getLogger(__name__)

CAP = 10_000
"""Characters of one value that are stored whole, by default."""
END = 1_000
"""Characters of head and tail, at most: a fifth of the cap where that is less."""
_LONGEST_SECRET = 4_096
_PIECE = 1 << 20
_DEEPEST = 12


class Clip:
    """Makes JSON-able data of values, without secrets, and small.

    Args:
        cap: Characters of a text, or of the ``repr`` of other data, up to which it is stored whole. None for no cap.
        hook: The user's own redaction: gets each text after secrets have been hidden, returns what is stored.

    What is above the cap becomes ``{"type", "characters" | "bytes" | "items", "sha256", "head", "tail"}``. The hash is
    of the whole value as UTF-8 or bytes; a container has a short ``summary`` in place of all that.
    """

    def __init__(self, cap: int | None = CAP, hook: Callable[[str], str] | None = None) -> None:
        self.cap = cap
        self._hook = hook
        self._end = END if cap is None else max(1, min(END, cap // 5))
        self._hide = redactor()

    def refresh(self) -> None:
        """Hide from now on the secrets that are known by now, too."""
        self._hide = redactor()

    def text(self, text: str) -> Any:
        """``text`` without secrets, or what stands for a long one."""
        if self.cap is None or len(text) <= self.cap:
            return self.clean(text)
        end = self._end
        return {
            "type": "str",
            "characters": len(text),
            "sha256": sha256(text),
            # A secret that the cut would halve is hidden before it is made.
            "head": self.clean(text[: end + _LONGEST_SECRET])[:end],
            "tail": self.clean(text[-end - _LONGEST_SECRET :])[-end:],
        }

    def line(self, text: str) -> str:
        """Like `text`, but always a text: for messages, which MLflow's UI shows as a conversation."""
        found = self.text(text)
        if isinstance(found, str):
            return found
        return f"{found['head']}\n… {mark(found['characters'], found['sha256'])} …\n{found['tail']}"

    def clean(self, text: str) -> str:
        """``text`` without secrets, and as the user's hook leaves it."""
        text = self._hide(text).encode("utf-8", "replace").decode()
        if self._hook is None:
            return text
        try:
            return str(self._hook(text))
        except Exception:
            # What was to be hidden is not shown because hiding it failed.
            logger.warning("the redact= hook of tracking failed; the text is left out", exc_info=True)
            return HIDDEN

    def value(self, value: Any, depth: int = 0) -> Any:
        """``value`` as JSON-able data."""
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return {"type": type(value).__name__, "bytes": len(value), "sha256": sha256(value)}
        if isinstance(value, pydantic.BaseModel):
            value = dict(value)
        if isinstance(value, (Mapping, list, tuple, set, frozenset)) and depth < _DEEPEST:
            return self._container(value, depth)
        return self.clean(short_repr(value))

    def _container(self, value: Any, depth: int) -> Any:
        # Texts in it are cut by themselves; it is the number of items that has to be bounded.
        if self.cap is not None and (len(value) > self.cap // 4 or (depth == 0 and not repr_fits(value, 4 * self.cap))):
            return self._summary(value)
        if isinstance(value, Mapping):
            return {self.clean(str(key)[:200]): self.value(item, depth + 1) for key, item in value.items()}
        return [self.value(item, depth + 1) for item in value]

    def _summary(self, value: Any) -> dict[str, Any]:
        return {
            "type": type(value).__name__,
            "items": len(value),
            "summary": self.clean(short_repr(value))[: self._end],
        }

    def hold(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values by name to be made data of later: what is large or could change is made data of now."""
        return {
            str(name): item
            if isinstance(item, str) and (self.cap is None or len(item) <= self.cap)
            else self.value(item)
            for name, item in values.items()
        }

    def fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values by name, each capped by itself."""
        return {str(name): self.value(item) for name, item in values.items()}

    def event(self, data: Any) -> Any:
        """What `rlm_dspy.events.Event.to_dict` gave; every text in it capped by itself, however many there are."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, dict):
            return {key: self.event(item) for key, item in data.items()}
        if isinstance(data, list):
            return [self.event(item) for item in data]
        return data if data is None or isinstance(data, (bool, int, float)) else self.clean(short_repr(data))


def mark(characters: int, digest: str) -> str:
    """What stands in a message for a text that is not stored whole."""
    return f"[{characters:,} characters, sha256 {digest}]"


def sha256(value: Any) -> str:
    """Of a text as UTF-8, or of bytes; in pieces, so that nothing of their size is made for it."""
    total = hashlib.sha256()
    if isinstance(value, str):
        for start in range(0, len(value), _PIECE):
            total.update(value[start : start + _PIECE].encode("utf-8", "surrogatepass"))
    else:
        total.update(value)
    return total.hexdigest()


def size(value: Any) -> int:
    """Characters or bytes of a text or bytes, 0 for anything else: what hashing costs."""
    return len(value) if isinstance(value, (str, bytes, bytearray, memoryview)) else 0

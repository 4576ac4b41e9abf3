"""Work on large texts, one piece at a time in the whole process.

It holds the interpreter lock for long stretches; side by side, the pieces of many runs would keep the event loop from
its turn for as long as all of them take.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

_lock = threading.Lock()


def one_by_one(work: Callable[..., Any], *given: Any) -> Any:
    """``work(*given)``, when no other such work is under way. For threads, never for the event loop."""
    with _lock:
        return work(*given)


def _renew() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    # Whoever held it is not in the child.
    os.register_at_fork(after_in_child=_renew)

"""Work on large texts, one piece at a time in the whole process.

It holds the interpreter lock for long stretches; side by side, the pieces of many runs would keep the event loop from
its turn for as long as all of them take.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from rlm_dspy._aio import threads
from rlm_dspy.run import Run

GRACE = 1.0
"""Seconds that such work has to end when a limit of its run strikes."""

_lock = threading.Lock()


def one_by_one(work: Callable[..., Any], *given: Any) -> Any:
    """``work(*given)``, when no other such work is under way. For threads, never for the event loop."""
    with _lock:
        return work(*given)


async def bounded(run: Run, work: Callable[..., Any], *given: Any) -> Any:
    """`one_by_one` in a thread, given up soon after a limit of ``run`` strikes; what has not begun then never does.

    Raises:
        Stopped: It was given up.
    """
    dropped = threading.Event()

    def wanted() -> Any:
        return None if dropped.is_set() else work(*given)

    try:
        return await run.bounded(threads.run(one_by_one, wanted), interrupt=lambda: None, grace=GRACE)
    finally:
        dropped.set()


def _renew() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    # Whoever held it is not in the child.
    os.register_at_fork(after_in_child=_renew)

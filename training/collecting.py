"""Garbage collection that does not stop the rollouts.

All rollouts of a process share one event loop, and a full collection stops it for as long as it takes to look at
every object there is: what verifiers and DSPy import alone is half a million, 0.3 to 0.5 seconds. While an environment
serves, what was there before is left out (`gc.freeze`), and full collections are rarer: those that remain look at what
rollouts have made. What the younger generations find, which is nearly all garbage in cycles, is collected as ever.
"""

from __future__ import annotations

import gc
import threading

__all__ = ["Seldom"]

RARER = 10
"""How many times rarer full collections are. A rollout leaves some 250 objects in cycles that only these find, so that
a hundred thousand or two wait for one."""


class Seldom:
    """Seldom and short full collections, between `begin` and `end`.

    The collector is the process's: whoever begins first changes it, whoever ends last puts it back.
    """

    _lock = threading.Lock()
    _users = 0
    _before: tuple[int, int, int] = (0, 0, 0)
    _frozen = False

    def __init__(self) -> None:
        self._begun = False

    def begin(self) -> None:
        """Collect once, and leave what is there out of later collections. Idempotent."""
        with Seldom._lock:
            if self._begun:
                return
            self._begun = True
            Seldom._users += 1
            if Seldom._users > 1:
                return
            Seldom._before = gc.get_threshold()
            # What somebody else has frozen stays so.
            Seldom._frozen = gc.get_freeze_count() == 0
            if Seldom._frozen:
                gc.collect()
                gc.freeze()
            youngest, middle, oldest = Seldom._before
            gc.set_threshold(youngest, middle, oldest * RARER)

    def end(self) -> None:
        """Put back what `begin` changed. Idempotent."""
        with Seldom._lock:
            if not self._begun:
                return
            self._begun = False
            Seldom._users -= 1
            if Seldom._users:
                return
            gc.set_threshold(*Seldom._before)
            if Seldom._frozen:
                gc.unfreeze()

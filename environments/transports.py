"""What transports share whose state has to be released also when nobody closes them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class StateTransport:
    """A `rlm_dspy.environments.base.Transport` that hands every call to a state, which outlives it.

    Args:
        state: What holds the process, container or sandbox, with the methods ``read``, ``write``, ``kill``, ``close``
            and ``reason`` of a transport.
        same_python: See `Transport.same_python`.
        collected: Called when the transport is collected without having been closed; ``state.close`` if None.
        at_exit: Call it at the end of the process, too.
    """

    def __init__(
        self,
        state: Any,
        *,
        same_python: bool,
        collected: Callable[[], Any] | None = None,
        at_exit: bool = True,
    ) -> None:
        self.same_python = same_python
        self._state = state
        # It holds the state, not the transport.
        self._finalizer = weakref.finalize(self, collected or state.close)
        self._finalizer.atexit = at_exit

    def read(self, size: int, /) -> bytes:
        """See `Transport.read`."""
        found: bytes = self._state.read(size)
        return found

    def write(self, data: bytes | memoryview, /) -> None:
        """See `Transport.write`."""
        self._state.write(data)

    def kill(self) -> None:
        """See `Transport.kill`."""
        self._state.kill()

    def close(self) -> None:
        """See `Transport.close`."""
        # Not by calling the finalizer: of two threads, the second would return before all of it is gone.
        self._finalizer.detach()
        self._state.close()

    def reason(self) -> str:
        """See `Transport.reason`."""
        found: str = self._state.reason()
        return found


class ImmediateTransport(StateTransport):
    """One whose state also has ``write_now``."""

    def write_now(self, data: bytes, /) -> bool:
        """See `Transport`."""
        found: bool = self._state.write_now(data)
        return found

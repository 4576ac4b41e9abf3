"""One call of an RLM: all of its state, none of it on the module.

A `Run` holds the ledger, the event log, the conversation and the interpreter session of one call, and knows how to
stop. `rlm_dspy.loop` drives it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dspy

from rlm_dspy._aio import caught
from rlm_dspy.environments.base import Session
from rlm_dspy.events import EventLog
from rlm_dspy.ledger import Ledger, Limits
from rlm_dspy.signatures.conversation import Conversation

if TYPE_CHECKING:
    from rlm_dspy.rlm import RLM


class Stopped(Exception):
    """Ends the turns from the inside; ``.limit`` names why."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


class Run:
    """The state of one call.

    Attributes:
        id: Unique, hexadecimal.
        depth: 0 for a call made by the user.
        program: The RLM (or view of one) that was called.
        inputs: The values of the call, by input name.
        tools: The user's tools by name.
        limits, ledger: What may be used, and the account of it.
        events: The event log.
        conversation: The root's conversation.
        session: The interpreter session; set while the run is open.
        factory: What made the session, for sub-agents that need sessions of their own.
        turn: The number of the current turn, 0 before the first.
    """

    def __init__(
        self,
        program: RLM,
        inputs: dict[str, Any],
        limits: Limits,
        factory: Callable[[], Any],
        depth: int = 0,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.depth = depth
        self.program = program
        self.signature: type[dspy.Signature] = program.signature
        self.inputs = inputs
        self.tools: dict[str, dspy.Tool] = program.tools
        self.limits = limits
        self.ledger = Ledger(limits)
        self.factory = factory
        self.conversation = Conversation("")
        self.turn = 0
        self.session: Session
        self.events = EventLog(self)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Future[str] | None = None
        self._stop_reason: str | None = None

    def attach(self) -> None:
        """Bind the run to the event loop that drives it."""
        self._loop = asyncio.get_running_loop()
        self._stop = self._loop.create_future()
        if self._stop_reason is not None:
            self._stop.set_result(self._stop_reason)

    def request_stop(self, reason: str = "interrupted") -> None:
        """Ask the run to stop where it is and give its best answer. From any thread; the first reason counts."""
        if self._stop_reason is not None:
            return
        self._stop_reason = reason
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:

            def set_reason() -> None:
                if not stop.done():
                    stop.set_result(reason)

            try:
                loop.call_soon_threadsafe(set_reason)
            except RuntimeError:
                pass  # the loop has ended, and the run with it

    @property
    def stop_reason(self) -> str | None:
        """Why `request_stop` was called, or None."""
        return self._stop_reason

    async def bounded(
        self, work: Any, *, interrupt: Callable[[], Any] | None = None, grace: float = 5.0
    ) -> Any:
        """Await ``work``, but not past ``max_seconds`` or a requested stop.

        Args:
            work: A coroutine.
            interrupt: Called at the limit to make ``work`` end by itself with what it has; it then has ``grace``
                seconds to do so.
            grace: Seconds.

        Raises:
            Stopped: A limit struck and ``work`` was cancelled.
        """
        assert self._stop is not None
        task = asyncio.ensure_future(caught(work))
        try:
            either: set[asyncio.Future[Any]] = {task, self._stop}
            await asyncio.wait(either, timeout=self.ledger.seconds_left, return_when="FIRST_COMPLETED")
            if not task.done() and interrupt is not None:
                interrupt()
                await asyncio.wait({task}, timeout=grace)
            if task.cancelled():
                # Nobody cancelled this run: an LM or a library below it gave up in this way.
                raise RuntimeError("the call was cancelled from within")
            if task.done():
                result, fatal = task.result()
                if fatal is not None:
                    raise fatal
                return result
            raise Stopped(self._stop_reason or "max_seconds")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                if not task.cancelled():
                    task.exception()  # retrieved, so that asyncio does not report it as lost

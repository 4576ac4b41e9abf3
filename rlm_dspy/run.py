"""One call of an RLM: all of its state, none of it on the module.

A `Run` holds the ledger, the event log, the conversation and the interpreter session of one call, and knows how to
stop. `rlm_dspy.loop` drives it. What it shares with the runs around it is said by `rlm_dspy.origin`.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dspy

from rlm_dspy.environments.base import Session
from rlm_dspy.events import EventLog
from rlm_dspy.ledger import Ledger
from rlm_dspy.limits import Limits
from rlm_dspy.origin import Origin
from rlm_dspy.signatures.conversation import Conversation
from rlm_dspy.tree import Tree

if TYPE_CHECKING:
    from rlm_dspy.recording import Recording
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
        parent: The run that this one was started inside of; None for a root.
        depth: 0 for a root, one more than its parent's otherwise.
        generation: 0 for a run that was called, by a user or a tool; 1 for its children, and so on.
        levels: Levels of children that it may start.
        program: The RLM (or view of one) that was called.
        inputs: The values of the call, by input name.
        tools: The user's tools by name.
        limits, ledger: What may be used, and the account of it.
        counted_by: The ledger in which its root's LM calls are sub-calls, because code of that run asked for them.
        tree: What it shares with its parent and children.
        root_lm: Plays the root in place of the LM that would; None for that one.
        events: The event log.
        conversation: The root's conversation.
        session: The interpreter session; set while the run is open.
        factory: What made the session, for sub-agents that need sessions of their own.
        turn: The number of the current turn, 0 before the first.
        requests: Numbers of its root's requests, see `rlm_dspy.events.TextDelta`.
        output_chars: Characters of one turn's output that the root is shown: ``max_output_chars``, less where its
            LM's context window is small.
        extracted: ``extract`` was asked.
        extracting: How long it may take, while it is asked.
        answer_wanted: Somebody waits for the answer, see `request_stop`.
        within: The session that this is a call of, or None.
        recording: What is done in place of calling LMs and host functions; None but in a replay.
    """

    def __init__(
        self,
        program: RLM,
        inputs: dict[str, Any],
        limits: Limits,
        factory: Callable[[], Any],
    ) -> None:
        origin = Origin.here()
        asker, start, limits = origin.asker, origin.start, origin.limits(limits)
        above = origin.same_program(program)
        self.id = uuid.uuid4().hex
        self.parent = origin.parent
        self.within = origin.session
        self.depth: int = 0 if origin.parent is None else origin.parent.depth + 1
        self.generation: int = 0 if above is None else above.generation + 1
        self.levels: int = (limits.max_depth if above is None else above.levels) - 1
        self.recording: Recording | None = None
        self.program: RLM = program
        self.signature: type[dspy.Signature] = program.signature
        self.inputs = inputs
        self.tools: dict[str, dspy.Tool] = program.tools
        self.limits = limits
        self.ledger: Ledger = origin.ledger(limits, program.prices)
        self.tree: Tree = origin.tree(limits)
        self.counted_by = None if asker is None else asker.ledger
        self.root_lm: Any = (start and start.lm) or program.routes.at(self.generation, "root")
        self.factory = factory
        self.conversation = self.within.conversation if self.within is not None else Conversation("")
        self.turn = 0
        self.requests = itertools.count(1)
        self.output_chars: int = program.max_output_chars
        self.extracted = False
        self.extracting: asyncio.Timeout | None = None
        self.answer_wanted = True
        self.session: Session
        self.events: EventLog = EventLog(self, None if asker is None else asker.events)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancelled_before = 0
        self._bounds: list[_Bound] = []
        self._stop_reason: str | None = None
        if start is not None:
            start.run = self
            if start.begun is not None:
                start.begun(self)

    def attach(self) -> None:
        """Bind the run to the event loop and the task that drive it.

        A cancellation that the task has been sent already, but has not seen, strikes at the task's next wait. Wait
        once before the first `bounded`, which would take it for one from within.
        """
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._cancelled_before = task.cancelling()

    def request_stop(self, reason: str = "interrupted", *, answer: bool = True) -> None:
        """Ask the run to stop where it is and give its best answer. From any thread; the first reason counts.

        Args:
            reason: Becomes the limit of the outcome.
            answer: False where nobody will read it: ``extract`` is not asked, or no longer waited for, and the outcome
                is "failed", with what was submitted, stored or printed last.
        """
        if self._stop_reason is not None and (answer or not self.answer_wanted):
            return
        self._stop_reason = self._stop_reason or reason
        self.answer_wanted = self.answer_wanted and answer
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._strike)
            except RuntimeError:
                pass  # the loop has ended, and the run with it

    def _strike(self) -> None:
        for bound in tuple(self._bounds):
            bound.strike()
        if self.extracting is not None and not (self.answer_wanted or self.extracting.expired()):
            self.extracting.reschedule(0.0)

    @property
    def stop_reason(self) -> str | None:
        """Why `request_stop` was called, or None."""
        return self._stop_reason

    async def bounded(
        self, work: Any, *, interrupt: Callable[[], Any] | None = None, grace: float = 5.0
    ) -> Any:
        """Await ``work``, but not past ``max_seconds`` or a requested stop.

        Args:
            work: A coroutine; it runs in the calling task.
            interrupt: Called at the limit to make ``work`` end by itself with what it has; it then has ``grace``
                seconds to do so.
            grace: Seconds.

        Raises:
            Stopped: A limit struck and ``work`` was cancelled.
        """
        bound = _Bound(interrupt, grace, self._cancelled_before)
        left = self.ledger.seconds_left
        timer = None if left is None else bound.loop.call_later(left, bound.strike)
        self._bounds.append(bound)
        if self._stop_reason is not None:
            bound.loop.call_soon(bound.strike)
        try:
            if bound.cancelled_from_outside():
                # It strikes here, before anything is begun.
                await asyncio.sleep(0)
            return await work
        except asyncio.CancelledError:
            if not bound.cancelled_from_outside():
                if bound.cancelled:
                    raise Stopped(self._stop_reason or "max_seconds") from None
                # Nobody cancelled this run: an LM or a library below it gave up in this way.
                raise RuntimeError("the call was cancelled from within") from None
            raise
        except Exception:
            if bound.cancelled and not bound.cancelled_from_outside():
                raise Stopped(self._stop_reason or "max_seconds") from None
            raise
        finally:
            work.close()
            self._bounds.remove(bound)
            bound.end()
            if timer is not None:
                timer.cancel()


class _Bound:
    """What `Run.bounded` does at a limit to the task it runs in.

    The task is cancelled, as ``asyncio.timeout`` does it, rather than a second one beside it: a turn waits twice for
    work, and each task more costs several passes of the event loop.
    """

    def __init__(self, interrupt: Callable[[], Any] | None, grace: float, cancelled_before: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.loop = asyncio.get_running_loop()
        self.cancelled = False
        self._task = task
        # Of the run, not of now: Ctrl-C in a step of the task between two bounds strikes in the second one.
        self._before = cancelled_before
        self._interrupt = interrupt
        self._grace = grace
        self._timer: asyncio.TimerHandle | None = None
        self._ended = self._struck = False

    def strike(self) -> None:
        """The limit is reached. Only the first strike counts."""
        if self._ended or self._struck:
            return
        self._struck = True
        if self._interrupt is None:
            self._cancel()
            return
        self._timer = self.loop.call_later(self._grace, self._cancel)
        self._interrupt()

    def _cancel(self) -> None:
        if not self._ended:
            self.cancelled = True
            self._task.cancel()

    def cancelled_from_outside(self) -> bool:
        """Whether somebody else has cancelled the task as well; theirs goes before."""
        return self._task.cancelling() - self.cancelled > self._before

    def end(self) -> None:
        """The work is over: strike no more, and take the cancellation back."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self.cancelled:
            self._task.uncancel()

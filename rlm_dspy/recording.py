"""A recorded run, in the place of language models and host functions while it is run again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dspy
from dspy.utils.exceptions import AdapterParseError, LMInvalidRequestError

from rlm_dspy import events as ev
from rlm_dspy import submit
from rlm_dspy.environments.base import CellError, CellResult, HostFunction, Submission
from rlm_dspy.errors import CallFailed, RecordingError
from rlm_dspy.kept import digest
from rlm_dspy.observation import FILTERED
from rlm_dspy.run import Stopped

if TYPE_CHECKING:
    from rlm_dspy.run import Run

_COUNTED = ("max_iters", "max_errors", "repeats")
"""Limits that strike between turns alone."""


class Replayed(RecordingError):
    """The recorded run ended by this error, which is its text."""


@dataclass
class _Turn:
    """What is known of one turn."""

    acted: ev.Acted | None = None
    executed: ev.Executed | None = None
    ended: ev.TurnEnded | None = None
    returned: list[ev.Returned] = field(default_factory=list)


class Recording:
    """The events of one run, as `rlm_dspy.loop` asks for them.

    Args:
        events: Its log. One that breaks off, because the process was killed, is good for the turns that were finished.

    Attributes:
        started: How it began.
        run: The run that it is run again as; to be set before that begins.
        differences: What did not fit so far: turn, what it is about, and a sentence.

    Raises:
        RecordingError: These are not the events of a run.
    """

    def __init__(self, events: Iterable[ev.Event]) -> None:
        log = tuple(events)
        started = next((event for event in log if isinstance(event, ev.RunStarted)), None)
        if started is None:
            raise RecordingError("these are not the events of a run: there is no beginning among them")
        self.started = started
        self.run: Run
        self.differences: list[tuple[int, str, str]] = []
        self.ended = next((event for event in log if isinstance(event, ev.RunEnded)), None)
        self._struck = next((event for event in log if isinstance(event, ev.LimitStruck)), None)
        self._extracted = next((event for event in log if isinstance(event, ev.Extracted)), None)
        turns: dict[int, _Turn] = defaultdict(_Turn)
        for event in log:
            match event:
                case ev.TurnStarted():
                    turns[event.turn] = _Turn()
                case ev.Acted():
                    turns[event.turn].acted = event
                case ev.Executed():
                    turns[event.turn].executed = event
                case ev.TurnEnded():
                    turns[event.turn].ended = event
                case ev.Returned():
                    turns[event.turn].returned.append(event)
        self._compacted = [event for event in log if isinstance(event, ev.Compacted)]
        whole = self.ended is not None or self._struck is not None
        self.turns = {n: turn for n, turn in turns.items() if n and (whole or turn.ended is not None)}
        self._unused = {n: sorted(turn.returned, key=lambda event: event.number) for n, turn in turns.items()}

    @property
    def torn(self) -> bool:
        """Whether it breaks off."""
        return self.ended is None

    def limit(self, done: int) -> str | None:
        """Why there was no other turn after ``done`` turns, or None."""
        if done + 1 in self.turns:
            return None
        return self._struck.limit if self._struck is not None else "interrupted"

    def compacted(self, done: int) -> list[ev.Compacted]:
        """How the conversation was made shorter after ``done`` turns."""
        return [event for event in self._compacted if event.turn == done]

    def act(self) -> dspy.Prediction:
        """The root's recorded action.

        Raises:
            AdapterParseError: There was no code in its reply.
            Stopped: A limit struck in place of it.
            Replayed: An error ended the run in place of it.
        """
        acted = self.turns[self.run.turn].acted
        if acted is None:
            if self._struck is not None:
                raise Stopped(self._struck.limit)
            raise Replayed(self._error())
        self.run.conversation.reply = acted.reply
        if acted.error == FILTERED:
            raise LMInvalidRequestError(acted.error, provider_code="content_filter")
        if acted.error is not None:
            signature: Any = self.run.signature
            raise AdapterParseError(adapter_name="Recording", signature=signature, lm_response=acted.reply)
        return dspy.Prediction(reasoning=acted.reasoning, code=acted.code)

    def cut_short(self, code: str) -> tuple[CellResult, str] | None:
        """What is known of a turn whose code was stopped from outside, and the limit; None for all others.

        Where it would be stopped again is for the clock to say: it is not run.
        """
        turn, struck = self.turns[self.run.turn], self._struck
        if turn.ended is not None and not self._stopped(turn):
            return None
        if struck is None:
            raise Replayed(self._error())
        told = f"the code was stopped: {struck.limit}"
        output = ""
        if turn.executed is not None:
            output, told = turn.executed.output, (turn.executed.error or told).strip()
        error = CellError("TimeoutError", told, told, "timeout")
        return CellResult(stdout=output.removesuffix(f"[Error] {told}"), error=error), struck.limit

    def _stopped(self, turn: _Turn) -> bool:
        """Whether the limit that ended the run struck while the turn's code ran."""
        struck = self._struck
        if struck is None or self.run.turn != max(self.turns):
            return False
        failed = turn.executed is not None and turn.executed.error is not None
        return struck.where == "execute" or (failed and struck.where == "turns" and struck.limit not in _COUNTED)

    def _error(self) -> str:
        return (self.ended.error if self.ended is not None else None) or "the recording breaks off here"

    def notices(self, turn: int) -> list[str]:
        """What the root was told of the turn's calls besides."""
        found = self.turns.get(turn)
        return list(found.executed.notices) if found is not None and found.executed is not None else []

    def direct(self) -> dict[str, Any] | None:
        """What a direct call had answered; None where it was none, or gave nothing."""
        if self.ended is None or self.ended.outcome != "direct" or self.ended.values is None:
            return None
        return self._typed(self.ended.values.value())

    def extract(self) -> dict[str, Any]:
        """What ``extract`` gave.

        Raises:
            Replayed: It gave nothing, or was not asked.
        """
        if self._extracted is None or self._extracted.outputs is None:
            raise Replayed(self._error())
        self.run.events.emit(ev.Extracted(outputs=self._extracted.outputs))
        return self._typed(self._extracted.outputs.value())

    def _typed(self, outputs: dict[str, Any]) -> dict[str, Any]:
        try:
            return submit.validate(Submission((), outputs), self.run.signature)
        except submit.Refused as refused:
            raise RecordingError(f"the recorded outputs are not those of this program: {refused}") from None

    def functions(self, functions: Mapping[str, HostFunction]) -> dict[str, HostFunction]:
        """Host functions that give what was recorded: those of the program, and all that were called."""
        names = {*functions, *(event.name for turn in self.turns.values() for event in turn.returned)}
        return {name: self._function(name, functions.get(name)) for name in sorted(names)}

    def _function(self, name: str, function: HostFunction | None) -> HostFunction:
        async def call(*args: Any, **kwargs: Any) -> Any:
            event = self._find(name, digest([list(args), kwargs]))
            if event.error is not None:
                kind, message = event.error
                raise {"ValueError": ValueError, "TypeError": TypeError}.get(kind, CallFailed)(message)
            assert event.result is not None
            return event.result.value(records=True)

        call.__name__ = call.__qualname__ = name
        call.__doc__ = getattr(function, "__doc__", None)
        return call

    def _find(self, name: str, arguments: str) -> ev.Returned:
        """The recorded call, by turn, name and arguments; each is given once, equal ones in their order."""
        turn = self.run.turn
        here = self._unused.get(turn, [])
        for calls in (here, *(calls for n, calls in self._unused.items() if n != turn)):
            # A thread that outlives its cell may call in another turn.
            for event in calls:
                if event.name == name and event.arguments == arguments:
                    calls.remove(event)
                    return event
        for event in here:
            if event.name == name:
                here.remove(event)
                self._differs(turn, name, f"{name} was called with other arguments than were recorded")
                return event
        self._differs(turn, name, f"{name} was called more often than was recorded")
        raise CallFailed(f"this call of {name} was not recorded")

    def _differs(self, turn: int, about: str, text: str) -> None:
        self.differences.append((turn, about, text))

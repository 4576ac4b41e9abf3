"""What the events of a run say, put together for showing. Events of a run that broke off, or none, are good enough."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlm_dspy import events as ev
from rlm_dspy.errors import RecordingError
from rlm_dspy.trajectory import Trajectory

_ASKED = ("query", "question", "prompt", "task", "request", "instruction", "instructions")


@dataclass
class Span:
    """Something that took time.

    Attributes:
        start, end: Seconds since the outermost run began.
        kind: ``"act"``, ``"execute"``, ``"call"``, ``"child"``, ``"extract"``, ``"compact"`` or ``"open"``.
        name: What it was, for people.
        error: It failed.
    """

    start: float
    end: float
    kind: str
    name: str
    error: bool = False


@dataclass
class Call:
    """A host call: what was asked in short, and what came."""

    name: str
    asked: str = ""
    answered: str = ""
    error: str | None = None
    seconds: float | None = None
    reused: bool = False


@dataclass(frozen=True)
class Used:
    """What LM requests took, children's included.

    Attributes:
        requests, read, wrote: How many, and their tokens in and out.
        cost: US dollars; None where a price is unknown.
    """

    requests: int
    read: int
    wrote: int
    cost: float | None

    @property
    def tokens(self) -> int:
        """In and out."""
        return self.read + self.wrote


@dataclass
class Child:
    """A child: how it began, how it ended, where that is known, and what it did."""

    started: ev.ChildStarted
    ended: ev.ChildEnded | None
    parts: Parts


@dataclass
class Parts:
    """One run.

    Attributes:
        trajectory: Its turns.
        started, ended: How it began and ended, where that is known.
        ended_at: Seconds since it began until its last event.
        spans: By turn; 0 for what is between turns.
        calls: By turn, in the order they started.
        children: By turn.
        extracted, struck: The last answer; the limit that ended the turns.
        compacted: By the turns there were then.
        notes: What else was told.
        aids: By turn.
        used: By turn, what was used from the end of the one before; 0 for what came after the turns.
    """

    trajectory: Trajectory
    started: ev.RunStarted | None = None
    opened: ev.SessionOpened | None = None
    ended: ev.RunEnded | None = None
    ended_at: float = 0.0
    spans: dict[int, list[Span]] = field(default_factory=dict)
    calls: dict[int, list[Call]] = field(default_factory=dict)
    children: dict[int, list[Child]] = field(default_factory=dict)
    extracted: ev.Extracted | None = None
    struck: ev.LimitStruck | None = None
    compacted: dict[int, list[ev.Compacted]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    aids: dict[int, list[str]] = field(default_factory=dict)
    used: dict[int, Used] = field(default_factory=dict)

    @property
    def usage(self) -> dict[str, Any]:
        """What it used, ``{}`` where that is not known."""
        return self.ended.usage if self.ended is not None else {}

    def question(self) -> str:
        """What it was asked, ``""`` where no short input says it."""
        given = self.started.inputs if self.started is not None else {}
        for name in sorted(given, key=lambda n: _ASKED.index(n) if n in _ASKED else len(_ASKED)):
            value = given[name]
            if name in _ASKED and not value.why and value.size < 100_000:
                try:
                    found = value.value()
                except RecordingError:
                    continue
                if isinstance(found, str):
                    return found
        return ""


def parts_of(trajectory: Trajectory) -> Parts:
    """Put together what the events of ``trajectory`` say."""
    made = Parts(trajectory)
    calls: dict[int, Call] = {}
    turn, before = 0, dict[str, Any]()
    ended = {e.run_id: e for e in trajectory.events if isinstance(e, ev.ChildEnded)}
    for event in trajectory.events:
        made.ended_at = max(made.ended_at, event.at)
        match event:
            case ev.RunStarted():
                made.started = event
            case ev.SessionOpened():
                made.opened = event
                _span(made, 0, event, "open", f"{event.environment} opened")
            case ev.TurnStarted():
                turn = event.turn
            case ev.TurnEnded() if event.used:
                made.used[event.turn], before = used_of(event.used, before), event.used
            case ev.Acted():
                _span(made, event.turn, event, "act", "the model's reply", event.error is not None)
            case ev.Executed():
                _span(made, event.turn, event, "execute", "the code", event.error is not None)
            case ev.CallStarted():
                calls[event.call] = Call(event.name, event.preview)
                made.calls.setdefault(event.turn, []).append(calls[event.call])
            case ev.CallEnded():
                if (call := calls.get(event.call)) is None:
                    call = calls[event.call] = Call(event.name)
                    made.calls.setdefault(event.turn, []).append(call)
                call.answered, call.error, call.seconds = event.preview, event.error, event.seconds
                call.reused = event.reused
                _span(made, event.turn, event, "call", event.name, event.error is not None)
            case ev.ChildStarted():
                end = ended.get(event.run_id)
                inner = parts_of(Trajectory.from_events(end.events if end is not None else ()))
                made.children.setdefault(event.turn, []).append(Child(event, end, inner))
            case ev.Compacted():
                made.compacted.setdefault(event.turn, []).append(event)
                _span(made, event.turn, event, "compact", "compaction")
            case ev.Extracted():
                made.extracted = event
                _span(made, 0, event, "extract", "the last answer", event.error is not None)
            case ev.LimitStruck():
                made.struck = event
                if event.used and turn and turn not in made.used:
                    made.used[turn], before = used_of(event.used, before), event.used
            case ev.Note():
                made.notes.append(event.message)
            case ev.Aided():
                made.aids.setdefault(event.turn, []).append(event.aid)
            case ev.RunEnded():
                made.ended = event
                if before and (rest := used_of(event.usage, before)).requests:
                    made.used[0] = rest
    return made


def used_of(after: dict[str, Any], before: dict[str, Any] | None = None) -> Used:
    """What is in an account (``pred.usage``), or what came to it since ``before``."""
    before = before or {}

    def more(name: str) -> Any:
        return (after.get(name) or 0) - (before.get(name) or 0)

    known = [used["cost"] if used.get("cost") is not None else used.get("known_cost") or 0 for used in (after, before)]
    return Used(
        requests=more("lm_calls"),
        read=more("input_tokens"),
        wrote=more("output_tokens"),
        cost=None if more("unpriced_calls") else max(0.0, known[0] - known[1]),
    )


def _span(made: Parts, turn: int, event: Any, kind: str, name: str, error: bool = False) -> None:
    # An event is stamped when it is over.
    made.spans.setdefault(turn, []).append(Span(max(0.0, event.at - event.seconds), event.at, kind, name, error))

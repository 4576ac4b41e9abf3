"""How a run ended and what it did: `Outcome`, `Turn`, `Trajectory`, built from the event log.

A `Trajectory` *is* a list and a `Turn` *is* a dict with the keys ``reasoning``, ``code`` and ``output``, so programs
written for ``dspy.RLM`` (3.4), whose ``trajectory`` is such a list of dicts, read ours unchanged, and so does
``json.dumps``. The rest of what is known of a turn is on attributes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, overload

from rlm_dspy import events as ev
from rlm_dspy.environments.base import Image
from rlm_dspy.errors import RecordingError
from rlm_dspy.redact import redactor

if TYPE_CHECKING:
    import dspy

    from rlm_dspy.rlm import RLM

Status = Literal["submitted", "extracted", "failed", "direct"]


class Outcome(str):
    """How a run ended: ``"submitted"``, ``"extracted"``, ``"failed"`` or ``"direct"``, comparable as that text.

    Attributes:
        limit: The limit that ended the turns, such as ``"max_iters"`` or ``"max_seconds"``; None if none did.
        error: The error that ended them, as text; None if none did.
    """

    limit: str | None
    error: str | None

    def __new__(cls, status: Status, *, limit: str | None = None, error: str | None = None) -> Outcome:
        self = super().__new__(cls, status)
        self.limit = limit
        self.error = error
        return self

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, str | None]]:
        return (str(self),), {"limit": self.limit, "error": self.error}

    def __repr__(self) -> str:
        extra = "".join(f", {n}={v!r}" for n, v in (("limit", self.limit), ("error", self.error)) if v is not None)
        return f"Outcome({str(self)!r}{extra})"


class Turn(dict[str, str]):
    """One action and its execution: a dict of ``reasoning``, ``code`` and ``output``, with attributes for the rest.

    Attributes:
        number: From 1.
        reply: The root's reply, byte for byte.
        shown: What the root saw of ``output``: the same, or its head and tail.
        error: True if the reply had no code, or the code ended in an error, or a submission was refused.
        calls: The host calls made by the code, as ``(name, seconds, error)`` in the order they ended.
        seconds: Wall time of the turn: the LM's reply and the execution.
        lost: Variables that a restart of the session cost during this turn.
        images: What the code displayed, where the environment takes pictures (``ipython``).
    """

    number: int
    reply: str
    shown: str
    error: bool
    calls: tuple[tuple[str, float, str | None], ...]
    seconds: float
    lost: tuple[str, ...]
    images: tuple[Image, ...]

    def __init__(
        self,
        *,
        reasoning: str = "",
        code: str = "",
        output: str = "",
        number: int = 0,
        reply: str = "",
        shown: str = "",
        error: bool = False,
        calls: Iterable[tuple[str, float, str | None]] = (),
        seconds: float = 0.0,
        lost: Iterable[str] = (),
        images: Iterable[Image] = (),
    ) -> None:
        super().__init__(reasoning=reasoning, code=code, output=output)
        self.number = number
        self.reply = reply
        self.shown = shown
        self.error = error
        self.calls = tuple(calls)
        self.seconds = seconds
        self.lost = tuple(lost)
        self.images = tuple(images)

    reasoning = property(lambda self: self["reasoning"])
    code = property(lambda self: self["code"])
    output = property(lambda self: self["output"])

    def __reduce__(self) -> tuple[Any, ...]:
        return _turn, (dict(self), dict(vars(self)))


def _turn(items: dict[str, str], attributes: dict[str, Any]) -> Turn:
    turn = Turn()
    turn.clear()
    turn.update(items)
    vars(turn).update(attributes)
    return turn


class Trajectory(list[Turn]):
    """The turns of one run, in order. Renders as a table in a notebook and with ``rich.print``.

    Attributes:
        events: The whole event log of the run that the turns were built from; empty for a slice.
    """

    events: tuple[ev.Event, ...] = ()

    @overload
    def __getitem__(self, key: SupportsIndex, /) -> Turn: ...
    @overload
    def __getitem__(self, key: slice, /) -> Trajectory: ...
    def __getitem__(self, key: Any, /) -> Any:
        item = super().__getitem__(key)
        return Trajectory(item) if isinstance(key, slice) else item

    @classmethod
    def from_events(cls, events: Iterable[ev.Event]) -> Trajectory:
        """Build the turns from a run's events; a turn that was cut short keeps what is known of it."""
        log = tuple(events)
        turns: dict[int, dict[str, Any]] = {}
        for event in log:
            number = getattr(event, "turn", None)
            if number is None:
                continue
            turn = turns.setdefault(number, {"number": number, "calls": [], "seconds": 0.0})
            match event:
                case ev.Acted():
                    turn.update(reasoning=event.reasoning, code=event.code, reply=event.reply)
                    turn["error"] = event.error is not None
                    turn["output"] = event.error or ""
                    turn["seconds"] += event.seconds
                case ev.CallEnded():
                    turn["calls"].append((event.name, event.seconds, event.error))
                case ev.Executed():
                    turn.update(output=event.output, lost=event.lost, error=event.error is not None)
                    turn["seconds"] += event.seconds
                    turn["images"] = [Image(kind, base64.b64decode(data)) for kind, data in event.images]
                case ev.TurnEnded():
                    turn.update(shown=event.observation, error=event.error)
                    turn["output"] = turn.get("output") or event.observation
        # A turn whose reply never came holds nothing to show.
        trajectory = cls(Turn(**turn) for turn in turns.values() if "reply" in turn)
        trajectory.events = log
        return trajectory

    @property
    def children(self) -> tuple[ChildRun, ...]:
        """The children that code started and that have ended, in the order they started; none for a slice."""
        started = [event.run_id for event in self.events if isinstance(event, ev.ChildStarted)]
        ended = {event.run_id: event for event in self.events if isinstance(event, ev.ChildEnded)}
        return tuple(_child(ended[run_id]) for run_id in started if run_id in ended)

    def to_jsonl(self, path: str | PathLike[str], *, values: bool = True) -> None:
        """Write all of it to one file, an event a line; the form is that of `rlm_dspy.jsonl`.

        Secrets that are known are hidden, but in the inputs, which are written as they are.

        Args:
            path: Replaced where it is there, whole or not at all.
            values: Write inputs, answers of host functions and outputs too, which it takes to run it again.

        Raises:
            RecordingError: It is a part of a trajectory.
            OSError: It cannot be written.
        """
        from rlm_dspy import jsonl

        jsonl.write(path, self._whole(), values=values)

    @classmethod
    def from_jsonl(cls, source: str | PathLike[str] | Iterable[str]) -> Trajectory:
        """The trajectory that `to_jsonl` wrote.

        Args:
            source: The file's path, or its lines.

        Raises:
            RecordingError: It is none, damaged, or of a newer version.
        """
        from rlm_dspy import jsonl

        return cls.from_events(jsonl.read(source))

    @classmethod
    def from_trace(cls, trace: Any, *, tracking_uri: str | None = None) -> Trajectory:
        """The trajectory of a run that was traced (`rlm_dspy.tracking`), children included.

        Texts that were too large for the trace are there as far as it has them.

        Args:
            trace: The trace's id, or an ``mlflow`` trace.
            tracking_uri: The store that it is in; None for the one that is in use.

        Raises:
            MissingExtraError: MLflow is not installed.
            RecordingError: There is no such trace, or it holds no run of an RLM.
        """
        from rlm_dspy.traces.store import trajectory_of

        return trajectory_of(trace, tracking_uri=tracking_uri)

    def replay(self, program: RLM | None = None, **options: Any) -> dspy.Prediction:
        """Run its code again, in a real environment and without a language model: `rlm_dspy.replay`."""
        from rlm_dspy.replaying import replay

        return replay(self, program, **options)

    def to_html(self, title: str | None = None) -> str:
        """A page about it that is whole in itself: no script, nothing that is loaded, for light, dark and print.

        Args:
            title: Of the page; None for the question or the signature.
        """
        from rlm_dspy import pages

        return pages.document(self, title)

    def _whole(self) -> tuple[ev.Event, ...]:
        if self and not self.events:
            raise RecordingError("a part of a trajectory has no events; give the whole one")
        return self.events

    def __rich__(self) -> Any:
        from rlm_dspy.render import trajectory_table

        return trajectory_table(self)

    def _repr_html_(self) -> str:
        from rlm_dspy import pages

        return pages.fragment(self)


@dataclass(frozen=True)
class ChildRun:
    """A child that the code of a turn started, and what it did.

    Attributes:
        turn: The turn of the parent, from 1.
        name: The function that started it: ``"rlm_query"`` or ``"rlm_query_batched"``.
        prompt: What it was asked, without secrets; ``""`` where another module is the child, or where it was too large
            to be kept.
        inputs: Name to type and size of each of its inputs.
        outcome: How it ended. A child that was stopped before it had an outcome is ``"failed"``, with the error
            ``"cancelled"``.
        seconds: Wall time.
        trajectory: Its turns; children of its own are in ``trajectory.children``.
    """

    turn: int
    name: str
    prompt: str
    inputs: dict[str, str]
    outcome: Outcome
    seconds: float
    trajectory: Trajectory


def _prompt(started: ev.RunStarted | None) -> str:
    kept = started.inputs.get("prompt") if started is not None else None
    if kept is None or kept.why:
        return ""
    try:
        return redactor()(str(kept.value()))
    except RecordingError:
        # Its file is gone.
        return ""


def _child(event: ev.ChildEnded) -> ChildRun:
    started = next((e for e in event.events if isinstance(e, ev.RunStarted)), None)
    stopped = event.outcome == "cancelled"
    status: Any = "failed" if stopped else event.outcome
    return ChildRun(
        turn=event.turn,
        name=event.name,
        prompt=_prompt(started),
        inputs=dict(started.variables) if started is not None else {},
        outcome=Outcome(status, limit=event.limit, error=event.error or ("cancelled" if stopped else None)),
        seconds=event.seconds,
        trajectory=Trajectory.from_events(event.events),
    )

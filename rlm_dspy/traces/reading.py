"""The runs in a trace. Each span that tracking writes carries, as ``rlm_dspy.events``, the events of its run that
happened while it was the innermost span of it; the span of a run itself also carries ``rlm_dspy.run``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlm_dspy import events as ev
from rlm_dspy import kept
from rlm_dspy.journals import KINDS, event_of
from rlm_dspy.kept import Kept
from rlm_dspy.reading import reading
from rlm_dspy.trajectory import Outcome, Trajectory

EVENTS = "rlm_dspy.events"
"""The attribute with the events of a run that were emitted while a span was the innermost one of it."""
RUN = "rlm_dspy.run"
"""The attribute of the span of an RLM with what the run came to."""


@dataclass
class TracedRun:
    """A run that was called, as its trace has it.

    Attributes:
        trace_id: The trace's.
        run_id: The run's.
        trajectory: Its turns, with all events, children included.
        about: What ``rlm_dspy.run`` says: usage, limits, sandbox, strategy, versions.
        inputs, outputs: By name, those that the trace has whole.
        missing: Inputs that it has in part, or not at all.
        assessments: Feedback and expectations that were logged to the trace, by name; the newest of each that is valid.
        spans: MLflow's spans of this run alone, without those of children, in the order they started.
        tags: Of the trace.
    """

    trace_id: str
    run_id: str
    trajectory: Trajectory
    about: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    assessments: dict[str, Any] = field(default_factory=dict)
    spans: list[Any] = field(default_factory=list, repr=False, compare=False)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def started(self) -> ev.RunStarted | None:
        """How it began."""
        return next((e for e in self.trajectory.events if isinstance(e, ev.RunStarted)), None)

    @property
    def ended(self) -> ev.RunEnded | None:
        """How it ended; None for one that is still going on, or whose process was killed."""
        return next((e for e in self.trajectory.events if isinstance(e, ev.RunEnded)), None)

    @property
    def outcome(self) -> Outcome | None:
        """How it ended."""
        ended: Any = self.ended
        return None if ended is None else Outcome(ended.outcome, limit=ended.limit, error=ended.error)

    @property
    def usage(self) -> dict[str, Any]:
        """What it used, as ``pred.usage``."""
        return self.ended.usage if self.ended is not None else {}


@dataclass
class _Owner:
    """A run among the spans of a trace."""

    span: Any
    above: _Owner | None
    run_id: str = ""
    events: dict[int, dict[str, Any]] = field(default_factory=dict)
    spans: list[Any] = field(default_factory=list)


def runs_of(trace: Any) -> list[TracedRun]:
    """The runs of a trace that were called, not started by another run of it; in the order they began.

    Args:
        trace: An ``mlflow.entities.Trace``.

    Raises:
        RecordingError: What a span carries is damaged.
    """
    owners = _owners(trace.data.spans)
    by_id = {owner.run_id: owner for owner in owners}
    called = [owner for owner in owners if owner.above is None]
    return [_run(trace, owner, by_id) for owner in called]


def _owners(spans: Iterable[Any]) -> list[_Owner]:
    ordered = sorted(spans, key=lambda span: span.start_time_ns or 0)
    by_id = {span.span_id: span for span in ordered}
    found: dict[str, _Owner | None] = {}
    made: list[_Owner] = []

    def owner_of(span: Any) -> _Owner | None:
        # Not by recursion: a trace may be deep.
        path = []
        while span is not None and span.span_id not in found:
            path.append(span)
            span = by_id.get(span.parent_id)
        owner = found.get(span.span_id) if span is not None else None
        for inner in reversed(path):
            if _about(inner) or any(event.get("kind") == ev.RunStarted.kind for event in _events(inner)):
                owner = _Owner(inner, owner)
                made.append(owner)
            found[inner.span_id] = owner
        return owner

    for span in ordered:
        owner = owner_of(span)
        if owner is None:
            continue
        owner.spans.append(span)
        for event in _events(span):
            owner.events.setdefault(int(event.get("seq", -1)), event)
            if event.get("kind") == ev.RunStarted.kind:
                owner.run_id = str(event.get("run_id", ""))
    return made


def _data(span: Any, name: str) -> Any:
    value = (span.attributes or {}).get(name)
    if isinstance(value, str):
        with reading(f"{name} of the span {span.span_id}"):
            value = json.loads(value)
    return value


def _events(span: Any) -> list[dict[str, Any]]:
    found = _data(span, EVENTS)
    return [event for event in found if isinstance(event, dict)] if isinstance(found, list) else []


def _about(span: Any) -> dict[str, Any]:
    found = _data(span, RUN)
    return found if isinstance(found, dict) else {}


def _run(trace: Any, owner: _Owner, by_id: Mapping[str, _Owner]) -> TracedRun:
    span = owner.span
    with reading(f"the trace {trace.info.trace_id}"):
        log = _log(owner, by_id, _plain(span.inputs), _plain(span.outputs))
    started = next((e for e in log if isinstance(e, ev.RunStarted)), None)
    ended = next((e for e in log if isinstance(e, ev.RunEnded)), None)
    inputs = {n: v.value() for n, v in (started.inputs if started is not None else {}).items() if not v.why}
    outputs = ended.values.value() if ended is not None and ended.values is not None and not ended.values.why else {}
    given = started.given or tuple(started.variables) if started is not None else ()
    return TracedRun(
        trace_id=trace.info.trace_id,
        run_id=owner.run_id,
        trajectory=Trajectory.from_events(log),
        about=_about(span),
        inputs=inputs,
        outputs=outputs,
        missing=tuple(name for name in given if name not in inputs),
        assessments=_assessments(trace),
        spans=owner.spans,
        tags=dict(trace.info.tags or {}),
    )


def _log(owner: _Owner, by_id: Mapping[str, _Owner], inputs: Any, outputs: Any) -> tuple[ev.Event, ...]:
    made: list[ev.Event] = []
    for _, data in sorted(owner.events.items()):
        event = event_of_trace(data, owner.run_id)
        if event is None:
            continue  # of a later version
        if isinstance(event, ev.ChildEnded):
            child = by_id.get(event.run_id)
            inner: tuple[ev.Event, ...] = ()
            if child is not None and child is not owner:
                inner = _log(child, by_id, _plain(child.span.inputs), _plain(child.span.outputs))
            event = dataclasses.replace(event, events=inner)
        elif isinstance(event, ev.RunStarted) and isinstance(inputs, dict):
            whole = {n: _found(v, inputs[n]) if n in inputs else v for n, v in event.inputs.items()}
            event = dataclasses.replace(event, inputs=whole)
        elif isinstance(event, ev.RunEnded) and event.values is not None and isinstance(outputs, dict):
            own = {name: outputs[name] for name in event.outputs if name in outputs}
            if len(own) == len(event.outputs):
                event = dataclasses.replace(event, values=_found(event.values, own))
        made.append(event)
    return tuple(made)


def event_of_trace(data: dict[str, Any], run_id: str) -> ev.Event | None:
    """An event as a trace has it: long texts as head and tail, without values and without the events of a child.

    Args:
        data: What tracking stored of it.
        run_id: Of its run.

    Returns:
        None for one of a kind that this version does not know.
    """
    kind = KINDS.get(data.get("kind", ""))
    if kind is None:
        return None
    plain = {name: value for name, value in data.items() if name != "events"}
    if kind is ev.Executed:
        # Of one that was cut nothing can be shown.
        plain["images"] = [image for image in plain.get("images", ()) if all(isinstance(p, str) for p in image)]
    return event_of(_restored(plain) | {"run": run_id}, _value)


def _plain(value: Any) -> Any:
    """The inputs of a span by name, however they were wrapped."""
    if isinstance(value, dict) and set(value) <= {"args", "kwargs"} and isinstance(value.get("kwargs"), dict):
        return value["kwargs"]
    return value


def _restored(value: Any) -> Any:
    """Texts in the place of what stands for long ones."""
    if isinstance(value, dict):
        if "sha256" in value and "head" in value:
            head, tail = str(value["head"]), str(value.get("tail", ""))
            left = int(value.get("characters", 0)) - len(head) - len(tail)
            return f"{head}\n[… {max(0, left):,} characters are not in the trace …]\n{tail}"
        return {name: _restored(item) for name, item in value.items()}
    return [_restored(item) for item in value] if isinstance(value, list) else value


def _value(given: Any) -> Kept | None:
    if given is None:
        return None
    size = given.get("bytes")
    why = given.get("why") or f"traces hold no values; it had {size:,} bytes"
    # The size tells whether what the span shows is all of it.
    return Kept(size=int(size or 0), why=str(why))


def _found(recorded: Kept, shown: Any) -> Kept:
    """What a span shows of a value, where that is all of it; else that it is not there."""
    if not recorded.size:
        return recorded
    try:
        made = kept.pack(shown)
    except (TypeError, ValueError):
        return recorded
    return made if made.size == recorded.size else recorded


def _assessments(trace: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    known = [a for a in trace.info.assessments or () if a.valid is not False and a.error is None]
    for assessment in sorted(known, key=lambda a: a.last_update_time_ms or a.create_time_ms or 0):
        found[assessment.name] = assessment
    return found

"""Spans: opened while a program runs, written to MLflow when it has ended or in between, by a thread of its own.

An MLflow span takes a third of a millisecond, and a sub-call of a fast server two. So only what somebody else's spans
may come to lie in is begun at once (RLMs, turns, executions, tools, modules); all else is noted, and made of the notes
later, with the times that were noted. What is public in MLflow and not documented is used here, what is private in
`rlm_dspy.tracking._compat`:

| what | why (MLflow 3.17) |
|---|---|
| `set_span_in_context`, `detach_span_from_context` | the only way to make a span current between two callbacks |
| `mlflow_runtime_context` | whether another span has become current, told without looking it up |
| `SpanAttributeKey`, `TraceMetadataKey` | names of what MLflow makes its token, cost and run columns of |
| `maybe_get_request_id` | whether ``mlflow.genai.evaluate`` waits for the trace |
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import mlflow
from mlflow.entities import SpanEvent, SpanStatus, SpanStatusCode, SpanType
from mlflow.tracing.constant import SpanAttributeKey, TraceMetadataKey
from mlflow.tracing.provider import detach_span_from_context, mlflow_runtime_context, set_span_in_context
from mlflow.tracing.utils import maybe_get_request_id

from rlm_dspy import events as ev
from rlm_dspy.traces.reading import EVENTS
from rlm_dspy.tracking._compat import forget_last, set_last_trace
from rlm_dspy.tracking.capped import Clip

__all__ = ["Open", "SpanAttributeKey", "SpanType", "Tree", "current", "evaluating", "innermost", "tag"]

innermost: contextvars.ContextVar[Open | None] = contextvars.ContextVar("rlm_dspy_open_span", default=None)
"""The innermost span of ours in this context."""


@dataclass(eq=False)
class Open:
    """A span of ours, from its beginning until it is written.

    Attributes:
        name: As the tree shows it.
        kind: What it stands for: ``"rlm"``, ``"turn"``, ``"execute"``, ``"call"``, ``"module"``, ``"lm"``, ``"tool"``.
        span_type: MLflow's type.
        clip: How its values are stored.
        tree: What it is written with.
        parent: The one it is in: ours, MLflow's, or None for a new trace.
        inputs, outputs: Make the JSON-able values when it is written.
        attributes: JSON-able.
        more: Makes more attributes when it is written.
        events: Of its run.
        failure: Why it failed.
        span: MLflow's, where there is one yet.
        within_run: The id of the MLflow run that a new trace is part of, where that is known.
    """

    name: str
    kind: str
    span_type: str
    clip: Clip
    tree: Tree
    parent: Any = None
    inputs: Callable[[], Any] | None = None
    outputs: Callable[[], Any] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    more: Callable[[], dict[str, Any]] | None = None
    events: list[ev.Event] = field(default_factory=list)
    failure: str | None = None
    span: Any = None
    within_run: str | None = None
    ended: int | None = None
    started: int = field(default_factory=time.time_ns)
    preview: str = ""
    token: Any = None
    _within: Any = None
    _tokens: tuple[Any, Any] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> Open:
        """Have MLflow's span now, so that others can come to lie in it."""
        with self._lock:
            if self.span is None:
                above = self.parent.begin().span if isinstance(self.parent, Open) else self.parent
                # MLflow would take the newest run of any thread.
                within = {TraceMetadataKey.SOURCE_RUN: self.within_run} if self.within_run and above is None else None
                self.span = mlflow.start_span_no_context(
                    self.name,
                    span_type=self.span_type,
                    parent_span=above,
                    start_time_ns=self.started,
                    metadata=within,
                )
        return self

    def enter(self) -> Open:
        """Make it the innermost span of this context, MLflow's too where it has begun."""
        attached = None if self.span is None else set_span_in_context(self.span)
        self._within = mlflow_runtime_context.get_current()
        self._tokens = innermost.set(self), attached
        return self

    def leave(self) -> None:
        """Make the one before it innermost again, if this is the context that entered it."""
        if self._tokens is None:
            return
        (ours, theirs), self._tokens = self._tokens, None
        try:
            innermost.reset(ours)
            if theirs is not None:
                detach_span_from_context(theirs)
        except (ValueError, RuntimeError):
            pass  # a task of its own: its context ends with it

    @property
    def undisturbed(self) -> bool:
        """Whether no span of somebody else's has been entered in this context since this one was."""
        # Its context is another object then; to ask for the span itself takes ten times as long.
        return mlflow_runtime_context.get_current() is self._within

    def end(self, outputs: Callable[[], Any] | None = None, failure: str | None = None) -> None:
        """End it, once.

        Args:
            outputs: Makes them when it is written.
            failure: Why it failed, or None.
        """
        with self._lock:
            if self.ended is not None:
                return
            self.ended = time.time_ns()
        self.outputs = outputs or self.outputs
        self.failure = failure or self.failure
        self.tree.add(self)

    def write(self) -> None:
        """Write it, with the times that were noted."""
        span = self.begin().span
        if self.inputs is not None:
            span.set_inputs(self.inputs())
        if self.more is not None:
            self.attributes.update(self.more())
        for name, value in self.attributes.items():
            span.set_attribute(name, value)
        if self.events:
            span.set_attribute(EVENTS, [self.clip.event(_data(event)) for event in self.events])
        status: Any = SpanStatusCode.OK
        if self.failure is not None:
            failure = self.clip.clean(self.failure)
            kind, _, message = failure.partition(": ")
            told = {"exception.type": kind[:200], "exception.message": message or failure, "exception.stacktrace": ""}
            span.add_event(SpanEvent(name="exception", attributes=told))
            status = SpanStatus(SpanStatusCode.ERROR, failure)
        span.end(outputs=None if self.outputs is None else self.outputs(), status=status, end_time_ns=self.ended)


class Tree:
    """The spans of one trace that have ended and are not written yet.

    MLflow closes a trace as soon as its root and all that has begun in it have ended, and what comes after that is
    lost. So the outermost span of ours is written last, when all others have been.

    Args:
        writer: Writes them beside the program.
        inline: The trace is somebody else's, who may close it as soon as the outermost span of ours has ended: all is
            written before that.
    """

    EVERY = 2.0
    """Seconds after which a program that goes on has what has ended written, so that it can be looked at meanwhile."""
    MOST = 2_000
    """So many that have ended are written at once, too."""

    def __init__(self, writer: Writes, inline: bool = False) -> None:
        self.outermost: Open | None = None
        self.scored = False
        self._writer = writer
        self._inline = inline
        self._ended: list[Open] = []
        self._lock = threading.Lock()
        self._written = time.monotonic()
        self._over = False

    def add(self, span: Open) -> None:
        """``span`` has ended."""
        with self._lock:
            if self._over:
                return  # a request that was given up, and answered all the same
            self._ended.append(span)
            self._over = span is self.outermost
            due = len(self._ended) >= self.MOST or time.monotonic() - self._written >= self.EVERY
            if not self._over and (self._inline or not due):
                return
            taken, self._ended = self._ended, []
            self._written = time.monotonic()
        if self._inline or evaluating():
            self._writer.write(taken)
            return
        if self._over and self.scored:
            forget_last()
        elif self._over:
            # For who asks for it in this thread.
            set_last_trace(span.span.trace_id)
        self._writer.put(taken)


class Writes(Protocol):
    """What a `Tree` has its spans written by."""

    def put(self, spans: Sequence[Open]) -> None:
        """Elsewhere, in the order of the calls."""

    def write(self, spans: Sequence[Open]) -> None:
        """Here and now."""


def _data(event: ev.Event) -> dict[str, Any]:
    if isinstance(event, ev.ChildEnded):
        # The child's own spans have them.
        return {**{k: v for k, v in vars(event).items() if k != "events"}, "kind": event.kind, "events": []}
    return event.to_dict()


def current() -> Any:
    """MLflow's span that is current in this context, or None."""
    return mlflow.get_current_active_span()


def evaluating() -> bool:
    """Whether ``mlflow.genai.evaluate`` waits for the trace of this call."""
    return maybe_get_request_id(is_evaluate=True) is not None


def tag(span: Any, tags: dict[str, str | None], preview: str | None = None) -> None:
    """Tag the trace of ``span``, which is current, so that it can be searched for; what is None is left out.

    ``preview`` is what lists of traces show of its inputs; None for their beginning.
    """
    if span is not None and current() is not None:
        given = {name: value for name, value in tags.items() if value is not None}
        mlflow.update_current_trace(tags=given, request_preview=preview)

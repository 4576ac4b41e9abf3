"""Status messages of runs under ``dspy.streamify``, and listeners on what they write.

DSPy's own status messages are of modules, LMs and tools. A run adds one for each turn, sub-call, child and limit, made
from its events, so that whoever watches a stream knows where it is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import dspy
from dspy.streaming import StatusMessage, StreamListener

from rlm_dspy import events as ev
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.redact import redactor
from rlm_dspy.render import brief, one_line
from rlm_dspy.streaming import Bridge

if TYPE_CHECKING:
    from rlm_dspy.rlm import RLM
    from rlm_dspy.run import Run


class RunStatus(StatusMessage, str):
    """A status message of a run, with the ``event`` that it is of.

    As a text it is ``data: {"status": "..."}``, a server-sent event, because ``dspy.streaming.streaming_response``
    hands on such texts and takes no status messages.

    The text is that of `status_text`, unless the provider given to ``dspy.streamify`` has a method
    ``run_status_message(event, run)``: then it is what that returns, and none where it returns None or ``""``.
    """

    event: ev.Event

    def __new__(cls, message: str, event: ev.Event) -> RunStatus:
        return str.__new__(cls, f"data: {json.dumps({'status': message})}\n\n")

    def __init__(self, message: str, event: ev.Event) -> None:
        super().__init__(message)
        self.event = event

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.message, self.event


def status_text(event: ev.Event, run: Run) -> str | None:
    """What is said of ``event``; None for events that are not worth a message, calls of tools among them: DSPy has a
    message for these."""
    match event:
        case ev.TurnStarted():
            text = f"Turn {event.turn} of {run.limits.max_iters}: asking the model for code..."
        case ev.Acted() if event.error is None:
            text = f"Turn {event.turn}: running {_lines(event.code)} of code..."
        case ev.CallStarted() if event.name not in run.tools and not event.name.startswith("rlm_query"):
            text = f"Sub-call {event.call}, {event.name}: {event.preview}"
        case ev.CallEnded() if event.error is not None and event.name not in run.tools:
            text = f"Sub-call {event.call}, {event.name}, failed: {brief(event.error)}"
        case ev.ChildStarted():
            text = f"Child {event.run_id[:4]} started by {event.name}..."
        case ev.ChildEnded():
            text = f"Child {event.run_id[:4]} {event.outcome}{f' at {event.limit}' if event.limit else ''}."
        case ev.Compacted():
            text = "The conversation was made shorter."
        case ev.LimitStruck():
            text = f"Stopped at {event.limit}: making the best answer of what is there..."
        case _:
            return None
    where = f"[run {event.run[:4]}, depth {event.depth}] " if event.depth else ""
    return redactor()(where + one_line(text, 300))


def _lines(code: str) -> str:
    count = len(code.strip().splitlines())
    return f"{count} line{'' if count == 1 else 's'}"


class _Reporter:
    """A subscriber that sends status messages."""

    def __init__(self, bridge: Bridge, provider: Any) -> None:
        self._bridge = bridge
        self._text = getattr(provider, "run_status_message", status_text)

    def __call__(self, event: ev.Event, run: Run) -> None:
        if text := self._text(event, run):
            self._bridge.put(RunStatus(text, event))


def report(run: Run) -> None:
    """Send status messages of ``run`` where it is streamed; those of children come from the same place."""
    bridge = dspy.settings.send_stream
    if isinstance(bridge, Bridge) and not any(isinstance(some, _Reporter) for some in run.events.subscribers):
        callbacks = dspy.settings.callbacks or []
        providers = (getattr(callback, "status_message_provider", None) for callback in callbacks)
        run.events.add(_Reporter(bridge, next((some for some in providers if some is not None), None)))


def listeners(program: RLM, *fields: str) -> list[StreamListener]:
    """Listeners for ``dspy.streamify`` on what an RLM writes.

    DSPy finds the predictor of a field by itself only where one alone has it; an RLM with ``direct_below`` or with
    children has several for its outputs. Those of ``reasoning`` and ``code`` hear every turn of the root, not of its
    children, and those of outputs the one who answers in text: ``direct``, or ``extract`` at a limit. An answer that
    code submits is not written by an LM: it is in the prediction.

    Args:
        program: The RLM that is streamed.
        *fields: ``"reasoning"``, ``"code"``, or outputs of the signature; none for all of these.

    Raises:
        ConfigurationError: There is no such field.

    Example:
        >>> dspy.streamify(rlm, stream_listeners=rlm_dspy.listeners(rlm))  # doctest: +SKIP
    """
    own = ("reasoning", "code")
    outputs = tuple(program.signature.output_fields)
    found = []
    for field in fields or dict.fromkeys((*own, *outputs)):
        named = [("act", program.act)] if field in own else []
        if field in outputs:
            named += [(n, p) for n in ("extract", "direct") if (p := getattr(program, n, None)) is not None]
        if not named:
            names = ", ".join(dict.fromkeys((*own, *outputs)))
            raise ConfigurationError(f"an RLM of this signature writes no field {field!r}: there are {names}")
        found += [StreamListener(field, predict=p, predict_name=name, allow_reuse=True) for name, p in named]
    return found

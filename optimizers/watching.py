"""What a program's predictors were asked and answered, and what its runs did: seen by DSPy's callbacks and our events.

`Watcher` is active in a context of its own: `watched` gives it the calls and runs of one call of a program, whatever
threads, tasks and children they are made in.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from rlm_dspy import events as ev
from rlm_dspy import origin
from rlm_dspy.rows import Message, Request
from rlm_dspy.run import Run
from rlm_dspy.signatures.conversation import current
from rlm_dspy.trajectory import Outcome, Trajectory


@dataclass(eq=False)
class Asked:
    """One call of a predictor.

    Attributes:
        predictor: The one that was called.
        run: The id of the run it was called in, ``""`` outside of runs.
        depth: Of that run: 0 for a root, 1 for its children.
        inputs: What it was given.
        outputs: What it gave; None where it failed.
        requests: What was sent to a language model for it, and the replies.
        turn: The turn of the run.
    """

    predictor: Any
    run: str
    depth: int
    inputs: dict[str, Any]
    outputs: dict[str, Any] | None = None
    requests: list[Request] = field(default_factory=list)
    turn: int = 0


@dataclass
class Ran:
    """One run that has ended.

    Attributes:
        id: Its id.
        depth: 0 for a root, 1 for its children.
        outcome: How it ended.
        trajectory: What it did.
        usage: As ``pred.usage``.
    """

    id: str
    depth: int
    outcome: Outcome
    trajectory: Trajectory
    usage: dict[str, Any]


_NOT_INPUTS = frozenset({"lm", "config", "demos", "signature", "trace"})
_asking: contextvars.ContextVar[Asked | None] = contextvars.ContextVar("rlm_dspy_asking", default=None)


class Watcher(BaseCallback):
    """Keeps the calls and runs of one call of a program.

    Attributes:
        asked: The calls of predictors, in the order they began.
        ran: The runs that ended, by id.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.ran: dict[str, Ran] = {}
        self._stopped = False
        self._going: dict[str, Run] = {}
        self._open: dict[str, tuple[Asked, contextvars.Token[Asked | None]]] = {}
        self._sent: dict[str, tuple[Asked, list[Message], int | None]] = {}
        self._lock = threading.Lock()

    def see(self, event: ev.Event, run: Run) -> None:
        """One event, the way `rlm_dspy.subscribe` calls it."""
        if isinstance(event, ev.RunStarted):
            self._going[run.id] = run
            if self._stopped:
                run.request_stop(answer=False)
        elif isinstance(event, ev.RunEnded):
            self._going.pop(run.id, None)
            status: Any = event.outcome
            outcome = Outcome(status, limit=event.limit, error=event.error)
            self.ran[run.id] = Ran(run.id, run.depth, outcome, Trajectory.from_events(run.events), dict(event.usage))

    def stop(self) -> None:
        """Have the runs under way, and those that begin later, end where they are: nobody will read their answer."""
        self._stopped = True
        for run in list(self._going.values()):
            run.request_stop(answer=False)

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """A predictor is called."""
        if not isinstance(instance, dspy.Predict):
            return
        run = origin.current()
        given = {**inputs, **(inputs.get("kwargs") or {})}
        names = instance.signature.input_fields
        kept = {name: value for name, value in given.items() if name in names and name not in _NOT_INPUTS - {*names}}
        one = Asked(instance, run.id if run else "", run.depth if run else 0, kept, turn=run.turn if run else 0)
        with self._lock:
            self.asked.append(one)
        self._open[call_id] = one, _asking.set(one)

    def on_module_end(self, call_id: str, outputs: Any | None, exception: Exception | None = None) -> None:
        """It has answered, or failed."""
        one, token = self._open.pop(call_id, (None, None))
        if one is None or token is None:
            return
        with contextlib.suppress(ValueError):  # begun in another context: a generator of the user's own
            _asking.reset(token)
        if isinstance(outputs, dspy.Prediction):
            one.outputs = {name: outputs[name] for name in one.predictor.signature.output_fields if name in outputs}

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """A language model is asked."""
        one, messages = _asking.get(), inputs.get("messages")
        if one is None or not isinstance(messages, list):
            return
        if not all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in messages):
            return
        conversation = current()
        acts = conversation is not None and "code" in one.predictor.signature.output_fields
        start = conversation.opening if acts and conversation is not None else _behind(messages, one.predictor)
        self._sent[call_id] = one, [dict(m) for m in messages], start

    def on_lm_end(self, call_id: str, outputs: Any | None, exception: Exception | None = None) -> None:
        """It has answered, or failed."""
        one, messages, start = self._sent.pop(call_id, (None, [], None))
        if one is None or exception is not None or not isinstance(outputs, list) or not outputs:
            return
        first = outputs[0] if isinstance(outputs[0], dict) else {"text": outputs[0]}
        text, reasoning = first.get("text"), first.get("reasoning_content")
        if isinstance(text, str):
            kept = reasoning if isinstance(reasoning, str) and reasoning else None
            one.requests.append(Request(messages, text, kept, start=start))


def _behind(messages: list[Message], predictor: dspy.Predict) -> int:
    """The place of the last message that asks, where demonstrations stand before it."""
    if not predictor.demos:
        return next((n for n, m in enumerate(messages) if m["role"] != "system"), 0)
    return max((n for n, m in enumerate(messages) if m["role"] == "user"), default=0)


@contextlib.contextmanager
def watched(lm: dspy.BaseLM | None = None) -> Iterator[Watcher]:
    """A `Watcher` of what is called inside.

    Args:
        lm: The configured LM inside; None for the one that is configured.
    """
    watcher = Watcher()
    context: dict[str, Any] = {"callbacks": [*(dspy.settings.callbacks or []), watcher]}
    if lm is not None:
        context["lm"] = lm
    with dspy.context(**context), ev.subscribe(watcher.see):
        yield watcher

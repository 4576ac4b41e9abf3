"""The spans of one run, made of its events: turns, executions, calls of host functions, and what the run came to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import dspy

from rlm_dspy import events as ev
from rlm_dspy.render import one_line
from rlm_dspy.traces.reading import RUN
from rlm_dspy.tracking import page, spans
from rlm_dspy.tracking.capped import Clip
from rlm_dspy.tracking.record import Record
from rlm_dspy.tracking.spans import Open, SpanType
from rlm_dspy.tracking.versions import versions

if TYPE_CHECKING:
    from rlm_dspy.run import Run

_SHORT = 200
_UNFINISHED = "Unfinished: the run went on before this had ended"


class RunSpans:
    """What is open of one run. Events come one after the other, under the lock of the run's log.

    Args:
        root: The span of the call of the RLM.
        clip: How values are stored.
        record: The MLflow run that it is part of, or None.
    """

    def __init__(self, root: Open, clip: Clip, record: Record | None = None) -> None:
        self.root = root
        self.record = record
        self.run: Run | None = None
        self.failed: str | None = None
        """Why the root could not be asked for the action of this turn."""
        self._clip = clip
        self._turn: Open | None = None
        self._execute: Open | None = None
        self._calls: dict[int, Open] = {}
        self._sandbox: dict[str, Any] = {}
        self._page: str | None = None

    @property
    def innermost(self) -> Open:
        """The innermost span of the run itself, calls of host functions aside."""
        return self._execute or self._turn or self.root

    def see(self, event: ev.Event, run: Run) -> None:
        """Take the next event."""
        made = self._MADE.get(type(event))
        at = None if made is None else made(self, event, run)
        (at or self.innermost).events.append(event)
        ended = self._ENDED.get(type(event))
        if ended is not None:
            ended(self, event, run)

    def _span(self, name: str, kind: str, span_type: str) -> Open:
        return Open(name, kind, span_type, self._clip, self.root.tree, self.innermost)

    # --------------------------------------------------------------------------------------- what an event begins

    def _begin_turn(self, event: ev.TurnStarted, run: Run) -> None:
        self.close()
        self.failed = None
        turn = self._span(f"turn {event.turn}", "turn", SpanType.CHAIN)
        turn.attributes = {"rlm_dspy.turn": event.turn, "rlm_dspy.depth": event.depth}
        self._turn = turn.begin().enter()

    def _begin_call(self, event: ev.CallStarted, run: Run) -> Open:
        call = self._span(event.name, "call", SpanType.TOOL)
        call.preview = event.preview
        if not _is_predictor(run, event.name):
            # What the user's own code does in it may have spans of its own.
            call.begin()
        self._calls[event.call] = call.enter()
        return call

    def _call_of(self, event: ev.CallEnded, run: Run) -> Open | None:
        return self._calls.get(event.call)

    # ----------------------------------------------------------------------------------------- what an event ends

    def _acted(self, event: ev.Acted, run: Run) -> None:
        """The execution begins after the action has been told of, which is still part of the turn."""
        if event.error is None:
            execute = self._span("execute", "execute", SpanType.TOOL)
            execute.inputs = lambda: {"code": self._clip.text(event.code)}
            self._execute = execute.begin().enter()

    def _end_call(self, event: ev.CallEnded, run: Run) -> None:
        call = self._calls.pop(event.call, None)
        if call is None:
            return
        call.leave()
        if call.inputs is None:
            call.inputs = lambda: {"preview": self._clip.clean(call.preview)}
        outputs = call.outputs or (lambda: self._clip.clean(event.preview) or None)
        if event.reused:
            call.attributes["rlm_dspy.reused"] = True
        call.end(outputs, event.error)

    def _end_execute(self, event: ev.Executed, run: Run) -> None:
        execute, self._execute = self._execute, None
        if execute is None:
            return
        execute.leave()
        failure = event.error.strip().rpartition("\n")[2] if event.error else None
        execute.attributes = {"rlm_dspy.seconds": event.seconds, "rlm_dspy.host_seconds": event.host_seconds}
        execute.end(lambda: self._clip.text(event.output), failure)

    def _end_turn(self, event: ev.TurnEnded, run: Run) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.leave()
            turn.attributes["rlm_dspy.error"] = event.error
            turn.end(lambda: self._clip.text(event.observation))

    def _limit(self, event: ev.LimitStruck, run: Run) -> None:
        if event.where in ("act", "execute"):
            self.close(f"LimitReached: stopped by {event.limit}")

    def _opened(self, event: ev.SessionOpened, run: Run) -> None:
        self._sandbox = {
            "environment": event.environment,
            "confined": event.confined,
            "layers": list(event.layers),
            "missing": list(event.missing),
        }

    def _ended(self, event: ev.RunEnded, run: Run) -> None:
        self.close(event.error or _UNFINISHED)
        if event.outcome == "failed":
            self.root.failure = event.error or f"LimitReached: stopped by {event.limit}"
        about = {
            "run": run.id,
            "parent": run.parent.id if run.parent is not None else None,
            "depth": run.depth,
            "outcome": event.outcome,
            "limit": event.limit,
            "error": event.error,
            "usage": event.usage,
            "cached_share": cached_share(event.usage),
            "limits": run.limits.to_dict(),
            "sandbox": self._sandbox or None,
            "strategy": strategy(run.program),
            "versions": versions(),
        }
        flat = {name: about[name] for name in ("outcome", "limit", "depth")}
        flat |= {name: event.usage.get(name) for name in ("turns", "calls", "children", "peak_width", "cost")}
        self.root.attributes |= {RUN: self._clip.event(about), **{f"rlm_dspy.{k}": v for k, v in flat.items()}}
        if run.parent is None:
            tags = {"rlm_dspy.run": run.id, "rlm_dspy.outcome": event.outcome, "rlm_dspy.limit": event.limit}
            record = self.record
            if record is not None and record.run_id is not None:
                self._page = page.place(record, run.id, event)
                tags[page.TAG] = None if self._page is None else f"runs:/{record.run_id}/{self._page}"
            alone = self.root.parent is None
            spans.tag(self.root.span, tags, asked(run, self._clip) if alone else None)

    def close(self, failure: str = _UNFINISHED) -> None:
        """End what is open below the root: at the run's end, and before ``extract`` is asked after an error."""
        failure = self.failed or failure
        for call in list(self._calls.values()):
            call.end(failure=failure)
        self._calls.clear()
        for open_ in (self._execute, self._turn):
            if open_ is not None:
                open_.leave()
                open_.end(failure=failure)
        self._execute = self._turn = None

    def over(self) -> None:
        """The call has ended: tell the MLflow run that it is part of what came of it."""
        if self.record is not None and self.run is not None and self.run.parent is None:
            log = tuple(self.run.events)
            self.record.ended(log)
            if self._page is not None:
                page.log(self.record, self._page, log, self._clip)

    _MADE: ClassVar[dict[type, Callable[[Any, Any, Any], Open | None]]] = {
        ev.TurnStarted: _begin_turn,
        ev.CallStarted: _begin_call,
        ev.CallEnded: _call_of,
    }
    _ENDED: ClassVar[dict[type, Callable[[Any, Any, Any], None]]] = {
        ev.SessionOpened: _opened,
        ev.Acted: _acted,
        ev.CallEnded: _end_call,
        ev.Executed: _end_execute,
        ev.TurnEnded: _end_turn,
        ev.LimitStruck: _limit,
        ev.RunEnded: _ended,
    }


def asked(run: Run, clip: Clip) -> str:
    """What a list of traces has room for of the inputs: short ones as they are, and first; of others what they are."""
    started = next((event for event in run.events if isinstance(event, ev.RunStarted)), None)
    about = started.variables if started is not None else {}
    short = {
        name: value if isinstance(value, (bool, int, float)) else clip.clean(value)
        for name, value in run.inputs.items()
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= _SHORT)
    }
    others = {name: one_line(clip.clean(about.get(name, "")), _SHORT // 2) for name in run.inputs if name not in short}
    return json.dumps(short | others, ensure_ascii=False)


def _is_predictor(run: Run, name: str) -> bool:
    """Whether a call of the function ``name`` is answered by a predictor, with nothing of the user's own around it."""
    base, program = name.removesuffix("_batched"), run.program
    if name in run.tools:
        return False
    module = program.sub if base == "llm_query" else program.sub_calls.get(base)
    return isinstance(module, dspy.Predict) or (module is None and base == "predict")


def cached_share(usage: dict[str, Any]) -> float | None:
    """Share of the input tokens that came from providers' prompt caches; None without input."""
    total = usage.get("input_tokens")
    return usage.get("cached_tokens", 0) / total if total else None


def strategy(program: dspy.Module) -> str:
    """A hash of what optimisers change: instructions and demonstrations of all predictors."""
    told = [
        (name, predictor.signature.instructions, [str(dict(demo)) for demo in predictor.demos])
        for name, predictor in program.named_predictors()
    ]
    return hashlib.sha256(json.dumps(told).encode("utf-8", "surrogatepass")).hexdigest()[:16]

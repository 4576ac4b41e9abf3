"""DSPy's callbacks as MLflow spans, for RLMs and for every other module around and inside of them.

A subclass of MLflow's own callback, so that ``mlflow.dspy.autolog`` finds its place taken and adds no second one; what
it does for optimisers and evaluations stays as it is. All spans are made here: MLflow's would hold whole inputs.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import logging
import weakref
from collections.abc import Callable
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback
from mlflow.dspy.callback import MlflowCallback

from rlm_dspy import events as ev
from rlm_dspy import origin
from rlm_dspy._aio import threads
from rlm_dspy._compat import carried
from rlm_dspy.metering import Metered, metered
from rlm_dspy.options import lms_of
from rlm_dspy.providers import secrets
from rlm_dspy.redact import error_text, hide
from rlm_dspy.rlm import RLM
from rlm_dspy.run import Run
from rlm_dspy.signatures.predictor import RolePredict
from rlm_dspy.testing import ScriptedLM
from rlm_dspy.tracking import spans
from rlm_dspy.tracking._compat import forget_last
from rlm_dspy.tracking.capped import Clip, size
from rlm_dspy.tracking.evaluations import Evaluations
from rlm_dspy.tracking.leaves import asked, measured, settings_of
from rlm_dspy.tracking.mlruns import Runs, current, source
from rlm_dspy.tracking.outside import Outside
from rlm_dspy.tracking.runs import RunSpans
from rlm_dspy.tracking.scores import Scores
from rlm_dspy.tracking.spans import Open, SpanAttributeKey, SpanType, Tree
from rlm_dspy.tracking.store import Store
from rlm_dspy.tracking.writer import writer

logger = logging.getLogger(__name__)

LARGE = 1 << 18
"""Characters or bytes from which an input is hashed beside the run and not before it."""
_ROLES = ("act", "extract", "sub", "compact", "direct")
_calling: contextvars.ContextVar[RunSpans | None] = contextvars.ContextVar("rlm_dspy_tracked", default=None)
_watching: contextvars.ContextVar[bool] = contextvars.ContextVar("rlm_dspy_watching", default=False)
_NOWHERE = object()
_PLAIN = (dspy.LM, ScriptedLM)


class Tracker(MlflowCallback):
    """The callback that `rlm_dspy.tracking.enable` installs.

    Args:
        clip: How values are stored.
        store: Where traces and runs go.
    """

    def __init__(self, clip: Clip, store: Store) -> None:
        super().__init__()
        self._clip = clip
        self._ready = store.ready
        self.runs = Runs(store, writer, clip)
        self._evaluations = Evaluations(self.runs, clip)
        self._open: dict[str, tuple[Open, Callable[..., None] | None]] = {}
        self._runs: dict[str, RunSpans] = {}
        # By id, and as long as they live: another one may get the id of one that is gone.
        self._known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._scores = Scores(writer, clip)

    def __reduce__(self) -> Any:
        # A model that is saved with DSPy's settings is tracked where, and if, the process tracks that loads it.
        return _loaded, ()

    # --------------------------------------------------------------------------------------------------- where

    def _state(self) -> RunSpans | None:
        """That of the run that this context belongs to, where it is tracked."""
        run = _run()
        return None if run is None else self._runs.get(run.id)

    def _place(self) -> tuple[Any, Tree | None]:
        """What the next span is in, and the tree of that: `_NOWHERE` if there is to be none, no tree for a new one."""
        state = self._state()
        if state is None and _run() is not None:
            # It began when it was not tracked.
            return _NOWHERE, None
        ours = spans.innermost.get()
        if ours is not None and ours.ended is not None:
            ours = None
        if ours is not None and ours.undisturbed:
            return ours, ours.tree
        around = ours or (None if state is None else state.innermost)
        if (span := spans.current()) is not None:
            return span, None if around is None else around.tree
        if around is not None:
            # In threads of DSPy's own (``dspy.Parallel``) only its settings are there.
            return around, around.tree
        return (None if self._ready() else _NOWHERE), None

    def _new(self, name: str, kind: str, span_type: str, *, late: bool = False) -> Open | None:
        """A span where it belongs, entered; ``late`` where nothing of somebody else's can be inside of it."""
        parent, tree = self._place()
        if parent is _NOWHERE:
            return None
        if tree is not None:
            made = Open(name, kind, span_type, self._clip, tree, parent)
        else:
            writer.own()
            made = Open(name, kind, span_type, self._clip, Tree(writer, inline=parent is not None), parent)
            made.tree.outermost, late = made, False
            made.within_run = source()
        return (made if late else made.begin()).enter()

    def _end(self, call_id: str, outputs: Any, exception: BaseException | None) -> None:
        made, at_end = self._open.pop(call_id, (None, None))
        if at_end is not None:
            at_end(made, outputs, exception)
        elif made is not None:
            made.leave()
            made.end(self._given(outputs), _text(exception))

    def _given(self, outputs: Any) -> Callable[[], Any]:
        held = self._clip.hold({"": outputs})
        return lambda: self._clip.value(held[""])

    # ------------------------------------------------------------------------------------------------- modules

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """A span for a module; an RLM's has its run's below it, a sub-call's predictor none of its own."""
        given = {**{k: v for k, v in inputs.items() if k not in ("args", "kwargs")}, **(inputs.get("kwargs") or {})}
        if isinstance(instance, RLM):
            self._begin_rlm(call_id, instance, given)
            return
        call = spans.innermost.get()
        if call is not None and call.kind == "call" and _answers(instance, call):
            call.inputs = functools.partial(self._clip.fields, self._clip.hold(_plain(given)))
            self._open[call_id] = call, self._end_folded
            return
        state, run = self._state(), _run()
        role = None if run is None else _role(run.program, instance)
        if state is not None and role == "extract":
            state.close()
        kind = SpanType.AGENT if isinstance(instance, dspy.ReAct) else SpanType.CHAIN
        late = isinstance(instance, dspy.Predict)
        made = self._new(role or type(instance).__name__, "module", kind, late=late)
        if made is None:
            return
        self._open[call_id] = made, self._end_module
        if role not in ("act", "extract"):
            # What those are given is all in the messages below.
            made.inputs = functools.partial(self._clip.fields, self._clip.hold(_plain(given)))
        signature = getattr(instance, "signature", None)
        if signature is not None and hasattr(signature, "signature"):
            made.attributes["signature"] = signature.signature

    def on_module_end(self, call_id: str, outputs: Any | None, exception: Exception | None = None) -> None:
        """Its end."""
        self._end(call_id, outputs, exception)

    def _end_module(self, made: Open, outputs: Any, exception: BaseException | None) -> None:
        made.leave()
        self._predicted(made, outputs)
        if exception is not None and made.name == "act" and (state := self._state()) is not None:
            state.failed = _text(exception)
        if isinstance(outputs, dspy.Prediction):
            usage = outputs.get_lm_usage() if _run() is None else None
            if usage:
                made.attributes[SpanAttributeKey.CHAT_USAGE] = measured_of(usage)
            # Its values, as they are now: the program may set others.
            held = dict(outputs.items()) if made.span is None else self._clip.hold(outputs.toDict())
            made.end(lambda: self._clip.fields(held), _text(exception))
        else:
            made.end(self._given(outputs), _text(exception))

    def _predicted(self, made: Open, outputs: Any) -> None:
        if self._scores.wanted and made.tree.outermost is made:
            self._scores.predicted(outputs, made.span.trace_id)
            made.tree.scored = True

    def _end_folded(self, call: Open, outputs: Any, exception: BaseException | None) -> None:
        if exception is None:
            held = dict(outputs.items()) if isinstance(outputs, dspy.Prediction) else {"result": outputs}
            call.outputs = functools.partial(self._clip.fields, held)

    # ----------------------------------------------------------------------------------------------------- RLMs

    def _learn(self, *lms: Any) -> None:
        """Hide the keys of ``lms``, before anything of theirs is stored."""
        new = [lm for lm in lms if self._known.get(id(lm)) is not lm]
        if new:
            for lm in new:
                with contextlib.suppress(TypeError):  # of a class without weak references
                    self._known[id(lm)] = lm
                for secret in secrets(lm):
                    hide(secret)
            self._clip.refresh()

    def _begin_rlm(self, call_id: str, program: RLM, given: dict[str, Any]) -> None:
        if self._state() is None:
            # The environment may have other keys by now.
            self._clip.refresh()
        self._learn(*lms_of(dspy.settings.lm), *program.lms())
        clip = self._clip
        given.pop("interpreter_factory", None)
        root = self._new(type(program).__name__, "rlm", SpanType.AGENT)
        if root is None:
            return
        root.attributes["signature"] = clip.clean(program.signature.signature)
        # A large input is hashed in a thread meanwhile.
        large = sum(size(value) for value in given.values()) > LARGE
        hashed = threads.submit(clip.fields, given) if large else None
        root.inputs = hashed.result if hashed is not None else functools.partial(clip.fields, clip.hold(given))
        state = RunSpans(root, clip, current())
        calling, watching, watch = _calling.set(state), None, None
        if not _watching.get():
            watching, watch = _watching.set(True), ev.subscribe(self._see)
            watch.__enter__()

        def end(root: Open, outputs: Any, exception: BaseException | None) -> None:
            if watch is not None and watching is not None:
                watch.__exit__(None, None, None)
                _watching.reset(watching)
            _calling.reset(calling)
            state.close()
            state.over()
            if state.run is not None:
                self._runs.pop(state.run.id, None)
            root.leave()
            self._predicted(root, outputs)
            held: dict[str, Any] = {}
            if isinstance(outputs, dspy.Prediction):
                names = program.signature.output_fields
                held = clip.hold({name: outputs[name] for name in names if name in outputs})
            root.end((lambda: clip.fields(held)) if held else None, _text(exception))

        self._open[call_id] = root, end

    def _see(self, event: ev.Event, run: Run) -> None:
        """One event of a run below: the way `rlm_dspy.subscribe` calls it."""
        state = self._runs.get(run.id)
        if state is None:
            state = _calling.get()
            if state is None or state.run is not None:
                return
            state.run = run
            self._runs[run.id] = state
        state.see(event, run)

    # ------------------------------------------------------------------------------------------- leaves and tools

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """A leaf: one request."""
        self._learn(instance)
        kind = SpanType.CHAT_MODEL if getattr(instance, "model_type", None) == "chat" else SpanType.LLM
        model = str(getattr(instance, "model", type(instance).__name__))
        # A language model of the user's own, or an RLM in its place, may have spans inside.
        made = self._new(model, "lm", kind, late=type(instance) in _PLAIN)
        if made is None:
            return
        made.inputs = asked(self._clip, inputs)
        made.attributes.update(settings_of(instance, model))
        seen: list[Metered] = []
        made.token = metered.set(seen)
        record, counting = current(), None
        if record is not None and _run() is None:
            counting = carried("usage_tracker", Outside(record, instance, dspy.settings.usage_tracker))
            counting.__enter__()
        self._open[call_id] = made, functools.partial(self._end_lm, seen, counting)

    def _end_lm(
        self, seen: list[Metered], counting: Any, made: Open, outputs: Any, exception: BaseException | None
    ) -> None:
        if counting is not None:
            counting.__exit__(None, None, None)
        metered.reset(made.token)
        made.leave()
        made.more = functools.partial(measured, seen)
        # Its own list of texts, which nobody changes; a text is as long as a model writes.
        made.end(lambda: self._clip.value(outputs), _text(exception))

    def on_lm_end(self, call_id: str, outputs: Any | None, exception: Exception | None = None) -> None:
        """Its end, with what was metered for it."""
        self._end(call_id, outputs, exception)

    def on_tool_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """A tool; one that code called has its span already."""
        call = spans.innermost.get()
        given = functools.partial(self._clip.fields, self._clip.hold(inputs.get("kwargs") or {}))
        if call is not None and call.kind == "call" and call.name == instance.name and call.inputs is None:
            call.inputs = given
            self._open[call_id] = call, self._end_tool
            return
        made = self._new(instance.name, "tool", SpanType.TOOL)
        if made is not None:
            made.inputs = given
            self._open[call_id] = made, None

    def _end_tool(self, call: Open, outputs: Any, exception: BaseException | None) -> None:
        if exception is None:
            call.outputs = self._given(outputs)

    def on_tool_end(self, call_id: str, outputs: Any | None, exception: Exception | None = None) -> None:
        """Its end."""
        self._end(call_id, outputs, exception)

    def on_evaluate_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """An evaluation: a run for it, MLflow's own where that was asked for, and its scores on the traces."""
        super().on_evaluate_start(call_id, instance, inputs)
        metric = _metric(inputs.get("metric")) or instance.metric
        self._evaluations.evaluate(call_id, instance, inputs, metric)
        self._scores.begin(call_id, metric)
        forget_last()

    def on_evaluate_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        """Its end."""
        traces = self._scores.end(call_id, outputs)
        self._evaluations.evaluated(call_id, outputs, exception, traces)
        super().on_evaluate_end(call_id, outputs, exception)

    def _generate_result_table(self, outputs: Any) -> dict[str, list[Any]]:
        """MLflow's table of an evaluation, of its ``log_evals``, without whole inputs."""
        table: dict[str, list[Any]] = super()._generate_result_table(outputs)
        return {name: [self._clip.value(value) for value in column] for name, column in table.items()}

    def on_compile_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """An optimiser begins."""
        self._evaluations.compile(call_id, instance, {**inputs, **(inputs.get("kwargs") or {})})

    def on_compile_end(self, call_id: str, outputs: Any | None, exception: Exception | None = None) -> None:
        """Its end."""
        self._evaluations.compiled(call_id, outputs, exception)

    def on_adapter_format_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Nothing: what it made is on the leaf."""

    def on_adapter_format_end(self, call_id: str, outputs: Any | None, exception: Exception | None = None) -> None:
        """Nothing."""

    def on_adapter_parse_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Nothing: what it failed on is on the predictor."""

    def on_adapter_parse_end(self, call_id: str, outputs: Any | None, exception: Exception | None = None) -> None:
        """Nothing."""


def _loaded() -> BaseCallback:
    found = [one for one in dspy.settings.callbacks or [] if isinstance(one, Tracker)]
    return found[0] if found else BaseCallback()


def _metric(given: Any) -> Any:
    """The metric that was given to a call of an evaluation, without what MLflow has put around it."""
    around = inspect.unwrap(given) if callable(given) else None
    return inspect.getclosurevars(around).nonlocals.get("metric", given) if inspect.isfunction(around) else given


def _text(exception: BaseException | None) -> str | None:
    return None if exception is None else error_text(exception)


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    """Inputs without what DSPy itself passes along with them."""
    return {name: value for name, value in given.items() if name not in ("lm", "config", "demos", "signature", "self")}


def _role(program: Any, instance: Any) -> str | None:
    return next((role for role in _ROLES if getattr(program, role, None) is instance), None)


def _run() -> Run | None:
    """The run that this context belongs to."""
    run = origin.current() or getattr(dspy.settings.usage_tracker, "run", None)
    return run if isinstance(run, Run) else None


def _answers(instance: Any, call: Open) -> bool:
    """Whether ``instance`` is the predictor of a sub-call, which the call's own span stands for."""
    run = origin.current()
    if run is None or not isinstance(instance, dspy.Predict) or call.ended is not None or call.span is not None:
        return False
    known = (run.program.sub, *run.program.sub_calls.values())
    return isinstance(instance, RolePredict) or any(instance is one for one in known)


def measured_of(usage: dict[str, Any]) -> dict[str, int]:
    """The tokens of DSPy's usage by model, in MLflow's words."""
    sums = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    for entry in usage.values():
        for name, theirs in zip(sums, ("prompt_tokens", "completion_tokens", "total_tokens"), strict=True):
            sums[name] += entry.get(theirs) or 0
    return sums

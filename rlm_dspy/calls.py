"""Calling predictors from a run: on the event loop where the LM can be awaited, in a thread where it cannot."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback
from dspy.utils.usage_tracker import UsageTracker

from rlm_dspy import _compat
from rlm_dspy._aio import threads
from rlm_dspy.ledger import Ledger
from rlm_dspy.signatures.conversation import current


class Meter(UsageTracker):
    """Sees every LM request of a run where its usage is recorded, whoever made it: predictors, tools, sub-agents.

    It stands in for DSPy's own usage tracker for the time of a run, and passes everything on to the one it replaces.
    Answers from a cache report no usage to DSPy, and so are not counted.

    Args:
        ledger: Gets each request with its tokens at once.
        outer: The tracker that is in force around the run, or None.
    """

    def __init__(self, ledger: Ledger, outer: UsageTracker | None) -> None:
        super().__init__()
        self.usage_data = _ByModel(self)
        self._ledger = ledger
        self._outer = outer
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Meter:
        """Itself: ``dspy.Parallel`` copies the tracker for each thread, whose calls are the run's all the same."""
        return self

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        """One request of the model ``lm``."""
        with self._lock:
            super().add_usage(lm, usage_entry)
            if self._outer is not None:
                self._outer.add_usage(lm, usage_entry)
        self._ledger.count_lm_call(
            usage_entry.get("prompt_tokens") or 0, usage_entry.get("completion_tokens") or 0
        )


class _ByModel(dict[str, "_Entries"]):
    """A `Meter`'s entries by model name."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def __missing__(self, lm: str) -> _Entries:
        return self.setdefault(lm, _Entries(self._meter, lm))


class _Entries(list[dict[str, Any]]):
    """The entries of one model. A ``dspy.track_usage`` inside of the run hands its own over by ``extend``."""

    def __init__(self, meter: Meter, lm: str) -> None:
        super().__init__()
        self._meter = meter
        self._lm = lm

    def extend(self, entries: Iterable[dict[str, Any]]) -> None:
        for entry in entries:
            self._meter.add_usage(self._lm, entry)


class ReplyKeeper(BaseCallback):
    """Keeps the root's reply as the LM gave it, with the reasoning text that came in a field of its own.

    Active only for calls of the root that need it: DSPy's callbacks cost a tenth of a millisecond at each of a call's
    stages.
    """

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Put text and reasoning into the current conversation."""
        conversation = current()
        if conversation is None or exception is not None or not isinstance(outputs, list) or not outputs:
            return
        first = outputs[0]
        fields = first if isinstance(first, dict) else {"text": first}
        text, reasoning = fields.get("text"), fields.get("reasoning_content")
        conversation.reply = text if isinstance(text, str) else ""
        conversation.reasoning_content = reasoning if isinstance(reasoning, str) else None


def keeping_replies() -> Any:
    """A ``dspy.context`` in which `ReplyKeeper` is active."""
    return dspy.context(callbacks=[*(dspy.settings.callbacks or []), ReplyKeeper()])


MAX_THREADS = 512
"""Calls of the whole process that may wait in threads at once; beyond it they wait on the event loop instead."""


async def call(module: dspy.Module, adapter: dspy.Adapter | None, lm: Any = None, **inputs: Any) -> dspy.Prediction:
    """Call ``module(**inputs)`` without blocking the event loop.

    An LM that DSPy can call synchronously is called in a thread: DSPy's asynchronous path crosses between loop and
    threads four times a call, which costs as much again as the call itself. Streaming, an LM that can only be awaited,
    and more than `MAX_THREADS` calls at once go through ``module.acall``. Cancelling stops the waiting; a request that
    is under way in a thread ends by itself, and what it answers is dropped.

    Args:
        module: A predictor or any module.
        adapter: The adapter in force for this call; the configured one if None.
        lm: Overrides the LM for this call; None leaves the choice to the module and ``dspy.settings.lm``.
    """
    chosen = lm or getattr(module, "lm", None) or dspy.settings.lm
    context: dict[str, Any] = {"adapter": adapter} if adapter is not None else {}
    if lm is not None:
        context["lm"] = lm
        if isinstance(module, dspy.Predict):
            inputs = {**inputs, "lm": lm}
    streaming = dspy.settings.send_stream is not None
    ways = _compat.ways_to_call(chosen)
    if "sync" in ways and ("async" not in ways or (not streaming and threads.busy < MAX_THREADS)):
        # A thread of ours cannot reach the loop that consumes a stream.
        with dspy.context(**context, send_stream=None):
            return await threads.run(module, **inputs)
    with dspy.context(**context):
        return await module.acall(**inputs)

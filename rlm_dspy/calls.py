"""Calling predictors from a run: on the event loop where the LM can be awaited, in a thread where it cannot."""

from __future__ import annotations

from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from rlm_dspy import _compat
from rlm_dspy._aio import threads
from rlm_dspy.ledger import Ledger
from rlm_dspy.signatures.conversation import current


class Meter(BaseCallback):
    """Counts every LM request of a run where it is made, and keeps the root's reply as the LM gave it.

    Tools and sub-agents that call LMs of their own are seen too, since DSPy fires callbacks at the LM.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Count the request; remember text and reasoning of the root's reply."""
        self._ledger.count_lm_call()
        conversation = current()
        if conversation is None or exception is not None or not isinstance(outputs, list) or not outputs:
            return
        first = outputs[0]
        text, reasoning = (first.get("text"), first.get("reasoning_content")) if isinstance(first, dict) else (first, None)
        conversation.reply = text if isinstance(text, str) else ""
        conversation.reasoning_content = reasoning if isinstance(reasoning, str) else None


async def call(module: dspy.Module, adapter: dspy.Adapter | None, lm: Any = None, **inputs: Any) -> dspy.Prediction:
    """``await module.acall(**inputs)``, also where the LM has only synchronous calls.

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
    if chosen is not None and _compat.is_sync_only(chosen):
        # A thread of ours cannot reach the loop that consumes a stream.
        with dspy.context(**context, send_stream=None):
            return await threads.run(module, **inputs)
    with dspy.context(**context):
        return await module.acall(**inputs)

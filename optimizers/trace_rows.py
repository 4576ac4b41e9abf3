"""`TraceAdapter`: the rows of DSPy's fine-tuning in the form in which an RLM's models are asked."""

from __future__ import annotations

from typing import Any

import dspy

from rlm_dspy.signatures import ConversationAdapter, Guidance, PlainTextAdapter
from rlm_dspy.signatures.demonstration import reply


class TraceAdapter(dspy.ChatAdapter):
    """Write steps of a trace as the models of an RLM see them, for ``dspy.BootstrapFinetune(adapter=TraceAdapter())``.

    By itself DSPy writes all rows in the markers of its ``ChatAdapter``, which neither the root nor ``llm_query`` is
    ever asked in: a root trained on them replies in a form that it is not asked for. Here a step of ``act`` is the
    dialect and the strategy, the task, the turns before it, and a reply with a Python block; one of ``llm_query`` is a
    prompt and an answer; all others are as ever.

    A trace holds neither the contract nor long outputs, and K turns are K rows. Where that matters, take
    `rlm_dspy.optimizers.TrajectoryFinetune`, whose rows are what was really sent.
    """

    def format_finetune_data(
        self, signature: type[dspy.Signature], demos: list[dict[str, Any]], inputs: dict[str, Any], outputs: Any
    ) -> dict[str, list[Any]]:
        """One row: ``{"messages": [...]}``, the assistant's reply last."""
        if {"task", "turns"} <= signature.input_fields.keys() and {
            "reasoning",
            "code",
        } == signature.output_fields.keys():
            messages = ConversationAdapter().format(signature, demos, inputs)
            said = reply(str(outputs["reasoning"] or "").strip(), str(outputs["code"]).strip(), Guidance())
        elif PlainTextAdapter.fits(signature):
            messages = PlainTextAdapter().format(signature, demos, inputs)
            (answer,) = signature.output_fields
            said = str(outputs[answer])
        else:
            row: dict[str, list[Any]] = super().format_finetune_data(signature, demos, inputs, outputs)
            return row
        return {"messages": [*messages, {"role": "assistant", "content": said}]}

"""What a cell gave, as the text that the root is shown."""

from __future__ import annotations

from typing import Any

from rlm_dspy import inputs as inputs_
from rlm_dspy.environments.base import CellResult
from rlm_dspy.signatures.contract import NO_CODE
from rlm_dspy.signatures.conversation import cut


def output_of(result: CellResult, refusal: str | None, inputs: tuple[str, ...]) -> str:
    """All that a cell gave, in one text: what was printed, the last value, the traceback or refusal.

    Args:
        result: What the session reports.
        refusal: Why a submission was refused, or None.
        inputs: Names that are set again after a restart of the session.
    """
    parts = [result.stdout.rstrip("\n")] if result.stdout else []
    if result.value is not None:
        parts.append(result.value)
    if result.error is not None:
        parts.append(f"[Error] {result.error.traceback.strip() or f'{result.error.type}: {result.error.message}'}")
    if result.lost:
        gone = sorted(set(result.lost) - set(inputs))
        missing = f"; gone: {', '.join(gone)}" if gone else ""
        parts.append(f"Of the variables, {', '.join(inputs)} are set again{missing}")
    if refusal is not None:
        parts.append(refusal)
    return "\n".join(parts)


FILTERED = (
    "[Error] The provider's content filter refused the request, so there is no reply. Print less of the data, "
    "and reply with a short plan and one ```python block, in neutral words."
)


def no_code(reply: str, filtered: bool, example: str) -> str:
    """What the root is told of a reply that no code could be taken from.

    Args:
        reply: Its text, ``""`` for none.
        filtered: The provider held it back.
        example: How an answer is given.
    """
    if filtered:
        return FILTERED
    if not reply.strip():
        return "[Error] Your reply was empty. Reply with a plan and one ```python block."
    return (
        f"[Error] {NO_CODE}. Put the code into one block that starts with "
        "```python and ends with ```. If you have the answer, reply with this, your answer put in:\n"
        f"```python\n{example}\n```"
    )


def final_text(outputs: dict[str, Any], limit: int) -> str:
    """The outputs as Python writes them; long text is cut, and what has a long ``repr`` or none is shown in short."""
    shown = {name: cut(v, limit) if isinstance(v, str) else v for name, v in outputs.items()}
    try:
        return repr(shown) if inputs_.repr_fits(shown, 2 * limit + 1_000) else inputs_.short_repr(shown)
    except Exception:
        return inputs_.short_repr(outputs)

"""The partial answer of a run that could neither submit nor extract one: what it had submitted or printed last.

For each output field, the first of these that there is:

1. the value that was last submitted for it and is one of its type, also where the submission was refused for another
   field;
2. what was printed last, where it can be read as a value of the field's type, if the task has one output field; for
   the first text field of several, the printed text as it is;
3. None.

The outcome is ``"failed"`` all the same: nobody has said that this is the answer.
"""

from __future__ import annotations

import ast
from typing import Any

import dspy

from rlm_dspy import submit
from rlm_dspy.environments.base import CellResult, Submission
from rlm_dspy.signatures.contract import is_nothing
from rlm_dspy.signatures.conversation import cut

KEPT = 20
"""Submissions and printed texts that are kept."""
_LONGEST = 100_000
"""Characters of a printed value that is read."""


class Leftovers:
    """What the cells of one run gave, the last ones.

    Args:
        most: Characters that are kept of one printed text.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._submitted: list[Submission] = []
        self._printed: list[str] = []

    def add(self, result: CellResult) -> None:
        """Keep what a cell submitted and printed."""
        if result.submission is not None:
            self._submitted = [*self._submitted, result.submission][-KEPT:]
        text = result.stdout.strip() or (result.value or "").strip()
        if text:
            self._printed = [*self._printed, cut(text, self._most)][-KEPT:]

    def answer(self, signature: type[dspy.Signature]) -> dict[str, Any]:
        """A value or None for each output field of ``signature``."""
        outputs: dict[str, Any] = dict.fromkeys(signature.output_fields)
        for name, field in signature.output_fields.items():
            for submission in reversed(self._submitted):
                given = dict(zip(signature.output_fields, submission.args, strict=False))
                given.update(submission.kwargs)
                value = _converted(given.get(name), field)
                if outputs[name] is None or (submit.is_empty(outputs[name]) and not submit.is_empty(value)):
                    outputs[name] = value
        if all(value is None for value in outputs.values()):
            self._from_prints(signature, outputs)
        return outputs

    def _from_prints(self, signature: type[dspy.Signature], outputs: dict[str, Any]) -> None:
        """Fill ``outputs`` from what was printed; a text that says that nothing was found only where all do."""
        newest = list(reversed(self._printed))
        texts = sorted(newest, key=is_nothing)
        for name, field in signature.output_fields.items():
            if field.annotation is str:
                outputs[name] = next(iter(texts), None)
                return
        if len(outputs) != 1:
            return
        ((name, field),) = signature.output_fields.items()
        for text in texts:
            for part in dict.fromkeys((text, text.rpartition("\n")[2])):
                value = _converted(_literal(part), field)
                if value is not None:
                    outputs[name] = value
                    return


def _literal(text: str) -> Any:
    """``text`` read as Python writes a value; itself where it is none."""
    try:
        return ast.literal_eval(text) if len(text) <= _LONGEST else text
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _converted(value: Any, field: Any) -> Any:
    """``value`` in the field's type; None where it has none, or is none."""
    if value is None:
        return None
    try:
        return submit.convert(value, field.rebuild_annotation())
    except Exception:
        # Whatever a model's own validators raise: it is no value of this field.
        return None

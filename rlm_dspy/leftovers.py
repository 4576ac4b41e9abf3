"""The partial answer of a run that could neither submit nor extract one: what it had submitted, stored or printed last.

For each output field, the first of these that there is:

1. the value that was last submitted for it and is one of its type, also where the submission was refused for another
   field;
2. a variable that has the field's name, where its value is one of the field's type and not empty;
3. what was printed last, where it can be read as a value of the field's type, if the task has one output field; for
   the first text field of several, the printed text as it is;
4. None.

The outcome is ``"failed"`` all the same: nobody has said that this is the answer.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any

import dspy

from rlm_dspy import events as ev
from rlm_dspy import submit
from rlm_dspy._aio import threads
from rlm_dspy.environments.base import CellResult, Submission
from rlm_dspy.redact import error_text
from rlm_dspy.signatures.contract import is_nothing
from rlm_dspy.signatures.conversation import cut

if TYPE_CHECKING:
    from rlm_dspy.run import Run

LOOK_SECONDS = 2.0
"""Time for fetching variables from the session."""
READ_SECONDS = 10.0
"""Time for reading what was left as values of the output fields."""
KEPT = 20
"""Submissions and printed texts that are kept."""
_LONGEST = 100_000
"""Characters of a printed value that is read."""


class Leftovers:
    """What the cells of one run gave, the last ones.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._most: int = run.program.max_output_chars
        self._submitted: list[Submission] = []
        self._printed: list[str] = []
        self._stored: dict[str, Any] = {}

    def add(self, result: CellResult) -> None:
        """Keep what a cell submitted and printed."""
        if result.submission is not None:
            self._submitted = [*self._submitted, result.submission][-KEPT:]
        text = result.stdout.strip() or (result.value or "").strip()
        if text:
            self._printed = [*self._printed, cut(text, self._most)][-KEPT:]

    async def look(self) -> None:
        """Keep the variables that code of this run has called like outputs. To be asked before the session ends."""
        run = self._run
        get = getattr(run.session, "get", None)
        code = "\n".join(event.code for event in run.events if isinstance(event, ev.Acted))
        names = [name for name in run.signature.output_fields if re.search(rf"\b{re.escape(name)}\b", code)]
        if get is None or run.recording is not None or not names:
            return
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                there = await run.session.variables()
                for name in filter(there.__contains__, names):
                    # Each for itself: one that cannot cross would keep the others from it.
                    with contextlib.suppress(KeyError, TypeError, ValueError):
                        self._stored.update(await get([name]))
        except Exception as error:
            run.events.emit(ev.Note(message=f"the variables could not be looked at: {error_text(error)}"))

    async def best(self) -> dict[str, Any]:
        """A value or None for each output field."""
        signature = self._run.signature
        try:
            # In a thread and not for ever: the user's own validators are run.
            return await asyncio.wait_for(threads.run(self._answer, signature), timeout=READ_SECONDS)
        except Exception as error:
            self._run.events.emit(ev.Note(message=f"no partial answer: {error_text(error)}"))
            return dict.fromkeys(signature.output_fields)

    def _answer(self, signature: type[dspy.Signature]) -> dict[str, Any]:
        outputs: dict[str, Any] = dict.fromkeys(signature.output_fields)
        for name, field in signature.output_fields.items():
            for submission in reversed(self._submitted):
                given = dict(zip(signature.output_fields, submission.args, strict=False))
                given.update(submission.kwargs)
                value = _converted(given.get(name), field)
                if outputs[name] is None or (submit.is_empty(outputs[name]) and not submit.is_empty(value)):
                    outputs[name] = value
            stored = _converted(self._stored.get(name), field)
            if outputs[name] is None and not submit.is_empty(stored):
                outputs[name] = stored
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

"""What `rlm_dspy.Guidance` does in a run: remarks on outputs, doubts about answers, an end to going in circles."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rlm_dspy import first_look, submit
from rlm_dspy.environments.base import CellResult
from rlm_dspy.signatures.contract import is_nothing
from rlm_dspy.signatures.dialect import only_constants, typed_numbers

if TYPE_CHECKING:
    from rlm_dspy.run import Run

REPEATED = (
    "You have run this code before, and the output was the same. If it answers the task, SUBMIT it; "
    "otherwise write different code."
)
UNSUPPORTED = {
    "failed": "the code before it failed, so that nothing supports this answer. Correct that code first.",
    "unseen": "no code has looked at the data yet, so that nothing supports this answer. First print what says it.",
    "nothing": "the code before it found nothing, so that nothing supports this answer. Search for it in another way.",
}
CONTRADICTED = (
    "the answer was typed in before the output of this code was seen, and that output does not show it. Submit a "
    "variable that holds the computed value."
)
_DOUBTS = 2
"""Answers of one run that are refused although they are valid."""


class Guide:
    """The aids of one run.

    Args:
        run: Its program says which aids there are.

    Attributes:
        stuck: The root repeated itself after it had been told.
        doubted: Valid answers that were refused, in order.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._aids = run.program.guidance
        self._seen: set[tuple[str, str]] = set()
        self._told = False
        large = any(isinstance(v, str) and len(v) > first_look.LARGE for v in run.inputs.values())
        self._unsupported: str | None = "unseen" if large else None
        self._seen_zero = False
        self.stuck = False
        self.doubted: list[dict[str, Any]] = []

    def refuse_code(self, code: str) -> str | None:
        """Why ``code`` is not to be run, or None."""
        if not self._aids.keep_inputs or "=" not in code:
            return None
        for name, value in self._run.inputs.items():
            large = isinstance(value, str) and len(value) > first_look.LARGE
            if large and re.search(rf"^{re.escape(name)}[ \t]*=[ \t]*[rf]?(\"|')", code, re.MULTILINE):
                return (
                    f"The code was not run, because it types `{name}` in again. `{name}` is set already, whole "
                    "and as it is: write code that reads it."
                )
        return None

    def doubt(self, code: str, result: CellResult, outputs: dict[str, Any]) -> str | None:
        """Why a valid answer is not taken yet, or None. What is submitted again is meant; the last turn's is taken."""
        run, submission = self._run, result.submission
        assert submission is not None
        last = run.turn >= run.limits.max_iters
        if not self._aids.check_answers or last or len(self.doubted) >= _DOUBTS or outputs in self.doubted:
            return None
        doubt = submit.doubt(submission, outputs, run.signature, self._seen_zero)
        if doubt is None and only_constants(code):
            doubt = self._doubt_constants(outputs)
        elif doubt is None and result.stdout.strip():
            if typed_numbers(code) - set(re.findall(r"[\d.]+", result.stdout)):
                doubt = CONTRADICTED
        if doubt is not None:
            self.doubted.append(outputs)
        return doubt

    def _doubt_constants(self, outputs: dict[str, Any]) -> str | None:
        """Why an answer that was typed in and not computed is not taken, or None."""
        numbers = [value for value in outputs.values() if type(value) in (int, float)]
        doubtful = {
            "unseen": True,
            "failed": all(is_nothing(str(value)) for value in outputs.values()),
            "nothing": any(numbers),
        }
        return UNSUPPORTED[self._unsupported] if self._unsupported and doubtful[self._unsupported] else None

    def remarks(self, code: str, result: CellResult, output: str) -> str:
        """``output`` of a cell that has not ended the run, with what is to be said of it."""
        nothing = result.error is None and is_nothing(output)
        self._unsupported = "failed" if result.error is not None else "nothing" if nothing else None
        if self._aids.explain_empty and nothing:
            texts = {name: value for name, value in self._run.inputs.items() if isinstance(value, str)}
            largest = max(texts, key=lambda name: len(texts[name]), default=None)
            if largest is not None and (explained := first_look.counts(code, largest, texts[largest])):
                output = f"{output}\n{explained}"
        self._seen_zero = self._seen_zero or re.search(r"\b0\b", output) is not None
        # What the host gave may be other the next time.
        return output if result.host_seconds else self.noted(code, output)

    def noted(self, action: str, output: str) -> str:
        """``output``, with a remark where the same action had the same output before."""
        if not self._aids.break_repeats:
            return output
        # The number of the cell stands in its tracebacks.
        key = action.strip(), re.sub(r"<cell \d+>", "<cell>", output)
        if key not in self._seen:
            self._seen.add(key)
            return output
        self.stuck, self._told = self._told, True
        return f"{output}\n{REPEATED}"

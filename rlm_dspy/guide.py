"""What `rlm_dspy.Guidance` does in a run: remarks on outputs, doubts about answers, an end to going in circles."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from rlm_dspy import conditions, explain, first_look, inputs, repair, submit
from rlm_dspy.environments.base import CellError, CellResult
from rlm_dspy.signatures.contract import SHORT, is_nothing
from rlm_dspy.signatures.dialect import only_constants, typed_numbers, types_in

if TYPE_CHECKING:
    from rlm_dspy.run import Run

REPEATED = (
    "You have run this code before, and the output was the same. If it answers the task, SUBMIT it; "
    "otherwise write different code."
)
UNSUPPORTED = {
    "failed": "the code before it failed, so that nothing supports this answer. Correct that code first.",
    "unseen": "no code has looked at the data yet, so that nothing supports this answer. First print what says it.",
    "never": "the code looked for a text that stands nowhere in the data. Search for shorter pieces of it.",
    "nothing": "the code before it found nothing, so that nothing supports this answer. Search for it in another way.",
}
CONTRADICTED = (
    "the answer was typed in before the output of this code was seen, and that output does not show it. Submit a "
    "variable that holds the computed value."
)
MENDED = "These conditions do not fit the data, or the task does not name them. It was run again with others:"
_QUICK = 10.0
"""Seconds of a cell that may be run a second time."""

AGAIN = (
    "it is the same answer again, and no code was run in between. Run code that prints what in the data says it first."
)
_DOUBTS = 2
"""Answers of one run that are refused although they are valid."""

_READ = 100_000
"""Characters of code that is looked through for typed answers; nobody types a longer one."""

_ZERO = re.compile(r"(?<![\w.])0(?:\.0+)?(?!\w|\.\d)")


class Guide:
    """The aids of one run.

    Args:
        run: Its program says which aids there are.

    Attributes:
        stuck: The root repeated itself after it had been told.
        words: Input to the words of the task that tell something in it, as far as they are known.
        doubted: Valid answers that were refused, in order.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._aids = run.program.guidance
        self._seen: set[tuple[str, str]] = set()
        self._told = False
        large = any(isinstance(v, str) and len(v) > SHORT for v in run.inputs.values())
        self._unsupported: str | None = "unseen" if large else None
        self._seen_zero = False
        self.words: dict[str, dict[str, int]] = {}
        self.stuck = False
        self.doubted: list[dict[str, Any]] = []
        self._values: list[tuple[str, Any]] = []
        self._ran = False
        self._compared = False
        self._code = ""
        self._tried: set[str] = set()
        self._found: conditions.Differences | None = None
        self._conditions = ""

    def refuse_code(self, code: str) -> str | None:
        """Why ``code`` is not to be run, or None."""
        if not self._aids.keep_inputs or "=" not in code:
            return None
        for name, value in self._run.inputs.items():
            if isinstance(value, str) and len(value) > SHORT and types_in(code, name):
                return (
                    f"The code was not run, because it types `{name}` in again. `{name}` is set already, whole "
                    f"and as it is: write code that reads it.{self._look()}"
                )
        return None

    def doubt(self, code: str, result: CellResult, outputs: dict[str, Any]) -> str | None:
        """Why a valid answer is not taken yet, or None.

        What is submitted again, after a look at the data, is meant. On the last turn, and where one more error would
        end the turns, it is taken.
        """
        run, submission = self._run, result.submission
        assert submission is not None
        last = run.turn >= run.limits.max_iters or run.ledger.errors_left == 1
        if not self._aids.check_answers or last or len(self.doubted) >= _DOUBTS:
            return None
        if any(_same(outputs, before) for before in self.doubted):
            doubt = AGAIN if self._unsupported and not self._ran and only_constants(code[:_READ]) else ""
        elif found := submit.doubt(submission, outputs, run.signature, self._seen_zero, self._meant):
            name, doubt = found
            self._values.append((name, outputs[name]))
        else:
            doubt = self._doubt_typed(code, result, outputs) or ""
        if not doubt:
            return None
        self.doubted.append(outputs)
        self._ran = False
        return f"{doubt}{self._start(code)}"

    def _start(self, code: str) -> str:
        """What to run after a refusal: the code of a first look, where no code has looked."""
        looked = self._unsupported not in ("unseen", "never")
        return "" if looked or not only_constants(code[:_READ]) else self._look()

    def _look(self) -> str:
        """The code of a first look at the data; ``""`` where the task has no words that stand in them."""
        name, text = self._largest()
        look = explain.start(name, text, self._telling())
        return f" Begin with this:\n```python\n{look}\n```" if look else ""

    def _meant(self, name: str, value: Any) -> bool:
        return any(name == other and _same(value, before) for other, before in self._values)

    def _doubt_typed(self, code: str, result: CellResult, outputs: dict[str, Any]) -> str | None:
        """Why an answer that was typed in and not computed is not taken, or None."""
        if len(code) > _READ:
            return None
        if not self._compared and self._aids.name_words and not only_constants(code):
            remarks = self._with_differences(code, "")
            found, self._conditions = self._found, ""
            # Words that were not used are often none of the conditions: they alone are no reason to refuse.
            if found is not None and (found.made_up or found.loose):
                return f"look at this first.{remarks}"
        different, self._conditions = self._conditions, ""
        if different and all(type(value) in (int, float, list) for value in outputs.values()):
            return f"the code that led to this answer {different}."
        if self._unsupported == "never" and all(map(submit.is_empty, outputs.values())):
            return UNSUPPORTED[self._unsupported]
        if only_constants(code):
            numbers = [value for value in outputs.values() if type(value) in (int, float)]
            doubtful = {
                "unseen": True,
                "failed": all(submit.is_empty(v) or (type(v) is str and is_nothing(v)) for v in outputs.values()),
                "never": True,
                "nothing": any(numbers),
            }
            return UNSUPPORTED[self._unsupported] if self._unsupported and doubtful[self._unsupported] else None
        shown = result.stdout.strip()
        if shown and not typed_numbers(code) <= _numbers(shown):
            return CONTRADICTED
        return None

    def remarks(self, code: str, result: CellResult, output: str) -> str:
        """``output`` of a cell that has not ended the run, with what is to be said of it."""
        bare = output
        if result.submission is not None and result.error is None and self._largest()[0] not in code:
            # An answer that was refused leaves everything as it was.
            return self.noted(code, output)
        if result.error is not None and self._unsupported == "unseen" and self._largest()[0] not in code:
            return self.noted(code, f"{output}{self._look()}", output)
        self._ran = True
        nothing = is_nothing(output) if result.error is None else _matched_nothing(result.error)
        self._unsupported = "failed" if result.error is not None else "nothing" if nothing else None
        if self._aids.name_words and (nothing or result.error is not None):
            output = self._with_made_up(code, output)
        if self._aids.explain_empty and nothing:
            if explained := explain.nothing(code, *self._largest(), inputs.task_text(self._run.inputs)):
                output = f"{output}\n{explained.text}"
                if explained.missed and result.error is None:
                    self._unsupported = "never"
                output = self._with_start(output, explained.missed)
        elif self._aids.name_words and result.error is None:
            output = self._with_differences(code, output)
        self._code += f"\n{code}"
        self._seen_zero = self._seen_zero or _ZERO.search(output) is not None
        # What the host gave may be other the next time.
        return output if result.host_seconds else self.noted(code, output, bare)

    def _telling(self) -> dict[str, int]:
        """The telling words of the task in the largest text."""
        name, text = self._largest()
        if name not in self.words:
            self.words[name] = first_look.telling_words(text, inputs.task_text(self._run.inputs))
        return self.words[name]

    def _largest(self) -> tuple[str, str]:
        """Name and value of the largest text input, two empty texts if there is none."""
        texts = ((name, value) for name, value in self._run.inputs.items() if isinstance(value, str))
        return max(texts, key=lambda pair: len(pair[1]), default=("", ""))

    def mended(self, code: str, result: CellResult) -> str:
        """``code`` with its conditions mended, where it found nothing with them; ``""`` where there is nothing to mend.

        What called the host or took long is not run a second time; an answer that was taken ends the run before.
        """
        name, text = self._largest()
        shown = f"{result.stdout.strip()}{result.value or ''}"
        nothing = is_nothing(shown) if result.error is None else _matched_nothing(result.error)
        if not self._aids.mend_conditions or not nothing or name not in code or len(text) <= SHORT:
            return ""
        if result.host_seconds or result.seconds > _QUICK:
            return ""
        other = repair.repaired(code, text, inputs.task_text(self._run.inputs), self._telling())
        if other in self._tried:
            return ""
        self._tried.add(other)
        return other

    def with_mended(
        self, result: CellResult, code: str, second: CellResult, refusal: str | None
    ) -> tuple[CellResult, str | None]:
        """``result`` together with that of the mended ``code`` if it found something, and why an answer is refused.

        Of an answer that was refused for being empty nothing is said any more: the output says what is the case.
        """
        shown = second.stdout.rstrip("\n") + (f"\n{second.value}" if second.value is not None else "")
        if second.error is not None or not shown or is_nothing(shown.strip()):
            return result, refusal
        first = result.stdout.rstrip("\n") or result.value or (result.error.message if result.error else "")
        text = f"{first}\n{MENDED}\n```python\n{code}\n```\nIts output:\n{shown}"
        seconds = result.seconds + second.seconds
        return dataclasses.replace(second, stdout=text, value=None, submission=None, seconds=seconds), None

    def _with_start(self, output: str, missed: bool) -> str:
        """``output`` of code that found nothing in prose, with code that prints the sentences with a name."""
        name, text = self._largest()
        if not missed or first_look.form(text) != "prose":
            return output
        other = explain.start(name, text, self._telling())
        if not other or other in self._tried:
            return output
        self._tried.add(other)
        return f"{output}\nTry this:\n```python\n{other}\n```"

    def _with_made_up(self, code: str, output: str) -> str:
        """``output`` of code that found nothing or failed, with the conditions of it that the task does not name."""
        name, text = self._largest()
        if self._compared or len(text) <= SHORT or name not in code:
            return output
        task = inputs.task_text(self._run.inputs)
        found = conditions.differences(code, "", name, text, task, {}, made_up_only=True)
        self._compared = bool(found.remarks)
        return "\n".join([output, *found.remarks])

    def _with_differences(self, code: str, output: str) -> str:
        """``output`` of the first code that found something, with how its conditions differ from those of the task."""
        name, text = self._largest()
        if self._compared or len(text) <= SHORT or name not in code:
            return output
        self._compared = True
        task = inputs.task_text(self._run.inputs)
        found = conditions.differences(code, self._code, name, text, task, self._telling())
        self._found, self._conditions = found, "; it ".join(found.doubts)
        if found.made_up and (other := repair.repaired(code, text, task, self._telling())):
            found.remarks.append(f"Without it:\n```python\n{other}\n```")
        return "\n".join([output, *found.remarks])

    def noted(self, action: str, output: str, bare: str | None = None) -> str:
        """``output``, with a remark where the same action had the same output before.

        Args:
            action: The code, or the reply without any.
            output: What is shown of it.
            bare: The output without the remarks that are made only once.
        """
        if not self._aids.break_repeats:
            return output
        # The number of the cell stands in its tracebacks.
        key = action.strip(), re.sub(r"<cell \d+>", "<cell>", output if bare is None else bare)
        if key not in self._seen:
            self._seen.add(key)
            return output
        self.stuck, self._told = self._told, True
        return f"{output}\n{REPEATED}"


def _same(value: Any, other: Any) -> bool:
    """Whether two values are equal, as far as they can be compared: arrays cannot, and models may refuse to."""
    try:
        return type(value) is type(other) and bool(value == other)
    except Exception:
        return False


def _matched_nothing(error: CellError) -> bool:
    """Whether code failed on what a search that found nothing gives."""
    return error.type in ("TypeError", "AttributeError") and "'NoneType' object" in error.message


def _numbers(text: str) -> set[float]:
    """The numbers in ``text``, ``1,234`` read both ways."""
    grouped = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return {float(number) for number in re.findall(r"\d+(?:\.\d+)?", f"{text}\n{grouped}")}

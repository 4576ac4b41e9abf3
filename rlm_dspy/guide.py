"""What `rlm_dspy.Guidance` does in a run: remarks on outputs, doubts about answers, an end to going in circles."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlm_dspy import (
    conditions,
    explain,
    first_look,
    inputs,
    mistaken,
    record_errors,
    repair,
    second_look,
    stated,
    submit,
    words,
)
from rlm_dspy.data import Data, is_records, largest
from rlm_dspy.environments.base import CellResult
from rlm_dspy.events import TurnStarted
from rlm_dspy.signatures.contract import SHORT, is_nothing
from rlm_dspy.signatures.dialect import lists_in, only_constants, parse, typed_numbers, types_in

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
    "conflict": "no line has all that the code asked for, so that nothing supports this answer. Ask for less.",
    "mended": "the code with its own conditions found nothing; with others it found something, see above. Submit from "
    "{names} if that is what the task asks for. If the answer is none, submit this again.",
    "nothing": "the code before it found nothing, so that nothing supports this answer. Search for it in another way.",
}
CONTRADICTED = (
    "the answer was typed in before the output of this code was seen, and that output does not show it. Submit a "
    "variable that holds the computed value."
)
MENDED = "No {unit} meets these conditions. With others, which fit the data or are the task's own, and new names:"
AGAIN = "it is the same answer again, and no code was run in between."
LOOK = "Run code that prints what in the data says it first."
_DOUBTS = 2
"""Answers of one run that are refused although they are valid."""

_READ = 100_000
"""Characters of code that is looked through for typed answers; nobody types a longer one."""

_QUICK = 10.0
"""Seconds that a second look may take, and the first may have taken."""

_LARGE = 20_000
"""Characters of a text that takes the aids longer than the event loop should wait."""

_KEPT = 10_000
_ZERO = re.compile(r"(?<![\w.])0(?:\.0+)?(?!\w|\.\d)")


@dataclass(frozen=True)
class SecondLook:
    """Mended code.

    Attributes:
        run: What to run, in a namespace of its own.
        code: The part of it that is shown.
        names: Of the variables that it leaves behind, where it found something.
        found: What it printed, ``""`` before it was run.
    """

    run: str
    code: str
    names: tuple[str, ...]
    found: str = ""


class Guide:
    """The aids of one run.

    Args:
        run: Its program says which aids there are.

    Attributes:
        stuck: The root repeated itself after it had been told.
        circling: It has just repeated itself.
        acted: Names of the aids that did something since this was last emptied.
        slow: The aids have a large text to go through: not on the event loop.
        words: Input to the words of the task that tell something in it, as far as they are known.
        doubted: Valid answers that were refused, in order.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._aids = run.program.guidance
        self._data = largest(run.inputs)
        self._name, self._large = self._data.name, self._data.large
        self._task = inputs.asked(run.signature, run.inputs)
        self.slow = self._data.size > _LARGE
        self.words: dict[str, dict[str, int]] = {}
        self.acted: list[str] = []
        self.stuck = False
        self.doubted: list[dict[str, Any]] = []
        self._values: list[tuple[str, Any]] = []
        self._seen: set[tuple[str, str]] = set()
        self._repeated = 0
        self._unsupported: str | None = "unseen" if self._large else None
        self._seen_zero = False
        self._numbers: set[float] = set()
        self.circling = False
        self._ran = False
        self._compared = False
        self._code = ""
        self._tried: set[str] = set()
        self._refused: set[str] = set()
        self._new_names: tuple[str, ...] = ()
        self._conditions = ""

    def refuse_code(self, code: str) -> str | None:
        """Why ``code`` is not to be run, or None; the same code again is meant."""
        if not self._aids.keep_inputs or "=" not in code or code in self._refused:
            return None
        for name, value in self._run.inputs.items():
            typed = lists_in if is_records(value) else types_in
            large = isinstance(value, str) and len(value) > SHORT
            if (large or (name == self._name and self._large)) and typed(code, name):
                self.acted.append("keep_inputs")
                self._refused.add(code)
                return (
                    f"The code was not run, because it types `{name}` in again. `{name}` is set already, whole "
                    f"and as it is: write code that reads it.{self._look()}"
                )
        return None

    def doubt(self, code: str, result: CellResult, outputs: dict[str, Any]) -> str | None:
        """Why a valid answer is not taken yet, or None.

        What is submitted again, after a look at the data, is meant. On the last turn, and where a limit is near, it is
        taken.
        """
        run, submission = self._run, result.submission
        assert submission is not None
        if not self._aids.check_answers or self._last() or len(self.doubted) >= _DOUBTS:
            return None
        if result.host_seconds and not only_constants(code[:_READ]):
            # What the host was asked for costs money, or does something: it is not to be asked again.
            return None
        if any(_same(outputs, before) for before in self.doubted):
            seen = self._seen_zero and all(map(submit.is_empty, outputs.values()))
            again = self._unsupported and not self._ran and not seen and only_constants(code[:_READ])
            doubt = AGAIN if again else ""
            self.circling = bool(again)
        elif found := submit.doubt(submission, outputs, run.signature, self._seen_zero, self._meant):
            name, doubt = found
            self._values.append((name, outputs[name]))
        else:
            doubt = self._doubt_typed(code, result, outputs) or ""
        # It shows what there is to see, and needs no code for that.
        named = self._asked_about(code, outputs)
        if not (named or doubt):
            return None
        self.doubted.append(outputs)
        self.acted.append("check_answers")
        self._ran = False
        if doubt == AGAIN:
            # It does not run what it is told to. This is what it would see.
            shown = explain.output(self._data, self._telling())
            return f"{AGAIN} Answer from this, if it says it:\n{shown}" if shown else f"{AGAIN} {LOOK}"
        return named or f"{doubt}{self._start(code)}"

    def _last(self) -> bool:
        """Whether there may be no other turn to give an answer in."""
        run = self._run
        left = run.ledger.seconds_left
        if left is not None:
            began = [event.at for event in run.events if isinstance(event, TurnStarted)]
            turns = [end - at for at, end in zip(began, [*began[1:], run.events.elapsed], strict=True)]
        hurried = left is not None and left < 2 * max(turns, default=0.0)
        near = run.turn >= run.limits.max_iters or run.ledger.errors_left == 1 or hurried
        return near or run.stop_reason is not None

    def _start(self, code: str) -> str:
        """What to run after a refusal: the code of a first look, where no code has looked."""
        looked = self._unsupported not in ("unseen", "never")
        return "" if looked or not only_constants(code[:_READ]) else self._look()

    def _look(self) -> str:
        """The code of a first look at the data; ``""`` where the task has no words that stand in them."""
        look = explain.start(self._data, self._telling())
        return f" Begin with this:\n```python\n{look}\n```" if look else ""

    def _meant(self, name: str, value: Any) -> bool:
        return any(name == other and _same(value, before) for other, before in self._values)

    def _asked_about(self, code: str, outputs: dict[str, Any]) -> str:
        """Why an answer that was typed in is none, being what the task asks about; ``""`` for any other, and for one
        that was found by code or is given again."""
        if not self._large or not only_constants(code[:_READ]) or any(_same(outputs, one) for one in self.doubted):
            return ""
        return mistaken.asked_about(outputs, self._data, self._task, self._telling()) or ""

    def _doubt_typed(self, code: str, result: CellResult, outputs: dict[str, Any]) -> str | None:
        """Why an answer that was typed in and not computed is not taken, or None."""
        if len(code) > _READ:
            return None
        if self._large and (longer := mistaken.pieces(outputs, f"{self._code}\n{code}", self._task)):
            return longer
        if not self._compared and self._aids.name_words and self._name in code and self._large:
            found = self._differences(code)
            self._conditions = ""
            # Words that were not used are often none of the conditions: they alone are no reason to refuse.
            if found.doubts and (found.made_up or found.loose):
                self.acted.append("name_words")
                return "\n".join(["look at this first.", *found.remarks])
        different, self._conditions = self._conditions, ""
        if different and all(type(value) in (int, float, list) for value in outputs.values()):
            self.acted.append("name_words")
            return f"the code that led to this answer {different}."
        why, empty = self._unsupported, all(map(submit.is_empty, outputs.values()))
        if why == "mended" and (empty or only_constants(code)):
            return UNSUPPORTED[why].format(names=", ".join(self._new_names) or "it")
        if why == "never" and empty and not self._seen_zero:
            return UNSUPPORTED[why]
        if only_constants(code):
            numbers = [value for value in outputs.values() if type(value) in (int, float)]
            doubtful = {
                "unseen": True,
                "failed": all(submit.is_empty(v) or (type(v) is str and is_nothing(v)) for v in outputs.values()),
                "never": not (empty and self._seen_zero),
                "conflict": not empty,
                "nothing": any(numbers),
            }
            return UNSUPPORTED[why] if why and doubtful[why] else None
        shown = result.stdout.strip()
        if shown and not typed_numbers(code) <= _numbers(shown) | self._numbers:
            return CONTRADICTED
        return None

    def second_looks(self, code: str, result: CellResult) -> list[SecondLook]:
        """Code that looks again with mended conditions, beside what ``code`` made; the best first.

        It only computes, calls nothing of the host, and leaves every variable as it is (`rlm_dspy.second_look`).
        """
        if not self._aids.mend_conditions or not self._large or self._name not in code:
            return []
        if not _found_nothing(result) or result.host_seconds or result.seconds > _QUICK or self._last():
            return []
        first = parse(code) if len(code) <= repair.LONGEST else None
        inputs = [name for name, value in self._run.inputs.items() if isinstance(value, str) or name == self._name]
        looks: list[SecondLook] = []
        for plain in (True, False):
            second = repair.mended(code, self._data, self._task, self._telling(), plain)
            if not isinstance(first, ast.Module) or second is None:
                continue
            made = second_look.beside(first, second, inputs, "\n".join([self._code, code, *self._tried]))
            if made is not None and made[0] not in self._tried:
                self._tried.add(made[0])
                looks.append(SecondLook(second_look.apart(made[0], inputs, made[2]), made[1], made[2]))
        return looks

    def remarks(self, code: str, result: CellResult, output: str, again: SecondLook | None = None) -> str:
        """``output`` of a cell that has not ended the run, with what is to be said of it.

        Args:
            code: What was run.
            result: What came of it.
            output: What is shown of that.
            again: A second look that found something.
        """
        bare = output
        if result.submission is not None and result.error is None and self._name not in code:
            # An answer that was refused leaves everything as it was.
            circling = self.circling
            output = self.noted(code, output)
            self.circling = self.circling or circling
            return output
        if result.error is not None and self._unsupported == "unseen" and self._name not in code:
            return self.noted(code, f"{output}{self._look()}", output, failed=True)
        self._ran = True
        # Words and conditions of the first code say nothing of one that reads the data after it.
        self._conditions = "" if self._name in code else self._conditions
        nothing = _found_nothing(result)
        # Code that found nothing in another input has not looked at the data.
        others = any(name in code for name in self._run.inputs) and self._name not in code
        elsewhere = nothing and result.error is None and self._unsupported == "unseen" and others
        self._unsupported = "failed" if result.error else "unseen" if elsewhere else "nothing" if nothing else None
        if again is not None:
            self._unsupported, self._new_names = "mended", again.names
            self.acted.append("mend_conditions")
            head = MENDED.format(unit="record" if self._data.rows is not None else "line")
            output = f"{output}\n{head}\n```python\n{again.code}\n```\nIts output:\n{again.found}"
        elif nothing and self._aids.explain_empty and self._large:
            output = self._explained(code, result, output)
        elif self._aids.explain_empty and result.error is not None and (cause := self._cause(code, result)):
            self.acted.append("explain_empty")
            output = f"{output}\n{cause}"
        elif self._aids.name_words and result.error is None and not self._compared and self._large:
            remarks = self._differences(code).remarks if self._name in code else []
            self.acted += ["name_words"] * bool(remarks)
            output = "\n".join([output, *remarks])
        self._code += f"\n{code}"
        self._seen_zero = self._seen_zero or (not elsewhere and _ZERO.search(bare) is not None)
        self._numbers |= _numbers(bare[:_KEPT])
        # What the host gave may be other the next time, and code that prints nothing may have gone on all the same.
        silent = result.error is None and not result.stdout and result.value is None
        return output if result.host_seconds or silent else self.noted(code, output, bare, result.error is not None)

    def stated(self, reply: str) -> str | None:
        """How the answer is submitted that a reply without code states, where code has found something before."""
        if not self._aids.salvage or self._unsupported is not None:
            return None
        outputs = {name: field.annotation for name, field in self._run.signature.output_fields.items()}
        found = stated.submission(reply, outputs, words.names(self._telling()))
        self.acted += ["salvage"] * (found is not None)
        return found

    def data(self, name: str) -> Data:
        """The input ``name`` as the aids see it."""
        return self._data if name == self._name else Data(name, self._run.inputs[name])

    @property
    def found_nothing(self) -> bool:
        """Whether the last code found nothing, also with other conditions."""
        return self._unsupported in ("nothing", "never", "conflict")

    def _cause(self, code: str, result: CellResult) -> str:
        """What the error of ``code`` comes from, where that is known, and what to do about it."""
        assert result.error is not None
        if import_ := _missing_import(result):
            return f"Put this before it: {import_}"
        return record_errors.cause(code, result.error, self._data) if self._large else ""

    def _explained(self, code: str, result: CellResult, output: str) -> str:
        explained = explain.nothing(code, self._data, self._task)
        if explained is None:
            return output
        self.acted.append("explain_empty")
        output = f"{output}\n{explained.text}"
        if explained.missed and result.error is None:
            self._unsupported = explained.missed
        look = ""
        if explained.missed == "never" and self._data.form == "prose":
            look = explain.start(self._data, self._telling())
        if not look or look in self._tried:
            return output
        self._tried.add(look)
        return f"{output}\nTry this:\n```python\n{look}\n```"

    def _differences(self, code: str) -> conditions.Differences:
        """How the conditions of the first code that found something differ from those of the task."""
        self._compared = True
        found = conditions.differences(code, self._code, self._data, self._task, self._telling())
        self._conditions = "; it ".join(found.doubts)
        if found.made_up and (other := repair.mended(code, self._data, self._task, self._telling())) is not None:
            found.remarks.append(f"Without it:\n```python\n{ast.unparse(other)}\n```")
        return found

    def _telling(self) -> dict[str, int]:
        """The telling words of the task in the largest input."""
        if self._name not in self.words:
            self.words[self._name] = first_look.telling_words(self._data, self._task)
        return self.words[self._name]

    def noted(self, action: str, output: str, bare: str | None = None, failed: bool = False) -> str:
        """``output``, with a remark where the same action had the same output before.

        Args:
            action: The code, or the reply without any.
            output: What is shown of it.
            bare: The output without the remarks that are made only once.
            failed: The code ended in an error.
        """
        if not self._aids.break_repeats:
            return output
        self.circling = False
        # The number of the cell stands in its tracebacks.
        # Small models write on with what they were told, turn numbers and all.
        action = re.sub(r"\[turn \d+ of \d+.*", "", action, flags=re.DOTALL)
        key = action.strip(), re.sub(r"<cell \d+>", "<cell>", output if bare is None else bare)
        if key not in self._seen:
            self._seen.add(key)
            self._repeated = 0
            return output
        self.acted.append("break_repeats")
        self.circling = True
        if failed or self._same_again(action):
            # Nothing new for two turns: a circle. What may have gone on all the same is told, and goes on.
            self._repeated += 1
            self.stuck = self._repeated >= 2
        return f"{output}\n{REPEATED}"

    def _same_again(self, action: str) -> bool:
        """Whether ``action`` can have changed nothing: no code, code that only submits, or that only computes."""
        tree = parse(action) if len(action) <= repair.LONGEST else None
        if not isinstance(tree, ast.Module):
            return True
        only_submits = all(second_look.submits(each) and not _computes(each) for each in tree.body)
        return only_submits or second_look.stands_alone(tree, list(self._run.inputs))


def _computes(submission: ast.stmt) -> bool:
    """Whether a call of ``SUBMIT`` calls something for its values."""
    return sum(isinstance(node, ast.Call) for node in ast.walk(submission)) > 1


def _same(value: Any, other: Any) -> bool:
    """Whether two values are equal, as far as they can be compared: arrays cannot, and models may refuse to."""
    try:
        return type(value) is type(other) and bool(value == other)
    except Exception:
        return False


def _found_nothing(result: CellResult) -> bool:
    """Whether a cell says that it found nothing, or failed on what a search that found nothing gives."""
    if result.error is not None:
        kinds = ("TypeError", "AttributeError")
        return result.error.type in kinds and "'NoneType' object" in result.error.message
    said = f"{result.stdout.strip()} {result.value or ''}".strip()
    return bool(said) and is_nothing(said)


_IMPORTS = {
    **dict.fromkeys(("Counter", "defaultdict", "deque", "OrderedDict"), "from collections import {}"),
    **dict.fromkeys("re json csv io math datetime statistics itertools collections".split(), "import {}"),
    "StringIO": "from io import {}",
    "pd": "import pandas as {}",
    "np": "import numpy as {}",
}


def _missing_import(result: CellResult) -> str:
    """The import that code which failed on a well-known name lacks, ``""`` for any other error."""
    if result.error is None or result.error.type != "NameError":
        return ""
    found = re.search(r"name '(\w+)' is not defined", result.error.message)
    return _IMPORTS[found[1]].format(found[1]) if found and found[1] in _IMPORTS else ""


def _numbers(text: str) -> set[float]:
    """The numbers in ``text``, ``1,234`` read both ways."""
    grouped = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return {float(number) for number in re.findall(r"\d+(?:\.\d+)?", f"{text}\n{grouped}")}

"""`Guidance`: the aids that let a small model play the root, each a switch that can be turned off and measured.

A strong model pays a few hundred prompt tokens for them, once a run. What each is worth to a small one is measured by
``benchmarks/small_model.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Guidance:
    """Which aids the root is given; all of them by default.

    Attributes:
        short_contract: The facts of the run in few lines, the task last. Off: one titled section for each kind of fact.
        plain_dialect: Actions are plain words and one fenced block. Off: DSPy's field markers (``[[ ## code ## ]]``).
        demonstration: One worked example as real turns before the task, as long as ``act`` has no demonstrations of its
            own (compiled or given).
        first_look: The first message shows lines from the beginning, the middle and the end of large texts, those with
            rare words of the task, and of a list of dicts what each field holds. Off: their beginning and end as one
            Python literal.
        repeat_task: The task and what to do next stand again after every output, and the task before ``extract``.
        break_repeats: A root that sends the same code again and gets the same output again is told so, and asked at a
            temperature of 0.7 where its LM has a lower one set. If nothing new came twice in a row, and that code can
            have changed nothing, the turns end (limit ``"repeats"``) and ``extract`` answers. Turns that called the
            host never count.
        check_answers: A submitted answer that is empty, no text where text is asked for, the one name in the task,
            pieces of lines, or supported by no look at the data is refused with the reason, and the second time with
            what there is to see. The same answer after another look, again without one, or on the last turn is taken.
        keep_inputs: Code that types a large input in again (``context = "..."``) is not run; the root is told so. The
            same code again is.
        explain_empty: Where code found nothing (``0``, ``[]``, a search without a match), the output says how often and
            where each text that it looked for stands in the inputs, and shows what comes closest. Where it failed on a
            well-known name (``Counter``, ``re``), the import is named; where it failed on a list of dicts, what that
            holds (a field that is called otherwise, numbers that are texts); on lines of JSON or CSV, how to read.
        mend_conditions: Code whose conditions rule everything out (a value that is asked for in another field than its
            own or spelled otherwise, a condition that the task does not name) is tried with them mended, in a namespace
            of its own, and both outputs are shown. Only code that stands alone and can do nothing but compute.
        name_words: The first output that found something names the words of the task that stand in the data and that
            the code does not use, conditions of the code that the task does not name, and sentences with a name that
            the code looks for in one wording alone.
        hint_batches: Code that asked the sub-LM four times or more in a turn, one call after the other, is told once
            that the batched call makes them at the same time.
        salvage: Code is found wherever a reply has it: unclosed and unlabelled fences, stray language names, JSON, bare
            code. An answer that is stated without any is offered as the call that submits it. Off: code is found only
            in closed fences that are labelled as Python.

    Example:
        >>> Guidance(demonstration=False).off()
        ('demonstration',)
    """

    short_contract: bool = True
    plain_dialect: bool = True
    demonstration: bool = True
    first_look: bool = True
    repeat_task: bool = True
    break_repeats: bool = True
    check_answers: bool = True
    keep_inputs: bool = True
    explain_empty: bool = True
    mend_conditions: bool = True
    name_words: bool = True
    hint_batches: bool = True
    salvage: bool = True

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the switches."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def of(cls, given: Guidance | bool | Mapping[str, bool]) -> Guidance:
        """A `Guidance` from what a user writes: one, True or False for all, or a mapping of the switches to change.

        Raises:
            TypeError: ``given`` is of another type.
            ValueError: An unknown switch.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, bool):
            return cls(**dict.fromkeys(cls.names(), given))
        if not isinstance(given, Mapping):
            raise TypeError(f"guidance must be True, False, a Guidance or a mapping of its switches, not {given!r}")
        unknown = sorted(set(given) - set(cls.names()))
        if unknown:
            raise ValueError(f"unknown switches {unknown} of guidance; they are {', '.join(cls.names())}")
        wrong = sorted(name for name, value in given.items() if not isinstance(value, bool))
        if wrong:
            raise TypeError(f"guidance: {', '.join(wrong)} must be True or False")
        return cls(**given)

    def off(self) -> tuple[str, ...]:
        """The names of the switches that are off."""
        return tuple(name for name in self.names() if not getattr(self, name))

    def to_dict(self) -> dict[str, Any]:
        """Switch to value."""
        return dataclasses.asdict(self)

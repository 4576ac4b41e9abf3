"""`previewed`: training examples whose large inputs are shown by a preview, and used as they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dspy

from rlm_dspy.inputs import describe, repr_fits
from rlm_dspy.signatures.contract import cut_line

CHARS = 300
"""Characters of one value that is shown."""


class PreviewedExample(dspy.Example):
    """A ``dspy.Example`` whose text shows of a large value its type, size and beginning; the values are as ever."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name!r}: {preview(name, value)}" for name, value in self.items())
        return f"Example({{{shown}}}) (input_keys={set(input_keys(self) or ()) or None})"


def previewed(examples: Iterable[dspy.Example]) -> list[dspy.Example]:
    """``examples`` for optimisers that write them into prompts and logs.

    MIPROv2 describes a dataset to itself by ``repr`` of its first examples, and DSPy logs an example that failed: with
    contexts of a megabyte, ten of them are the prompt. What programs and metrics are given stays as it is.

    Example:
        >>> optimizer = dspy.MIPROv2(metric=metric, auto="light")  # doctest: +SKIP
        >>> compiled = optimizer.compile(rlm, trainset=previewed(trainset), valset=previewed(valset))  # doctest: +SKIP
    """
    made = []
    for example in examples:
        one = PreviewedExample(dict(example.items(include_dspy=True)))
        keys = input_keys(example)
        made.append(one if keys is None else one.with_inputs(*keys))
    return made


def input_keys(example: dspy.Example) -> tuple[str, ...] | None:
    """The inputs of ``example``; None where they were never marked."""
    try:
        return tuple(example.inputs().keys())
    except ValueError:
        return None


def preview(name: str, value: Any, chars: int = CHARS) -> str:
    """``value`` as Python writes it, where that is short; else its type, size and beginning, on one line.

    Args:
        name: Of the input.
        value: Of any type.
        chars: Characters of it that are shown, about.
    """
    if repr_fits(value, chars):
        return repr(value)
    about = describe(name, value)
    return f"<{about.summary()}: {cut_line(about.preview, chars)}>"

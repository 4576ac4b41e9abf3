"""Raw training examples as demonstrations: what they can tell a role, and no more of them than that.

Stock optimisers hand every predictor examples of the whole task (``LabeledFewShot``, and the filling-up of
``BootstrapFewShot``). No role of an RLM has the task's fields but ``direct``. To the root and to ``extract`` such an
example still shows the form that answers have: their units, their length, their words. So it becomes an *answered
task*: the question, of the inputs that are short, and the answer. Large inputs are never shown, and never saved.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import dspy

from rlm_dspy.signatures.contract import SHORT, cut_line

BRIEF = 400
"""Characters of one value of an answer."""
MOST = 16
"""Answered tasks that the root is shown."""
LARGE = 20_000
"""Characters of one demonstration, above which it is none."""

ANSWERS = "answers"
"""The key of an answered task that holds its outputs, as Python writes them."""

HEADING = "Answers to other tasks of this kind, for their form alone; the data there was another:"


def small(demo: Mapping[str, Any]) -> bool:
    """True if ``demo`` has at most `LARGE` characters."""
    left = LARGE
    for value in demo.values():
        left -= len(value) if isinstance(value, (str, bytes)) else len(repr(value))
        if left < 0:
            return False
    return True


def own(demo: Any, signature: type[dspy.Signature]) -> dict[str, Any] | None:
    """What of ``demo`` is a demonstration of ``signature``; None if it is none.

    It has every output (None where the type allows it), at least one input, and is `small`.
    """
    inputs, outputs = signature.input_fields, signature.output_fields
    values = {key: value for key, value in dict(demo).items() if key in {*inputs, *outputs, "augmented"}}
    whole = all(values.get(name) is not None or (name in values and _optional(outputs[name])) for name in outputs)
    fits = whole and any(values.get(name) for name in inputs)
    return values if fits and small(values) else None


def _optional(field: Any) -> bool:
    return type(None) in typing.get_args(field.annotation)


def answered(demo: Any, outputs: Collection[str]) -> dict[str, Any] | None:
    """``demo`` as an answered task; None if it is no example of a task with these ``outputs``, or its answer is long.

    Args:
        demo: A raw example (``dspy.Example`` with its inputs marked), or what this function gave before.
        outputs: Names of the task's outputs.

    Returns:
        ``task``, a text, and ``answers``, the outputs as texts.
    """
    values = dict(demo)
    told = values.get(ANSWERS)
    if isinstance(told, Mapping):
        return {"task": str(values.get("task") or ""), ANSWERS: dict(told)} if told.keys() == set(outputs) else None
    given = _inputs(demo)
    if not outputs or not given or any(values.get(name) is None for name in outputs):
        return None
    answers = {name: repr(values[name]) for name in outputs}
    if any(len(text) > BRIEF for text in answers.values()):
        return None
    return {"task": task_text(given), ANSWERS: answers}


def task_text(values: Mapping[str, Any]) -> str:
    """What a run is asked, for its reminders, traces and demonstrations: of its text inputs those that are no data.

    Long ones are data. Where short ones have the name of a question, they are what is asked, and the others are data
    too: a short document is no more to be followed than a long one.
    """
    short = {name: value for name, value in values.items() if isinstance(value, str) and 0 < len(value) <= SHORT}
    asking = [value for name, value in short.items() if asks(name)]
    return "\n".join(asking or short.values())


_ASKING = re.compile(r"quer(y|ies)|question|task|instruction|prompt|request|goal|ask", re.IGNORECASE)


def asks(name: str) -> bool:
    """True if an input of that name is most likely a question, and no data."""
    return _ASKING.search(name) is not None


def shown(demos: Iterable[Any], outputs: Collection[str]) -> str:
    """The answered tasks among ``demos`` as the root is shown them, `MOST` at most; ``""`` if there are none."""
    lines: list[str] = []
    for demo in demos:
        task = None if demo.get("code") else answered(demo, outputs)
        if task is not None and len(lines) < MOST:
            call = ", ".join(f"{name}={value}" for name, value in task[ANSWERS].items())
            lines.append(f"- {cut_line(task['task'], BRIEF)}\n  SUBMIT({call})")
    return "\n".join([HEADING, *lines]) if lines else ""


def last_words(demo: Any, outputs: Collection[str]) -> dict[str, Any] | None:
    """``demo``, a raw example, as a demonstration of ``extract``: its question and its outputs; None if it is none."""
    given = _inputs(demo)
    answers = {name: dict(demo).get(name) for name in outputs}
    if not given or any(value is None or len(repr(value)) > BRIEF for value in answers.values()):
        return None
    return {"task": task_text(given), **answers}


def _inputs(demo: Any) -> dict[str, Any]:
    """The inputs of a raw example; empty for what is none."""
    if not isinstance(demo, dspy.Example) or "augmented" in demo:
        return {}
    try:
        return dict(demo.inputs().items())
    except ValueError:
        # Its inputs were never marked.
        return {}

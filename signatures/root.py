"""The signatures of the three roles: the root that acts, the sub-LM, and the last look that extracts an answer.

Their instructions are strategy and nothing else: short, true of every run, and free to be rewritten by an optimiser.
Each role has a signature of its own, because GEPA and others match predictors by signature equality.
"""

from __future__ import annotations

from typing import Any

import dspy

STRATEGY = """\
Solve the task with code that works on the variables. The data is in the variables already: never retype it.
Look before you compute: print a few samples. You see of a variable only what you print.
Count, search, filter, sort and join in Python, with short tests such as `"word" in line`: long patterns miss.
Use the sub-LM for what needs reading and judgement: give it all the text it needs in the prompt, and send many \
prompts at once with the batched call.
Check surprising results (zero, empty, far too many) before you rely on them. Keep exact values in variables and pass \
those on. Submit only what you have seen in an output, in the types that are asked for."""


class Act(dspy.Signature):
    __doc__ = STRATEGY

    task: str = dspy.InputField(desc="What is asked, shortened")
    turns: list[dict[str, str]] = dspy.InputField(desc="Earlier turns, shortened: the reply and its output")
    reasoning: str = dspy.OutputField(desc="What is known and what comes next")
    code: str = dspy.OutputField(desc="Python to run next")


class Sub(dspy.Signature):
    """Do what the prompt asks, from what the prompt contains. Answer with the result alone."""

    prompt: str = dspy.InputField(desc="The request, with all the text it is about")
    response: str = dspy.OutputField(desc="The result")


EXTRACT = """\
No more code can run. Give the best final answer that the work above supports.
Prefer values that were printed or computed over guesses; where the work did not finish, answer as far as it got."""


def extract_signature(signature: type[dspy.Signature]) -> type[dspy.Signature]:
    """The signature of ``extract``: what was asked and done, to the task's own typed outputs.

    Args:
        signature: The user's task signature.
    """
    fields: dict[str, Any] = {
        "task": (str, dspy.InputField(desc="What is asked, shortened")),
        "turns": (list[dict[str, str]], dspy.InputField(desc="The turns, shortened: the reply and its output")),
    }
    outputs = {name: (field.annotation, field) for name, field in signature.output_fields.items()}
    while clash := outputs.keys() & fields.keys():
        # The trace's own inputs give way, so that any output name stays possible.
        fields = {f"{name}_" if name in clash else name: value for name, value in fields.items()}
    return dspy.Signature({**fields, **outputs}, EXTRACT)

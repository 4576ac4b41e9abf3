"""What a child is asked: a prompt, the values that its parent passes, a response."""

from __future__ import annotations

from typing import Any

import dspy

from rlm_dspy.signatures.root import extract_signature


class Child(dspy.Signature):
    """Do what `prompt` asks, from the variables that are set, and submit the result alone."""

    prompt: str = dspy.InputField(desc="what is asked")
    response: str = dspy.OutputField(desc="the result")


def child_signature(names: tuple[str, ...]) -> type[dspy.Signature]:
    """`Child` with one more input for each of ``names``, in front of the prompt."""
    signature: type[dspy.Signature] = Child
    for name in reversed(names):
        signature = signature.prepend(name, dspy.InputField(desc="passed on by whoever asks"), Any)
    return signature


ChildExtract = extract_signature(Child)
"""The signature of the children's ``extract``: one for all, because it has the response alone as its output."""

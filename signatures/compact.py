"""Compaction: what the root is asked for where its conversation nears the end of the context window.

`Compact` is the signature of ``RLM.compact``. Its instructions are strategy: what a good summary holds. What must not
be lost (variables, the turns in full) does not depend on it: the engine tells that by itself
(`rlm_dspy.compaction`).
"""

from __future__ import annotations

import re
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from rlm_dspy.signatures.adapter import ConversationAdapter, Signature
from rlm_dspy.signatures.conversation import current

COMPACT = """\
The conversation is becoming too long, and will go on from a summary of it. Write that summary for yourself.
Say what was found so far, with the exact values and where they come from; which variables hold what; what was tried \
and did not work, and why; what is still open, and the next step. Leave out the data itself: the variables keep it."""

_FORM = "Reply with the summary alone, as plain text of at most {words} words. Write no code now."
_WORDS = 300
_MARKER = re.compile(r"^\s*\[\[ ## \w+ ## \]\]\s*$", re.MULTILINE)


class Compact(dspy.Signature):
    __doc__ = COMPACT

    task: str = dspy.InputField(desc="What is asked, shortened")
    turns: list[dict[str, str]] = dspy.InputField(desc="The turns, shortened: the reply and its output")
    summary: str = dspy.OutputField(desc="What is known and what is open")


class CompactAdapter(ConversationAdapter):
    """The root's conversation as it was sent, and the request for a summary behind it; the reply is the summary."""

    def parse(self, signature: Signature, completion: str) -> dict[str, Any]:
        """The reply as the summary.

        Raises:
            AdapterParseError: It is empty, or has more outputs than one.
        """
        if current() is None:
            return super().parse(signature, completion)
        text = _MARKER.sub("", completion).strip()
        names = list(signature.output_fields)
        if not text or len(names) != 1:
            raise AdapterParseError(
                adapter_name=type(self).__name__,
                signature=signature,
                lm_response=completion,
                message="The reply is no summary.",
            )
        return {names[0]: text}

    def _question(self, signature: Signature, demos: list[dict[str, Any]], short: bool) -> str:
        parts = [signature.instructions.strip()]
        parts += [
            f"For example, for the task\n{demo.get('task', '')}\nthe summary was:\n{demo['summary']}"
            for demo in demos
            if demo.get("summary")
        ]
        parts.append(_FORM.format(words=_WORDS))
        return "\n\n".join(part for part in parts if part)

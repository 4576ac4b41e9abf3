"""The hand-written way: ask each chunk by itself, many at once, and put the findings together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import dspy

from rlm_dspy._aio import gathered, run_sync
from rlm_dspy.evaluation.texts import longest, pieces, text_of

__all__ = ["Chunks", "Find"]

_MOST_ROUNDS = 4


class Find(dspy.Signature):
    """Write down everything in this part of a larger input that helps to answer the question: facts, names and numbers
    word for word, counts of what is in this part alone. Do not answer the question itself; other parts are read by
    others. If there is nothing, say "nothing"."""

    part: str = dspy.InputField()
    question: str = dspy.InputField()
    findings: str = dspy.OutputField()


class Chunks(dspy.Module):
    """Map and reduce over the longest input.

    Where the findings together do not fit one prompt, they are gone through in the same way again, up to four times; of
    what does not fit even then only the beginning is seen. An input that fits as it is is not cut into chunks.

    Args:
        signature: Of the task.
        fitting: Gives the characters of input that fit the window of an LM.
        sub_lm: The LM that is asked about chunks; None for ``dspy.settings.lm``.
        width: Calls at once.

    Attributes:
        find: The predictor for a chunk.
        answer: The predictor of the task's signature, whose longest input is replaced by the findings.
    """

    def __init__(self, signature: Any, fitting: Callable[[Any], int], *, sub_lm: Any = None, width: int = 16) -> None:
        super().__init__()
        self.find = dspy.Predict(Find)
        self.answer = dspy.Predict(signature)
        self.sub_lm = sub_lm
        self.width = width
        self._fitting = fitting

    def forward(self, **inputs: Any) -> dspy.Prediction:
        """See `aforward`."""
        return run_sync(self.aforward(**inputs))

    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        """Answer from what was found in each chunk."""
        texts = {name: text_of(value) for name, value in inputs.items()}
        name = longest(texts)
        text = texts.pop(name)
        question = "\n".join(f"{other}: {value}" for other, value in texts.items())
        rest = len(question)
        root = self.answer.lm or dspy.settings.lm
        room = max(1_000, self._fitting(root) - rest)
        lm = self.find.lm or self.sub_lm or dspy.settings.lm
        size = max(1_000, self._fitting(lm) - rest)
        for _ in range(_MOST_ROUNDS):
            if len(text) <= room:
                break
            found = await self._found(list(pieces(text, size)), question, lm)
            text = "\n\n".join(f"[{number}] {one}" for number, one in enumerate(found, start=1) if one)
        return await self.answer.acall(**{**texts, name: text[:room]})

    async def _found(self, parts: list[str], question: str, lm: Any) -> list[str]:
        gate = asyncio.Semaphore(self.width)

        async def one(part: str) -> str:
            async with gate:
                prediction = await self.find.acall(part=part, question=question, lm=lm)
            findings = str(prediction.findings or "").strip()
            return "" if findings.lower().strip('."') == "nothing" else findings

        return await gathered([one(part) for part in parts])

"""``dspy.RLM`` with its ``LocalInterpreter``, a process that is not confined."""

from __future__ import annotations

import asyncio

import dspy
from dspy.primitives.local_interpreter import LocalInterpreter

from benchmarks.engines import Engine
from benchmarks.engines.bare import lm
from benchmarks.work import Work, context


def prepare(work: Work, address: str) -> Engine:
    """See `benchmarks.engines`."""
    root = lm(work.root_model("dspy"), address)
    rlm = dspy.RLM(
        "context -> answer",
        max_iters=work.turns,
        max_llm_calls=max(work.sub_calls, 1),
        sub_lm=lm(work.sub_model("dspy"), address),
        interpreter_factory=LocalInterpreter,
    )
    text = context(work.context)

    def one() -> None:
        with dspy.context(lm=root):
            _check(rlm(context=text))

    async def many() -> None:
        with dspy.context(lm=root):
            for prediction in await asyncio.gather(*(rlm.acall(context=text) for _ in range(work.runs))):
                _check(prediction)

    return Engine(one if work.runs == 1 else lambda: asyncio.run(many()))


def _check(prediction: dspy.Prediction) -> None:
    assert prediction.answer == "ok", prediction

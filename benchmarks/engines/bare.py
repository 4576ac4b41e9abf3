"""The same LM calls through ``dspy.Predict``, with no RLM round them."""

from __future__ import annotations

import asyncio

import dspy

from benchmarks.engines import Engine
from benchmarks.work import Work

# As long as the prompts of our root are: the contract, and what a turn of these scripts adds.
_CONTRACT, _TURN = 2_600, 260


def prepare(work: Work, address: str) -> Engine:
    """See `benchmarks.engines`."""
    root = lm(work.root_model("bare"), address)
    sub = lm(work.sub_model("bare"), address)
    predict = dspy.Predict("prompt -> response")
    prompts = ["x" * (_CONTRACT + _TURN * turn) for turn in range(work.turns)]

    def one() -> None:
        with dspy.context(lm=root):
            predict(prompt=prompts[0])
        with dspy.context(lm=sub):
            for number in range(work.serial):
                predict(prompt=f"Question {number}")
        if work.batch:
            asyncio.run(batch())
        with dspy.context(lm=root):
            for prompt in prompts[1:]:
                predict(prompt=prompt)

    async def batch() -> None:
        width = asyncio.Semaphore(work.width)

        async def ask(number: int) -> None:
            async with width:
                await predict.acall(prompt=f"Question {number}")

        with dspy.context(lm=sub):
            await asyncio.gather(*(ask(number) for number in range(work.batch)))

    async def many() -> None:
        async def chain() -> None:
            for prompt in prompts:
                await predict.acall(prompt=prompt)

        with dspy.context(lm=root):
            await asyncio.gather(*(chain() for _ in range(work.runs)))

    return Engine(one if work.runs == 1 else lambda: asyncio.run(many()))


def lm(model: str, address: str) -> dspy.LM:
    """A ``dspy.LM`` for the server, without cache and retries."""
    return dspy.LM(f"openai/{model}", api_base=f"{address}/v1", api_key="none", cache=False, num_retries=0)

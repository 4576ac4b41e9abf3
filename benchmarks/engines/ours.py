"""``rlm_dspy.RLM`` in its default, confined environment."""

from __future__ import annotations

import asyncio
import itertools

import dspy

from benchmarks.engines import Engine
from benchmarks.engines.bare import lm
from benchmarks.work import Work, context
from rlm_dspy import RLM, environments

_numbers = itertools.count(1)


def prepare(work: Work, address: str) -> Engine:
    """See `benchmarks.engines`."""
    root = lm(work.root_model("ours"), address)
    rlm = RLM(
        "context -> answer: str",
        max_iters=work.turns,
        max_llm_calls=max(work.sub_calls, 1),
        max_concurrency=work.width,
        sub_lm=lm(work.sub_model("ours"), address),
    )
    text = context(work.context)
    warm_environment = environments.local()

    def program() -> RLM:
        # An environment that was never used before has no warm sandboxes.
        fresh = environments.local(max_output=1_000_000 + next(_numbers)) if work.cold else warm_environment
        return rlm.with_options(interpreter=fresh)

    def one() -> None:
        with dspy.context(lm=root):
            _check(program()(context=text))

    async def many() -> None:
        with dspy.context(lm=root):
            for prediction in await asyncio.gather(*(program().acall(context=text) for _ in range(work.runs))):
                _check(prediction)

    def before() -> None:
        if not work.cold:
            environments.warm(warm_environment, work.runs)

    return Engine(one if work.runs == 1 else lambda: asyncio.run(many()), before)


def _check(prediction: dspy.Prediction) -> None:
    assert prediction.outcome == "submitted" and prediction.answer == "ok", prediction

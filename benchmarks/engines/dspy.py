"""``dspy.RLM`` with its ``LocalInterpreter``, a process that is not confined.

Set as fast as it can be: this interpreter needs no Deno, as the default one does; ``dspy.Parallel`` overlaps the starts
of many runs, which ``asyncio.gather`` over ``acall`` does one after the other (16 runs: 0.7 s, not 2.1 s). The width of
``llm_query_batched`` is 8 and no option (``_make_llm_tools`` of dspy 3.4.1).
"""

from __future__ import annotations

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

    def many() -> None:
        parallel = dspy.Parallel(num_threads=work.runs, max_errors=1, disable_progress_bar=True)
        asked = dspy.Example(context=text).with_inputs("context")
        with dspy.context(lm=root):
            for prediction in parallel([(rlm, asked)] * work.runs):
                _check(prediction)

    return Engine(one if work.runs == 1 else many)


def _check(prediction: dspy.Prediction) -> None:
    assert prediction.answer == "ok", prediction

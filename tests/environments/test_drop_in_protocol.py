"""Our interpreters inside DSPy's own modules."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from dspy.utils.dummies import DummyLM

from rlm_dspy.environments.inprocess import InProcess
from rlm_dspy.environments.subprocess_env import Subprocess

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
ENVIRONMENTS = pytest.mark.parametrize(
    "environment", [Subprocess(timeout=60), InProcess(timeout=60)], ids=lambda e: e.name
)


def turns(*codes: str) -> DummyLM:
    return DummyLM([{"reasoning": "r", "code": f"```python\n{code}\n```"} for code in codes])


@ENVIRONMENTS
def test_dspy_rlm(environment: Any) -> None:
    """State, tools by position, an error turn, an input that is rebound, typed SUBMIT."""

    def lookup(key: str) -> str:
        """Look a key up."""
        return f"<{key}>"

    lm = turns(
        "n = len(context)\nprint('seen', n)\nlookup('a')",
        "context = 'mine'\n1/0",
        "SUBMIT(answer=context + lookup(key='b'), count=n)",
    )
    rlm = dspy.RLM(
        "context: str -> answer: str, count: int", tools=[lookup], interpreter_factory=environment, max_iters=5
    )
    with dspy.context(lm=lm):
        prediction = rlm(context="a\0{}'\"\\" * 1000)
    assert (prediction.answer, prediction.count) == ("mine<b>", 7000)
    outputs = [entry["output"] for entry in prediction.trajectory]
    assert outputs[0] == "seen 7000\n'<a>'" and "ZeroDivisionError" in outputs[1] and "1/0" in outputs[1]


@ENVIRONMENTS
def test_dspy_rlm_sub_calls(environment: Any) -> None:
    """``llm_query`` and its batch reach the sub LM."""
    lm = turns("SUBMIT(answer=llm_query('q') + ''.join(llm_query_batched(['a', 'b'])))")
    sub = DummyLM([{"response": "x"}] * 3)
    rlm = dspy.RLM("question -> answer", sub_lm=sub, interpreter_factory=environment)
    with dspy.context(lm=lm):
        prediction = rlm(question="?")
    assert prediction.answer and len(sub.history) == 3


def test_dspy_rlm_async_and_configured() -> None:
    import asyncio

    async def check() -> str:
        rlm = dspy.RLM("question -> answer")
        with dspy.context(
            lm=turns("await __import__('asyncio').sleep(0)\nSUBMIT(question.upper())"),
            interpreter_factory=Subprocess(timeout=60),
        ):
            return (await rlm.acall(question="abc")).answer

    assert asyncio.run(check()) == "ABC"


@ENVIRONMENTS
def test_dspy_code_act(environment: Any) -> None:
    lm = DummyLM(
        [
            {"generated_code": "```python\nresult = triple(14)\nprint(result)\n```", "finished": "True"},
            {"reasoning": "r", "answer": "42"},
        ]
    )
    act = dspy.CodeAct("question -> answer", tools=[triple], interpreter_factory=environment)
    with dspy.context(lm=lm):
        prediction = act(question="3 x 14?")
    assert prediction.answer == "42" and "42" in str(prediction.trajectory["code_output_0"])


def triple(x: int) -> int:
    """Three times x."""
    return 3 * x

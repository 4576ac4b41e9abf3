"""Any DSPy ``CodeInterpreter`` runs an RLM's code, and our environments run ``dspy.RLM``'s."""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")


def chat(source: str, reasoning: str = "plan") -> str:
    """A reply in DSPy's chat format, as a model that was prompted by ``dspy.RLM`` writes it."""
    return f"[[ ## reasoning ## ]]\n{reasoning}\n\n[[ ## code ## ]]\n```python\n{source}\n```\n\n[[ ## completed ## ]]"


def lookup(key: str, n: int = 2) -> list[str]:
    """Find a key."""
    return [f"{key}{i}" for i in range(n)]


class InMemory:
    """The smallest interpreter that satisfies DSPy's protocol: ``exec`` in this process."""

    def __init__(self) -> None:
        self.tools: dict[str, Any] = {}
        self.output_fields: list[dict[str, Any]] | None = None
        self._space: dict[str, Any] = {}

    def start(self) -> None:
        pass

    def shutdown(self) -> None:
        self._space.clear()

    def execute(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        class Submitted(BaseException):
            pass

        def submit(*args: Any, **kwargs: Any) -> None:
            names = [field["name"] for field in self.output_fields or []]
            raise Submitted({**dict(zip(names, args, strict=False)), **kwargs})

        self._space.update(self.tools, SUBMIT=submit, **(variables or {}))
        try:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(code, "<cell>", "exec"), self._space)
        except Submitted as submitted:
            return dspy.primitives.code_interpreter.FinalOutput(submitted.args[0])
        except SyntaxError:
            raise
        except Exception as error:
            raise dspy.CodeExecutionError(f"{type(error).__name__}: {error}") from error
        return printed.getvalue() or None


@pytest.mark.parametrize("factory", [InMemory, dspy.LocalInterpreter])
def test_any_code_interpreter_works_in_ours(factory: Any) -> None:
    lm = ScriptedLM(
        [
            code("n = len(context)\nprint(n, lookup('k'))"),
            code("1 / 0"),
            code("print(llm_query_batched(['a', 'b']), llm_query('c'))"),
            code("SUBMIT(answer='x', n='three')"),
            code("SUBMIT('x', n)"),
        ]
    )
    sub = ScriptedLM(lambda call: call.prompt * 2)
    rlm = RLM("context -> answer: str, n: int", tools=[lookup], sub_lm=sub, interpreter_factory=factory)
    with dspy.context(lm=lm):
        prediction = rlm(context="text")
    outputs = [turn["output"] for turn in prediction.trajectory]
    assert (prediction.answer, prediction.n) == ("x", 4)
    assert outputs[0].strip() == "4 ['k0', 'k1']"
    assert "ZeroDivisionError" in outputs[1]
    assert outputs[2].strip() == "['aa', 'bb'] cc"
    assert "SUBMIT was refused: n: expected int" in outputs[3]
    assert len(sub.calls) == 3


class FailsAtItsEnd(InMemory):
    """An interpreter whose ``shutdown`` raises."""

    def shutdown(self) -> None:
        raise OSError("cannot end")


def test_an_interpreter_that_fails_at_its_end_costs_no_answer() -> None:
    rlm = RLM("query -> answer", interpreter_factory=FailsAtItsEnd)
    with dspy.context(lm=ScriptedLM([code("SUBMIT('x')")])):
        prediction = rlm(query="?")
    assert (prediction.outcome, prediction.answer) == ("submitted", "x")
    notes = [event.message for event in prediction.trajectory.events if event.kind == "note"]
    assert notes == ["the session did not close: OSError: cannot end"]


def test_foreign_interpreters_do_not_block_the_loop() -> None:
    lm = ScriptedLM(lambda call: code("import time; time.sleep(0.3); SUBMIT('x')"))
    rlm = RLM("query -> answer", interpreter_factory=dspy.LocalInterpreter)
    gaps = []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.005)
            gaps.append(time.perf_counter() - last)
            last = time.perf_counter()

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        await asyncio.gather(*(rlm.acall(query="?") for _ in range(3)))
        ticking.cancel()

    with dspy.context(lm=lm):
        asyncio.run(main())
    assert max(gaps) < 0.25


def test_our_interpreter_works_in_dspys_rlm(sandbox: Environment) -> None:
    replies = [
        chat("lines = context.splitlines()\nprint(len(lines), lookup('k'))\ncontext = 'changed'"),
        chat("print(context, llm_query('c'))"),
        chat("SUBMIT(answer=str(len(lines)))"),
    ]
    program = dspy.RLM(
        "context, query -> answer",
        tools=[lookup],
        sub_lm=ScriptedLM(lambda call: "sub"),
        interpreter_factory=sandbox,
    )
    with dspy.context(lm=ScriptedLM(replies)):
        prediction = program(context="a\nb", query="?")
    assert prediction.answer == "2"
    assert prediction.trajectory[0]["output"].strip() == "2 ['k0', 'k1']"
    assert prediction.trajectory[1]["output"].strip() == "changed sub"


def test_sub_calls_of_several_outputs_work_in_a_foreign_interpreter() -> None:
    sub = ScriptedLM(lambda call: "[[ ## label ## ]]\ngood\n\n[[ ## why ## ]]\nso\n\n[[ ## completed ## ]]")
    rlm = RLM(
        "-> answer",
        interpreter=dspy.LocalInterpreter,
        sub_lm=sub,
        sub_calls={"judge": "text, more: str -> label, why"},
        guidance=False,
    )
    with dspy.context(lm=ScriptedLM([code("r = judge('x', more='y')\nSUBMIT(r['label'] + r['why'])")])):
        assert rlm().answer == "goodso"

"""An RLM as a tool of an agent."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import dspy
import pandas
import pydantic
import pytest

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.testing import ScriptedLM, code

LOG = "Iona late fog\nJura late ice\nIona late fog\n"


class CountLate(dspy.Signature):
    """How often a ship was late."""

    log: str = dspy.InputField()
    ship: str = dspy.InputField(desc="name of the ship")
    cause: Literal["fog", "ice"] = dspy.InputField(default="fog")
    times: int = dspy.OutputField()


def counter(sandbox: Environment, *replies: str) -> tuple[RLM, ScriptedLM]:
    count = "SUBMIT(times=sum(ship in line and cause in line for line in log.splitlines()))"
    return RLM(CountLate, interpreter_factory=sandbox), ScriptedLM([code(reply) for reply in replies or [count]])


def test_an_agent_is_told_the_inputs_and_given_the_answer(sandbox: Environment) -> None:
    rlm, root = counter(sandbox)
    rlm.set_lm(root)
    tool = rlm.as_tool(inputs={"log": LOG})

    def field(**values: str) -> str:
        return "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in values.items())

    agent = ScriptedLM(
        [
            field(next_thought="Count.", next_tool_name="count_late", next_tool_args='{"ship": "Iona"}'),
            field(next_thought="Done.", next_tool_name="finish", next_tool_args="{}"),
            field(reasoning="It was counted.", answer="twice"),
        ]
    )
    with dspy.context(lm=agent):
        pred = dspy.ReAct("question -> answer", tools=[tool])(question="How often was the Iona late for fog?")
    assert (pred.answer, pred.trajectory["observation_0"]) == ("twice", 2)
    told = str(agent.calls[0].messages)
    assert "How often a ship was late." in told and "name of the ship" in told and "Iona late fog" not in told


def test_its_arguments_are_the_inputs_that_are_not_given(sandbox: Environment) -> None:
    tool = counter(sandbox)[0].as_tool(inputs={"log": LOG})
    assert tool.name == "count_late" and tool.desc == "How often a ship was late."
    assert tool.args["ship"] == {"type": "string", "description": "name of the ship"}
    assert tool.args["cause"]["enum"] == ["fog", "ice"] and tool.args["cause"]["default"] == "fog"
    assert "log" not in tool.args
    with pytest.raises(ValueError, match="cause"):
        tool(ship="Iona", cause="rain")


def test_awaited_it_does_not_block_the_loop(sandbox: Environment) -> None:
    rlm, root = counter(sandbox)
    rlm.set_lm(root)
    tool = rlm.as_tool(inputs={"log": LOG}, name="late", desc="Late ships.")

    async def both() -> tuple[Any, bool]:
        passed = asyncio.Event()
        asyncio.get_running_loop().call_soon(passed.set)
        return await tool.acall(ship="Jura", cause="ice"), passed.is_set()

    assert asyncio.run(both()) == (1, True)


def test_a_synchronous_call_in_a_running_loop_is_answered(sandbox: Environment) -> None:
    """As in a notebook."""
    rlm, root = counter(sandbox)
    rlm.set_lm(root)
    tool = rlm.as_tool(inputs={"log": LOG})

    async def cell() -> Any:
        return tool(ship="Iona")

    assert asyncio.run(cell()) == 2


def test_several_outputs_are_a_dict(sandbox: Environment) -> None:
    rlm = RLM("text -> first: str, length: int", interpreter_factory=sandbox)
    rlm.set_lm(ScriptedLM([code("SUBMIT(first=text[0], length=len(text))")]))
    tool = rlm.as_tool()
    assert tool.name == "ask" and tool(text="abc") == {"first": "a", "length": 3}


def test_a_run_without_an_answer_is_an_error_that_says_why(sandbox: Environment) -> None:
    rlm, _ = counter(sandbox)
    babbling = ScriptedLM(["I do not know."] * 50)
    with dspy.context(lm=babbling), pytest.raises(RuntimeError, match=r"(?s)no answer: .*I do not know\."):
        rlm.as_tool(inputs={"log": LOG})(ship="Iona")


def test_inputs_that_no_schema_can_tell_are_taken_as_they_are(sandbox: Environment) -> None:
    class Rows(dspy.Signature):
        """How many rows."""

        table: pydantic.InstanceOf[pandas.DataFrame] = dspy.InputField()
        rows: int = dspy.OutputField()

    rlm = RLM(Rows, interpreter_factory=sandbox)
    rlm.set_lm(ScriptedLM([code("SUBMIT(rows=len(table))")]))
    assert rlm.as_tool()(table=pandas.DataFrame({"a": [1, 2, 3]})) == 3


def test_one_rlm_is_the_tool_of_another(sandbox: Environment) -> None:
    inner, root = counter(sandbox)
    inner.set_lm(root)
    outer = RLM("question -> answer: int", tools=[inner.as_tool(inputs={"log": LOG})], interpreter_factory=sandbox)
    with dspy.context(lm=ScriptedLM([code("SUBMIT(answer=count_late(ship='Iona') * 10)")])):
        assert outer(question="Ten times as often?").answer == 20


def test_a_tool_called_synchronously_within_an_awaited_one_gives_its_answer(sandbox: Environment) -> None:
    inner, count = counter(sandbox)
    inner.set_lm(count)
    tool = inner.as_tool(inputs={"log": LOG})

    def late(ship: str) -> int:
        return int(tool(ship=ship))

    outer = RLM("query -> answer: int", interpreter_factory=sandbox, tools=[late])
    outer.set_lm(ScriptedLM([code("SUBMIT(answer=late('Iona'))")]))

    async def asked() -> Any:
        return await outer.as_tool().acall(query="How often?")

    assert asyncio.run(asked()) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": {"lgo": LOG}}, "no input is named 'lgo'; the signature has log, ship, cause"),
        ({"name": "a b"}, "a b"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(sandbox: Environment, options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        counter(sandbox)[0].as_tool(**options)

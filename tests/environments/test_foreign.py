"""`ForeignSession`: DSPy's own interpreters and a stranger's, driven through the session contract."""

# ruff: noqa: E501
from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import datetime
import decimal
import threading
import time
import uuid
from typing import Any

import dspy
import numpy as np
import pandas as pd
import pydantic
import pytest
from dspy.primitives.code_interpreter import FinalOutput
from dspy.primitives.sandbox_serializable import SandboxSerializable

from rlm_dspy._aio import run_sync
from rlm_dspy.environments.base import Session
from rlm_dspy.environments.foreign import ForeignSession, json_ready

pytestmark = pytest.mark.usefixtures("no_leaks")


class Stranger:
    """A third party's interpreter: `exec` in the host, bound to one thread, no extras."""

    execution_instructions = "Be nice."

    def __init__(self) -> None:
        self.tools: dict[str, Any] = {}
        self.ns: dict[str, Any] = {}
        self.log: list[Any] = []
        self.owner: int | None = None

    def start(self) -> None:
        self.owner = self.owner or threading.get_ident()

    def execute(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        assert threading.get_ident() == self.owner, "called from a thread that is not the owner"
        self.log.append(dict(variables or {}))
        self.ns.update(variables or {}, **self.tools)
        if code == "die":
            raise dspy.CodeInterpreterError("the session is over")
        if code == "final":
            return FinalOutput({"a": 1, "b": 2})
        if code == "list":
            return ["one", "two"]
        try:
            return eval(code, self.ns)
        except SyntaxError:
            raise
        except Exception as error:
            raise dspy.CodeExecutionError(f"{type(error).__name__}: {error}") from error

    def shutdown(self) -> None:
        self.log.append("shutdown")


def drive(coroutine: Any) -> Any:
    return run_sync(coroutine)


def test_a_stranger() -> None:
    made: list[Stranger] = []

    def factory() -> Stranger:
        made.append(Stranger())
        return made[-1]

    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    async def tool(a: int, b: int = 2) -> Any:
        """Adds."""
        await asyncio.sleep(0)
        return [a + b, variable.get(), asyncio.get_running_loop() is loop]

    async def check() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        variable.set("mine")
        session = ForeignSession(factory)
        assert isinstance(session, Session)
        await session.set({"x": (1, {2})})
        assert session.execution_instructions == ""
        result = await session.run("tool(1, b=x[0])", {"tool": tool})
        assert result.value == "[2, 'mine', True]" and result.host_seconds > 0
        assert session.execution_instructions == "Be nice."
        assert (await session.run("x")).value == "[1, [2]]"
        assert (await session.run("list")).stdout == "one\ntwo"
        assert (await session.run("'printed'")).stdout == "printed"
        assert (await session.run("None")).stdout == ""
        result = await session.run("1/0")
        assert result.error is not None
        assert (result.error.type, result.error.message, result.error.kind) == (
            "ZeroDivisionError",
            "division by zero",
            "runtime",
        )
        result = await session.run("1 +")
        assert result.error is not None and result.error.kind == "syntax"
        result = await session.run("final")
        assert result.submission is not None and dict(result.submission.kwargs) == {"a": 1, "b": 2}
        assert "tool" not in made[0].tools
        with pytest.raises(dspy.CodeInterpreterError, match="over"):
            await session.run("die")
        await session.close()
        await session.close()
        with pytest.raises(dspy.CodeInterpreterError, match="closed"):
            await session.run("1")

    loop: Any = None
    drive(check())
    assert len(made) == 1 and made[0].log[-1] == "shutdown"
    # Variables cross once, with the first cell after they were set.
    assert [entry for entry in made[0].log if isinstance(entry, dict) and entry] == [{"x": [1, [2]]}]


def test_dspys_local_interpreter() -> None:
    async def check() -> None:
        session = ForeignSession(dspy.LocalInterpreter)

        async def tool(x: Any) -> Any:
            return {"got": x, "when": datetime.date(2024, 1, 2)}

        await session.set({"context": "a\0\n{}'\"", "when": datetime.datetime(2024, 1, 2)})
        result = await session.run("print(len(context), when)\ny = tool([1])", {"tool": tool})
        assert result.stdout == "7 2024-01-02T00:00:00" and result.error is None
        assert (await session.run("y")).value == "{'got': [1], 'when': '2024-01-02'}"
        assert await session.variables() == {"context": "str", "when": "str", "y": "dict"}
        session.output_fields = [{"name": "answer"}]
        result = await session.run("SUBMIT(answer=y['got'])")
        assert result.submission is not None and dict(result.submission.kwargs) == {"answer": [1]}
        assert not session.describe().confined
        await session.close()

    drive(check())


def test_past_the_time_limit_it_is_replaced() -> None:
    async def check() -> None:
        session = ForeignSession(dspy.LocalInterpreter, timeout=1.0)
        await session.set({"x": 1})
        start = time.monotonic()
        result = await session.run("while True: pass")
        assert result.error is not None and result.error.kind == "timeout" and result.lost == ("x",)
        assert time.monotonic() - start < 30
        assert (await session.run("40 + 2")).value == "42"

        async def slow() -> int:
            await asyncio.sleep(1.2)
            return 1

        assert (await session.run("slow()", {"slow": slow})).value == "1"
        await session.close()

    drive(check())


def test_cancelling_replaces_it_too() -> None:
    async def check() -> None:
        session = ForeignSession(dspy.LocalInterpreter)
        started = asyncio.Event()

        async def wait() -> None:
            started.set()
            await asyncio.sleep(1000)

        task = asyncio.ensure_future(session.run("wait()", {"wait": wait}))
        await asyncio.wait_for(started.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await session.run("1")).value == "1"
        await session.close()

    drive(check())


class Table(SandboxSerializable):
    def sandbox_setup(self) -> str:
        return "import json"

    def to_sandbox(self) -> bytes:
        return b"[1, 2]"

    def sandbox_assignment(self, var_name: str, data_expr: str) -> str:
        return f"{var_name} = json.loads({data_expr})"

    def rlm_preview(self, max_chars: int = 500) -> str:
        return "table"


def test_sandbox_serializable() -> None:
    async def check() -> None:
        session = ForeignSession(dspy.LocalInterpreter)
        await session.set({"t": Table(), "other": 3})
        assert (await session.run("[t, other]")).value == "[[1, 2], 3]"
        await session.close()

    drive(check())


def test_a_factory_of_something_else() -> None:
    async def check() -> None:
        session = ForeignSession(dict)
        with pytest.raises(TypeError, match="CodeInterpreter, not dict"):
            await session.open()
        await session.close()

    drive(check())


@dataclasses.dataclass
class Box:
    item: Any


class Model(pydantic.BaseModel):
    n: int


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, {2}), [1, [2]]), (Box(Model(n=1)), {"item": {"n": 1}}), (float("nan"), None), (b"abc", "abc"), (b"\xff", "/w=="),
        ({1: decimal.Decimal("1.5")}, {"1": "1.5"}), (datetime.timedelta(seconds=2), 2.0), (np.arange(2), [0, 1]), (np.float64(1.5), 1.5),
        (pd.DataFrame({"a": [1]}), [{"a": 1}]), (uuid.UUID(int=0), str(uuid.UUID(int=0))), (dspy.Prediction(x=1), {"x": 1}), (range(2), [0, 1]),
    ],
)  # fmt: skip
def test_json_ready(value: Any, expected: Any) -> None:
    assert json_ready(value) == expected


def test_what_json_has_not() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(ValueError, match="nested"):
        json_ready(cycle)
    with pytest.raises(TypeError, match="'object' cannot cross"):
        json_ready({"x": object()})

"""Tools: what the root is told of them, and how the code may call them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any, Literal

import dspy
import pydantic
import pytest

from rlm_dspy import RLM, ConfigurationError, subscribe
from rlm_dspy import tools as tools_
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import ScriptedLM, code


class Item(pydantic.BaseModel):
    name: str
    count: int = 1


def look(key: str, n: int = 3) -> str:
    """Look a key up."""
    return f"{key}*{n}"


def names(name: str, tool: str, function: str = "f", run: int = 0) -> list[Any]:
    """Parameters with the names that a careless wrapper would use itself."""
    return [name, tool, function, run]


def many(first: int, *rest: int, scale: int = 1) -> int:
    return (first + sum(rest)) * scale


def options(key: str, **more: Any) -> dict[str, Any]:
    return {"key": key, **more}


def only_position(a: int, b: int = 2, /) -> int:
    return a * 10 + b


async def fetch(key: str, kind: Literal["a", "b"] = "a") -> str:
    """Fetch."""
    await asyncio.sleep(0)
    return key + kind


def takes_model(item: Item, items: list[Item]) -> int:
    return item.count + sum(i.count for i in items)


class Store:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def put(self, key: str) -> int:
        """Put it."""
        self.seen.append(key)
        return len(self.seen)

    def __call__(self, key: str) -> str:
        """Call it."""
        return f"called {key}"


class AsyncStore:
    async def __call__(self, key: str) -> str:
        return f"awaited {key}"


ALL: list[Any] = [
    *(look, names, many, options, only_position, fetch, takes_model, Store().put),
    dspy.Tool(Store(), name="store"),
    dspy.Tool(AsyncStore(), name="astore"),
    dspy.Tool(functools.partial(look, n=9), name="nine"),
    dspy.Tool(lambda x: x, name="echo"),
]


def answer(sandbox: Environment, source: str, tools: list[Any], **kwargs: Any) -> Any:
    with dspy.context(lm=ScriptedLM([code(source)])):
        prediction = RLM("-> a: list", tools=tools, interpreter=sandbox, max_iters=1, **kwargs)()
    assert prediction.outcome == "submitted", prediction.trajectory
    return prediction.a


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("look('k')", "k*3"),
        ("look('k', 5)", "k*5"),
        ("look(n=1, key='k')", "k*1"),
        ("names(name='a', tool='b', function='c', run=4)", ["a", "b", "c", 4]),
        ("names('a', 'b')", ["a", "b", "f", 0]),
        ("many(1, 2, 3, scale=2)", 12),
        ("many(first=1)", 1),
        ("options('k', x=1, name='n', tool='t')", {"key": "k", "x": 1, "name": "n", "tool": "t"}),
        ("only_position(1)", 12),
        ("only_position(1, 3)", 13),
        ("fetch('k')", "ka"),
        ("fetch('k', kind='b')", "kb"),
        ("takes_model({'name': 'x', 'count': 2}, [{'name': 'y'}])", 3),
        ("put('x')", 1),
        ("store('x')", "called x"),
        ("astore(key='x')", "awaited x"),
        ("nine('x')", "x*9"),
        ("echo({'a': (1, None, b'\\x00')})", {"a": (1, None, b"\x00")}),
        ("echo('\\ud800\\0{}')", "\ud800\0{}"),
    ],
)
def test_called_as_python_calls_it(sandbox: Environment, call: str, result: Any) -> None:
    tools = [*ALL[:7], Store().put, *ALL[8:]]
    assert answer(sandbox, f"SUBMIT([{call}])", tools) == [result]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("look()", "key"),
        ("look('a', 1, 2)", "takes 2 positional arguments but 3 were given"),
        ("look('a', key='b')", "multiple values"),
        ("look('a', nope=1)", "nope"),
        ("look('a', n='many')", "n is invalid"),
        ("fails()", "ZeroDivisionError: on the host"),
        ("empty()", "StopIteration"),
        ("strange()", "cannot cross|object"),
    ],
)
def test_a_wrong_call_is_an_error_of_the_code(sandbox: Environment, call: str, error: str) -> None:
    def fails() -> None:
        raise ZeroDivisionError("on the host")

    def empty() -> Any:
        return next(iter(()))

    def strange() -> Any:
        return object()

    source = f"try:\n    {call}\nexcept Exception as e:\n    SUBMIT([type(e).__name__, str(e)])"
    kind, message = answer(sandbox, source, [look, fails, empty, strange])
    assert kind in ("RuntimeError", "TypeError", "ValueError")
    assert any(part in message for part in error.split("|")), message


def test_described_with_full_types_defaults_and_docs() -> None:
    described = {name: tools_.describe(tool) for name, tool in tools_.normalize(ALL).items()}
    calls = {name: info.call for name, info in described.items()}
    assert calls["look"] == "look(key: str, n: int = 3) -> str"
    assert calls["fetch"] == "fetch(key: str, kind: Literal['a', 'b'] = 'a') -> str"
    assert calls["takes_model"] == "takes_model(item: Item, items: list[Item]) -> int"
    assert calls["many"] == "many(first: int, *rest: int, scale: int = 1) -> int"
    assert calls["options"] == "options(key: str, **more: Any) -> dict[str, Any]"
    assert calls["store"] == "store(key: str) -> str"
    assert calls["put"] == "put(key: str) -> int"
    assert calls["nine"].startswith("nine(key")
    assert described["look"].doc == "Look a key up." and described["store"].doc == "Call it."


def test_a_large_default_is_not_written_out() -> None:
    def search(key: str, table: list[int] = list(range(100_000))) -> str:  # noqa: B006
        return key

    assert len(tools_.describe(dspy.Tool(search)).call) < 200


def test_arguments_described_beside_a_wrapper_can_be_positional(sandbox: Environment) -> None:
    def wrapper(**kwargs: Any) -> list[Any]:
        return sorted(kwargs.items())

    tool = dspy.Tool(
        wrapper, name="remote", desc="Remote.", args={"x": {"type": "integer"}, "y": {"type": "string"}}, arg_types={}
    )
    assert answer(sandbox, "SUBMIT(remote(1, y='b'))", [tool]) == [("x", 1), ("y", "b")]
    assert "x: integer" in tools_.describe(tool).call or "kwargs" in tools_.describe(tool).call


def test_slow_tools_run_side_by_side(sandbox: Environment) -> None:
    gate = threading.Barrier(8, timeout=20)

    def meet(n: int) -> int:
        gate.wait()
        return n

    source = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(8) as pool:\n    r = list(pool.map(meet, range(8)))\nSUBMIT(r)"
    )
    assert answer(sandbox, source, [meet]) == list(range(8))


def test_a_tool_may_run_an_rlm_of_its_own(sandbox: Environment) -> None:
    inner = RLM("q -> a", interpreter=sandbox, max_iters=1)

    def ask(q: str) -> str:
        with dspy.context(lm=ScriptedLM([code("SUBMIT(q.upper())")])):
            return inner(q=q).a

    async def aask(q: str) -> str:
        with dspy.context(lm=ScriptedLM([code("SUBMIT(q.title())")])):
            return (await inner.acall(q=q)).a

    assert answer(sandbox, "SUBMIT([ask('a b'), aask('a b')])", [ask, aask]) == ["A B", "A B"]


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_tool_that_ends_the_program_ends_the_run_and_leaves_nothing(
    sandbox: Environment, ending: BaseException, how: str
) -> None:
    def stop() -> None:
        raise ending

    async def astop() -> None:
        raise ending

    kinds = []
    program = RLM("-> a", tools=[dspy.Tool(stop if how == "sync" else astop, name="stop")], interpreter=sandbox)
    with dspy.context(lm=ScriptedLM([code("stop()")])), subscribe(lambda event, run: kinds.append(event.kind)):
        with pytest.raises(type(ending)):
            program()
    assert kinds[-1] == "run_ended"
    with dspy.context(lm=ScriptedLM([code("SUBMIT('next')")])):
        assert program().a == "next"


@pytest.mark.parametrize("name", ["llm_query", "llm_query_batched", "SUBMIT", "SHOW_VARS", "print", "dspy", "_dspy_x"])
def test_names_of_the_repl_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="reserved"):
        RLM("q -> a", tools=[dspy.Tool(look, name=name)])
    if name.startswith("_"):
        return  # pydantic refuses such a field itself
    with pytest.raises(ConfigurationError, match="reserved"):
        RLM(dspy.Signature({name: (str, dspy.InputField()), "a": (str, dspy.OutputField())}, "x"))


@pytest.mark.parametrize("name", ["class", "not a name", "1x", ""])
def test_a_tool_needs_a_name(name: str) -> None:
    with contextlib.suppress(ConfigurationError):
        # An empty name is replaced by DSPy with the function's own.
        assert list(tools_.normalize([dspy.Tool(look, name=name)])) == ["look"]


@pytest.mark.parametrize("given", [{"f": look}, look, dspy.Tool(look), [3], ["look"]])
def test_tools_are_a_list_of_callables(given: Any) -> None:
    with pytest.raises(TypeError, match=r"tool"):
        tools_.normalize(given)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two tools are named 'look'"):
        tools_.normalize([look, look])


def test_budget_gives_way_to_a_tool_of_that_name(sandbox: Environment) -> None:
    def budget() -> str:
        return "mine"

    assert answer(sandbox, "SUBMIT([budget()])", [budget]) == ["mine"]


def test_what_a_tool_returns_later_does_not_reach_the_next_cell(
    sandbox: Environment, eventually: Callable[..., bool]
) -> None:
    gate, entered = threading.Event(), threading.Event()

    def slow(n: int) -> int:
        entered.set()
        gate.wait(20)
        return n

    source = "import threading\nt = threading.Thread(target=lambda: slow(7), daemon=True); t.start()\n1"
    replies = [code(source), code("SUBMIT([2])")]
    with dspy.context(lm=ScriptedLM(replies)):
        prediction = RLM("-> a: list", tools=[slow], interpreter=sandbox)()
    gate.set()
    assert prediction.a == [2] and prediction.outcome == "submitted"

"""The event log: complete, in order, immutable, JSON-able, and never the run's problem."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Callable
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, Run, subscribe
from rlm_dspy.environments.base import Environment
from rlm_dspy.events import RunStarted
from rlm_dspy.testing import Call, Reply, ScriptedLM, code

SOURCE = "print(look('a'))\nprint(llm_query_batched(['p', 'q']))"


def look(key: str) -> str:
    return key * 2


def record(program: RLM, replies: Any, expect: type[BaseException] | None = None, **inputs: Any) -> list[Any]:
    log: list[Any] = []
    with dspy.context(lm=ScriptedLM(replies)), subscribe(lambda event, run: log.append(event)):
        if expect is None:
            program(**inputs)
        else:
            with pytest.raises(expect):
                program(**inputs)
    return log


@pytest.fixture
def log(sandbox: Environment) -> list[Any]:
    sub = ScriptedLM(lambda call: call.prompt + "!")
    program = RLM("context -> a", tools=[look], sub_lm=sub, interpreter=sandbox)
    return record(program, [code(SOURCE), "nothing", code("SUBMIT('x' * 1000)")], context="c" * 5000)


def test_every_step_is_there_in_order(log: list[Any]) -> None:
    calls = ["call_started", "call_ended", "returned"]
    kinds = [event.kind for event in log]
    assert [kind for kind in kinds if kind not in calls] == [
        "run_started",
        "session_opened",
        *("turn_started", "acted", "executed", "turn_ended"),
        *("turn_started", "acted", "turn_ended"),
        *("turn_started", "acted", "executed", "turn_ended"),
        "run_ended",
    ]
    assert [event.seq for event in log] == list(range(len(log)))
    assert [event.at for event in log] == sorted(event.at for event in log)
    started = [event.call for event in log if event.kind == "call_started"]
    assert sorted(started) == sorted(event.call for event in log if event.kind == "call_ended") == [1, 2, 3]
    assert {event.name for event in log if event.kind == "call_ended"} == {"look", "llm_query_batched"}
    # Of a batch two calls are made, and one thing is given to the code.
    assert sorted(event.name for event in log if event.kind == "returned") == ["llm_query_batched", "look"]


def test_they_are_json_and_hold_no_input(log: list[Any]) -> None:
    text = json.dumps([event.to_dict() for event in log])
    assert "c" * 600 not in text
    assert json.loads(text)[0]["variables"] == {"context": "str, 5,000 characters"}
    assert log[-1].outputs["a"].startswith("xxx") and len(log[-1].outputs["a"]) == 200


def test_they_cannot_be_changed(log: list[Any]) -> None:
    for event in log:
        for field in dataclasses.fields(event):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(event, field.name, None)
    started = log[0]
    assert isinstance(started, RunStarted)
    started.to_dict()["limits"].clear()
    started.to_dict()["variables"]["context"] = "changed"
    assert started.limits and started.variables["context"].startswith("str")


def test_a_failing_subscriber_is_logged_and_the_others_go_on(
    sandbox: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def broken(event: Any, run: Run) -> None:
        raise RuntimeError("subscriber")

    with dspy.context(lm=ScriptedLM([code("SUBMIT('x')")])):
        with subscribe(broken), subscribe(lambda event, run: seen.append(event.kind)):
            assert RLM("-> a", interpreter=sandbox)().a == "x"
    assert seen[-1] == "run_ended" and "an event subscriber failed on run_started" in caplog.text


def test_subscriptions_nest_and_end(sandbox: Environment) -> None:
    counts = {"outer": 0, "inner": 0}

    def counter(name: str) -> Callable[[Any, Run], None]:
        def count(event: Any, run: Run) -> None:
            counts[name] += event.kind == "run_ended"

        return count

    program = RLM("-> a", interpreter=sandbox)
    with dspy.context(lm=ScriptedLM([code("SUBMIT('x')")] * 4)):
        with subscribe(counter("outer")):
            program()
            with subscribe(counter("inner")):
                program()
            program()
        program()
    assert counts == {"outer": 3, "inner": 1}


def test_runs_side_by_side_have_logs_of_their_own(sandbox: Environment) -> None:
    logs: dict[str, list[Any]] = {}
    lock = threading.Lock()

    def collect(event: Any, run: Run) -> None:
        with lock:
            logs.setdefault(run.id, []).append(event)

    async def main() -> None:
        program = RLM("q -> a", interpreter=sandbox)
        with dspy.context(lm=ScriptedLM(lambda call: code("SUBMIT(q)"))), subscribe(collect):
            predictions = await asyncio.gather(*(program.acall(q=f"q{n}") for n in range(6)))
        assert [p.a for p in predictions] == [f"q{n}" for n in range(6)]

    asyncio.run(main())
    assert len(logs) == 6
    for events in logs.values():
        assert [event.seq for event in events] == list(range(len(events)))
        assert [event.kind for event in events][-1] == "run_ended"


# ------------------------------------------------------------------------------------------------- the last event


def ended(log: list[Any]) -> Any:
    assert [event.kind for event in log].count("run_ended") == 1 and log[-1].kind == "run_ended"
    return log[-1]


def test_run_ended_after_an_error_of_the_root(sandbox: Environment) -> None:
    log = record(RLM("-> a", interpreter=sandbox), [Reply(error=RuntimeError("down"))], Exception)
    assert ended(log).outcome == "failed" and "down" in ended(log).error


def test_run_ended_where_no_session_opens() -> None:
    def factory() -> Any:
        raise RuntimeError("no sandbox today")

    assert "no sandbox today" in ended(record(RLM("-> a", interpreter=factory), [], RuntimeError)).error


def test_run_ended_where_an_input_cannot_cross(sandbox: Environment) -> None:
    log = record(RLM("x: list -> a", interpreter=sandbox), [], (TypeError, ValueError), x=[object()])  # type: ignore[arg-type]
    assert ended(log).outcome == "failed"


def test_run_ended_at_a_limit(sandbox: Environment) -> None:
    log = record(RLM("-> a", interpreter=sandbox, max_iters=1), [code("1"), "[[ ## a ## ]]\nb"])
    assert (ended(log).outcome, ended(log).limit, ended(log).outputs) == ("extracted", "max_iters", {"a": "b"})


@pytest.mark.parametrize("source", ["while True: pass", "wait()"])
def test_run_ended_after_a_cancel(sandbox: Environment, source: str) -> None:
    log: list[Any] = []
    gate = threading.Event()

    def wait() -> None:
        gate.wait(20)

    async def main() -> None:
        acted = asyncio.Event()
        loop = asyncio.get_running_loop()

        def collect(event: Any, run: Run) -> None:
            log.append(event)
            if event.kind == ("acted" if source != "wait()" else "call_started"):
                loop.call_soon_threadsafe(acted.set)

        with dspy.context(lm=ScriptedLM([code(source)])), subscribe(collect):
            task = asyncio.create_task(RLM("-> a", interpreter=sandbox, tools=[wait]).acall())
            await asyncio.wait_for(acted.wait(), 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as raised:
                await task
        assert len(raised.value.trajectory) == 1  # type: ignore[attr-defined]

    try:
        asyncio.run(main())
    finally:
        gate.set()
    assert ended(log).outcome == "failed" and "CancelledError" in ended(log).error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_run_ended_when_the_root_ends_the_program(sandbox: Environment, error: BaseException) -> None:
    def policy(call: Call) -> str:
        raise error

    assert ended(record(RLM("-> a", interpreter=sandbox), policy, type(error))).outcome == "failed"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_run_ended_when_extract_ends_the_program(sandbox: Environment, error: BaseException) -> None:
    def policy(call: Call) -> str:
        if call.turn:
            raise error
        return code("1")

    program = RLM("-> a", interpreter=sandbox, max_iters=1)
    assert ended(record(program, policy, type(error))).outcome == "failed"
    assert ended(record(program, [code("SUBMIT('next')")])).outcome == "submitted"

"""Callbacks of runs: turns, sub-calls, children; functions and coroutines; failures that change nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import dspy
import pytest
from dspy.utils.callback import BaseCallback

import rlm_dspy
from rlm_dspy import RLM, Callbacks, callbacks
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, Reply, ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")

MOMENTS = tuple(callbacks.MOMENTS.values())


def lookup(key: str) -> str:
    """Find a key."""
    return key.upper()


def tree(call: Call) -> str:
    if "PART" in call.own[0]["content"]:
        return code("SUBMIT('from below')")
    if call.turn == 0:
        return code("print(rlm_query('PART'), llm_query_batched(['x', 'bad']), lookup('k'))")
    return code("SUBMIT('a')")


def sub(call: Call) -> Reply:
    return Reply(error=RuntimeError("no")) if call.prompt == "bad" else Reply("fine")


def program(sandbox: Environment, *given: BaseCallback, **options: Any) -> RLM:
    lm = ScriptedLM(sub)
    return RLM("query -> answer", interpreter_factory=sandbox, sub_lm=lm, max_depth=2, callbacks=list(given), **options)


EXPECTED = [
    ("on_run_start", 0),
    ("on_turn_start", 0),
    ("on_subcall_start", 0),
    ("on_child_start", 0),
    ("on_run_start", 1),
    ("on_turn_start", 1),
    ("on_turn_end", 1),
    ("on_run_end", 1),
    ("on_child_end", 0),
    ("on_subcall_end", 0),
    *[("on_subcall_start", 0)] * 2,
    *[("on_subcall_end", 0)] * 2,
    ("on_turn_end", 0),
    ("on_turn_start", 0),
    ("on_turn_end", 0),
    ("on_run_end", 0),
]


class Recorder(BaseCallback):
    """The methods on a class of the user's own, which knows nothing of `Callbacks`."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.runs: set[str] = set()


def _method(name: str, asynchronous: bool) -> Any:
    def record(self: Recorder, event: rlm_dspy.Event, run: rlm_dspy.Run) -> None:
        assert event.run == run.id
        self.seen.append((name, event.depth))

    async def arecord(self: Recorder, event: rlm_dspy.Event, run: rlm_dspy.Run) -> None:
        await asyncio.sleep(0)
        record(self, event, run)

    return arecord if asynchronous else record


def recorder(asynchronous: bool) -> Recorder:
    return type("Mine", (Recorder,), {name: _method(name, asynchronous) for name in MOMENTS})()  # type: ignore[no-any-return]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("where", ["constructor", "settings", "both", "with_options", "functions"])
@pytest.mark.parametrize("awaited", [False, True])
def test_every_moment_is_called_once_and_in_order(
    sandbox: Environment, asynchronous: bool, where: str, awaited: bool
) -> None:
    mine = recorder(asynchronous)
    rlm = program(sandbox, *([mine] if where in ("constructor", "both") else []), tools=[lookup])
    if where == "with_options":
        rlm = rlm.with_options(callbacks=[mine])
    if where == "functions":
        rlm = rlm.with_options(callbacks=[Callbacks(**{name: getattr(mine, name) for name in MOMENTS})])
    with dspy.context(lm=ScriptedLM(tree), callbacks=[mine] if where in ("settings", "both") else []):
        pred = asyncio.run(rlm.acall(query="q")) if awaited else rlm(query="q")
    assert pred.answer == "a"
    assert mine.seen == EXPECTED


def test_dspys_own_callbacks_are_the_same_objects(sandbox: Environment) -> None:
    """One object sees DSPy's moments and those of runs; predictors say their role."""
    roles: list[str] = []
    turns: list[int] = []

    class Watch(BaseCallback):
        def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
            roles.append(getattr(instance, "role", type(instance).__name__))

        def on_turn_end(self, event: rlm_dspy.events.TurnEnded, run: rlm_dspy.Run) -> None:
            turns.append(event.turn)

    def root(call: Call) -> str:
        return code("print(llm_query('x'), classify('y'), predict('t -> n: int', t='z'))")

    replies = {"x": "fine", "y": "[[ ## label ## ]]\nl\n\n[[ ## completed ## ]]"}
    typed = ScriptedLM(lambda call: next((r for k, r in replies.items() if f"\n{k}" in f"\n{call.prompt}"), "") or "7")
    rlm = program(sandbox, sub_calls={"classify": "text -> label"}, max_iters=1, direct_below=100)
    rlm.sub_lm = typed
    with dspy.context(lm=ScriptedLM(root), callbacks=[Watch()]):
        rlm(query="q")
    assert turns == [1]
    assert [role for role in roles if role != "RLM"][:3] == ["direct", "act", "sub"]
    assert {"classify", "predict", "extract"} <= set(roles)
    assert rlm.compact.role == "compact" and rlm.deepcopy().act.role == "act"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_one_that_fails_changes_nothing_and_is_reported_once(
    sandbox: Environment, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: rlm_dspy.Event, run: rlm_dspy.Run) -> None:
        raise ValueError("of the callback")

    async def afail(event: rlm_dspy.Event, run: rlm_dspy.Run) -> None:
        raise ValueError("of the callback")

    bad, good = afail if asynchronous else fail, recorder(asynchronous)
    mine = Callbacks(**dict.fromkeys(MOMENTS, bad))
    with caplog.at_level(logging.ERROR), dspy.context(lm=ScriptedLM(tree)):
        pred = program(sandbox, mine, good, tools=[lookup])(query="q")
    assert pred.answer == "a" and pred.outcome == "submitted"
    assert good.seen == EXPECTED, "the others are called all the same"
    assert len(caplog.records) == len(MOMENTS)
    assert all("of the callback" in record.getMessage() for record in caplog.records)


def test_one_that_hangs_is_given_up(
    sandbox: Environment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callbacks, "LAST_SECONDS", 0.05)
    ended: list[str] = []

    async def hang(event: rlm_dspy.Event, run: rlm_dspy.Run) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(event.kind)

    mine = Callbacks(on_turn_start=hang, on_run_end=hang)
    with caplog.at_level(logging.ERROR), dspy.context(lm=ScriptedLM([code("SUBMIT('x')")])):
        assert program(sandbox, mine)(query="q").answer == "x"
    assert "given up" in caplog.text and ended == ["turn_started"]


def test_a_callback_can_stop_the_run(sandbox: Environment) -> None:
    def stop(event: rlm_dspy.events.TurnEnded, run: rlm_dspy.Run) -> None:
        if event.turn == 2:
            run.request_stop("enough")

    answer = "[[ ## answer ## ]]\nbest\n\n[[ ## completed ## ]]"
    root = ScriptedLM(lambda call: answer if "No more code" in call.prompt + call.system else code("1"))
    with dspy.context(lm=root):
        pred = program(sandbox, Callbacks(on_turn_end=stop))(query="q")
    assert pred.answer == "best" and pred.outcome.limit == "enough" and len(pred.trajectory) == 2


def test_a_cancelled_run_is_told_to_its_end(sandbox: Environment) -> None:
    seen: list[str] = []
    acting: asyncio.Event

    async def begun(event: rlm_dspy.Event, run: rlm_dspy.Run) -> None:
        acting.set()

    async def ended(event: rlm_dspy.events.RunEnded, run: rlm_dspy.Run) -> None:
        await asyncio.sleep(0)
        seen.append(str(event.error))

    async def main() -> None:
        nonlocal acting
        acting = asyncio.Event()
        rlm = program(sandbox, Callbacks(on_subcall_start=begun, on_run_end=ended))
        task = asyncio.ensure_future(rlm.acall(query="q"))
        await acting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    root = ScriptedLM(lambda call: code("print(llm_query('x'))\nwhile True: pass"))
    acting = asyncio.Event()
    with dspy.context(lm=root):
        asyncio.run(asyncio.wait_for(main(), 60))
    assert seen == ["CancelledError"]


def test_a_run_in_a_tool_is_told_of_where_settings_say_so(sandbox: Environment) -> None:
    mine = recorder(True)
    inner = RLM("text -> answer", interpreter_factory=sandbox)

    def ask(text: str) -> str:
        """A run in a tool."""
        return str(inner(text=text).answer)

    def root(call: Call) -> str:
        return code("SUBMIT(text)") if "Variable `text`" in call.prompt else code("SUBMIT(ask('t'))")

    with dspy.context(lm=ScriptedLM(root), callbacks=[mine]):
        assert program(sandbox, tools=[ask])(query="q").answer == "t"
    assert [name for name, _ in mine.seen].count("on_run_end") == 2


@pytest.mark.parametrize("wrong", [print, [print], {"on_turn_end": print}, "on_turn_end"])
def test_what_is_no_callback_is_refused_with_the_fix(wrong: Any) -> None:
    for make in (lambda: RLM("a -> b", callbacks=wrong), lambda: RLM("a -> b").with_options(callbacks=wrong)):
        with pytest.raises(TypeError, match=r"callbacks=\[rlm_dspy\.Callbacks\(on_turn_end=f\)\]"):
            make()
    with pytest.raises(TypeError, match="on_turn_end must be a function"):
        Callbacks(on_turn_end=7)  # type: ignore[arg-type]

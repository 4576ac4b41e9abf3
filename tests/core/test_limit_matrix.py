"""Each limit at each place where it can strike: the caller always gets a prediction with the best answer there is.

| | open | act | execute | sub-call | half a batch | child | compact | extract |
|---|---|---|---|---|---|---|---|---|
| max_seconds | ends | ends | ends | ends | ends | best | ends | partial |
| a stop | ends | ends | ends | ends | ends | ends | ends | goes on |
| max_tokens, max_cost | | ends | | told | told | best | without | goes on |
| max_llm_calls | | | | told | told | best | | |
| max_iters, max_errors | | ends | ends | | | best | | |
| a dead LM | | ends | | told | told | told | without | partial |

*ends*: the turns end, and ``extract`` answers. *told*: the code gets an error in its call or slot, and the run goes on.
*best*: the child's best answer reaches the code. *without*: no summary is made (of a budget that is used up, see
`test_compaction`). *goes on*: the last question is asked all the same. *partial*: what was submitted, stored or
printed last is the answer of a failed run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, LimitReached, RunFailed, subscribe
from rlm_dspy.environments import Subprocess
from rlm_dspy.environments.base import Environment, Transport
from rlm_dspy.testing import Call, Reply, ScriptedLM, code

SUMMARY = "Reply with the summary alone"
LAST = "No more code can run"
BEST = "[[ ## a ## ]]\nbest guess\n\n[[ ## completed ## ]]"
CHILDS_BEST = "[[ ## response ## ]]\nthe child's best\n\n[[ ## completed ## ]]"
FOUND = "print('found 42')\n"
DONE = code("SUBMIT(a='done')")
WAIT = 30.0


@dataclass
class World:
    """Scripted LMs and a tool for one run; at the place ``at`` something strikes.

    Attributes:
        strike: What happens there; gives the LM's answer, if it comes to one.
        acts: The root's replies in order; the last one again and again.
        extract: Its last answer.
        child: What a child's root does, by turn.
    """

    at: str
    strike: Callable[[World], Any]
    acts: list[Any]
    extract: Any = BEST
    child: Any = "print('looking')"
    open_gate: threading.Event = field(default_factory=threading.Event)
    reached: bool = False
    run: Any = None
    turns: int = 0

    def struck(self) -> Any:
        """The place is reached."""
        self.reached = True
        return self.strike(self)

    def hold(self, stop: bool = False) -> str:
        """Answer only when the test is over."""
        if stop and self.run is not None:
            self.run.request_stop()
        self.open_gate.wait(WAIT)
        return "too late"

    def root(self, call: Call) -> Any:
        """Whoever plays a root: of the run, or of a child."""
        child = any("CHILD" in message["content"] for message in call.own[:1])
        if LAST in call.prompt:
            if child:
                return CHILDS_BEST
            return self.struck() if self.at == "extract" else self.extract
        if SUMMARY in call.prompt:
            return self.struck() if self.at == "compact" else "A summary."
        if child:
            return self.struck() if self.at == "child" else code(f"{self.child}  # {call.turn}")
        self.turns += 1
        act = self.acts[min(self.turns, len(self.acts)) - 1]
        return self.struck() if act == "strike" else act

    def sub(self, call: Call) -> Any:
        """The sub-LM; it answers anything but what is to be held."""
        return self.struck() if "held" in call.prompt else "fine"

    def ready(self) -> str:
        """A tool: the code goes on, and never ends."""
        self.reached = True
        if self.strike is stop:
            self.run.request_stop()
        return "go on"


def nothing(world: World) -> str:
    raise AssertionError("nothing strikes here")


def hold(world: World) -> str:
    return world.hold()


def stop(world: World) -> str:
    return world.hold(stop=True)


def die(world: World) -> Reply:
    return Reply(error=RuntimeError("the LM is down"))


class Slow(Subprocess):
    """A session that opens only when the test is over."""

    world: Any = None

    def open(self) -> Transport:
        self.world.struck()
        return super().open()


ACTS: dict[str, list[Any]] = {
    "open": [DONE],
    "act": [code(f"{FOUND}1"), "strike"],
    "execute": [code(f"{FOUND}ready()\nwhile True:\n    pass")],
    "sub-call": [code(f"{FOUND}print(llm_query('held'))"), DONE],
    "half a batch": [code(f"{FOUND}print(llm_query_batched(['one', 'held', 'two']))"), DONE],
    "child": [code(f"{FOUND}print(rlm_query('CHILD: do it'))"), DONE],
    "compact": [code(f"print('.' * 3000)\n{FOUND}# {n}") for n in range(6)] + [DONE],
    "extract": [code(FOUND)],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "child": {"max_depth": 2},
    "compact": {"context_window": 4_000},
    "extract": {"max_iters": 1, "extract_seconds": 0.3},
}


def attempt(world: World, sandbox: Environment, **options: Any) -> tuple[Any, list[Any]]:
    """The prediction, or the exception that carries it, and the events of the root."""
    log: list[Any] = []

    def watch(event: Any, run: Any) -> None:
        if run.depth == 0:
            world.run = run
            log.append(event)

    def ready() -> str:
        """Go on."""
        return world.ready()

    program = RLM(
        "q -> a",
        interpreter=sandbox,
        sub_lm=ScriptedLM(world.sub),
        tools=[ready],
        guidance=False,
        prices={"scripted/lm": (1, 1)},
        **options,
    )
    try:
        with dspy.context(lm=ScriptedLM(world.root)), subscribe(watch):
            return program(q="x"), log
    except (LimitReached, RunFailed) as raised:
        return raised, log
    finally:
        world.open_gate.set()


ENDINGS = ["extract", "raise", "extract fails"]


def check(
    given: Any, log: list[Any], ending: str, limit: str | None, error: str | None = None, found: bool = True
) -> None:
    """``given`` is how a run of ``ending`` ends that ``limit`` or ``error`` has ended."""
    prediction = given
    if ending == "raise":
        assert isinstance(given, RunFailed if error else LimitReached), given
        prediction = given.prediction
        assert given.limit == limit and list(given.trajectory) == list(prediction.trajectory)
    assert isinstance(prediction, dspy.Prediction)
    assert prediction.outcome.limit == limit
    if ending == "extract fails":
        assert prediction.outcome == "failed"
        assert "found 42" in prediction.a if found else prediction.a is None
    else:
        assert (prediction.outcome, prediction.a) == ("extracted", "best guess")
    if error:
        assert error in prediction.outcome.error
    if found:
        assert any("found 42" in turn.output for turn in prediction.trajectory)
    assert log[-1].kind == "run_ended" and log[-1].limit == limit
    assert prediction.usage["turns"] >= len(prediction.trajectory)


def options_of(ending: str) -> dict[str, Any]:
    return {"on_limit": "raise"} if ending == "raise" else {}


def world_of(place: str, strike: Callable[[World], Any], ending: str) -> World:
    extract = Reply(error=ValueError("extract is down")) if ending == "extract fails" else BEST
    return World(place, strike, ACTS[place], extract)


WHERE = dict.fromkeys(("execute", "sub-call", "half a batch", "child"), ("execute", "turns"))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("place", ["open", "act", "execute", "sub-call", "half a batch", "child", "compact"])
@pytest.mark.parametrize("limit", ["max_seconds", "interrupted"])
def test_time_or_a_stop_ends_the_turns_wherever_it_strikes(
    limit: str, place: str, ending: str, sandbox: Environment
) -> None:
    for seconds in (0.8, 3.0, 12.0) if limit == "max_seconds" else (None,):
        world = world_of(place, hold if seconds else stop, ending)
        where: Any = sandbox
        if place == "open":
            where = Slow()
            where.world = world
        options = {**OPTIONS.get(place, {}), **options_of(ending)}
        given, log = attempt(world, where, max_seconds=seconds, **options)
        if world.reached:
            break
    assert world.reached
    if (limit, place) == ("max_seconds", "child"):
        # A child has less time than its parent, which can go on with what the child had found.
        prediction = given if isinstance(given, dspy.Prediction) else given.prediction
        assert "stopped at max_seconds" in prediction.trajectory[0].shown
        assert prediction.a in ("done", "best guess", "found 42\nthe child's best")
        return
    check(given, log, ending, limit, found=place != "open")
    (struck,) = [event for event in log if event.kind == "limit_struck"]
    # Code that ends by itself when it is interrupted has ended its turn.
    assert struck.limit == limit and struck.where in WHERE.get(place, (place,))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("limit", ["max_iters", "max_errors", "max_tokens", "max_cost"])
def test_a_limit_that_is_used_up_ends_the_turns(limit: str, ending: str, sandbox: Environment) -> None:
    fails = "\n1 / 0" if limit == "max_errors" else ""
    world = world_of("act", nothing, ending)
    world.acts = [code(f"{FOUND}{n}{fails}") for n in range(100)]
    most = {"max_iters": 3, "max_errors": 2, "max_tokens": 4_000, "max_cost": 0.004}[limit]
    given, log = attempt(world, sandbox, **{"max_iters": 50, limit: most}, **options_of(ending))
    check(given, log, ending, limit)
    usage = (given.prediction if ending == "raise" else given).usage
    if limit in ("max_tokens", "max_cost"):
        # The last question is asked all the same; nothing else passes the limit.
        extracted = usage["by_role"].get("extract", {}).get("input_tokens", 0)
        assert usage["input_tokens"] + usage["output_tokens"] <= 4_000 + extracted + 20


@pytest.mark.parametrize("source", ["one", "many"])
@pytest.mark.parametrize("limit", ["max_llm_calls", "max_tokens", "max_cost"])
def test_a_limit_that_is_used_up_refuses_sub_calls_and_the_run_goes_on(
    limit: str, source: str, sandbox: Environment
) -> None:
    long = "'long' * 10_000" if limit != "max_llm_calls" else "'short'"
    calls = {"one": f"print(llm_query({long}))", "many": f"print(llm_query_batched(['first', {long}]))"}
    most = {"max_llm_calls": 1 if source == "many" else 0, "max_tokens": 6_000, "max_cost": 0.006}[limit]
    world = World("sub-call", nothing, [code(f"{FOUND}{calls[source]}"), DONE])
    prediction, _ = attempt(world, sandbox, **{limit: most})
    assert (prediction.outcome, prediction.a) == ("submitted", "done")
    output = prediction.trajectory[0].output
    assert "found 42" in output and limit in output
    if source == "many" and limit != "max_llm_calls":
        assert "fine" in output, "the half of the batch that could be paid for is there"


@pytest.mark.parametrize("limit", ["max_llm_calls", "max_iters", "max_errors", "max_tokens", "max_cost"])
def test_a_limit_that_ends_a_child_gives_its_best_answer_to_the_code(limit: str, sandbox: Environment) -> None:
    world = World("nowhere", nothing, [code(f"{FOUND}print(rlm_query('CHILD: do it'))"), DONE])
    world.child = "1 / 0" if limit == "max_errors" else "print('looking')"
    most = {"max_llm_calls": 4, "max_iters": 3, "max_errors": 2, "max_tokens": 6_000, "max_cost": 0.006}[limit]
    prediction, _ = attempt(world, sandbox, **{"max_depth": 2, "max_iters": 50, limit: most})
    assert (prediction.outcome, prediction.a) == ("submitted", "done")
    output = prediction.trajectory[0].shown
    assert "the child's best" in output and f"stopped at {limit}" in output
    assert prediction.usage["children"] == 1


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_lm_that_dies_later_ends_the_turns(ending: str, sandbox: Environment) -> None:
    given, log = attempt(world_of("act", die, ending), sandbox, **options_of(ending))
    check(given, log, ending, None, error="the LM is down")
    if ending == "raise":
        assert "the LM is down" in str(given.__cause__)


def test_an_lm_that_is_dead_from_the_start_is_an_error_with_the_trajectory(sandbox: Environment) -> None:
    with pytest.raises(dspy.LMError, match="the LM is down") as raised:
        attempt(World("act", die, ["strike"]), sandbox)
    assert list(raised.value.trajectory) == [] and raised.value.trajectory.events[-1].kind == "run_ended"


@pytest.mark.parametrize("place", ["sub-call", "half a batch", "child"])
def test_another_lm_that_dies_is_told_to_the_code(place: str, sandbox: Environment) -> None:
    prediction, _ = attempt(World(place, die, ACTS[place]), sandbox, **OPTIONS.get(place, {}))
    assert (prediction.outcome, prediction.a) == ("submitted", "done")
    output = prediction.trajectory[0].output
    assert "found 42" in output and "the LM is down" in output
    assert output.count("fine") == (2 if place == "half a batch" else 0)


def test_an_lm_that_dies_over_the_summary_costs_the_summary_alone(sandbox: Environment) -> None:
    world = World("compact", die, ACTS["compact"])
    prediction, log = attempt(world, sandbox, **OPTIONS["compact"])
    assert world.reached and (prediction.outcome, prediction.a) == ("submitted", "done")
    assert next(event.summary for event in log if event.kind == "compacted") == ""


@pytest.mark.parametrize("strike", [hold, die], ids=["extract_seconds", "a dead LM"])
@pytest.mark.parametrize("on_limit", ["extract", "raise"])
def test_where_extract_fails_what_was_printed_is_the_answer(
    on_limit: str, strike: Callable[[World], Any], sandbox: Environment
) -> None:
    given, log = attempt(World("extract", strike, ACTS["extract"]), sandbox, on_limit=on_limit, **OPTIONS["extract"])
    prediction = given
    if on_limit == "raise":
        assert isinstance(given, RunFailed) and given.limit == "max_iters"
        prediction = given.prediction
    assert (prediction.outcome, prediction.outcome.limit, prediction.a) == ("failed", "max_iters", "found 42")
    assert prediction.final_reasoning.startswith("no answer was extracted")
    assert [event.kind for event in log][-2:] == ["extracted", "run_ended"]


def test_a_stop_while_extracting_leaves_it_be(sandbox: Environment) -> None:
    def both(world: World) -> str:
        world.run.request_stop()
        return BEST

    prediction, _ = attempt(World("extract", both, ACTS["extract"]), sandbox, max_iters=1)
    assert (prediction.outcome, prediction.outcome.limit, prediction.a) == ("extracted", "max_iters", "best guess")


# --------------------------------------------------------------------------------------------- the partial answer


class Report(dspy.Signature):
    """Report."""

    q: str = dspy.InputField()
    count: int = dspy.OutputField()
    names: list[str] = dspy.OutputField()
    text: str = dspy.OutputField()


def failing(*acts: str) -> ScriptedLM:
    """Turns of ``acts``, then an LM that is dead."""
    replies = iter([code(act) for act in acts])
    return ScriptedLM(lambda call: next(replies, Reply(error=RuntimeError("dead"))))


@pytest.mark.parametrize(
    ("signature", "acts", "expected"),
    [
        ("q -> a: int", ["print('so many:')\nprint(42)"], {"a": 42}),
        ("q -> a: list[str]", ["print(['x', 'y'])"], {"a": ["x", "y"]}),
        ("q -> a: list[str]", ["print('no list at all')\n1"], {"a": None}),
        ("q -> a: int", ["print(7)", "print(0)"], {"a": 7}),
        ("q -> a: str", ["print('this')", "print('that')", "1 / 0"], {"a": "that"}),
        ("q -> a: str", ["'the last value'"], {"a": "'the last value'"}),
        ("q -> a: str", ["x = 1"], {"a": None}),
        ("q -> a: int", ["SUBMIT('not a number')", "print(3)"], {"a": 3}),
        (Report, ["SUBMIT(count=3, names='?', text='t')", "print('more')"], {"count": 3, "names": None, "text": "t"}),
        (Report, ["SUBMIT(count=3)", "SUBMIT(names=['n'])"], {"count": 3, "names": ["n"], "text": None}),
        (Report, ["print('all I know')"], {"count": None, "names": None, "text": "all I know"}),
    ],
)
def test_the_partial_answer(signature: Any, acts: list[str], expected: dict[str, Any], sandbox: Environment) -> None:
    with dspy.context(lm=failing(*acts)):
        prediction = RLM(signature, interpreter=sandbox, guidance=False)(q="x")
    assert prediction.outcome == "failed" and "dead" in prediction.outcome.error
    assert {name: prediction[name] for name in expected} == expected


def test_an_answer_that_was_doubted_is_better_than_what_was_printed(sandbox: Environment) -> None:
    acts = ["print('on the way')", "SUBMIT(a='none')"]
    with dspy.context(lm=failing(*acts)):
        prediction = RLM("context, q -> a", interpreter=sandbox)(context="c" * 5_000, q="x")
    assert prediction.a == "none"


def test_a_child_that_fails_tells_its_parent_what_it_had(sandbox: Environment) -> None:
    def policy(call: Call) -> Any:
        if any("CHILD" in message["content"] for message in call.own[:1]):
            return code("print('half of it')") if call.turn == 0 else Reply(error=RuntimeError("dead"))
        return code("print(rlm_query('CHILD: do it'))") if call.turn == 0 else DONE

    with dspy.context(lm=ScriptedLM(policy)):
        prediction = RLM("q -> a", interpreter=sandbox, max_depth=2, guidance=False)(q="x")
    assert prediction.a == "done" and "the last it had was: half of it" in prediction.trajectory[0].output


def test_a_child_that_fails_at_a_limit_names_it_in_one_line(sandbox: Environment) -> None:
    def policy(call: Call) -> Any:
        if any("CHILD" in message["content"] for message in call.own[:1]):
            return code("print('half of it')")
        return code("print(rlm_query('CHILD: do it'))") if call.turn == 0 else DONE

    with dspy.context(lm=ScriptedLM(policy)):
        prediction = RLM("q -> a", interpreter=sandbox, max_depth=2, max_iters=2, guidance=False)(q="x")
    told = prediction.trajectory[0].output.splitlines()[-1]
    assert "it was stopped at max_iters, then a reply of the model was not in the form" in told
    assert told.endswith("the last it had was: half of it")

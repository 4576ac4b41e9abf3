"""Any tree of runs keeps its limits, counts everything once, ends with an outcome, and leaves nothing behind.

A tree is drawn as data: what the root of each run writes in each turn. Two scripted LMs play it. They count for
themselves what they were asked and what they answered, and the account of the run is compared with that. What strikes
(a cancelled task, a stop, an LM that dies) strikes at a drawn LM call, while that call is under way.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dspy
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM, environments, subscribe
from rlm_dspy.environments import sessions
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, Reply, ScriptedLM, code

LAST = "No more code can run"
PRICES = {"scripted/root": (1.0, 2.0), "scripted/sub": (3.0, 4.0)}
DEADLINE = 120.0
"""Seconds after which a run counts as deadlocked. None takes more than a few."""


Program = list[list[Any]]
"""What the root of a run does: the actions of each turn, lines of code or lists of programs that children run."""
MOST_RUNS = 40
"""Beyond so many no more children are started."""


@dataclass
class Tally:
    """What an LM did."""

    asked: int = 0
    answered: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    largest: int = 0
    extracted: int = 0


@dataclass
class World:
    """Plays a drawn tree.

    Attributes:
        programs: What runs do; the first one is the root's.
        strike: What happens at the LM call number ``at``: ``"cancel"``, ``"stop"``, ``"stop a child"``, or nothing.
        extract: Whether the last question is answered.
    """

    programs: list[Program]
    strike: str
    at: int
    extract: bool
    nodes: list[tuple[Program, int]] = field(default_factory=list)
    runs: dict[str, Any] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    struck: bool = False
    task: Any = None
    loop: Any = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = self.under_way = 0
        self.tallies = {"root": Tally(), "sub": Tally()}
        self.acts: Counter[int] = Counter()
        self.nodes.append((self.programs[0], 0))

    def _prompt(self, program: int, depth: int) -> str:
        with self._lock:
            self.nodes.append((self.programs[program % len(self.programs)], depth))
            return f"node {len(self.nodes) - 1} of the tree"

    def source(self, number: int, turn: int) -> str:
        """What the root of node ``number`` writes in a turn; beyond those drawn it looks on."""
        program, depth = self.nodes[number]
        lines = [] if turn < len(program) else [f"print('looking', {turn})"]
        for action in program[turn] if turn < len(program) else []:
            if isinstance(action, str):
                lines.append(action.replace("{n}", str(number % 4)))
            elif len(self.nodes) < MOST_RUNS:
                rows = [{"prompt": self._prompt(child, depth + 1), "text": "t" * 50} for child in action]
                one = len(rows) == 1
                lines.append(f"print(rlm_query(**{rows[0]!r}))" if one else f"print(rlm_query_batched({rows!r}))")
            else:
                lines.append("print('no more')")
        return "\n".join(lines)

    # -------------------------------------------------------------------------------------------------- the LMs

    def lm(self, name: str, policy: Callable[[Call], Any]) -> ScriptedLM:
        tally = self.tallies[name]

        def counted(call: Call) -> Any:
            with self._lock:
                self._calls += 1
                self.under_way += 1
                number = self._calls
                tally.asked += 1
            if number == self.at:
                self._strike()
            answer = policy(call)
            reply = answer if isinstance(answer, Reply) else Reply(answer)
            if reply.error is None:
                taken = sum(len(message["content"]) for message in call.messages) // 4
                given = len(reply.text) // 4
                with self._lock:
                    tally.answered += 1
                    tally.input_tokens += taken
                    tally.output_tokens += given
                    tally.largest = max(tally.largest, taken + given)
                    tally.extracted += LAST in call.prompt
            with self._lock:
                self.under_way -= 1
            return reply

        return ScriptedLM(counted, model=f"scripted/{name}")

    def play(self, call: Call) -> Any:
        """Whoever is the root of a run."""
        if LAST in call.prompt:
            return "best" if self.extract else Reply(error=dspy.lm15.InvalidRequestError("no last word"))
        found = re.search(r"node (\d+) of the tree", call.own[0]["content"])
        assert found is not None, call.own[0]["content"]
        number = int(found[1])
        with self._lock:
            self.acts[self.nodes[number][1]] += 1
        source = self.source(number, call.turn)
        return Reply(error=dspy.lm15.InvalidRequestError("dead")) if "die" in source else code(source)

    def answer(self, call: Call) -> Any:
        """The sub-LM."""
        if "refuse" in call.prompt:
            return Reply(error=dspy.lm15.InvalidRequestError("refused"))
        return "[[ ## n ## ]]\n3\n\n[[ ## completed ## ]]" if "[[ ##" in call.system else "fine"

    def _strike(self) -> None:
        """Here, in the thread of an LM call, which goes on once the event loop has done it."""
        runs, done = list(self.runs.values()), threading.Event()
        if self.strike == "nothing" or not runs:
            return
        self.struck = True
        stop = runs[0 if self.strike == "stop" else -1].request_stop

        def strike() -> None:
            (self.task.cancel if self.strike == "cancel" else stop)()
            done.set()

        self.loop.call_soon_threadsafe(strike)
        assert done.wait(DEADLINE)

    # -------------------------------------------------------------------------------------------------- the run

    def watch(self, happened: Any, run: Any) -> None:
        self.runs.setdefault(run.id, run)
        self.ended[run.id] += happened.kind == "run_ended"

    def run(self, environment: Environment, **options: Any) -> Any:
        """The prediction, or the exception that came in its place."""
        program = RLM(
            "query -> answer: str",
            interpreter=environment,
            sub_lm=self.lm("sub", self.answer),
            prices=PRICES,
            guidance=False,
            **options,
        )

        async def main() -> Any:
            self.loop = asyncio.get_running_loop()
            self.task = asyncio.ensure_future(program.acall(query="node 0 of the tree"))
            # A deadlock would be waited for in vain; nothing else depends on this time.
            done, _ = await asyncio.wait((self.task,), timeout=DEADLINE)
            assert done, "the run is deadlocked"
            return self.task.exception() if not self.task.cancelled() else self._cancelled()

        with dspy.context(lm=self.lm("root", self.play)), subscribe(self.watch):
            error = asyncio.run(main())
        return error if error is not None else self.task.result()

    def _cancelled(self) -> BaseException:
        try:
            self.task.result()
        except asyncio.CancelledError as error:
            return error
        raise AssertionError("unreachable")


LINES = (
    "print(llm_query('question {n}'))",
    "print(llm_query_batched(['question {n}', 'question 1', 'refuse', 'question {n} ' + 'x' * 400]))",
    "print(llm_query('refuse {n}'))",
    "print(predict('text -> n: int', text='{n}'))",
    "1 / 0",
    "print('seen {n}')",
    "answer = 'stored {n}'",
    "SUBMIT('submitted {n}')",
    "SUBMIT(str(len(query)) if 'query' in globals() else 'a child')",
    "SUBMIT('again {n}')",
    "die",
)


ACTIONS = st.sampled_from(LINES) | st.lists(st.integers(0, 4), min_size=1, max_size=3)
PROGRAMS = st.lists(st.lists(st.lists(ACTIONS, min_size=1, max_size=3), min_size=1, max_size=3), min_size=1, max_size=5)


def check(world: World, result: Any, limits: dict[str, Any]) -> None:
    """Whatever happened: what must hold."""
    root, *_ = world.runs.values()
    answered, asked = world.tallies["root"], world.tallies["sub"]
    usage = root.ledger.usage()
    total = usage.total
    # Counted once, whatever the depth, and nothing is forgotten: also what was cut off.
    assert total.calls == answered.answered + asked.answered
    assert total.input_tokens == answered.input_tokens + asked.input_tokens
    assert total.output_tokens == answered.output_tokens + asked.output_tokens
    spent = sum(
        tally.input_tokens * PRICES[f"scripted/{name}"][0] + tally.output_tokens * PRICES[f"scripted/{name}"][1]
        for name, tally in world.tallies.items()
    )
    assert total.cost == pytest.approx(spent / 1e6, abs=1e-12)
    by_depth = Counter({key.depth: 0 for key in usage.table})
    for key, tally in usage.table.items():
        if key.role == "act":
            by_depth[key.depth] += tally.calls
    dead = sum(world.acts.values()) - sum(by_depth.values())
    assert all(by_depth[depth] <= count for depth, count in world.acts.items()) and 0 <= dead
    # No limit is passed; tokens and money by no more than one call in each place, and the last words.
    most = limits["max_llm_calls"]
    below = asked.asked + answered.asked - world.acts[0] - int(root.extracted)
    if not world.struck:
        assert below == usage.calls
    assert below <= usage.calls and (most is None or usage.calls <= most)
    largest = max(answered.largest, asked.largest)
    places = limits["max_concurrency"] * largest
    if limits["max_tokens"] is not None:
        assert total.input_tokens + total.output_tokens <= limits["max_tokens"] + places + answered.extracted * largest
    if limits["max_cost"] is not None:
        dearest = largest * 4 / 1e6
        most_more = (limits["max_concurrency"] + answered.extracted) * dearest
        assert total.cost is not None and total.cost <= limits["max_cost"] + most_more
    assert usage.peak_width <= limits["max_concurrency"]
    # What was reserved has been spent or given back, at every level.
    for run in world.runs.values():
        ledger = run.ledger
        assert ledger.calls_left == (None if most is None else most - usage.calls)
        if limits["max_tokens"] is not None:
            assert ledger.tokens_left == max(0, limits["max_tokens"] - total.input_tokens - total.output_tokens)
    # Every run has ended, once, and gave back its places.
    assert all(world.ended[run] == 1 for run in world.runs), world.ended
    assert root.tree.calls.taken == 0
    assert all(root.tree.children(depth).taken == 0 for depth in range(6))
    assert usage.children >= len(world.runs) - 1
    kinds = Counter(happened.kind for happened in root.events)
    assert kinds["child_started"] == kinds["child_ended"]
    _check_result(world, result, root)


def _check_result(world: World, result: Any, root: Any) -> None:
    turns = [happened for happened in root.events if happened.kind == "executed"]
    if isinstance(result, asyncio.CancelledError):
        assert world.strike == "cancel" and world.struck
        assert len(result.trajectory) <= len(turns) + 1  # type: ignore[attr-defined]
        return
    if isinstance(result, Exception):
        # Only where nothing had been done that could be lost.
        assert isinstance(result, dspy.lm15.InvalidRequestError) or "dead" in str(result), result
        assert not turns and root.ledger.usage().calls == 0
        return
    assert isinstance(result, dspy.Prediction)
    assert result.outcome in ("submitted", "extracted", "failed")
    event(f"{result.outcome} {result.outcome.limit}")
    # What a traceback says of a child's last words was not printed.
    something = any(re.search("seen|looking", turn.output.partition("[Error]")[0]) for turn in turns)
    stored = any(turn.code.startswith("answer = 'stored") for turn in result.trajectory if turn.code)
    if result.outcome != "failed" or something or stored:
        assert result.answer, (result.outcome, [turn.output for turn in turns])


def drawn(data: st.DataObject) -> tuple[World, dict[str, Any]]:
    world = World(
        data.draw(PROGRAMS, "programs"),
        data.draw(st.sampled_from(["nothing", "nothing", "cancel", "stop", "stop a child"]), "strike"),
        data.draw(st.integers(1, 20), "at"),
        data.draw(st.booleans(), "extract"),
    )
    limits = {
        "max_depth": data.draw(st.integers(1, 4), "max_depth"),
        "max_iters": data.draw(st.integers(1, 4), "max_iters"),
        "max_errors": data.draw(st.none() | st.integers(1, 2), "max_errors"),
        "max_llm_calls": data.draw(st.none() | st.integers(0, 25), "max_llm_calls"),
        "max_tokens": data.draw(st.none() | st.integers(1_500, 40_000), "max_tokens"),
        "max_cost": data.draw(st.none() | st.floats(0.002, 0.05), "max_cost"),
        "max_concurrency": data.draw(st.integers(1, 4), "max_concurrency"),
        "max_children": data.draw(st.integers(1, 3), "max_children"),
    }
    return world, limits


def play(data: st.DataObject, environment: Environment, eventually: Callable[..., bool]) -> None:
    world, limits = drawn(data)
    result = world.run(environment, **limits)
    # An LM call that was cut off ends in its thread, and is paid.
    assert eventually(lambda: sessions.slots.taken == 0)
    assert eventually(lambda: not world.under_way)
    root = next(iter(world.runs.values()))
    answered = sum(tally.answered for tally in world.tallies.values())
    assert eventually(lambda: root.ledger.usage().total.calls >= answered)
    check(world, result, limits)


SLOW: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],
}


@settings(max_examples=100, **SLOW)
@given(data=st.data())
def test_any_tree_of_runs_keeps_what_is_promised(
    data: st.DataObject, eventually: Callable[..., bool], no_leaks: None
) -> None:
    play(data, environments.get("inprocess"), eventually)


@settings(max_examples=6, **SLOW)
@given(data=st.data())
def test_any_tree_of_runs_in_sandboxes_keeps_what_is_promised(
    data: st.DataObject, eventually: Callable[..., bool], no_leaks: None, children: Callable[..., set[int]]
) -> None:
    play(data, environments.local(), eventually)

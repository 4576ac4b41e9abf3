"""A recorded run is run again with no language model: the same outputs, or a report of what was different."""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import pickle
import textwrap
from typing import Any, Literal

import dspy
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM, RecordingError, ReplayDiffers, Trajectory, replay
from rlm_dspy import events as ev
from rlm_dspy.environments.base import Environment
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.kept import IN_MEMORY, digest, oversized, pack
from rlm_dspy.testing import Call, Reply, ScriptedLM, code


class Point(pydantic.BaseModel):
    x: int
    label: Literal["a", "b"]


class Points(dspy.Signature):
    """Do it."""

    context: str = dspy.InputField()
    points: list[Point] = dspy.OutputField()


class Classify(dspy.Signature):
    """Read it."""

    text: str = dspy.InputField()
    point: Point = dspy.OutputField()


class OnePoint(dspy.Signature):
    """Do it."""

    q: str = dspy.InputField()
    mine: Point = dspy.OutputField()


def refuse(call: Call) -> str:
    raise AssertionError("a language model was called in a replay")


def run(program: RLM, replies: Any, **inputs: Any) -> dspy.Prediction:
    with dspy.context(lm=ScriptedLM(replies)):
        return program(**inputs)


def again(recorded: Any, program: RLM | None = None, **options: Any) -> dspy.Prediction:
    never = ScriptedLM(refuse)
    with dspy.context(lm=never):
        prediction = replay(recorded, program, **options)
    assert never.calls == []
    return prediction


def program(sandbox: Environment, signature: Any = "context, query -> answer: str, n: int", **options: Any) -> RLM:
    return RLM(signature, interpreter=sandbox, **options)


def texts(trajectory: Trajectory) -> list[tuple[str, str, bool]]:
    return [(turn.output, turn.shown, turn.error) for turn in trajectory]


def test_a_run_is_repeated_exactly(sandbox: Environment) -> None:
    lookups = itertools.count()

    def lookup(key: str) -> dict[str, Any]:
        """Look a key up."""
        return {"key": key, "number": next(lookups), "set": {1, 2}, "bytes": b"\xff"}

    replies = [
        code("r = [lookup(k) for k in 'ab']\nprint(r, llm_query('one'))\nlookup(None, 1)"),
        code("rows = llm_query_batched(['x', 'y', 'fail'])\nprint(rows, type(rows[2]).__name__, budget())"),
        "I do not know.",
        code("print(1/0)"),
        code("p = classify(text='t')\nprint(p.x, p)\nx = llm_query('one')"),
        code("SUBMIT('no points')"),
        code("SUBMIT(points=[{'x': r[1]['number'], 'label': 'b'}, p])"),
    ]

    def sub(call: Call) -> str | Reply:
        if "fail" in call.prompt:
            return Reply(error=dspy.lm15.InvalidRequestError("no"))
        return '{"x": 3, "label": "a"}' if "text" in call.prompt else f"<{call.prompt}>"

    def made(sub_lm: Any) -> RLM:
        return program(sandbox, Points, tools=[lookup], sub_lm=sub_lm, sub_calls={"classify": Classify})

    first = run(made(ScriptedLM(sub)), replies, context="c")
    assert first.outcome == "submitted", first.outcome
    assert "RuntimeError" not in first.trajectory[1].output
    asked = next(lookups)
    never = ScriptedLM(refuse)
    second = again(first.trajectory, made(never))
    assert second.points == first.points and type(second.points[0]) is Point
    assert texts(second.trajectory) == texts(first.trajectory)
    assert second.differences == () and second.outcome == "submitted"
    assert never.calls == [] and next(lookups) == asked + 1, "the tool was called again"
    assert again(second.trajectory, made(never)).points == first.points, "a replay cannot be replayed"
    assert again(pickle.loads(pickle.dumps(first.trajectory)), made(never)).points == first.points


def test_without_a_program_one_is_made_of_the_recording(sandbox: Environment) -> None:
    first = run(
        program(sandbox, "context: list[int], query -> answer: str, n: int", max_output_chars=40),
        [code("print('x' * 100, context)"), code("SUBMIT(answer=query, n=sum(context))")],
        context=[1, 2, 3],
        query="q",
    )
    second = again(first.trajectory)
    assert (second.answer, second.n) == ("q", 6) == (first.answer, first.n)
    assert texts(second.trajectory) == texts(first.trajectory)
    assert again(first.trajectory.events).n == 6


def test_calls_at_once_are_told_apart_by_their_arguments(sandbox: Environment) -> None:
    """Twenty threads: in which order their calls come is chance."""
    source = """
    import concurrent.futures, random, time
    def ask(i):
        time.sleep(random.random() / 50)
        return i, llm_query(f"number {i % 10}", fresh=True)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        print(sorted(pool.map(ask, range(20))))
    """
    first = run(
        program(sandbox, "q -> a", sub_lm=ScriptedLM(lambda call: f"{call.prompt}!")),
        [code(textwrap.dedent(source)), code("SUBMIT('done')")],
        q="q",
    )
    for _ in range(2):
        assert again(first.trajectory).differences == ()


def test_what_differs_is_reported_never_silently(sandbox: Environment) -> None:
    first = run(
        program(sandbox, "q -> a", sub_lm=ScriptedLM(lambda call: "yes")),
        [
            code("import os, time\nseed = os.urandom(8).hex()\nprint('the seed is', seed)"),
            code("print(llm_query('about ' + seed))"),
            code("SUBMIT(seed)"),
        ],
        q="q",
    )
    with pytest.raises(ReplayDiffers, match="turn 1: the code gave another output") as raised:
        again(first.trajectory)
    differences = raised.value.differences
    assert [(d.turn, d.about) for d in differences] == [(2, "llm_query"), (1, "output"), (3, "output"), (0, "outputs")]
    assert "the seed is" in differences[1].recorded and differences[1].recorded != differences[1].replayed
    assert raised.value.prediction.a != first.a, "what the code gave this time"
    assert pickle.loads(pickle.dumps(raised.value)).differences == differences
    returned = again(first.trajectory, on_difference="return")
    assert len(returned.differences) == 4 and "other arguments" in str(returned.differences[0])


def test_a_call_that_was_never_made_fails_and_is_reported(sandbox: Environment) -> None:
    first = run(
        program(sandbox, "q -> a", sub_lm=ScriptedLM(lambda call: "yes")),
        [code("import os\nfor i in range(3): llm_query(str(i))"), code("SUBMIT('x')")],
        q="q",
    )
    events = [e for e in first.trajectory.events if not (isinstance(e, ev.Returned) and e.number == 3)]
    found = again(events, on_difference="return")
    assert any(d.about == "llm_query" and "more often" in d.text for d in found.differences)
    assert "this call of llm_query was not recorded" in found.trajectory[0].output


def test_limits_and_extract_are_as_recorded(sandbox: Environment) -> None:
    first = run(
        program(sandbox, max_iters=2),
        [code("print(1)"), code("print(2)"), "[[ ## answer ## ]]\nmaybe\n\n[[ ## n ## ]]\n7\n\n[[ ## completed ## ]]"],
        context="c",
        query="q",
    )
    assert first.outcome == "extracted" and first.outcome.limit == "max_iters"
    second = again(first.trajectory, program(sandbox, max_iters=5))
    assert (second.answer, second.n, second.outcome.limit) == ("maybe", 7, "max_iters")


def test_code_that_was_stopped_by_the_clock_is_not_waited_for(sandbox: Environment) -> None:
    extract = "[[ ## answer ## ]]\nlate\n\n[[ ## n ## ]]\n1\n\n[[ ## completed ## ]]"
    first = run(
        program(sandbox, max_seconds=2.0),
        [code("x = 1\nprint('begun', flush=True)\nimport time\nwhile True: time.sleep(0.01)"), extract],
        context="c",
        query="q",
    )
    assert first.outcome.limit == "max_seconds" and "begun" in first.trajectory[0].output
    second = again(first.trajectory, program(sandbox, max_seconds=2.0))
    assert second.answer == "late" and second.outcome.limit == "max_seconds" and second.differences == ()
    assert texts(second.trajectory) == texts(first.trajectory)


def test_an_error_that_ended_the_run_ends_it_again(sandbox: Environment) -> None:
    broken = dspy.lm15.InvalidRequestError("no such model")
    first = run(program(sandbox), [code("print(1)"), Reply(error=broken), Reply(error=broken)], context="c", query="q")
    assert first.outcome == "failed"
    second = again(first.trajectory, program(sandbox))
    assert second.outcome == "failed" and second.outcome.error == first.outcome.error and second.differences == ()


def test_a_run_that_raised_raises_again(sandbox: Environment) -> None:
    broken = dspy.lm15.InvalidRequestError("no such model")
    with pytest.raises(Exception, match="no such model") as raised:
        run(program(sandbox), [Reply(error=broken)], context="c", query="q")
    with pytest.raises(RecordingError, match="no such model"):
        again(raised.value.trajectory.events, program(sandbox))  # type: ignore[attr-defined]


def test_children_answer_what_they_answered(sandbox: Environment) -> None:
    def root(call: Call) -> str:
        if "child task" in call.own[0]["content"]:
            return code("SUBMIT(str(len(text)))")
        batch = "[{'prompt': 'child task', 'text': 'x' * n} for n in (2, 5)]"
        return code(f"r = rlm_query_batched({batch})\nSUBMIT(str(r))")

    first = run(program(sandbox, "q -> a", max_depth=2), root, q="q")
    assert first.a == "['2', '5']", first.a
    second = again(first.trajectory, program(sandbox, "q -> a", max_depth=2))
    assert second.a == first.a and second.differences == ()


def test_large_inputs_are_given_again_and_checked(sandbox: Environment) -> None:
    text = "0123456789" * (IN_MEMORY // 10 + 1)
    first = run(program(sandbox), [code("SUBMIT(answer=context[:3], n=len(context))")], context=text, query="q")
    with pytest.raises(RecordingError, match=r"'context' has to be given.*too large.*rlm_dspy\.journal"):
        again(first.trajectory)
    assert again(first.trajectory, context=text).n == len(text)
    small = run(program(sandbox), [code("SUBMIT(answer='', n=len(context))")], context="abc", query="q")
    with pytest.raises(ReplayDiffers, match="the input 'context' is another one"):
        again(small.trajectory, context="abd")


def test_notes_on_functions_that_code_has_rebound_come_in_the_same_order(sandbox: Environment) -> None:
    first = run(
        program(sandbox),
        [code("llm_query = budget = SUBMIT = SHOW_VARS = predict = 1"), code("SUBMIT('', 1)")],
        context="c",
        query="q",
    )
    assert again(first.trajectory, program(sandbox)).differences == ()


def test_bad_input_is_named(sandbox: Environment) -> None:
    first = run(program(sandbox), [code("print(1)"), code("SUBMIT('', 1)")], context="c", query="q")
    with pytest.raises(ConfigurationError, match="the recorded run is of the signature"):
        again(first.trajectory, program(sandbox, "q -> a"))
    with pytest.raises(RecordingError, match="part of a trajectory"):
        again(first.trajectory[:1])
    with pytest.raises(RecordingError, match="not the events of a run"):
        again([])
    with pytest.raises(TypeError, match="replay takes"):
        again([{"kind": "run_started"}])
    with pytest.raises(TypeError, match="'contxt', which is no input of the run; these are context, query"):
        again(first.trajectory, contxt="c")

    other = run(program(sandbox, OnePoint), [code("SUBMIT({'x': 1, 'label': 'a'})")], q="q")
    with pytest.raises(RecordingError, match=r"pass it: replay\(\.\.\., rlm\)"):
        again(other.trajectory)
    assert again(other.trajectory, program(sandbox, OnePoint)).mine == Point(x=1, label="a")


def test_from_within_an_event_loop(sandbox: Environment) -> None:
    first = run(program(sandbox), [code("SUBMIT('a', 1)")], context="c", query="q")

    async def main() -> Any:
        return again(first.trajectory)

    assert asyncio.run(main()).n == 1


def test_values_kept_in_memory_are_bounded_and_never_shown(sandbox: Environment) -> None:
    def big() -> str:
        """Much."""
        return "z" * (IN_MEMORY + 1)

    def secret() -> str:
        """Little."""
        return "the quick brown fox"

    first = run(
        program(sandbox, "q -> a", tools=[big, secret]),
        [code("x = big(); y = secret(); print(len(x))"), code("SUBMIT('x')")],
        q="q",
    )
    kept = {e.name: e.result for e in first.trajectory.events if isinstance(e, ev.Returned)}
    assert kept["big"].data is None and "too large" in kept["big"].why
    shown = json.dumps([e.to_dict() for e in first.trajectory.events if isinstance(e, ev.Returned)])
    assert "quick brown" not in shown and "quick" not in repr(kept["secret"])
    found = again(first.trajectory, program(sandbox, "q -> a", tools=[big, secret]), on_difference="return")
    assert "a value was not recorded: it is too large" in found.trajectory[0].output
    assert found.differences


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=12,
)


@given(_values)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_kept_value_comes_back_exactly(value: Any) -> None:
    kept = pack(value)
    back = kept.value()
    assert back == value and type(back) is type(value) and digest(back) == digest(value) == kept.digest
    assert not oversized(value)


def test_digests_tell_apart_what_differs() -> None:
    values = ["1", 1, 1.0, True, None, b"1", ["1"], ("1",), {"1": 1}, {"1"}, "", []]
    values += [[[]], ["", ""], [["", ""]], ["11", ""]]
    assert len({digest(value) for value in values}) == len(values)
    assert digest({"a", "b", "c"}) == digest({"c", "b", "a"}), "the order of a set is none"
    long = "x" * 10_000_000
    assert digest(long) != digest(long + "y") and digest(long) == digest("x" * 10_000_000)
    assert digest(collections.Counter("aab")) == digest({"a": 2, "b": 1})


def test_the_size_of_anything_is_told_in_bounded_time() -> None:
    class Odd:
        nbytes = property(lambda self: 1 / 0)
        shape = "what"

    nested: list[Any] = []
    nested.append(nested)
    assert oversized(nested) and not oversized(Odd()) and not oversized([Odd(), {"a": Odd()}])
    assert oversized("x" * (IN_MEMORY + 1)) and oversized(list(range(200_000))) and oversized([b"x" * IN_MEMORY, "y"])

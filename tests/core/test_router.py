"""`RLM(direct_below=…)`: what is answered by one direct call, and that nothing is lost where that gives no answer."""

from __future__ import annotations

import asyncio
import datetime
import math
import time
from pathlib import Path
from typing import Any, Literal

import dspy
import pandas
import pydantic
import pytest
from dspy.lm15 import AuthError, ContextLengthError, InvalidRequestError
from dspy.streaming import StreamListener, StreamResponse
from hypothesis import given
from hypothesis import strategies as st

import rlm_dspy
from rlm_dspy import RLM, ConfigurationError, router
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, Reply, ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")

ANSWER = "[[ ## answer ## ]]\n{}\n\n[[ ## completed ## ]]"


def policy(direct: str | Reply, root: str = "SUBMIT(answer='from the run')") -> Any:
    """A direct call gets ``direct``, the root of a run replies with the code ``root``."""
    return lambda call: code(root) if "REPL" in call.system else direct


def run(rlm: RLM, lm: dspy.BaseLM, **inputs: Any) -> tuple[dspy.Prediction, list[Any]]:
    seen: list[Any] = []
    with dspy.context(lm=lm), rlm_dspy.subscribe(lambda event, run: seen.append(event)):
        return rlm(**inputs), seen


def test_inputs_that_fit_are_answered_by_one_call_without_a_sandbox() -> None:
    def no_sandbox() -> Any:
        raise AssertionError("no sandbox is needed")

    lm = ScriptedLM(policy(ANSWER.format("short")))
    rlm = RLM("context, query -> answer", direct_below=100, interpreter=no_sandbox)
    prediction, seen = run(rlm, lm, context="c", query="q")
    assert prediction.answer == "short"
    assert prediction.outcome == "direct" and prediction.outcome.limit is None
    assert list(prediction.trajectory) == [] and len(lm.calls) == 1
    assert prediction.usage["turns"] == 0 and prediction.usage["input_tokens"] > 0
    assert [event.kind for event in seen] == ["run_started", "run_ended"] and seen[-1].outcome == "direct"
    assert "[[ ## context ## ]]\nc" in lm.calls[0].prompt and "REPL" not in lm.calls[0].system


def test_direct_with_raise_is_no_stop() -> None:
    lm = ScriptedLM(policy(ANSWER.format("short")))
    prediction, _ = run(RLM("context -> answer", direct_below=100, on_limit="raise"), lm, context="c")
    assert prediction.outcome == "direct"


def test_awaited() -> None:
    async def main() -> dspy.Prediction:
        return await RLM("context -> answer", direct_below=100).acall(context="c")

    with dspy.context(lm=ScriptedLM(policy(ANSWER.format("short")))):
        assert asyncio.run(main()).outcome == "direct"


def test_larger_inputs_are_run(sandbox: Environment) -> None:
    lm = ScriptedLM(policy("never asked"))
    rlm = RLM("context -> answer", direct_below=100, interpreter=sandbox)
    prediction, _ = run(rlm, lm, context="x" * 400)
    assert (prediction.answer, prediction.outcome) == ("from the run", "submitted")
    assert len(lm.calls) == 1


@pytest.mark.parametrize("name", ["demos", "config", "lm"])
def test_an_input_that_predictors_would_take_for_their_own_is_run(sandbox: Environment, name: str) -> None:
    lm = ScriptedLM(lambda call: code(f"SUBMIT(str({name}))"))
    with dspy.context(lm=lm):
        prediction = RLM(f"{name} -> answer", direct_below=1_000, interpreter=sandbox)(**{name: {"n": 1}})
    assert prediction.outcome == "submitted" and prediction.answer == "{'n': 1}"


def test_without_the_option_nothing_is_direct(sandbox: Environment) -> None:
    rlm = RLM("context -> answer", interpreter=sandbox)
    prediction, _ = run(rlm, ScriptedLM(policy("never asked")), context="c")
    assert prediction.outcome == "submitted"
    assert "direct" not in dict(rlm.named_predictors())


def test_with_tools_nothing_is_direct(sandbox: Environment) -> None:
    def look_up(key: str) -> str:
        """Find a key."""
        return "found"

    rlm = RLM("context -> answer", direct_below=100, tools=[look_up], interpreter=sandbox)
    prediction, _ = run(rlm, ScriptedLM(policy("never", "SUBMIT(answer=look_up('k'))")), context="c")
    assert (prediction.answer, prediction.outcome) == ("found", "submitted")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("I would rather not.", "its reply cannot be read: I would rather not."),
        ("", "its reply cannot be read"),
        (Reply(error=ContextLengthError("8193 tokens, 8192 fit")), "8193 tokens, 8192 fit"),
        (Reply(error=InvalidRequestError("content filter")), "content filter"),
        (Reply(error=ZeroDivisionError("a bug of the engine")), "a bug of the engine"),
    ],
)
def test_without_a_direct_answer_the_run_begins(sandbox: Environment, reply: str | Reply, why: str) -> None:
    lm = ScriptedLM(policy(reply))
    prediction, seen = run(RLM("context -> answer", direct_below=100, interpreter=sandbox), lm, context="c")
    assert (prediction.answer, prediction.outcome) == ("from the run", "submitted")
    assert len(lm.calls) == 2, "one direct call, in no second form, and one turn"
    (note,) = [event.message for event in seen if event.kind == "note"]
    assert note.startswith("no direct answer") and why in note
    assert prediction.usage["turns"] == 1


def test_what_would_fail_again_is_raised_as_it_is() -> None:
    lm = ScriptedLM(policy(Reply(error=AuthError("wrong key"))))
    with pytest.raises(dspy.utils.exceptions.LMAuthError, match="wrong key"):
        run(RLM("context -> answer", direct_below=100), lm, context="c")
    assert len(lm.calls) == 1


def test_a_limit_of_time_strikes_the_direct_call_too(sandbox: Environment) -> None:
    lm = ScriptedLM(lambda call: Reply("late", delay=0.0 if call.number else 3.0))
    rlm = RLM("context -> answer", direct_below=100, max_seconds=0.3, interpreter=sandbox)
    started = time.monotonic()
    prediction, seen = run(rlm, lm, context="c")
    assert time.monotonic() - started < 3.0
    assert prediction.outcome.limit == "max_seconds" and prediction.outcome != "direct"
    assert ["max_seconds" in event.message for event in seen if event.kind == "note"] == [True]


class Ticket(pydantic.BaseModel):
    number: int
    kind: Literal["parcel", "billing"]


class Triage(dspy.Signature):
    """Open tickets."""

    messages: list[str] = dspy.InputField()
    tickets: list[Ticket] = dspy.OutputField()
    urgent: bool = dspy.OutputField()


@pytest.mark.parametrize(
    ("adapter", "reply"),
    [
        (None, '[[ ## tickets ## ]]\n[{"number": 7, "kind": "billing"}]\n\n[[ ## urgent ## ]]\nTrue'),
        (dspy.ChatAdapter(), '[[ ## tickets ## ]]\n[{"number": 7, "kind": "billing"}]\n\n[[ ## urgent ## ]]\nTrue'),
        (dspy.JSONAdapter(), '{"tickets": [{"number": 7, "kind": "billing"}], "urgent": true}'),
    ],
)
def test_outputs_are_typed_by_the_users_adapter(adapter: dspy.Adapter | None, reply: str) -> None:
    with dspy.context(adapter=adapter):
        prediction, _ = run(RLM(Triage, direct_below=100), ScriptedLM([reply]), messages=["#7 billed twice"])
    assert prediction.tickets == [Ticket(number=7, kind="billing")] and prediction.urgent is True


def test_the_users_adapter_keeps_its_second_form() -> None:
    adapter = dspy.ChatAdapter()
    with dspy.context(adapter=adapter):
        run(RLM("context -> answer", direct_below=100), ScriptedLM(policy(ANSWER.format("x"))), context="c")
    assert adapter.use_json_adapter_fallback is True


# --------------------------------------------------------------------------------------------------- option and state


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "100"])
def test_wrong_values_are_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="direct_below must be a whole number of tokens"):
        RLM("context -> answer", direct_below=value)
    with pytest.raises(ConfigurationError, match="direct_below must be a whole number of tokens"):
        RLM("context -> answer").with_options(direct_below=value)


def test_the_predictor_is_there_where_the_option_is_set() -> None:
    plain = RLM("context -> answer")
    routed = plain.with_options(direct_below=100)
    assert {*dict(routed.named_predictors())} == {*dict(plain.named_predictors()), "direct"}
    assert "direct" not in dict(plain.named_predictors())
    assert routed.act is plain.act
    assert routed.with_options(max_iters=3).direct is routed.direct
    assert routed.with_options(direct_below=200).direct is routed.direct
    off = routed.with_options(direct_below=None)
    assert "direct" not in dict(off.named_predictors())
    assert routed.direct is not None


def test_optimised_prompts_are_those_of_the_direct_call() -> None:
    rlm = RLM("context -> answer", direct_below=100)
    rlm.direct.signature = rlm.direct.signature.with_instructions("Answer in one word.")
    rlm.direct.demos = [dspy.Example(context="demo context", answer="demo answer")]
    lm = ScriptedLM(policy(ANSWER.format("x")))
    run(rlm, lm, context="c")
    assert "Answer in one word." in lm.calls[0].system
    assert any("demo context" in message["content"] for message in lm.calls[0].messages)


def test_bootstrapping_sees_it() -> None:
    student = RLM("context -> answer", direct_below=100)
    lm = ScriptedLM(policy(ANSWER.format("blue")))
    with dspy.context(lm=lm):
        optimizer = dspy.BootstrapFewShot(metric=lambda *_: True, max_bootstrapped_demos=1)
        compiled = optimizer.compile(
            student, trainset=[dspy.Example(context="the sky", answer="blue").with_inputs("context")]
        )
    assert [dict(demo)["answer"] for demo in compiled.direct.demos] == ["blue"]


def test_state_goes_both_ways(tmp_path: Path) -> None:
    routed = RLM("context -> answer", direct_below=100)
    routed.direct.signature = routed.direct.signature.with_instructions("Learned.")
    routed.act.signature = routed.act.signature.with_instructions("Strategy.")
    routed.save(tmp_path / "routed.json")
    plain = RLM("context -> answer")
    plain.save(tmp_path / "plain.json")

    again = RLM("context -> answer", direct_below=7)
    again.load(tmp_path / "routed.json")
    assert again.direct.signature.instructions == "Learned." and again.direct_below == 7
    unrouted = RLM("context -> answer")
    unrouted.load(tmp_path / "routed.json")
    assert unrouted.act.signature.instructions == "Strategy." and unrouted.direct_below is None
    again.load(tmp_path / "plain.json")
    assert again.direct.signature.instructions == "Learned.", "what the state does not have stays as it is"
    assert again.act.signature.instructions == plain.act.signature.instructions


def test_copies_have_their_own() -> None:
    rlm = RLM("context -> answer", direct_below=100)
    copied = rlm.deepcopy()
    assert copied.direct is not rlm.direct and copied.direct_below == 100
    with dspy.context(lm=ScriptedLM(policy(ANSWER.format("x")))):
        assert copied(context="c").outcome == "direct"


# ----------------------------------------------------------------------------------------------------------- the size


@given(st.text(max_size=300))
def test_text_counts_by_its_bytes(text: str) -> None:
    size = router.size({"a": text}, 1_000)
    assert 0 <= size - len(text.encode("utf-8", "replace")) / 4 <= 1


data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=30,
)


@given(data)
def test_plain_data_counts_about_as_it_is_written(value: Any) -> None:
    size = router.size({"a": value}, 10**9)
    written = len(repr(value).encode("utf-8", "replace")) / 4
    assert written / 8 - 20 <= size <= 8 * written + 20


def test_large_values_are_not_gone_through() -> None:
    class Counted(list):  # type: ignore[type-arg]
        looked = 0

        def __iter__(self) -> Any:
            type(self).looked += 1
            return super().__iter__()

    assert router.size({"a": Counted([0] * 10_000)}, 10) >= 10
    assert Counted.looked == 0


def test_a_value_that_contains_itself_has_an_end() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert router.size({"a": endless}, 50) >= 50


@pytest.mark.parametrize("value", [pandas.DataFrame({"a": [1]}), b"bytes", object(), [pandas.Series([1])]])
def test_what_a_prompt_would_not_hold_is_never_small(value: Any) -> None:
    assert router.size({"a": value}, 1_000) == math.inf


def test_models_and_dates_are_data() -> None:
    assert router.size({"a": Ticket(number=1, kind="parcel"), "b": datetime.date(2024, 1, 1)}, 1_000) < 50


def test_a_data_frame_is_run(sandbox: Environment) -> None:
    rlm = RLM("table: Any -> answer", direct_below=1_000, interpreter=sandbox)
    lm = ScriptedLM(policy("never", "SUBMIT(answer=len(table))"))
    prediction, _ = run(rlm, lm, table=pandas.DataFrame({"a": [1, 2]}))
    assert (prediction.answer, prediction.outcome) == ("2", "submitted")


def test_the_direct_answer_is_streamed() -> None:
    lm = ScriptedLM(policy(ANSWER.format("one two three four five")))
    rlm = RLM("context -> answer", direct_below=100)

    async def main() -> list[Any]:
        listener = StreamListener(signature_field_name="answer", predict=rlm.direct, predict_name="direct")
        streamed = dspy.streamify(rlm, stream_listeners=[listener])
        return [item async for item in streamed(context="c")]

    with dspy.context(lm=lm):
        items = asyncio.run(main())
    pieces = [item.chunk for item in items if isinstance(item, StreamResponse)]
    assert "".join(pieces).strip() == "one two three four five" and len(pieces) > 1
    assert items[-1].outcome == "direct" and len(lm.calls) == 1


def test_its_usage_has_a_role_of_its_own(sandbox: Environment) -> None:
    rlm = RLM("context -> answer", direct_below=100, interpreter=sandbox)
    prediction, _ = run(rlm, ScriptedLM(policy(ANSWER.format("x"))), context="c")
    assert list(prediction.usage["by_role"]) == ["direct"] and prediction.usage["lm_calls"] == 1
    prediction, _ = run(rlm, ScriptedLM(policy("unreadable")), context="c")
    assert prediction.usage["by_role"]["direct"]["lm_calls"] == prediction.usage["by_role"]["act"]["lm_calls"] == 1


def test_where_a_limit_leaves_no_room_for_it_the_run_decides(sandbox: Environment) -> None:
    rlm = RLM("context -> answer", direct_below=100, max_tokens=5, interpreter=sandbox)
    prediction, seen = run(rlm, ScriptedLM(policy(ANSWER.format("x"))), context="c" * 300)
    assert prediction.outcome != "direct" and any("no direct answer" in e.message for e in seen if e.kind == "note")


def test_a_call_of_a_session_is_never_direct(sandbox: Environment) -> None:
    rlm = RLM("context, query -> answer", direct_below=100, interpreter=sandbox)
    lm = ScriptedLM(policy("never asked", "SUBMIT(answer=context)"))
    with dspy.context(lm=lm), rlm.session() as session:
        assert session(context="kept", query="a").answer == "kept"
        assert session(query="b").outcome == "submitted"


def test_children_are_never_direct(sandbox: Environment) -> None:
    def act(call: Call) -> str:
        child = "tiny" in call.own[0]["content"]
        return code("SUBMIT(response='from the child')" if child else "SUBMIT(answer=rlm_query('tiny'))")

    options: dict[str, Any] = {"max_depth": 2, "interpreter": sandbox, "guidance": {"check_answers": False}}
    rlm = RLM("context -> answer", direct_below=100, **options)
    prediction, _ = run(rlm, ScriptedLM(act), context="c" * 500)
    assert prediction.answer == "from the child" and prediction.usage["children"] == 1
    assert "direct" not in prediction.usage["by_role"]


def test_run_again_it_is_what_was_recorded() -> None:
    rlm = RLM("context -> answer: int", direct_below=100)
    prediction, _ = run(rlm, ScriptedLM(policy(ANSWER.format("3"))), context="c")
    with dspy.context(lm=None):
        again = rlm_dspy.replay(prediction.trajectory, rlm)
    assert (again.answer, again.outcome, again.differences) == (3, "direct", ())


def test_a_person_is_shown_it(capsys: pytest.CaptureFixture[str]) -> None:
    from rlm_dspy.console import ConsoleSubscriber

    lm = ScriptedLM(policy(ANSWER.format("short")))
    with dspy.context(lm=lm), rlm_dspy.subscribe(ConsoleSubscriber()):
        RLM("context -> answer", direct_below=100)(context="c")
    shown = capsys.readouterr().err
    assert "direct in" in shown and "answer: short" in shown

"""The adapter of typed sub-calls: what is sent, what is read from replies of any form, what is said of bad ones."""

from __future__ import annotations

import asyncio
import copy
import datetime
import enum
import json
import re
import time
from dataclasses import dataclass
from typing import Any, Literal, Optional

import dspy
import pydantic
import pytest
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import AdapterParseError
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy.signatures import PlainTextAdapter, TypedAdapter, reason, repairing
from rlm_dspy.signatures.readings import coerce, kind_of
from rlm_dspy.testing import Call, Reply, ScriptedLM

INNERS = [dspy.ChatAdapter, dspy.JSONAdapter, dspy.XMLAdapter]


class Level(enum.Enum):
    HIGH = "high!"
    LOW = "low!"


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(0, ge=0)


@dataclass
class Point:
    x: int
    y: int


class Report(dspy.Signature):
    """Report."""

    text: str = dspy.InputField()
    count: int = dspy.OutputField()
    label: Literal["billing", "site"] = dspy.OutputField()
    people: list[Person] = dspy.OutputField()
    note: str = dspy.OutputField()


GOOD = {"count": 3, "label": "site", "people": [Person(name="Ada", age=36)], "note": 'it is "so" {x}'}


def asks(*outputs: Any, inputs: int = 1) -> type[dspy.Signature]:
    """A signature with outputs ``a``, ``b``, … of these types."""
    fields: dict[str, Any] = {f"in{n}": (str, dspy.InputField()) for n in range(inputs)}
    fields |= {"abcdef"[n]: (kind, dspy.OutputField()) for n, kind in enumerate(outputs)}
    return dspy.Signature(fields, "Do it.")


def called(signature: Any, replies: list[Any], inner: Any = None, **inputs: Any) -> tuple[dspy.Prediction, ScriptedLM]:
    """A real ``dspy.Predict`` through the adapter; an LM that is asked more often than there are replies fails."""
    lm = ScriptedLM(replies)
    given = inputs or dict.fromkeys(signature.input_fields, "x")
    with dspy.context(lm=lm, adapter=TypedAdapter(inner)):
        return dspy.Predict(signature)(**given), lm


# --------------------------------------------------------------------------------------------------------------- sent


@pytest.mark.parametrize("inner", INNERS)
def test_the_request_is_the_users_adapters_own(inner: type[dspy.Adapter]) -> None:
    demos = [{"text": "t", **GOOD}]
    inputs = {"text": " {x} [[ ## note ## ]] "}
    assert TypedAdapter(inner()).format(Report, demos, inputs) == inner().format(Report, demos, inputs)


def test_one_text_to_one_text_is_plain() -> None:
    inputs = {"in0": "Hello"}
    assert TypedAdapter().format(asks(str), [], inputs) == PlainTextAdapter().format(asks(str), [], inputs)
    prediction, lm = called(asks(str), [" as\n it is [[ ## a ## ]]"], in0="Hello")
    assert prediction.a == " as\n it is [[ ## a ## ]]" and lm.calls[0].prompt == "Hello"


def test_adapters_that_call_lms_themselves_give_way() -> None:
    assert isinstance(TypedAdapter(dspy.TwoStepAdapter(dspy.LM("openai/x"))).inner, dspy.ChatAdapter)
    assert isinstance(TypedAdapter().inner, dspy.ChatAdapter)
    users = dspy.JSONAdapter(use_native_function_calling=False)
    assert TypedAdapter(users).inner is users and not TypedAdapter(users).use_native_function_calling


def test_the_users_adapter_is_not_changed_and_copies_are_independent() -> None:
    users = dspy.ChatAdapter()
    before = dict(vars(users))
    adapter = copy.deepcopy(TypedAdapter(users))
    assert vars(users) == before and users.use_json_adapter_fallback
    lm = ScriptedLM(["3"])
    with dspy.context(lm=lm, adapter=adapter):
        assert dspy.Predict(asks(int))(in0="x").a == 3


class Constrained(ScriptedLM):
    """An LM that takes a response format."""

    supported_params = frozenset({"response_format"})
    supports_response_schema = True


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_json_adapters_response_format_is_sent(way: str) -> None:
    lm = Constrained(['{"a": 3, "b": "x"}'] * 2)
    predict = dspy.Predict(asks(int, str))
    with dspy.context(lm=lm, adapter=TypedAdapter(dspy.JSONAdapter())):
        found = predict(in0="x") if way == "sync" else asyncio.run(predict.acall(in0="x"))
    assert (found.a, found.b) == (3, "x") and "response_format" in repr(lm.calls[0].request).lower()
    lm = Constrained(["3"])
    with dspy.context(lm=lm, adapter=TypedAdapter(dspy.JSONAdapter())):
        dspy.Predict(asks(str))(in0="x")
    assert "json" not in repr(lm.calls[0].request).lower()


def test_callbacks_of_the_users_adapter_are_fired() -> None:
    seen: list[str] = []

    class Watch(BaseCallback):
        def on_adapter_parse_end(self, call_id: str, outputs: Any, exception: Any = None) -> None:
            seen.append("failed" if exception else "parsed")

    called(asks(int), ["a: 3"], dspy.ChatAdapter(callbacks=[Watch()]))
    assert seen[-1] == "parsed"


# --------------------------------------------------------------------------------------------------------------- read


@pytest.mark.parametrize("inner", INNERS)
@pytest.mark.parametrize("form", INNERS)
def test_each_form_is_read_under_each_adapter(inner: type[dspy.Adapter], form: type[dspy.Adapter]) -> None:
    reply = form().format_assistant_message_content(Report, GOOD)
    prediction, lm = called(Report, [reply], inner())
    assert dict(prediction.items()) == GOOD and len(lm.calls) == 1


@pytest.mark.parametrize(
    "reply",
    [
        "Count: 3\nLabel: site\npeople: [{'name': 'Ada', 'age': 36}]\nNote: it is \"so\" {x}",
        '**count:** 3\n**label**: Site.\n- people: [{"name": "Ada", "age": 36}]\n- note: it is "so" {x}',
        "1. count = 3\n2. label = 'site'\n3. people = [{\"name\": \"Ada\", \"age\": 36}]\n4. note = it is \"so\" {x}",
        '<think>{"count": 1}</think>```json\n%s\n```',
        "Here you are:\n%s\nAnything else?",
        '{"thought": "hm"}\n%s',
        "[[ ## count ## ]] 3\n[[ ## label ## ]]\n'site'\n"
        '[[ ## people ## ]]\n```json\n[{"name": "Ada", "age": "36"}]\n```\n'
        '[[ ## note ## ]]\nit is "so" {x}\n[[ ## completed ## ]]',
    ],
)
def test_forms_that_nobody_asked_for_are_read_without_another_call(reply: str) -> None:
    values = {**GOOD, "people": [{"name": "Ada", "age": 36}]}
    prediction, lm = called(Report, [reply.replace("%s", json.dumps(values))])
    assert dict(prediction.items()) == GOOD and len(lm.calls) == 1


@pytest.mark.parametrize(
    ("kind", "reply", "value"),
    [
        (int, "3", 3),
        (int, "There are 1,204 of them.", 1204),
        (float, "about 2.5 km", 2.5),
        (bool, "True", True),
        (bool, "yes", True),
        (Literal["billing", "site"], "Billing.", "billing"),
        (Literal["billing", "site"], '"site"', "site"),
        (Literal["billing", "site"], "**Site**", "site"),
        (Literal["billing", "site"], "a: site", "site"),
        (Literal[1, 2], "2", 2),
        (Literal["1", "2"], "2", "2"),
        (Optional[Literal["billing", "site"]], "null", None),  # noqa: UP045
        (Optional[Literal["billing", "site"]], "SITE", "site"),  # noqa: UP045
        (Optional[int], "None", None),  # noqa: UP045
        (Optional[int], "7", 7),  # noqa: UP045
        (list[str], '["x", "y"]', ["x", "y"]),
        (list[str], "- x\n- y\n", ["x", "y"]),
        (list[int], "1. 10\n2. 20", [10, 20]),
        (list[str], "```\n['x']\n```", ["x"]),
        (list[str], 'The list is ["x", "y"].', ["x", "y"]),
        (set[str], '["x", "x"]', {"x"}),
        (tuple[int, str], "[1, 'x']", (1, "x")),
        (dict[str, int], '{"x": 1}', {"x": 1}),
        (datetime.date, "2024-02-29", datetime.date(2024, 2, 29)),
        (Level, "high!", Level.HIGH),
        (Level, "HIGH", Level.HIGH),
        (Person, '{"name": "Ada"}', Person(name="Ada")),
        (Person, 'It is {"name": "Ada", "age": 36}, I think.', Person(name="Ada", age=36)),
        (Person, "{'name': 'Ada', 'age': None}", None),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (Any, '{"x": [true, null]}', {"x": [True, None]}),
    ],
)
def test_a_bare_value_is_the_one_output(kind: Any, reply: str, value: Any) -> None:
    if value is None and kind is Person:
        with pytest.raises(AdapterParseError, match="age"):
            called(asks(kind), [reply])
        return
    found, lm = called(asks(kind), [reply])
    assert found.a == value and type(found.a) is type(value) and len(lm.calls) == 1


def test_a_text_is_the_whole_reply_where_nothing_else_is_asked_for() -> None:
    assert called(asks(str, inputs=2), ["```python\nx = 1\n```"])[0].a == "```python\nx = 1\n```"
    assert called(asks(str, inputs=2), ["Well: it is so.\nAnd so."])[0].a == "Well: it is so.\nAnd so."


def test_an_optional_output_is_not_left_out_where_the_reply_gives_it() -> None:
    """DSPy's own parse reads any text as an optional output left out."""
    maybe: Any = Optional[str]  # noqa: UP045
    assert called(asks(maybe), ["Paris"])[0].a == "Paris"
    assert called(asks(maybe), ["{}"])[0].a is None
    assert called(asks(maybe), ['{"a": null}'])[0].a is None
    with pytest.raises(AdapterParseError, match="none of the outputs"):
        called(asks(maybe, maybe), ["I do not know."])
    assert called(asks(maybe), ["null"])[0].a is None
    assert called(asks(maybe), ["[[ ## a ## ]]\nNone\n[[ ## completed ## ]]"])[0].a is None
    both = called(asks(int, maybe), ['{"a": 3}'])[0]
    assert (both.a, both.b) == (3, None)


def test_null_is_no_text() -> None:
    """DSPy's own parse makes the text ``"None"`` of it."""
    with pytest.raises(AdapterParseError, match="`b`"):
        called(asks(int, str), ['{"a": 3, "b": null}'], dspy.JSONAdapter())
    assert called(asks(int, str), ["[[ ## a ## ]]\n3\n[[ ## b ## ]]\nNone"])[0].b == "None"


def test_bounds_of_an_output_hold() -> None:
    score = dspy.Signature({"x": (str, dspy.InputField()), "a": (int, dspy.OutputField(ge=0, le=10))}, "Score.")
    assert called(score, ["[[ ## a ## ]]\n10"])[0].a == 10
    with pytest.raises(AdapterParseError, match="less than or equal to 10"):
        called(score, ["[[ ## a ## ]]\n11"])


# ------------------------------------------------------------------------------------------------------------ reasons


@pytest.mark.parametrize("inner", INNERS)
@pytest.mark.parametrize(
    ("signature", "reply", "says"),
    [
        (asks(int), "I do not know", "`a` has to be a whole number, and 'I do not know' came"),
        (asks(Literal["x", "y"]), "z", "`a` has to be one of 'x', 'y', and 'z' came"),
        (asks(Level), "medium", "one of 'high!', 'low!'"),
        (asks(list[str]), "none of them", "`a` has to be a JSON list of texts"),
        (asks(Person), '{"age": 3}', "`a` has to be a JSON object with name, age, and .* came .name: Field required"),
        (asks(Person), '{"name": "Ada", "age": -3}', "age: Input should be greater than or equal to 0"),
        (asks(int, str), '{"a": 3}', "there is no value for `b` .a text"),
        (asks(int, str), '{"a": "three", "b": "x"}', "`a` has to be a whole number, and 'three' came"),
        (asks(int, int), "no idea", "none of the outputs `a`, `b` is in the reply"),
        (asks(datetime.date), "yesterday", "a date like 2024-12-31"),
        (asks(dict[str, list[int]]), "x" * 10_000, "`a` has to be dict.str, list.int.., and 'xxx"),
    ],
)
def test_the_reason_says_which_output_what_was_expected_and_what_came(
    inner: type[dspy.Adapter], signature: Any, reply: str, says: str
) -> None:
    with pytest.raises(AdapterParseError, match=says) as caught:
        called(signature, [reply], inner())
    text = reason(caught.value)
    assert "\n" not in text and len(text) <= 600
    with pytest.raises(AdapterParseError) as again:
        TypedAdapter(inner()).parse(signature, reply)
    assert reason(again.value) == text


@pytest.mark.parametrize("signature", [asks(int), asks(str), Report])
def test_an_empty_reply_has_a_reason_too(signature: Any) -> None:
    with pytest.raises(AdapterParseError) as caught:
        called(signature, [""])
    assert reason(caught.value) == "the reply is empty"


def test_reasons_of_other_errors_are_their_first_line() -> None:
    assert reason(ValueError("too\nlong")) == "too"
    assert reason(ValueError()) == "ValueError"
    assert len(reason(ValueError("x" * 5_000))) == 600


@pytest.mark.parametrize(
    "reply",
    [
        *("[" * 50_000, "{" * 50_000, '{"a":' * 20_000, "[" * 5_000 + "]" * 5_000, '"' * 50_000),
        *("{" * 150 + "a" * 50_000, "{" * 19 + "a" * 20_000, "{}" * 20_000, '{"a": ' + "'" * 20_000),
    ],
)
@pytest.mark.parametrize("inner", INNERS)
def test_hostile_replies_are_read_in_moments(inner: type[dspy.Adapter], reply: str) -> None:
    started = time.monotonic()
    with pytest.raises(AdapterParseError) as caught:
        TypedAdapter(inner()).parse(asks(int, list[int]), reply)
    assert reason(caught.value)
    assert time.monotonic() - started < 15


KINDS = st.sampled_from([int, str, Literal["x", "y"], list[str], Person, Optional[int], dict[str, Any], Level])  # noqa: UP045
PIECES = st.sampled_from(
    [
        *("[[ ## a ## ]]", "<a>", "</a>", "a:", "b =", "{", "}", "[", "]", '"a"', ":", ",", "3", "x", "\n", "```"),
        *("null", "- ", "<think>"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(kinds=st.lists(KINDS, min_size=1, max_size=3), pieces=st.lists(PIECES | st.text(max_size=5), max_size=15))
def test_any_reply_is_typed_outputs_or_an_error_with_a_reason(kinds: list[Any], pieces: list[str]) -> None:
    signature, reply = asks(*kinds, inputs=2), "".join(pieces)
    for inner in INNERS:
        try:
            values = TypedAdapter(inner()).parse(signature, reply)
        except AdapterParseError as error:
            assert reason(error)
        else:
            for kind, name in zip(kinds, "abc", strict=False):
                assert pydantic.TypeAdapter(kind).validate_python(values[name], strict=True) == values[name]


# ------------------------------------------------------------------------------------------------------------ repairs


@pytest.mark.parametrize("inner", INNERS)
def test_a_repair_is_the_same_request_with_reply_and_reason_behind(inner: type[dspy.Adapter]) -> None:
    lm = ScriptedLM(["no idea", '{"count": 3, "label": "site", "people": [], "note": "n"}'])
    predict = dspy.Predict(Report)
    with dspy.context(lm=lm, adapter=TypedAdapter(inner())):
        with pytest.raises(AdapterParseError) as caught:
            predict(text="t")
        with repairing(caught.value.lm_response, caught.value):
            assert predict(text="t").count == 3
        assert len(lm.calls) == 2
    first, second = (call.messages for call in lm.calls)
    assert second[: len(first)] == first and [m["role"] for m in second[len(first) :]] == ["assistant", "user"]
    assert second[-2]["content"] == "no idea"
    assert second[-1]["content"].startswith("That reply cannot be used: none of the outputs `count`")
    assert all(name in second[-1]["content"].split("\n\n", 1)[1] for name in Report.output_fields)
    assert TypedAdapter(inner()).format(Report, [], {"text": "t"}) == inner().format(Report, [], {"text": "t"})


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (int, "Reply with the value of `a` (a whole number) and with nothing else."),
        (Literal["x", "y"], "Reply with the value of `a` (one of 'x', 'y') and with nothing else."),
        (Optional[int], "(a whole number or null)"),  # noqa: UP045
        (Person, "[[ ## a ## ]]"),
        (str, "(a text)"),
    ],
)
def test_a_repair_asks_for_a_simple_output_in_plain_words(kind: Any, wanted: str) -> None:
    signature = asks(kind)
    error = AdapterParseError("x", signature, "bad")
    with repairing("bad", error):
        messages = TypedAdapter().format(signature, [], {"in0": "x"})
    assert wanted in messages[-1]["content"] and messages[-2] == {"role": "assistant", "content": "bad"}


def test_a_repair_concerns_requests_for_the_same_outputs_only() -> None:
    error = AdapterParseError("x", asks(int), "bad")
    with repairing("bad", error):
        for other in (asks(int, int), asks(str), Report):
            inputs = dict.fromkeys(other.input_fields, "x")
            assert TypedAdapter().format(other, [], inputs)[-1]["role"] == "user"
            assert "cannot be used" not in str(TypedAdapter().format(other, [], inputs))
        assert "cannot be used" in str(TypedAdapter().format(asks(int), [], {"in0": "x"}))
    assert "cannot be used" not in str(TypedAdapter().format(asks(int), [], {"in0": "x"}))


def test_what_is_sent_back_is_bounded_and_never_empty() -> None:
    error = AdapterParseError("x", asks(int), "y" * 100_000 + "\ud800")
    with repairing(error.lm_response, error):
        messages = TypedAdapter().format(asks(int), [], {"in0": "x"})
    assert len(messages[-2]["content"]) < 5_000 and len(messages[-1]["content"]) < 1_000
    with repairing(" ", error):
        assert TypedAdapter().format(asks(int), [], {"in0": "x"})[-2]["content"] == "(empty reply)"


def test_repairs_of_calls_at_once_do_not_mix() -> None:
    """Each task has its own bad reply."""

    def number(call: Call) -> str:
        found = re.search(r"task (\d)", call.messages[1]["content"])
        assert found is not None
        return found[1]

    lm = ScriptedLM(lambda call: "no" if len(call.messages) == 2 else number(call))
    predict = dspy.Predict(asks(int))

    async def one(n: int) -> int:
        with dspy.context(lm=lm, adapter=TypedAdapter()):
            try:
                await predict.acall(in0=f"task {n}")
            except AdapterParseError as error:
                with repairing(f"bad {n}", error):
                    found = (await predict.acall(in0=f"task {n}")).a
                    assert isinstance(found, int)
                    return found
        raise AssertionError("the first reply is no number")

    async def all_of_them() -> list[int]:
        return await asyncio.gather(*map(one, range(8)))

    assert asyncio.run(all_of_them()) == list(range(8))
    for call in lm.calls:
        if len(call.messages) > 2:
            assert call.messages[-2]["content"] == f"bad {number(call)}"


def test_a_provider_error_is_not_touched() -> None:
    with pytest.raises(Exception, match="slow down"):
        called(asks(int), [Reply(error=RuntimeError("slow down"))])


# -------------------------------------------------------------------------------------------------------------- words


def test_kinds_in_plain_words() -> None:
    assert kind_of(Literal[tuple(f"l{n}" for n in range(30))]).endswith("'l11', 18 more")  # type: ignore[misc]
    assert (kind_of(list[int]), kind_of(tuple[int, ...]), kind_of(list[Person]), kind_of(Any)) == (
        "a JSON list of whole numbers",
        "a JSON list of whole numbers",
        "",
        "",
    )


def test_coercion_refuses_what_is_another_type() -> None:
    for value, kind in (("x", int), ([1], str | None), (None, str), ({"a": 1}, list[int]), ("3.5", int)):
        with pytest.raises(ValueError, match=r"."):
            coerce(value, kind)

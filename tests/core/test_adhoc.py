"""Signatures made up in the sandbox: what is read, what is refused and how, and what comes back through a session."""

from __future__ import annotations

import datetime
import enum
import gc
import ipaddress
import string
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Optional, Union

import dspy
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import adhoc, environments
from rlm_dspy._aio import run_sync
from rlm_dspy.adhoc import signature
from rlm_dspy.results import to_sandbox, value_for_sandbox
from rlm_dspy.testing import ScriptedLM

PERSON = {
    "type": "object",
    "description": "Somebody",
    "properties": {"name": {"type": "string"}, "class": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


class Secret:
    """A class in the frames of this module, which no signature may reach."""


@pytest.fixture(autouse=True)
def fresh() -> None:
    adhoc.clear_cache()


def kinds(text: str, **more: Any) -> dict[str, Any]:
    return {name: field.annotation for name, field in signature(text, **more).fields.items()}


# --------------------------------------------------------------------------------------------------------- signatures


def test_fields_without_a_type_are_text_and_keep_their_order() -> None:
    made = signature("item, labels -> label, why")
    assert (list(made.input_fields), list(made.output_fields)) == (["item", "labels"], ["label", "why"])
    assert all(field.annotation is str for field in made.fields.values())


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("str", str),
        ("int", int),
        ("float", float),
        ("bool", bool),
        ("list", list),
        ("dict", dict),
        ("Any", Any),
        ("list[str]", list[str]),
        ("List[int]", list[int]),
        ("typing.List[int]", list[int]),
        ("list[dict[str, list[int]]]", list[dict[str, list[int]]]),
        ("dict[str, float]", dict[str, float]),
        ("tuple[int, str]", tuple[int, str]),
        ("tuple[int, ...]", tuple[int, ...]),
        ("set[str]", set[str]),
        ("set[Literal['a', 'b']]", set[Literal["a", "b"]]),
        ("Optional[int]", Optional[int]),  # noqa: UP045
        ("int | None", Optional[int]),  # noqa: UP045
        ("None | int | str", Union[None, int, str]),  # noqa: UP007
        ("Union[int, str]", Union[int, str]),  # noqa: UP007
        ("Literal['a', \"b\", 3, -4, True, None]", Literal["a", "b", 3, -4, True, None]),
        ("Literal['x -> y', 'a, b', 'c: [']", Literal["x -> y", "a, b", "c: ["]),
        ("date", datetime.date),
        ("datetime", datetime.datetime),
        ("datetime.date", datetime.date),
        ("time", datetime.time),
        ("timedelta", datetime.timedelta),
        ("'int'", int),
        ("list[\n  str\n]", list[str]),
    ],
)
def test_types_are_read_as_python_reads_them(written: str, meant: Any) -> None:
    for text in (f"a -> x: {written}", f"a: {written}, b -> x: {written} , y"):
        assert kinds(text)["x"] == meant


def test_named_types_are_models_and_say_what_they_are() -> None:
    score = {"type": "integer", "minimum": 0, "maximum": 10, "description": "How good"}
    text = "text -> people: list[Person], best: 'Person' | None, one: Person, score: Score"
    made = signature(text, {"Person": PERSON, "Score": score})
    (person,) = made.output_fields["people"].annotation.__args__
    assert person.__name__ == "Person" and person(name="a", age=3).age == 3
    assert made.output_fields["one"].annotation is person
    assert made.output_fields["best"].annotation == Optional[person]  # noqa: UP045
    # Bounds of an output's own type are not in the annotation that DSPy shows.
    desc = made.output_fields["score"].json_schema_extra["desc"]
    assert desc == 'How good {"type": "integer", "minimum": 0, "maximum": 10}'
    assert made.output_fields["one"].json_schema_extra["desc"] == "Somebody"


def test_instructions_are_the_callers_or_name_the_fields() -> None:
    assert signature("a -> b", instructions=" Translate it. ").instructions == "Translate it."
    said = signature("item, labels: list[str] -> label").instructions
    assert all(f"`{name}`" in said for name in ("item", "labels", "label"))
    assert "Given the fields" not in said and len(said) < 150


def test_the_same_arguments_give_the_same_class_in_any_thread() -> None:
    made: list[Any] = []
    barrier = threading.Barrier(8)

    def make() -> None:
        barrier.wait(20)
        made.append(signature("a -> b: Person", {"Person": PERSON}))

    workers = [threading.Thread(target=make) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len({id(one) for one in made}) == 1
    assert signature("a -> b: Person", {"Person": {**PERSON, "title": "x"}}) is not made[0]
    assert signature("a -> b: Person", {"Person": PERSON}, "x") is not made[0]
    assert signature("a -> b: X", {"X": {"const": 1}}) is not signature("a -> b: X", {"X": {"const": True}})


def test_what_is_no_longer_remembered_is_let_go() -> None:
    seen = weakref.ref(signature("a -> b: Person", {"Person": PERSON}).output_fields["b"].annotation)
    for n in range(300):
        signature(f"a -> b{n}")
    gc.collect()
    assert seen() is None
    first = signature("a -> b")
    for n in range(20):
        # Few, and large.
        signature("a -> b: T", {"T": {**PERSON, "description": f"{n}" + "x" * 50_000}})
    assert signature("a -> b") is not first


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a", "no -> in it; write inputs -> outputs"),
        ("", "no -> in it"),
        ("a -> ", "names no output"),
        ("-> b", "names no input"),
        ("a -> b -> c", "2 -> in it"),
        ("a, a -> b", "a stands there twice"),
        ("a -> a", "a stands there twice"),
        ("from -> b", "write from_"),
        ("_x -> b", "write x"),
        ("__class__ -> b", "write class"),
        ("model_config -> b", "write config"),
        ("json -> b", "write json_text"),
        ("self -> b", "call the field self_text"),
        ("signature -> b", "signature_text"),
        ("a, model -> b", "model_text"),
        ("a b -> c", "'a b' is no name"),
        ("1a -> c", "'1a' is no name"),
        ("a, , b -> c", "a field has no name"),
        ("a -> b = 3", "no default"),
        ("a -> b:", "write b: str"),
        ("a -> b: list[", "brackets do not match"),
        ("a -> b]", "brackets do not match"),
        ("a -> b: 'x", "quote is open"),
        ("a -> b: strng", "write str"),
        ("a -> b: string", "write str"),
        ("a -> b: array", "write list"),
        ("a -> b: bytes", "write str"),
        ("a -> b: Person", "unknown type 'Person'; the types are str, .*types=.name: JSON Schema"),
        ("a -> b: Secret", "unknown type 'Secret'"),
        ("a -> b: int[3]", "int takes no brackets"),
        ("a -> b: list[int, str]", "list takes 1 type"),
        ("a -> b: dict[str]", "dict takes 2 types"),
        ("a -> b: dict[list, str]", "write dict.str"),
        ("a -> b: set[list[int]]", "write list"),
        ("a -> b: [str]", "write list.str. in place"),
        ("a -> b: ['x', 'y']", "write Literal.'x', 'y'. in place"),
        ("a -> b: {'x', 'y'}", "write Literal"),
        ("a -> b: 'x' | 'y'", "write Literal.'x'"),
        ("a -> b: Literal", "Literal needs brackets"),
        ("a -> b: Literal[()]", "needs something"),
        ("a -> b: Literal[red]", "write Literal.'red'"),
        ("a -> b: Literal[1.5]", "not 1.5"),
        ("a -> b: Optional", "write X . None"),
        ("a -> b: None", "None alone"),
        ("a -> b: dspy.Image", "is no type"),
        ("a -> b: Image", "dspy.Image is not available"),
        ("a -> b: __import__('os').system('true')", "is no type"),
        ("a -> b: (lambda: int)()", "is no type"),
        ("a -> b: int if True else str", "is no type"),
        ("a -> b: str)(", "brackets do not match"),
        ("a -> " + ", ".join(f"f{n}" for n in range(40)), "at most 32 fields"),
        ("a -> b: " + "list[" * 20 + "int" + "]" * 20, "deeper than 8 levels"),
        ("a -> b: " + "[" * 2_000 + "]" * 2_000, "is no type"),
        ("a -> b: " + "-" * 5_000 + "1", "is no type"),
        ("a -> b: " + "int|" * 1_900 + "int", "more than 500 parts"),
        ("a" * 9_000, "at most 8,000 characters"),
        (5, "must be a text"),
        (None, "must be a text"),
    ],
)
def test_errors_say_what_to_write(text: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        signature(text)
    assert type(caught.value) is ValueError and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("types", "says"),
    [
        ([PERSON], "a dict of name to JSON Schema"),
        ({"Person": "str"}, "is a JSON Schema"),
        ({"Person": {"name": "str", "age": "int"}}, "is no JSON Schema; write it like types="),
        ({"str": PERSON}, "give yours another name"),
        ({"Literal": PERSON}, "give yours another name"),
        ({"a b": PERSON}, "no name for a type"),
        ({3: PERSON}, "no name for a type"),
        ({"Person": {"type": "person"}}, "unknown type 'person'"),
        ({"Person": pydantic.BaseModel}, "is a JSON Schema"),
        ({f"T{n}": PERSON for n in range(40)}, "at most 32 types"),
        ({"Other": PERSON}, "of types=: Other"),
    ],
)
def test_errors_of_types_say_what_to_write(types: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        signature("a -> b: Person", types)


def test_instructions_are_bounded_text() -> None:
    for wrong in (None, 3, "x" * 30_000):
        with pytest.raises(ValueError, match="instructions"):
            signature("a -> b", instructions=wrong)  # type: ignore[arg-type]


PIECES = st.sampled_from(
    [
        *("a", "b", "label", "->", ":", ",", "[", "]", "(", ")", "'", '"', "Literal", "list", "dict", "str", "int"),
        *("|", "None", "=", "\n", "#", "\\", "lambda", "x.y", "1", "-", "Secret", "{", "}", "*", "@", "\0", "é", " "),
        "\ud800",
    ]
)


@settings(max_examples=400, deadline=None)
@given(text=st.lists(PIECES, max_size=25).map("".join) | st.text(alphabet=string.printable, max_size=40))
def test_any_text_is_a_signature_or_a_value_error(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            made = signature(text)
        except ValueError as error:
            assert type(error) is ValueError
        else:
            assert made.output_fields and not any("Secret" in repr(f.annotation) for f in made.fields.values())


def test_nothing_hostile_takes_long() -> None:
    started = time.monotonic()
    for text in ("a -> b: " + "'" * 7_000, "'" * 8_000, "a" + "," * 7_000 + "-> b", "->" * 4_000, "\\" * 8_000):
        with pytest.raises(ValueError, match=r"write|is no type|has no name"):
            signature(text)
    assert time.monotonic() - started < 10


# ------------------------------------------------------------------------------------------------------------ results


class Level(enum.Enum):
    HIGH = "high"


class Inner(pydantic.BaseModel):
    day: datetime.date
    level: Level


class Outer(pydantic.BaseModel):
    inner: Inner
    more: list[Inner]
    address: ipaddress.IPv4Address
    tags: set[str]


@dataclass
class Point:
    x: int
    level: Level


class Pair(NamedTuple):
    first: int
    second: Point


INNER = Inner(day=datetime.date(2024, 2, 29), level=Level.HIGH)
OUTER = Outer(inner=INNER, more=[INNER], address=ipaddress.IPv4Address("127.0.0.1"), tags={"x"})


def test_one_output_is_its_value_and_several_are_an_object() -> None:
    one = dspy.Signature({"a": (str, dspy.InputField()), "b": (int, dspy.OutputField())})
    assert to_sandbox(dspy.Prediction(b=3, extra=4), one) == 3
    two = one.append("items", dspy.OutputField(), list[str])
    both = to_sandbox(dspy.Prediction(items=["x"], b=3, extra=4), two)
    assert (both.b, both.items, both["items"]) == (3, ["x"], ["x"])
    assert both.model_dump() == {"b": 3, "items": ["x"]} and list(both) == ["b", "items"]
    assert to_sandbox(dspy.Prediction(b=3), two)["items"] is None
    assert to_sandbox(dspy.Prediction(b=3, c=4)).c == 4
    assert to_sandbox("plain") == "plain"
    assert to_sandbox(dspy.Prediction(reasoning=dspy.Reasoning(content="so"))) == "so"
    assert value_for_sandbox(pydantic.SecretStr("key-123")) == "**********"


def test_a_result_that_contains_itself_is_an_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="150 levels"):
        value_for_sandbox(endless)


@pytest.fixture(params=["subprocess", "inprocess"])
def in_session(request: pytest.FixtureRequest, no_leaks: None) -> Callable[..., str]:
    """``in_session(code, **functions)``: what ``code`` prints in a real session that may call the functions."""

    def run(code: str, **functions: Any) -> str:
        async def cell() -> str:
            session = environments.get(request.param, timeout=60)()
            try:
                result = await session.run(code, functions)
            finally:
                await session.close()
            assert result.error is None, result.error
            return result.stdout

        return run_sync(cell())

    return run


def test_nested_models_enums_dates_and_sets_arrive_as_python_values(in_session: Callable[..., str]) -> None:
    async def give() -> Any:
        point, pair = Point(1, Level.HIGH), Pair(1, Point(2, Level.HIGH))
        return to_sandbox(dspy.Prediction(outer=OUTER, point=point, pair=pair, kinds={Level.HIGH}))

    assert in_session(
        """
import datetime
r = give()
assert r.outer.inner.day == datetime.date(2024, 2, 29) and r.outer.more[0].level == "high"
assert r.outer.address == "127.0.0.1" and r.outer.tags == {"x"}
assert (r.point.x, r.point.level, r["point"]["x"]) == (1, "high", 1)
first, second = r.pair
assert (first, second.x, r.pair.second.level) == (1, 2, "high")
assert r.kinds == {"high"}
assert r.outer.model_dump()["inner"] == {"day": datetime.date(2024, 2, 29), "level": "high"}
print(type(r.outer).__name__, r.outer.inner)
""",
        give=give,
    ) == "Record Inner(day=datetime.date(2024, 2, 29), level='high')\n"


def test_an_adhoc_call_from_end_to_end(in_session: Callable[..., str]) -> None:
    """Text and schema from the sandbox, a real predictor and a scripted LM on the host, values back."""
    reply = '[[ ## people ## ]]\n[{"name": "Ada", "class": "A", "age": 36}]\n\n[[ ## day ## ]]\n2024-02-29'
    lm = ScriptedLM(lambda call: reply)

    async def predict(text: str, /, types: Any = None, instructions: str = "", **inputs: Any) -> Any:
        made = signature(text, types, instructions)
        with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
            return to_sandbox(await dspy.Predict(made).acall(**inputs), made)

    assert in_session(
        """
Person = {"type": "object", "properties": {"name": {"type": "string"}, "class": {"type": "string"},
          "age": {"type": "integer"}}, "required": ["name"]}
r = predict("text -> people: list[Person], day: date", types={"Person": Person}, text="Ada, 36")
ada = r.people[0]
assert ada["class"] == "A" and ada.age + 1 == 37 and r.day.year == 2024
try:
    predict("text -> people: list[Persn]", types={"Person": Person}, text="x")
except Exception as error:
    print(ada, "write Person" in str(error))
""",
        predict=predict,
    ) == "Person(name='Ada', class='A', age=36) True\n"
    assert "JSON schema" in lm.calls[0].system and "Ada, 36" in lm.calls[0].prompt


def test_the_codec_does_not_remember_the_classes_of_a_call(
    in_session: Callable[..., str], eventually: Callable[..., bool]
) -> None:
    def call() -> weakref.ref[Any]:
        made = signature("a -> b: Person", {"Person": PERSON})
        model = made.output_fields["b"].annotation

        async def give() -> Any:
            return to_sandbox(dspy.Prediction(b=model(name="x")), made)

        assert in_session("print(give().name)", give=give) == "x\n"
        return weakref.ref(model)

    kind = call()
    adhoc.clear_cache()
    # A session's thread may hold its functions a moment longer.
    assert eventually(lambda: gc.collect() >= 0 and kind() is None)

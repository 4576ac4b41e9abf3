"""Taking the last answer out of a reply that does not keep to the form asked for."""

from __future__ import annotations

import enum
from typing import Any, Literal, Optional

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy.signatures.answers import salvage


class Colour(enum.Enum):
    RED = "red"


class Clause(pydantic.BaseModel):
    title: str
    pages: list[int] = []


BLOCK = "```python\n{}\n```"

ONE: list[tuple[Any, str, Any]] = [
    (list[str], '```json\n["a", "b"]\n```', ["a", "b"]),
    (list[str], '```json\n["a", "b", "b", "c', ["a", "b", "b"]),
    (list[str], '["a", "b, c", "d', ["a", "b, c"]),
    (list[int], "[1, 22, 3", [1, 22]),
    (int, "```text\n12\n```", 12),
    # The whole reply is the value.
    (str, "Paris", "Paris"),
    (str, " **Paris** \n", "Paris"),
    (str, "answer: Paris", "Paris"),
    (str, "The answer: `Paris`", "Paris"),
    (str, "[[ ## a ## ]]\nParis\n\n[[ ## completed ## ]]", "Paris"),
    (str, "a: 3", "3"),
    (str, "In 1066: the conquest", "In 1066: the conquest"),
    (str, "", None),
    (str, " \n", None),
    (int, "42", 42),
    (int, "-7", -7),
    (int, "The count is 1,234.", 1234),
    (int, "**42**", 42),
    (int, "There are 42 apples, I counted 42.", 42),
    (int, "3 of 12", None),
    (int, "many", None),
    (int, "4.5", None),
    (float, "It is 4.5 percent", 4.5),
    (bool, "True", True),
    (bool, "false", False),
    (bool, "perhaps", None),
    (list[str], '["a", "b"]', ["a", "b"]),
    (list[str], "['a', 'b']", ["a", "b"]),
    (list[str], "The names are ['a', 'b'].", ["a", "b"]),
    (list[str], "- a\n- b\n", ["a", "b"]),
    (list[str], "1. a\n2. b", ["a", "b"]),
    (list[str], "a, b", ["a", "b"]),
    (list[str], "[]", []),
    (list[int], "1, 2, 3", [1, 2, 3]),
    (list[int], "one, two", None),
    (set[str], "a, b, a", {"a", "b"}),
    (dict[str, int], '{"x": 1}', {"x": 1}),
    (dict[str, int], "Here: {'x': 1}", {"x": 1}),
    (dict[str, int], "x=1", None),
    (Literal["yes", "no"], "yes", "yes"),
    (Literal["yes", "no"], "maybe", None),
    (Colour, "red", Colour.RED),
    (Colour, "green", None),
    (Clause, '{"title": "t", "pages": [1]}', Clause(title="t", pages=[1])),
    (Clause, '{"pages": [1]}', None),
    (Optional[int], "None", None),  # noqa: UP045
    (int | None, "5", 5),
    # The last SUBMIT of constants is what it would have submitted.
    (int, "SUBMIT(a=3)", 3),
    (int, "SUBMIT(3)", 3),
    (int, BLOCK.format("SUBMIT(a=1)\nSUBMIT(a=2)"), 2),
    (str, "I am done: SUBMIT(a='x (y) z')", "x (y) z"),
    (list[str], BLOCK.format("SUBMIT(a=['p', 'q'])"), ["p", "q"]),
    (str, BLOCK.format("SUBMIT(a=len(context))"), None),
    (str, "SUBMIT(a=...)\nno more", "SUBMIT(a=...)\nno more"),
    (int, "SUBMIT(a=...) or rather SUBMIT(a=5)", 5),
    (int, BLOCK.format("SUBMIT(b=3)"), None),
    (int, BLOCK.format("SUBMIT(1, 2)"), None),
    (int, BLOCK.format("print(3)"), None),
    (int, BLOCK.format("SUBMIT(a='many')"), None),
]


@pytest.mark.parametrize(("annotation", "text", "value"), ONE)
def test_one_output(annotation: Any, text: str, value: Any) -> None:
    found = salvage(text, {"a": annotation})
    if found is None:
        assert value is None
    else:
        assert found == {"a": value} and type(found["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("SUBMIT('x', 3)", {"a": "x", "b": 3}),
        ("SUBMIT('x', b=3)", {"a": "x", "b": 3}),
        (BLOCK.format("SUBMIT(b='3', a=7)"), {"a": "7", "b": 3}),
        ("SUBMIT('x')", None),
        ("SUBMIT('x', 'y')", None),
        ("x and 3", None),
        ('{"a": "x", "b": 3}', None),  # read by DSPy's own adapters before
        ("", None),
    ],
)
def test_several_outputs_come_from_a_submission_alone(text: str, values: dict[str, Any] | None) -> None:
    assert salvage(text, {"a": str, "b": int}) == values


ANNOTATIONS = [
    *(str, int, float, bool, list, dict, list[str], list[int], set[str], tuple[int, str], dict[str, int], Any),
    *(Literal["yes", 3], Colour, Clause, list[Clause], int | None, str | list[int], bytes),
]
pieces = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            *("SUBMIT(", "SUBMIT(a=", "'x'", "[", "]", "{", "}", "(", ")", "...", "```python\n", "```", "\n", "- x\n"),
            *("3", "1,000", "-1e9", "inf", "nan", "True", "None", "{'a': 1}", "[1, 'b']", "a: ", "\ud800", "\0", "1_0"),
            *("9" * 5_000, "(" * 300, "[" * 300, "-" * 300, "0x", "\\", "b'\\xff'", "{1, [2]}", "{[]: 1}", "''"),
            "[[ ## a ## ]]",
        ]
    ),
)
replies = st.lists(pieces, max_size=8).map("".join)


def fits(value: Any, annotation: Any) -> bool:
    """Whether ``value`` is what pydantic itself makes of it for ``annotation``, type and all."""
    again = pydantic.TypeAdapter(annotation).validate_python(value)
    return type(again) is type(value) and (again == value or value != value)


@settings(deadline=None, max_examples=300)
@given(replies, st.sampled_from(ANNOTATIONS))
def test_any_reply_gives_the_type_asked_for_or_nothing(text: str, annotation: Any) -> None:
    found = salvage(text, {"a": annotation})
    assert found is None or (found.keys() == {"a"} and fits(found["a"], annotation))


@settings(deadline=None, max_examples=200)
@given(replies, st.lists(st.sampled_from(ANNOTATIONS), min_size=2, max_size=3))
def test_any_reply_gives_all_outputs_or_nothing(text: str, annotations: list[Any]) -> None:
    fields = {f"o{number}": annotation for number, annotation in enumerate(annotations)} | {"a": int}
    found = salvage(text, fields)
    assert found is None or (found.keys() == fields.keys() and all(fits(found[n], t) for n, t in fields.items()))


@settings(deadline=None)
@given(st.one_of(st.integers(), st.text(max_size=30), st.lists(st.integers() | st.text(max_size=9), max_size=4)))
def test_what_was_submitted_as_a_constant_comes_back(value: Any) -> None:
    for text in (f"SUBMIT(a={value!r})", f"So:\n```python\nSUBMIT(a={value!r})\n```", f"```python\nSUBMIT({value!r})"):
        assert salvage(text, {"a": Any}) == {"a": value}


class Fussy(pydantic.BaseModel):
    x: int

    @pydantic.field_validator("x")
    @classmethod
    def _fail(cls, value: int) -> int:
        raise KeyError("a validator of the user's own may raise anything")


class Foreign:
    """A class that pydantic knows nothing of."""


@pytest.mark.parametrize("annotation", [Fussy, Foreign, list[Foreign]])
def test_types_that_resist_are_not_found(annotation: Any) -> None:
    assert salvage('{"x": 1}', {"a": annotation}) is None
    assert salvage("SUBMIT(a={'x': 1})", {"a": annotation}) is None


@pytest.mark.parametrize(
    "text",
    ["SUBMIT(" * 20_000, "SUBMIT(a=" + ")" * 20_000, "[" * 200_000, "SUBMIT(a=(" * 3_000 + ")" * 6_000, "1," * 100_000],
    ids=["open", "closed", "brackets", "nested", "numbers"],
)
def test_long_and_hostile_replies_end(text: str) -> None:
    for annotation in (int, list[int]):
        found = salvage(text, {"a": annotation})
        assert found is None or fits(found["a"], annotation)

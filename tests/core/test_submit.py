"""SUBMIT: typed outputs on the host, and refusals that say what to do."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from typing import Any, Literal, NamedTuple, Optional, Union

import dspy
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import TypedDict

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment, Submission
from rlm_dspy.submit import Refused, convert, outputs_of, type_text, validate
from rlm_dspy.testing import ScriptedLM, code


class Clause(pydantic.BaseModel):
    title: str
    pages: list[int] = []


class Picky(pydantic.BaseModel):
    x: dict[str, int]

    @pydantic.field_validator("x")
    @classmethod
    def has_k(cls, value: dict[str, int]) -> dict[str, int]:
        value["k"]  # raises KeyError, not ValueError
        return value


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Typed(TypedDict):
    a: int


class Pair(NamedTuple):
    a: int
    b: str


def signature(annotation: Any, **field: Any) -> type[dspy.Signature]:
    return dspy.Signature({"q": (str, dspy.InputField()), "a": (annotation, dspy.OutputField(**field))}, "t")


CASES: list[tuple[Any, str, Any]] = [
    (str, "'x'", "x"),
    (str, "3", "3"),
    (str, "['a']", "['a']"),
    (int, "'3'", 3),
    (int, "3.0", 3),
    (float, "1", 1.0),
    (bool, "'true'", True),
    (Literal["a", "b"], "'b'", "b"),
    (list[Clause], "[{'title': 't', 'pages': ['1']}]", [Clause(title="t", pages=[1])]),
    (list[Clause], "'[{\"title\": \"t\"}]'", [Clause(title="t")]),
    (Optional[int], "None", None),  # noqa: UP045
    (int | None, "'null'", None),
    (int | None, "'4'", 4),
    (dict[str, list[int]], "{'a': [1]}", {"a": [1]}),
    (dict[int, str], "{1: 'x'}", {1: "x"}),
    (Point, "{'x': 1}", Point(1)),
    (Typed, "{'a': '1'}", {"a": 1}),
    (Pair, "(1, 'b')", Pair(1, "b")),
    (Colour, "'red'", Colour.RED),
    (datetime.datetime, "'2024-05-01T10:00:00'", datetime.datetime(2024, 5, 1, 10)),
    (datetime.date, "__import__('datetime').date(2024, 5, 1)", datetime.date(2024, 5, 1)),
    (set[int], "{1, 2}", {1, 2}),
    (tuple[int, str], "(1, 'a')", (1, "a")),
    (bytes, "b'\\x00'", b"\x00"),
    (Any, "[1, None]", [1, None]),
    (list, "range(3)", [0, 1, 2]),
]


@pytest.mark.parametrize(("annotation", "source", "value"), CASES)
def test_outputs_have_the_types_of_their_fields(
    sandbox: Environment, annotation: Any, source: str, value: Any
) -> None:
    with dspy.context(lm=ScriptedLM([code(f"SUBMIT(a={source})")])):
        prediction = RLM(signature(annotation), interpreter=sandbox, max_iters=1)(q="x")
    assert prediction.outcome == "submitted", prediction.trajectory
    assert prediction.a == value and type(prediction.a) is type(value)


@pytest.mark.parametrize(
    ("annotation", "source", "says"),
    [
        (int, "'many'", "a: expected int, got 'many'"),
        (Literal["a", "b"], "'c'", "expected Literal['a', 'b'], got 'c'"),
        (list[Clause], "[{'pages': []}]", "0.title: Field required"),
        (Colour, "'green'", "'red' or 'blue'"),
        (Picky, "{'x': {'j': 1}}", "a: expected Picky"),
        (str, "None", "expected str, got None"),
        (list[int], "'[' * 100000", "expected list[int]"),
        (int, "'9' * 5000", "expected int"),
        (datetime.date, "'soon'", "expected date"),
        (dict[str, int], "[1]", "expected dict[str, int]"),
        (int, "1, a=2", "a was given twice"),
        (int, "1, 2", "SUBMIT takes 1 value(s) (a), 2 were given"),
        (int, "b=1", "b is not an output; the outputs are a; a is missing"),
        (int, "", "a is missing"),
    ],
)
def test_a_refusal_is_a_turn_and_says_what_is_wrong(
    sandbox: Environment, annotation: Any, source: str, says: str
) -> None:
    good = {int: "1", str: "'x'"}.get(annotation)
    root = ScriptedLM([code(f"SUBMIT({source})"), code(f"SUBMIT({good})" if good else "pass"), "none"])
    with dspy.context(lm=root):
        prediction = RLM(signature(annotation), interpreter=sandbox, max_iters=2)(q="x")
    seen, _, status = root.calls[1].prompt.partition("\n\n[turn ")
    assert seen.startswith("Output:\n[Error] SUBMIT was refused: ") and says in seen and len(seen) < 1_000
    assert status.startswith("2 of 2; this is the last turn: SUBMIT now]")
    assert prediction.trajectory[0].error and prediction.outcome == ("submitted" if good else prediction.outcome)


def test_a_number_too_long_to_write_out_is_an_answer_like_any_other(sandbox: Environment) -> None:
    with dspy.context(lm=ScriptedLM([code("SUBMIT(10 ** 5000)")])):
        prediction = RLM("-> a: int", interpreter=sandbox, max_iters=1)()
    assert prediction.a == 10**5000 and prediction.outcome == "submitted"
    with dspy.context(lm=ScriptedLM([code("SUBMIT(10 ** 5000)"), code("SUBMIT('x')")])):
        assert RLM("-> a: str", interpreter=sandbox, max_iters=2)().a == "x"


def test_constraints_are_checked_and_told(sandbox: Environment) -> None:
    bounded = signature(int, ge=0, le=10, desc="how many")
    root = ScriptedLM([code("SUBMIT(11)"), code("SUBMIT(10)")])
    with dspy.context(lm=root):
        assert RLM(bounded, interpreter=sandbox)(q="x").a == 10
    assert "how many" in root.calls[0].prompt and "10" in root.calls[0].prompt
    assert "less than or equal to 10" in root.calls[1].prompt


def test_a_refusal_is_short_whatever_was_submitted() -> None:
    everything = {f"k{n}": n for n in range(10_000)} | {"x" * 1_000_000: 1}
    with pytest.raises(Refused, match="and 9982 more") as refused:
        validate(Submission((), everything), signature(int))
    assert len(str(refused.value)) < 2_000


def test_defaults_fill_what_was_not_given() -> None:
    class Task(dspy.Signature):
        """t"""

        q: str = dspy.InputField()
        a: str = dspy.OutputField()
        b: int = dspy.OutputField(default=7)
        c: list[int] = dspy.OutputField(default_factory=lambda: [1])

    assert validate(Submission(("x",)), Task) == {"a": "x", "b": 7, "c": [1]}
    with pytest.raises(Refused, match="a is missing"):
        validate(Submission((), {"b": 1}), Task)


@settings(deadline=None)
@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda s: st.lists(s, max_size=3), max_leaves=10))
def test_whatever_is_submitted_is_converted_or_refused(value: Any) -> None:
    for annotation in (int, str, list[int], Literal["a"], Clause, Picky, dict[str, Any], Union[int, list[str]]):  # noqa: UP007
        try:
            outputs = validate(Submission((value,)), signature(annotation))
        except Refused as refused:
            assert str(refused).startswith("a: expected ") and len(str(refused)) < 1_000
        else:
            assert convert(outputs["a"], annotation) == outputs["a"]


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (str, "str"),
        (list[Clause], "list[Clause]"),
        (Literal["a", 1], "Literal['a', 1]"),
        (Optional[int], "int | None"),  # noqa: UP045
        (dict[str, list[int | None]], "dict[str, list[int | None]]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Any, "Any"),
        (None, "None"),
        (datetime.date, "date"),
    ],
)
def test_types_are_written_as_python_writes_them(annotation: Any, text: str) -> None:
    assert type_text(annotation) == text


@pytest.mark.parametrize("annotation", [Clause, list[Clause], dict[str, Point], Typed, Pair, Colour, Clause | None])
def test_types_with_fields_come_with_their_schema(annotation: Any) -> None:
    (info,) = outputs_of(signature(annotation))
    assert info.schema is not None


@pytest.mark.parametrize("annotation", [str, int, list[str], dict[str, int], Literal["a"], Any, list, tuple[int, str]])
def test_plain_types_need_no_schema(annotation: Any) -> None:
    (info,) = outputs_of(signature(annotation))
    assert info.schema is None and info.desc == ""


def test_a_default_that_cannot_be_made_is_a_refusal() -> None:
    def fail() -> int:
        raise OSError("no default")

    signature = dspy.Signature({"q": (str, dspy.InputField()), "n": (int, dspy.OutputField(default_factory=fail))})
    with pytest.raises(Refused, match=r"n is missing, and its default cannot be made \(no default\)"):
        validate(Submission(), signature)

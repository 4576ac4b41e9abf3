"""What a newcomer gets wrong in the constructor, and the types that a signature's text names."""

from __future__ import annotations

import datetime as dates
import enum
import inspect
import traceback
from typing import Any

import dspy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlm_dspy
from rlm_dspy import RLM, ConfigurationError
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")

OPTIONS = sorted(inspect.signature(RLM.__init__).parameters.keys() - {"self", "signature"})


class Run(pydantic.BaseModel):
    """Of the same name as a class of ours."""

    seconds: int


class Guidance(enum.Enum):
    """Another one."""

    LEFT = "left"


# ------------------------------------------------------------------------------------------------------ unknown options


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("max_itters", r"'max_itters' \(did you mean max_iters\?\); the options are adhoc, callbacks, "),
        ("maxcost", "did you mean max_cost"),
        ("max_iterations", "it is max_iters"),
        ("depth", "it is max_depth"),
        ("environment", "it is interpreter"),
        ("lm", r"dspy\.configure\(lm=\.\.\.\)"),
        ("nothing_like_it", "unknown options: 'nothing_like_it'; the options are"),
    ],
)
def test_a_misspelt_option_is_told_the_right_one(option: str, says: str) -> None:
    class Mine(RLM):
        def __init__(self, **options: Any) -> None:
            super().__init__("a -> b", **options)

    for make in (
        lambda: RLM("context -> answer", **{option: 1}),
        lambda: Mine(**{option: 1}),
        lambda: rlm_dspy.completion("text", **{option: 1}) if option != "lm" else RLM("a -> b", lm=1),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match=says):
            make()
    with pytest.raises(ConfigurationError, match="unknown options"):
        RLM("context -> answer").with_options(**{option: 1})


@given(st.sampled_from([name for name in OPTIONS if len(name) > 6]), st.data())
def test_one_letter_left_out_of_any_option_is_found(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(name) - 1))
    misspelt = name[:at] + name[at + 1 :]
    with pytest.raises(TypeError, match=f"did you mean {name}|it is {name}"):
        RLM("context -> answer", **{misspelt: None})


def test_the_constructor_still_shows_its_parameters() -> None:
    assert {"signature", "max_iters", "sub_calls"} <= inspect.signature(RLM.__init__).parameters.keys()
    assert "max_iters: Turns" in str(RLM.__init__.__doc__)


def test_a_function_among_sub_calls_is_sent_to_tools() -> None:
    with pytest.raises(TypeError, match=r"sub_calls\['classify'\] must be .* goes into tools="):
        RLM("context -> answer", sub_calls={"classify": lambda text: text})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"sub_calls\['classify'\] must be .* not 3"):
        RLM("context -> answer", sub_calls={"classify": 3})  # type: ignore[dict-item]


def test_a_depth_that_names_no_model_says_where_and_what_to_add() -> None:
    lm = ScriptedLM(["x"])
    with pytest.raises(ConfigurationError, match=r"models_by_depth\[1\]\['root'\] is; no models .*models={'fast': "):
        RLM("context -> answer", models_by_depth={1: {"root": "fast"}})
    with pytest.raises(ConfigurationError, match="there are 'slow'"):
        RLM("context -> answer", models={"slow": lm}, models_by_depth={1: {"root": "fast"}})
    assert RLM("a -> b", models={"fast": lm}, models_by_depth={1: {"root": "fast"}}).routes.at(1, "root") is lm


def test_a_child_that_could_never_run_is_told_the_depth() -> None:
    child = RLM("prompt -> response")
    with pytest.raises(ConfigurationError, match="give max_depth=2"):
        RLM("context -> answer", child=child)
    assert RLM("context -> answer", child=child, max_depth=2).with_options(max_depth=1).child is child


def test_an_error_of_a_synchronous_call_shows_no_other_before_it(sandbox: Environment) -> None:
    """What was raised while an exception is handled shows that one first in its traceback, to every user."""
    with pytest.raises(ValueError, match="No LM is loaded") as caught, dspy.context(lm=None):
        RLM("text -> answer", interpreter_factory=sandbox)(text="x")
    assert "no running event loop" not in "".join(traceback.format_exception(caught.value))


def test_a_subscriber_that_cannot_be_called_is_refused_at_once() -> None:
    for wrong in (3, lambda event: None):
        with pytest.raises(TypeError, match=r"called as subscriber\(event, run\)"), rlm_dspy.subscribe(wrong):  # type: ignore[arg-type]
            pass
    for right in (print, lambda *both: None, lambda event, run, more=1: None):
        with rlm_dspy.subscribe(right):
            pass


# ------------------------------------------------------------------------------------------------------- types by name


def test_types_of_the_caller_are_found_wherever_they_stand_in_the_text() -> None:
    class Ticket(pydantic.BaseModel):
        number: int

    class Book:
        class Page(pydantic.BaseModel):
            text: str

    rlm = RLM(
        "log: dict[str, list[Ticket]], day: dates.date -> tickets: list[Ticket | None], page: Book.Page",
        sub_calls={"open": "text -> tickets: list[Ticket], page: Book.Page"},
        sub_signature="prompt -> ticket: Ticket | None",
    )
    fields = rlm.signature.fields
    assert fields["log"].annotation == dict[str, list[Ticket]]
    assert fields["day"].annotation is dates.date
    assert fields["tickets"].annotation == list[Ticket | None]
    assert fields["page"].annotation is Book.Page
    assert rlm.sub_calls["open"].signature.output_fields["tickets"].annotation == list[Ticket]
    assert rlm.sub.signature.output_fields["ticket"].annotation == Ticket | None


def test_a_type_of_the_user_goes_before_a_class_of_ours_with_its_name() -> None:
    fields = RLM("log -> run: Run, way: Guidance").signature.output_fields
    assert (fields["run"].annotation, fields["way"].annotation) == (Run, Guidance)


def test_types_of_python_and_dspy_need_no_definition() -> None:
    text = "picture: dspy.Image, a: Optional[int] -> b: Literal['x', 'y'], c: typing.Any, d: float"
    fields = RLM(text).signature.fields
    assert fields["picture"].annotation is dspy.Image and fields["d"].annotation is float


@pytest.mark.parametrize("text", ["a b", "a: Nowhere -> b", "a -> b: list[Nowhere]", "a: -> b", "a -> b: list["])
def test_a_text_that_cannot_be_read_names_the_form(text: str) -> None:
    for options in ({}, {"sub_calls": {"f": text}}, {"sub_signature": text}):
        with pytest.raises(ConfigurationError, match=r"cannot be read: .*[^.]\. It has the form"):
            RLM(text if not options else "a -> b", **options)  # type: ignore[arg-type]


def test_a_submission_becomes_the_callers_type(sandbox: Environment) -> None:
    rlm = RLM("log -> runs: list[Run]", interpreter_factory=sandbox)
    with dspy.context(lm=ScriptedLM([code("SUBMIT(runs=[{'seconds': 3}])")])):
        assert rlm(log="3 s").runs == [Run(seconds=3)]


# -------------------------------------------------------------------------------------------------- classes of the code


def test_predict_takes_a_pydantic_class_that_the_code_defined(sandbox: Environment) -> None:
    source = """
from typing import Literal
from pydantic import BaseModel

class Pet(BaseModel):
    kind: Literal["cat", "dog"]

class Person(BaseModel):
    name: str
    pets: list[Pet]

person = predict("text -> person: Person", text=text, types={"Person": Person})
SUBMIT(person.name + " has a " + person.pets[0].kind)
"""
    sub = ScriptedLM(['[[ ## person ## ]]\n{"name": "Ada", "pets": [{"kind": "cat"}]}\n\n[[ ## completed ## ]]'])
    with dspy.context(lm=ScriptedLM([code(source)])):
        assert RLM("text -> answer", sub_lm=sub, interpreter_factory=sandbox)(text="Ada").answer == "Ada has a cat"


def test_another_class_that_cannot_cross_says_what_can(sandbox: Environment) -> None:
    source = "class Person: pass\ntry:\n    predict('a -> b: Person', a=1, types={'Person': Person})\n"
    source += "except TypeError as error:\n    SUBMIT(str(error))"
    with dspy.context(lm=ScriptedLM([code(source)])):
        answer = RLM("text -> answer", interpreter_factory=sandbox)(text="Ada").answer
    assert "the class Person cannot cross" in answer and "TypeAdapter(Person).json_schema()" in answer

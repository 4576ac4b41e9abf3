"""What a root states in words is offered back to it as the call that submits it, where it is clear what that is."""

from __future__ import annotations

import ast
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.stated import submission
from rlm_dspy.testing import ScriptedLM, code

TEXT = "\n".join(f"n={n} status={200 + n % 3}" for n in range(400))


@pytest.mark.parametrize(
    ("reply", "annotation", "names", "call"),
    [
        ("The answer is 26.", int, (), "SUBMIT(answer=26)"),
        ("There are 1,204 of them, so 1,204.", int, (), "SUBMIT(answer=1204)"),
        ("It is -3.5 degrees", float, (), "SUBMIT(answer=-3.5)"),
        ("It is 3 degrees", float, (), "SUBMIT(answer=3)"),
        ("3 of 26 are left", int, (), None),
        ("It is 3.5", int, (), None),
        ("Since 2031-03-05 there are none", int, (), None),
        ("Ann has fewer.", str, ("Ann", "Bo"), "SUBMIT(answer='Ann')"),
        ("Ann has fewer than Bo.", str, ("Ann", "Bo"), None),
        ("Ann it is.", str, ("Ann",), None),
        ("The answer is ['a', 'b']", list[str], (), "SUBMIT(answer=['a', 'b'])"),
        ("The answer is [a, b]", list[str], (), None),
        ("['a'] or ['b']", list[str], (), None),
        ("True", bool, (), None),
        ("no", str, (), None),
        ("The answer is 26." + " Or so." * 200, int, (), None),
    ],
)
def test_what_is_stated(reply: str, annotation: Any, names: tuple[str, ...], call: str | None) -> None:
    assert submission(reply, {"answer": annotation}, names) == call
    assert submission(reply, {"answer": annotation, "more": str}, names) is None


@given(st.text(), st.sampled_from([int, float, str, list[str], bool, dict[str, int]]), st.lists(st.text(min_size=1)))
def test_whatever_is_said_what_is_offered_is_a_call(reply: str, annotation: Any, names: list[str]) -> None:
    call = submission(reply, {"answer": annotation}, names)
    assert call is None or isinstance(ast.parse(call).body[0], ast.Expr)


def told(sandbox: Environment, *replies: str, **options: Any) -> tuple[Any, list[str]]:
    root = ScriptedLM([*replies, code("SUBMIT(answer=134)")])
    with dspy.context(lm=root):
        prediction = RLM("context, query -> answer: int", interpreter=sandbox, max_iters=5, **options)(
            context=TEXT, query="How many lines have status 200?"
        )
    return prediction, [call.prompt for call in root.calls]


def test_a_number_in_words_is_offered_as_its_submission(sandbox: Environment) -> None:
    prediction, prompts = told(sandbox, code("print(context.count('status=200'))"), "The answer is 134.")
    assert prediction.answer == 134 and "```python\nSUBMIT(answer=134)\n```" in prompts[2]


def test_what_nothing_supports_is_not_offered(sandbox: Environment) -> None:
    _, prompts = told(sandbox, "The answer is 77.")
    assert "SUBMIT(answer=77)" not in prompts[1] and "SUBMIT(answer=...)" in prompts[1]


def test_it_is_a_part_of_the_aid_salvage(sandbox: Environment) -> None:
    options = {"guidance": {"salvage": False}}
    _, prompts = told(sandbox, code("print(context.count('status=200'))"), "The answer is 134.", **options)
    assert "SUBMIT(answer=134)" not in prompts[2]

"""What an answer is worth."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy import tasks
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.tasks.scoring import score


def worth(gold: Any, answer: Any) -> float:
    return score(dspy.Example(answer=gold), dspy.Prediction(answer=answer))


@pytest.mark.parametrize("answer", [42, 42.0, "42", " 42 ", "42.0", "+42", [42], ["42"]])
def test_a_whole_number_in_any_type(answer: Any) -> None:
    assert worth(42, answer) == 1.0


@pytest.mark.parametrize("answer", [41, 42.5, "42.5", "the answer is 42", "4 2", "", None, [42, 43], {}, "forty-two"])
def test_not_that_number(answer: Any) -> None:
    assert worth(42, answer) == 0.0


@pytest.mark.parametrize(("gold", "answer"), [(1, True), (0, False), (0, ""), (0, None), (0, float("nan"))])
def test_truth_values_and_nothing_are_no_numbers(gold: int, answer: Any) -> None:
    assert worth(gold, answer) == 0.0


@pytest.mark.parametrize("answer", ["1234567", "1,234,567", "1 234 567", "1_234_567", 1234567])
def test_thousands_may_be_set_apart(answer: Any) -> None:
    assert worth(1234567, answer) == 1.0


def test_a_comma_elsewhere_is_no_number() -> None:
    assert worth(1234, "12,34") == 0.0


@pytest.mark.parametrize(
    "answer", ["auth-api", "AUTH-API", " auth-api.", '"auth-api"', "`auth-api`", "**auth-api**", ["auth-api"]]
)
def test_text_is_compared_without_case_and_what_stands_round_it(answer: Any) -> None:
    assert worth("auth-api", answer) == 1.0


@pytest.mark.parametrize(
    "answer", ["auth service", "auth api", "the auth-api", "auth-api, cart-api", "", None, 3, ["a", "b"]]
)
def test_other_text(answer: Any) -> None:
    assert worth("auth-api", answer) == 0.0


def test_text_that_is_a_number_may_come_as_one() -> None:
    assert worth("1663", 1663) == 1.0
    assert worth("1663", 1664) == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        ["ord-17", "fra-20", "ams-4"],
        ("AMS-4", "fra-20", "ord-17", "ord-17"),
        {"ams-4", "fra-20", "ord-17"},
        "ams-4, fra-20, ord-17",
        "- ams-4\n- fra-20\n- ord-17\n",
        "1. ams-4\n2. fra-20\n3. ord-17",
        '["ams-4", "fra-20", "ord-17"]',
        "['ams-4', 'fra-20', 'ord-17']",
        "ams-4; fra-20; ord-17",
    ],
)
def test_a_list_is_a_set(answer: Any) -> None:
    assert worth(["ams-4", "fra-20", "ord-17"], answer) == 1.0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (["a", "b"], 2 / 3),
        (["a", "b", "c", "d"], 3 / 4),
        (["a", "x", "y"], 1 / 5),
        ("a", 1 / 3),
        (["x"], 0.0),
        ([], 0.0),
        (None, 0.0),
        (["a", "b", "c", None], 3 / 4),
        ({"a": 1}, 0.0),
    ],
)
def test_part_of_a_list_is_worth_part(answer: Any, expected: float) -> None:
    assert worth(["a", "b", "c"], answer) == pytest.approx(expected)


names = st.text(st.characters(categories=["L", "N"], max_codepoint=0x17F), min_size=1, max_size=6)


@given(gold=st.sets(names, min_size=1, max_size=8), answer=st.sets(names, max_size=8))
def test_only_the_whole_set_is_worth_everything(gold: set[str], answer: set[str]) -> None:
    value = worth(sorted(gold), sorted(answer))
    assert 0.0 <= value <= 1.0
    same = {tasks.scoring.normalised(one) for one in gold} == {tasks.scoring.normalised(one) for one in answer}
    assert (value == 1.0) == same


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(gold=st.integers() | st.text() | st.lists(st.text(), max_size=4), answer=anything)
def test_no_prediction_makes_it_raise(gold: Any, answer: Any) -> None:
    assert 0.0 <= worth(gold, answer) <= 1.0
    for holder in (answer, {"answer": answer}, dspy.Prediction(other=answer)):
        assert 0.0 <= score(dspy.Example(answer=gold), holder) <= 1.0


@given(gold=st.integers() | st.lists(names, min_size=1, max_size=4) | names)
def test_the_gold_is_worth_everything(gold: Any) -> None:
    assert worth(gold, gold) == 1.0


class Hostile:
    """Everything about it fails."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = object.__hash__

    def __str__(self) -> str:
        raise RuntimeError

    def __iter__(self) -> Any:
        raise RuntimeError


@pytest.mark.parametrize("gold", [1, "one", ["one"]])
def test_hostile_objects_are_worth_nothing(gold: Any) -> None:
    assert worth(gold, Hostile()) == worth(gold, [Hostile()]) == 0.0
    assert score(dspy.Example(answer=gold), Hostile()) == 0.0
    assert worth(gold, "9" * 10_000) == 0.0


def test_a_digit_text_too_long_for_int_is_worth_nothing() -> None:
    assert worth(7, "7" * 5000) == 0.0


def test_an_example_without_gold_is_the_callers_mistake() -> None:
    with pytest.raises(ConfigurationError, match="no gold"):
        score(dspy.Example(question="?"), dspy.Prediction(answer=1))


def test_it_takes_what_optimizers_hand_to_a_metric() -> None:
    example = dspy.Example(answer=3)
    assert tasks.score(example, dspy.Prediction(answer=3), None, "act", []) == 1.0
    assert tasks.score(example, dspy.Prediction(answer=4), trace=[]) == 0.0
    for name in tasks.families():
        assert tasks.get(name).score(example, {"answer": "3"}) == 1.0

"""What an answer is worth."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from typing import Any

import dspy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy import tasks
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.tasks.scoring import MOST, score


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


class Colour(enum.Enum):
    RED = "red"


class Answer(pydantic.BaseModel):
    value: int


class Name(pydantic.RootModel[str]):
    pass


class Two(pydantic.BaseModel):
    first: int
    second: str


@dataclasses.dataclass
class Pair:
    one: Any
    other: Any


def test_typed_outputs_are_read_as_what_is_in_them() -> None:
    assert worth("red", Colour.RED) == worth(["red"], [Colour.RED]) == worth("red", Name("Red")) == 1.0
    assert worth(42, Answer(value=42)) == worth(42, [Answer(value=42)]) == worth(["42"], [Answer(value=42)]) == 1.0
    assert worth("2024-03-01", datetime.date(2024, 3, 1)) == 1.0
    assert worth("2024-03-01", datetime.datetime(2024, 3, 1, 5)) == 0.0
    assert worth(1, Two(first=1, second="1")) == worth("red", Colour) == 0.0


@pytest.mark.parametrize("answer", [[4, 2.0], [4.0, 2], (4, 2), "4, 2", "[2.0, 4]", ["2", "4"]])
def test_whole_numbers_in_lists_may_be_floats(answer: Any) -> None:
    assert worth([2, 4], answer) == 1.0


PAIRS = [[10, 20], [30, 20], [10, 40]]


@pytest.mark.parametrize(
    "answer",
    [
        PAIRS,
        [(20, 10), (20, 30), (40, 10)],
        [["10", "20"], ["30", 20.0], [40, 10]],
        {(10, 20), (20, 30), (10, 40), (40, 10)},
        [{10, 20}, frozenset((20, 30)), (10, 40)],
        [Pair(10, 20), Pair("20", 30), Pair(40, 10)],
        [Two(first=10, second="20"), Two(first=20, second="30"), Two(first=40, second="10")],
        ["(10, 20)", "20, 30", "[40, 10]"],
        "[[10, 20], [20, 30], [40, 10]]",
        "(10, 20)\n(20, 30)\n(10, 40)",
        "[(10, 20), (20, 30), (10, 40)]",
        "- (10, 20)\n- (20, 30)\n- (10, 40)",
        "10, 20\n20, 30\n10, 40\n",
    ],
)
def test_pairs_are_a_set_without_order(answer: Any) -> None:
    assert worth(PAIRS, answer) == 1.0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([[10, 20]], 0.5),
        ([10, 20], 0.5),
        ("10, 20", 0.5),
        ([[10, 20], [20, 30]], 0.8),
        ([*PAIRS, [50, 60]], 6 / 7),
        ([*PAIRS, None, [1], "x", [10, 10], [1, 2, 3], {}, [True, 1]], 0.0),
        ([*PAIRS, [10, 10]], 6 / 7),
        ([[10, 30]], 0.0),
        ([], 0.0),
        ("the pairs are (10, 20), (20, 30) and (10, 40)", 0.0),
        ([10, 20, 30, 40], 0.0),
        (7, 0.0),
    ],
)
def test_some_pairs_are_worth_f1(answer: Any, expected: float) -> None:
    assert worth(PAIRS, answer) == pytest.approx(expected)


some_pairs = st.sets(st.tuples(st.integers(0, 9), st.integers(10, 19)), min_size=1, max_size=8).map(sorted)


@given(gold=some_pairs, answer=some_pairs, data=st.data())
def test_f1_is_symmetric_and_order_makes_no_difference(gold: Any, answer: Any, data: st.DataObject) -> None:
    right, size = len(set(gold) & set(answer)), len(gold) + len(answer)
    expected = 2 * right / size if len(answer) <= MOST * len(gold) else 0.0
    assert worth(gold, answer) == pytest.approx(expected)
    turned = [one if data.draw(st.booleans()) else one[::-1] for one in data.draw(st.permutations(answer))]
    assert worth(gold, turned) == pytest.approx(expected)
    assert worth(gold, str([list(one) for one in turned])) == pytest.approx(expected)


@given(gold=some_pairs, answer=anything)
def test_no_prediction_of_pairs_makes_it_raise(gold: Any, answer: Any) -> None:
    assert 0.0 <= worth(gold, answer) <= 1.0
    assert worth(gold, gold) == 1.0
    assert worth(gold, [*gold, Hostile()]) < 1.0


@given(gold=st.sets(names, min_size=1, max_size=4), more=st.integers(0, 20))
def test_naming_everything_is_worth_nothing(gold: set[str], more: int) -> None:
    size = len({tasks.scoring.normalised(one) for one in gold})
    value = worth(sorted(gold), [*sorted(gold), *(f"no. {at} of all" for at in range(more))])
    assert value == pytest.approx(size / (size + more) if size + more <= MOST * size else 0.0)

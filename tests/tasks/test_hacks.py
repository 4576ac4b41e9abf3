"""What looks like an answer and is none is worth nothing, and a program that does not read is worth what is stated."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import dspy
import pytest

from rlm_dspy import tasks

FAMILIES = tasks.families()
CASES = [(family, kind) for family in FAMILIES for kind in tasks.get(family).KINDS]

HUGE = (
    *(list(range(200_000)), [[at, at + 1] for at in range(200_000)]),
    *("x" * 2_000_000, "7, " * 500_000, "(1, 2)\n" * 9_000, "9" * 9_999),
)


def worth(example: dspy.Example, answer: Any) -> float:
    value = tasks.score(example, dspy.Prediction(answer=answer))
    assert isinstance(value, float) and value == tasks.get(example.family).score(example, {"answer": answer})
    return value


def wrong_items(gold: Any, number: int) -> list[Any]:
    """So many items of the gold's type that are not in it."""
    pairs = isinstance(gold[0], (list, tuple))
    return [[-1 - at, -2 - at] if pairs else f"no such item {at}" for at in range(number)]


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_what_is_no_answer_is_worth_nothing(family: str, kind: str) -> None:
    for example in tasks.generate(2, 1000, seed=41, family=family, kinds=[kind]):
        gold, query = example.answer, example.query
        empty = ["", " ", None, [], (), {}, set(), [[]], [""], "[]", "null", "None", "unknown", b""]
        odd = [float("nan"), float("inf"), True, object, object(), {"answer": gold}, [{}], [[{}]], ValueError("no")]
        echo = [query, [query], example.context, query.split(), re.findall(r"[\w-]+", query), query.splitlines()]
        for answer in (*empty, *odd, *echo, *HUGE):
            assert worth(example, answer) == 0.0, (example.template, str(answer)[:80])
        assert tasks.score(example, dspy.Prediction()) == tasks.score(example, None) == tasks.score(example, {}) == 0.0


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_the_answer_among_others_is_worth_nothing(family: str, kind: str) -> None:
    for example in tasks.generate(6, 1000, seed=43, family=family, kinds=[kind]):
        gold = example.answer
        assert worth(example, gold) == 1.0
        if isinstance(gold, (list, tuple)):
            assert worth(example, [*gold, *wrong_items(gold, 2 * len(gold) + 1)]) == 0.0
            assert worth(example, [*gold, *wrong_items(gold, 1)]) < 1.0
            assert worth(example, f"The answer is {gold}.") < 1.0
        else:
            named = re.findall(r"'([^']+)'", example.query) or ["another"]
            both = (f"{gold} or {named[0]}", [gold, named[0]], [gold, gold], f"{gold} {gold}", f"The answer is {gold}.")
            for answer in both:
                assert worth(example, answer) == 0.0, answer


@pytest.mark.parametrize("family", [name for name in FAMILIES if name in ("labelled_records",)])
def test_all_labels_are_no_label(family: str) -> None:
    for example in tasks.generate(60, 1000, seed=45, family=family):
        if isinstance(example.answer, str):
            options = re.findall(r"'(\w+)'", example.query) + re.findall(r"\b\d{5}\b", example.query)
            for answer in (options, ", ".join(options), " or ".join(options), str(options), set(options)):
                assert worth(example, answer) == 0.0


def test_all_users_that_are_named_are_no_answer() -> None:
    for example in tasks.generate(80, 1500, seed=46, family="labelled_records", kinds=["user"]):
        if example.template == "users_with":
            assert worth(example, re.findall(r"\b\d{5}\b", example.query)) == 0.0


@pytest.mark.parametrize("tokens", [1000, 4000])
def test_all_pairs_are_no_answer(tokens: int) -> None:
    for example in tasks.generate(40, tokens, seed=47, family="pairs"):
        users = sorted(set(re.findall(r"user (\d{5})", example.context)))
        every = [(one, other) for one in users for other in users if one < other]
        assert worth(example, every) == 0.0
        assert worth(example, [(other, one) for one, other in every]) == 0.0
        assert worth(example, [(one, one) for one in users]) == 0.0


def guess(example: dspy.Example) -> Any:
    """What can be said without reading the context."""
    options = re.findall(r"'([\w-]+)'", example.query)
    if example.family == "labelled_records":
        if "bool" in example.signature or "Literal" in example.signature:
            return "equal"
        if "int" in example.signature:
            return 3
        if example.template == "user_more":
            return re.search(r"\b\d{5}\b", example.query)[0]  # type: ignore[index]
        return options[0]
    if example.family == "graph_walk":
        return 4 if example.kind == "distance" else re.findall(r"[0-9a-f]{8}", example.query)[0]
    if example.family == "haystack":
        many = "list" in example.signature
        one = "Sorrel" if example.kind == "questions" else "bafabu" if example.kind == "words" else 5_000_000
        return [one] if many else one
    return []


#: What the guess is worth on average, at least and at most; the latter is what README and docstrings say.
STATED = {"graph_walk": (0.02, 0.1), "haystack": (0.0, 0.05), "labelled_records": (0.1, 0.25), "pairs": (0.0, 0.0)}


@pytest.mark.parametrize("family", sorted(STATED))
def test_a_guess_is_worth_what_is_stated(family: str) -> None:
    batch = tasks.generate(150, 1000, seed=48, family=family)
    scores = [worth(example, guess(example)) for example in batch]
    low, high = STATED[family]
    assert low <= sum(scores) / len(scores) <= high


@pytest.mark.parametrize("family", FAMILIES)
def test_order_is_free_where_the_answer_is_a_set(family: str, solve: Callable[[Any], Any]) -> None:
    for example in tasks.generate(12, 1000, seed=49, family=family):
        if isinstance(example.answer, list):
            assert worth(example, example.answer[::-1]) == worth(example, tuple(example.answer * 2)) == 1.0
            if isinstance(example.answer[0], list):
                assert worth(example, [(other, one) for one, other in example.answer]) == 1.0

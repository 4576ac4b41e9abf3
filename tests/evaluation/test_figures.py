"""Intervals and summaries: figures that can be checked by hand, and what must hold for all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy import evaluation
from rlm_dspy.evaluation import Report, bootstrap, interval, summary, wilson


def row(score: float | None = 1.0, **fields: Any) -> dict[str, Any]:
    base = {"program": "p", "key": "0", "outcome": "submitted", "limit": None, "seconds": 1.0, "turns": 2}
    used = {"lm_calls": 3, "input_tokens": 100, "output_tokens": 10, "cached_tokens": 5, "cost": 0.5, "lm_errors": 0}
    return {**base, **used, "score": score, **fields}


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    # Agresti and Coull 1998, and the formula by hand.
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (1, 1, 0.2065, 1.0), (0, 0, 0.0, 1.0)],
)
def test_wilson(right: int, n: int, low: float, high: float) -> None:
    assert wilson(right, n) == pytest.approx((low, high), abs=5e-5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_an_interval_holds_the_mean(scores: list[float]) -> None:
    low, high, method = interval(scores)
    mean = sum(scores) / len(scores)
    assert 0.0 <= low <= mean + 1e-9 and mean - 1e-9 <= high <= 1.0
    assert method == ("wilson" if set(scores) <= {0.0, 1.0} else "bootstrap")
    assert interval(scores) == (low, high, method)


def test_a_bootstrap_of_many_is_that_of_the_normal_distribution() -> None:
    scores = [(place % 11) / 10 for place in range(1100)]
    low, high = bootstrap(scores)
    # Standard error: sqrt(0.1 / 1100).
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.00953, 0.5 + 1.96 * 0.00953), abs=0.003)


@given(st.integers(1, 30), st.sampled_from([0.25, 0.5]))
def test_equal_scores_do_not_make_it_certain(n: int, value: float) -> None:
    low, high = bootstrap([value] * n)
    assert low < value < high


def test_errors_count_nowhere_but_as_errors_and_cost() -> None:
    found = summary([row(1.0), row(0.0, outcome="failed"), row(None, outcome="error", seconds=99.0)])
    assert (found.n, found.errors, found.score, found.right) == (2, 1, 0.5, 1)
    assert found.cost == 1.5 and found.input_tokens == 300 and found.seconds == 1.0
    assert found.outcomes == {"submitted": 1, "failed": 1, "error": 1}


def test_an_unknown_cost_is_not_nothing() -> None:
    found = summary([row(), row(cost=None, known_cost=0.25, unpriced_calls=2)])
    assert found.cost is None and found.known_cost == 0.75 and found.unpriced_calls == 2
    rows = [row(), row(cost=None, known_cost=0.25, unpriced_calls=2, key="1")]
    text = Report(rows, 2, programs=("p",)).table()
    assert "> $0.75" in text
    assert " ? " in Report([row(cost=None, known_cost=0.0, unpriced_calls=1)], 1, programs=("p",)).table()


def test_nothing_at_all_has_a_table() -> None:
    assert "p  " in Report([], 3, programs=("p",)).table()
    assert not Report([], 3, programs=("p",)).complete
    assert summary([]).score is None


def test_programs_are_compared_on_the_same_examples() -> None:
    def of(program: str, *scores: float | None) -> list[dict[str, Any]]:
        return [row(score, program=program, key=str(place), kind="k") for place, score in enumerate(scores)]

    report = Report(of("a", 1.0, 0.0, 0.0, None) + of("b", 0.0, 1.0, 1.0, 1.0), 4, programs=("a", "b"))
    assert report.against("b") == (2, 1)
    told = report.to_dict()
    assert [one["won"] for one in told["programs"]] == [0, 2]
    assert told["programs"][1]["by_kind"]["k"]["n"] == 4
    assert not report.complete and "+2 -1" in report.table()


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        evaluation.nothing  # noqa: B018


def test_the_interval_of_scores_beyond_one_holds_their_mean() -> None:
    assert bootstrap([250.0] * 3) == (250.0, 250.0) and bootstrap([-2.0]) == (-2.0, -2.0)

"""Draws: names without repeats."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy.tasks._draw import Draw, Permutation


@given(seed=st.integers(), size=st.integers(1, 3000))
def test_a_permutation_has_every_number_once(seed: int, size: int) -> None:
    assert sorted(map(Permutation(Draw(seed), size), range(size))) == list(range(size))


@given(seed=st.integers(), places=st.lists(st.integers(0, 2**32 - 1), unique=True, max_size=50))
def test_no_number_of_a_large_permutation_comes_twice(seed: int, places: list[int]) -> None:
    order = Permutation(Draw(seed), 2**32)
    assert len({order(place) for place in places}) == len(places)
    assert all(0 <= order(place) < 2**32 for place in places)


@given(seed=st.integers(), low=st.integers(-50, 50), spare=st.integers(0, 30), k=st.integers(0, 30))
def test_distinct_numbers_are_distinct(seed: int, low: int, spare: int, k: int) -> None:
    drawn = Draw(seed).distinct(low, low + k + spare, k)
    assert len(set(drawn)) == len(drawn) == k
    assert all(low <= number <= low + k + spare for number in drawn)

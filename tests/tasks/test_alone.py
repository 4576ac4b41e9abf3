"""One example of a batch, made without the others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import tasks
from rlm_dspy.errors import ConfigurationError


@settings(max_examples=15, deadline=None)
@given(
    number=st.integers(0, 12),
    seed=st.integers(-5, 5),
    family=st.one_of(st.none(), st.sampled_from(tasks.families())),
)
def test_it_is_the_one_that_the_whole_batch_has_there(number: int, seed: int, family: str | None) -> None:
    whole = tasks.generate(13, 1_000, seed, family)
    assert tasks.example(number, 1_000, seed, family) == whole[number]


def test_kinds_go_in_turn_as_in_a_batch() -> None:
    family = tasks.families()[0]
    kinds = list(tasks.get(family).KINDS)[:2]
    whole = tasks.generate(6, 1_000, 7, family, kinds)
    assert [tasks.example(n, 1_000, 7, family, kinds) for n in range(6)] == whole


@pytest.mark.parametrize("number", [-1, True, 1.0, "1"])
def test_a_wrong_number_is_refused(number: object) -> None:
    with pytest.raises(ConfigurationError, match="number"):
        tasks.example(number, 1_000, 0)  # type: ignore[arg-type]


def test_a_wrong_family_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no family"):
        tasks.example(0, 1_000, 0, "nothing")

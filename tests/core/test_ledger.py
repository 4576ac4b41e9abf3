"""The account of a run: never over a limit, under real threads and under any interleaving."""

from __future__ import annotations

import contextlib
import math
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import ConfigurationError
from rlm_dspy.ledger import CallRefused, Ledger
from rlm_dspy.limits import Limits
from rlm_dspy.usage import Tally


@given(
    limit=st.integers(0, 30),
    asks=st.lists(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=12), min_size=1, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_no_interleaving_of_threads_passes_the_limit(limit: int, asks: list[list[tuple[int, bool]]]) -> None:
    ledger = Ledger(Limits(max_llm_calls=limit))
    gate = threading.Barrier(len(asks))
    seen: list[int] = []
    made: list[int] = []

    def work(mine: list[tuple[int, bool]]) -> None:
        gate.wait()
        for count, is_made in mine:
            try:
                ledger.reserve_calls(count)
            except CallRefused:
                continue
            for _ in range(count):
                with ledger.in_flight():
                    left = ledger.calls_left
                    assert left is not None
                    seen.append(left)
                ledger.settle_call(made=is_made)
                made.append(int(is_made))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in asks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    usage = ledger.usage()
    assert usage.calls == sum(made) <= limit
    assert ledger.calls_left == limit - usage.calls
    assert all(0 <= left <= limit for left in seen)
    assert usage.peak_width <= len(asks)


@given(st.integers(0, 20), st.lists(st.one_of(st.integers(0, 8), st.booleans()), max_size=60))
def test_reserving_and_settling_agree_with_plain_arithmetic(limit: int, steps: list[int | bool]) -> None:
    ledger = Ledger(Limits(max_llm_calls=limit))
    reserved = spent = 0
    for step in steps:
        if isinstance(step, bool):
            if reserved:
                ledger.settle_call(made=step)
                reserved, spent = reserved - 1, spent + step
        elif reserved + spent + step <= limit:
            ledger.reserve_calls(step)
            reserved += step
        else:
            with pytest.raises(CallRefused, match=f"{limit - reserved - spent} of {limit} left"):
                ledger.reserve_calls(step)
        assert ledger.calls_left == limit - reserved - spent
        assert ledger.usage().calls == spent


def test_without_a_limit_nothing_is_refused() -> None:
    ledger = Ledger(Limits(max_llm_calls=None))
    ledger.reserve_calls(10**6)
    assert ledger.calls_left is None and ledger.left()["llm_calls"] is None


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 5))
def test_max_errors_counts_errors_in_a_row(errors: list[bool], limit: int) -> None:
    ledger = Ledger(Limits(max_iters=1000, max_errors=limit))
    row = 0
    for error in errors:
        assert ledger.exceeded() == ("max_errors" if row >= limit else None)
        ledger.begin_turn()
        ledger.end_turn(error=error)
        row = row + 1 if error else 0
    assert ledger.usage().errors == sum(errors) and ledger.usage().turns == len(errors)


def test_turns_and_seconds_run_out() -> None:
    ledger = Ledger(Limits(max_iters=2))
    assert [ledger.begin_turn(), ledger.exceeded(), ledger.begin_turn(), ledger.exceeded()] == [1, None, 2, "max_iters"]
    timed = Ledger(Limits(max_seconds=1e-9))
    assert timed.exceeded() == "max_seconds" and timed.seconds_left == 0.0
    assert timed.left()["seconds"] == 0.0
    assert Ledger(Limits(max_seconds=math.inf)).exceeded() is None


def test_in_flight_goes_down_again_after_an_error() -> None:
    ledger = Ledger(Limits())
    for _ in range(3):
        with contextlib.suppress(ZeroDivisionError), ledger.in_flight():
            raise ZeroDivisionError
    assert ledger.usage().peak_width == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_iters", v) for v in (0, -1, True, 1.5, None, "3")),
        *(("max_concurrency", v) for v in (0, True, None)),
        *(("max_llm_calls", v) for v in (-1, True, 2.0)),
        *(("max_errors", v) for v in (0, True)),
        *(("max_seconds", v) for v in (0, -1, math.nan, True, "1")),
        *(("extract_seconds", v) for v in (0, None, math.nan)),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Limits(**{name: value})


def test_usage_is_a_copy() -> None:
    ledger = Ledger(Limits())
    ledger.usage().calls = 99
    assert ledger.usage().calls == 0
    ledger.record("act", "m", Tally(calls=1, input_tokens=3, output_tokens=4))
    ledger.count_tool_call()
    usage = ledger.usage().to_dict()
    assert (usage["lm_calls"], usage["input_tokens"], usage["output_tokens"], usage["tool_calls"]) == (1, 3, 4, 1)

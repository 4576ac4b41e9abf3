"""The digest of examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from rlm_dspy.digests import digest


class Mute:
    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (np.arange(10_000), np.where(np.arange(10_000) == 5_000, 0, np.arange(10_000))),
        (pd.DataFrame({"x": range(1_000)}), pd.DataFrame({"x": [*range(500), 0, *range(501, 1_000)]})),
        ({"a", "b"}, {"a", "c"}),
        ("x" * 3_000_000, "x" * 2_999_999 + "y"),
        (["ab", "c"], ["a", "bc"]),
        (1, "1"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_tells_apart_what_differs_anywhere(one: Any, two: Any) -> None:
    assert digest([{"x": one}]) == digest([{"x": one}]) != digest([{"x": two}])


def test_it_takes_what_has_no_text_and_what_holds_itself() -> None:
    within: list[Any] = [Mute()]
    within.append(within)
    assert digest([within]) == digest([within]) and len(digest([within])) == 16

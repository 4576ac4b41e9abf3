"""Scores of OOLONG answers: the published ones as they are, and strict ones that no hack gets past."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.training.oolong_scores import official, strict

LABEL = {"id": 1, "answer": "['ham']", "answer_type": "ANSWER_TYPE.LABEL"}
TIED = {"id": 2, "answer": "['ham', 'spam']", "answer_type": "ANSWER_TYPE.LABEL"}
NUMBER = {"id": 3, "answer": "[1000]", "answer_type": "ANSWER_TYPE.NUMERIC"}
USER = {"id": 4, "answer": "[63685]", "answer_type": "ANSWER_TYPE.USER"}
MORE = {"id": 5, "answer": "['more common than']", "answer_type": "ANSWER_TYPE.COMPARISON"}
DATE = {"id": 6, "answer": "[datetime.date(2023, 3, 4)]", "answer_type": "ANSWER_TYPE.DATE"}
MONTH = {"id": 7, "answer": "['March 2023']", "answer_type": "ANSWER_TYPE.MONTH_YEAR"}
ROWS = [LABEL, TIED, NUMBER, USER, MORE, DATE, MONTH]


@pytest.mark.parametrize(
    ("row", "said", "published"),
    [
        (LABEL, "ham", 1.0),
        (LABEL, "Label: ham", 1.0),
        (LABEL, "Label: **[ham]**", 1.0),
        (LABEL, "Ham", 0.0),
        (LABEL, "I think that the label is ham", 1.0),
        (LABEL, "ham or spam", 0.0),
        (LABEL, "spam and then, after all that, ham", 1.0),
        (TIED, "spam", 0.0),
        (NUMBER, "Answer: 1000", 1.0),
        (NUMBER, "Answer: 998", 0.75**2),
        (NUMBER, "Answer: 1,000", 0.0),
        (NUMBER, "9" * 500, 0.0),
        (USER, "User: [63685]", 1.0),
        (MORE, "Answer: ham is more common than spam", 1.0),
        (MORE, "Answer: ham is less common than spam", 0.0),
        (MORE, "more common", 1.0),
        (DATE, "Date: 03/04/2023", 1.0),
        (DATE, "Date: [March 4, 2023]", 1.0),
        (DATE, "Date: no idea", 0.0),
        (MONTH, "Answer: March 2023", 1.0),
        (LABEL, "", 0.0),
        (LABEL, " " * 40, 0.0),
    ],
)
def test_published_scores(row: dict[str, Any], said: str, published: float) -> None:
    assert official(row, said) == published


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (LABEL, "ham"),
        (LABEL, " Label: [Ham] "),
        (TIED, "spam"),
        (NUMBER, 1000),
        (NUMBER, "1,000"),
        (NUMBER, "Answer: 1000.0"),
        (USER, "User: 63685"),
        (USER, 63685),
        (MORE, "Answer: ham is more common than spam"),
        (MORE, "More common than"),
        (DATE, "03/04/2023"),
        (DATE, "Date: [March 4, 2023]"),
        (DATE, dt.date(2023, 3, 4)),
        (MONTH, "march  2023"),
    ],
)
def test_right_in_any_usual_form_is_right(row: dict[str, Any], said: Any) -> None:
    assert strict(row, said) == 1.0


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (LABEL, "ham or spam"),
        (LABEL, "it might be ham or it might be spam"),
        (LABEL, "Birmingham"),
        (LABEL, "spam: ham"),
        (LABEL, ["ham", "spam"]),
        (LABEL, "ham " * 100),
        (NUMBER, "1000 or 1001"),
        (NUMBER, True),
        (NUMBER, float("nan")),
        (USER, "63685, 63686"),
        (USER, 63686),
        (MORE, "more common, less common, same frequency"),
        (MORE, "ham is more common than spam or less common than spam"),
        (DATE, "03/04/2023 03/05/2023"),
        (DATE, "2023"),
        (MONTH, "March 2023 or April 2023"),
        *((row, said) for row in ROWS for said in (None, "", [], {}, object(), "\x00", "9" * 10_000)),
    ],
)
def test_hacks_score_nothing(row: dict[str, Any], said: Any) -> None:
    assert strict(row, said) == 0.0


def test_a_number_that_is_near_has_some_credit() -> None:
    assert strict(NUMBER, 998) == strict(NUMBER, "998") == 0.75**2
    assert strict(USER, 63686) == 0.0, "there is no near user"


@given(row=st.sampled_from(ROWS), said=st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.lists(st.text())))
def test_no_answer_raises_and_scores_are_shares(row: dict[str, Any], said: Any) -> None:
    assert 0.0 <= strict(row, said) <= 1.0
    assert 0.0 <= official(row, str(said)) <= 1.0


@pytest.mark.parametrize("answer", ["ham", "[]", "[", "__import__('os')"])
def test_a_row_without_answers_is_an_error(answer: str) -> None:
    with pytest.raises(ConfigurationError, match="row"):
        strict({**LABEL, "answer": answer}, "ham")

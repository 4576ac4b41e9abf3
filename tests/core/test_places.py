"""In which part of a record a word stands: what is said holds of nearly every line, of a mixture nothing is said."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy.data import Data
from rlm_dspy.places import place
from tests.core.test_first_look import hostile, texts

LINES = [
    f"2031-03-{n % 28 + 1:02d} 10:00 cart-{n % 3} status={200 + n % 2 * 302} took={n}ms id=502{n}" for n in range(400)
]
DATED = "\n".join(f"[date=2031-03-05T{n % 24:02d}:00] x" for n in range(90))
LOG = "\n".join(LINES)
ROWS = "\n".join(
    json.dumps({"at": f"2031-03-{n % 28 + 1:02d}T10:00", "http": {"status": 502}, "svc": "cart", "msg": "the cart"})
    for n in range(50)
)

MIXED = "\n".join(
    json.dumps({"svc": f"cart-{n}", "status": 415 if n % 9 == 0 else 200, "took": f"x{n}415", "msg": "a cart"[n % 3 :]})
    for n in range(90)
)


@pytest.mark.parametrize(
    ("text", "word", "form", "said"),
    [
        ("\n".join(line.partition(" id=")[0] for line in LINES), "502", "records", "as 'status=502'"),
        ("\n".join(f"user={n}@example.org" for n in range(90)), "user", "records", ""),
        (LOG, "2031-03-05", "records", "as word [0]"),
        (DATED, "2031-03-05", "records", "as 'date=2031-03-05'"),
        ("(cart-api) fine\ncart-api, fine\n" * 9, "cart-api", "records", ""),
        ("a=7 b\nb=7 a\nc=7 x\n" * 9, "7", "records", ""),
        (ROWS, "cart", "json", "in the field 'svc'"),
        (ROWS, "502", "json", "as a number in the field ['http']['status']"),
        (ROWS, "2031-03-", "json", "at the beginning of the field 'at'"),
        (ROWS, "e ca", "json", "in the text of the field 'msg'"),
        (ROWS, "cart", "prose", ""),
        (ROWS, "nowhere", "json", ""),
        # A number that stands in longer ones too, is where it stands by itself.
        (LOG, "502", "records", "as 'status=502'"),
        ("\n".join(f"took={n}99ms id={n}" for n in range(90)), "99", "records", ""),
        (MIXED, "415", "json", "as a number in the field 'status'"),
        (MIXED, "cart", "json", ""),
    ],
)
def test_where_a_word_stands(text: str, word: str, form: str, said: str) -> None:
    assert said_of(text, word, form) == said


def said_of(text: str, word: str, form: str) -> str:
    """Where ``word`` stands in a text that is taken to be written like this."""
    data = Data("context", text)
    data.form = form  # type: ignore[assignment]
    return place(data, word)


@settings(deadline=None)
@given(texts, st.one_of(hostile, st.text(min_size=1, max_size=8)), st.sampled_from(["records", "json", "prose"]))
def test_any_word_in_any_text_has_a_short_place_or_none(text: str, word: str, form: str) -> None:
    assert len(said_of(text, word or "x", form)) < 400

"""What is read off the root's code without running it: the texts it looks for, numbers typed in, inputs set anew."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy.signatures.dialect import only_constants, string_constants, typed_numbers, types_in


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("hits = [l for l in c if 'a b' in l and \"x\" in l]", ["a b", "x"]),
        ("print([l for l in c if 'zebra' in l])", ["zebra"]),
        ("print(c.count('zebra'))\nSUBMIT(answer=c.find('y'))", ["zebra", "y"]),
        ("print('a label', n, sep='; ')\nprint(f'{n} of {c.count(\"z\")} lines')", ["z"]),
        ("SUBMIT('answer')\nSUBMIT(answer='answer')", []),
        ("'''what this does'''\nx = 1", []),
        ("re.findall(r'b.t', c)", ["b.t"]),
        ("not code (", []),
        ("", []),
    ],
)
def test_the_texts_that_code_looks_for(source: str, texts: list[str]) -> None:
    assert string_constants(source) == texts


@pytest.mark.parametrize(
    ("source", "numbers"),
    [
        ("SUBMIT(3)", {3.0}),
        ("SUBMIT(n=3, m=2.5)", {3.0, 2.5}),
        ("SUBMIT(n=len(x), m=2.5)", set()),
        ("SUBMIT('a', 3)", {3.0}),
        ("SUBMIT(True)", set()),
        ("SUBMIT('3')", set()),
        ("x = 3\nSUBMIT(x)", set()),
        ("if x:\n    SUBMIT(1)\nelse:\n    SUBMIT(2)", set()),
        ("SUBMIT(0x" + "f" * 6_000 + ")", set()),
        ("SUBMIT(", set()),
    ],
)
def test_numbers_that_are_submitted_as_they_are_typed(source: str, numbers: set[float]) -> None:
    assert typed_numbers(source) == numbers


@pytest.mark.parametrize(
    ("source", "nothing_else"),
    [
        ("SUBMIT(0)", True),
        ("SUBMIT(answer='x', items=[1, (2, -3)], more={'a': None})", True),
        ("print('done')\nSUBMIT('x')", True),
        ("SUBMIT(x)", False),
        ("SUBMIT(len('x'))", False),
        ("x = 1\nSUBMIT(1)", False),
        ("SUBMIT(f'{x}')", False),
        ("SUBMIT(1 + 1)", False),
        ("SUBMIT(", False),
    ],
)
def test_code_that_computes_nothing(source: str, nothing_else: bool) -> None:
    assert only_constants(source) is nothing_else


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=20),
            st.sampled_from(["context = ", '"', "'''", "SUBMIT(", ")", "print(", "\n", "3", "\\", "\0", "\ud800"]),
        ),
        max_size=10,
    ).map("".join)
)
def test_any_text_may_be_looked_at(source: str) -> None:
    assert all(isinstance(text, str) for text in string_constants(source))
    assert all(isinstance(number, float) for number in typed_numbers(source))
    assert only_constants(source) in (True, False)
    for name in ("context", "größe", "a.b("):
        assert types_in(source, name) in (True, False)


@settings(deadline=None)
@given(st.text(min_size=1, max_size=60))
def test_an_input_that_is_typed_in_is_seen_whatever_it_holds(text: str) -> None:
    assert types_in(f"context = {text!r}", "context")
    assert types_in(f"import re\ncontext = {text!r}\nprint(1)", "context")
    assert not types_in(f"other = {text!r}", "context") and not types_in(f"context = x[{text!r}]", "context")

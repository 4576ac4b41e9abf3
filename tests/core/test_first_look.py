"""The first look at a large text: bounded whatever the text is, and nothing in it that the text does not say."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import first_look
from rlm_dspy.data import Data
from rlm_dspy.first_look import MATCHES
from rlm_dspy.forms import form
from rlm_dspy.inputs import describe
from rlm_dspy.passages import WIDTH
from rlm_dspy.signatures.contract import Contract
from rlm_dspy.signatures.conversation import user


def look(text: str, task: str = "") -> str:
    return first_look.look(Data("context", text), task)


def matches(text: str, task: str) -> list[str]:
    return first_look.matches(Data("context", text), task)


def odd_lines(text: str, word: str) -> list[str]:
    return first_look.odd_lines(Data("context", text), word)


LONGEST = 6_000
"""Characters of a look at any text."""

HOSTILE = 'ab Z0_.:={}[]"\\|<\t\r\n\0\u2028\u0130é\ud800\udfff\U0001f600'
hostile = st.text(alphabet=st.sampled_from(HOSTILE), max_size=40)
pieces = st.one_of(
    hostile,
    st.text(max_size=40),
    st.sampled_from(["\n", "\r\n", "{", '{"a": 1}\n', "ERROR disk full\n", "One. Two. Three. ", "x" * 300, "{" * 300]),
)
texts = st.builds(lambda parts, times: "".join(parts) * times, st.lists(pieces, max_size=12), st.integers(1, 300))
logs = "\n".join(f"2031-03-{n % 28 + 1:02d} host{n % 7} {'INFO' if n % 97 else 'ERROR'} id={n}" for n in range(3_000))
prose = "Nobody had swept the stairs. The rain fell on the nets, and Mila laughed. He went home again. " * 400


@settings(deadline=None)
@given(texts, st.one_of(hostile, st.text(max_size=200), texts))
def test_any_text_is_shown_in_bounded_space(text: str, task: str) -> None:
    shown = look(text, task)
    assert len(shown) <= LONGEST
    assert all(len(line) <= max(WIDTH + 10, 1_200) or "keys" in line for line in shown.split("\n"))
    assert user(shown)["content"].encode()
    assert form(text) in ("records", "columns", "json", "csv", "prose")


@settings(deadline=None)
@given(texts, st.one_of(hostile, st.text(max_size=200)))
def test_matches_are_really_in_the_text(text: str, task: str) -> None:
    found = matches(text, task)
    assert len(found) <= MATCHES
    for line in found:
        part = line.removeprefix("… ")
        assert part and part in text and len(part) <= WIDTH and "\n" not in part


@settings(deadline=None)
@given(st.lists(st.text("abc ", min_size=1, max_size=20).map(str.strip), min_size=50, max_size=80), st.data())
def test_the_line_with_a_rare_word_is_found(lines: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(lines) - 1))
    lines[place] += " Zanzibar-77"
    assert matches("\n".join(lines), "How many boats went to Zanzibar-77?") == [lines[place]]
    assert f"Lines with words of the task:\n{lines[place]}" in look("\n".join(lines), "When was Zanzibar-77 seen?")


def test_a_line_is_shown_once_however_many_words_it_has() -> None:
    text = "kilo lima mike november\n" + "nothing here\n" * 500
    assert matches(text, "kilo mike november") == ["kilo lima mike november"]


def test_common_words_and_frequent_ones_find_nothing() -> None:
    assert matches(logs, "How many lines have the most words?") == []
    assert matches(logs, "INFO") == []


LARGE: dict[str, Callable[[], str]] = {
    "one line": lambda: "x" * 100_000_000,
    "surrogates": lambda: "\ud800\0" * 20_000_000,
    "short lines": lambda: "ab cd\n" * 5_000_000,
    "no lines": lambda: "\n" * 30_000_000,
    "json": lambda: '{"a": 1}\n' * 3_000_000,
    "near misses": lambda: "aaaaaaab" * 1_900_000,
    "braces": lambda: "{" * 1_000_000,
    "brackets": lambda: "[" * 1_000_000 + "\n" + "[" * 1_000_000,
    "digits": lambda: "1" * 10_000 + '\n{"a": ' + "1" * 10_000 + "}",
}


@pytest.mark.parametrize("kind", LARGE)
def test_large_texts_cost_little(kind: str) -> None:
    text = LARGE[kind]()
    task = " ".join(f"aaaaaaa{n}" for n in range(100)) + " aaaaaaaa" * 100
    times = []
    for _ in range(3):
        started = time.process_time()
        shown, _ = look(text, task), form(text)
        times.append(time.process_time() - started)
    assert len(shown) <= LONGEST
    # Searching 16 million characters for a dozen words is tens of milliseconds each at the most.
    assert min(times) < 3


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_shown_whole_and_in_their_order(end: str) -> None:
    lines = [f"row {n:05d} value={n * n}" for n in range(2_000)]
    text = end.join(lines)
    shown = look(text).split("\n")
    assert shown[0] == "Its first lines:" and shown[1:4] == lines[:3]
    last = shown.index("Its last line:")
    assert shown[last + 1] == lines[-1]
    middle = shown[5:last]
    assert shown[4] == "Lines from its middle:" and len(middle) == 3 and set(middle) < set(lines)
    assert [lines.index(a) < lines.index(b) for a, b in itertools.pairwise(middle)] == [True, True]
    assert shown[-1] == f"One line split at spaces: [0] row  [1] {middle[-1].split()[1]}  [2] {middle[-1].split()[2]}"


def test_the_keys_of_json_lines_are_named() -> None:
    rows = "\n".join(json.dumps({"at": n, "who": f"p{n % 9}", "nested": {"x": [n]}}) for n in range(500))
    keys = "json.loads(line) of the last one from the middle has the keys ['at', 'who', 'nested']"
    assert look(rows).endswith(f"Each line is JSON. {keys}")


def test_a_text_without_lines_is_shown_by_its_ends_and_middle() -> None:
    text = "A" * 5_000 + "middle" + "Z" * 5_000
    begins, middle, ends = look(text).split("\n")[1::2]
    assert begins == "A" * 300 and ends == "Z" * 300 and "middle" in middle and middle in text


def test_a_long_line_is_shown_round_the_word() -> None:
    text = "\n".join(["short line"] * 100 + ["p" * 500 + " needle " + "q" * 500] + ["short line"] * 100)
    (line,) = matches(text, "Where is the needle?")
    assert line.startswith("… p") and " needle q" in line and len(line) <= WIDTH + 2


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (logs, "records"),
        ("\n".join(f"{n},{n * 2},name{n}" for n in range(900)), "records"),
        ("\n".join(f"def f{n}(x):\n    return x[{n}] == {{'a': {n}}}" for n in range(300)), "records"),
        ("\n".join(json.dumps({"id": n}) for n in range(900)), "json"),
        ("\r\n".join(json.dumps({"id": n}) for n in range(900)), "json"),
        (json.dumps([{"id": n} for n in range(900)]), "records"),
        (prose, "prose"),
        (prose.replace(". ", ".\n"), "prose"),
        ("", "records"),
        ("x" * 5_000, "records"),
    ],
)
def test_how_a_text_is_written(text: str, kind: str) -> None:
    assert form(text) == kind


@settings(deadline=None)
@given(texts, st.text(max_size=100))
def test_a_contract_with_a_look_can_be_made_of_any_text(text: str, task: str) -> None:
    about = describe("data", text, look=task)
    contract = Contract(task, (about,), (), (), question=task)
    for short in (True, False):
        assert "`data`" in contract.render(short=short)
    assert bool(about.look) == (not about.whole)


def test_of_prose_the_sentences_are_shown_and_the_best_come_first() -> None:
    filler = "The mill stood still that day. Nobody could say why the river was late. "
    facts = ("Ada Quill painted the gate.", "For once Ada Quill slept.", "The gate was green.")
    text = "\n".join(filler * 6 + facts[n % 3] * (n < 3) + " " + filler for n in range(40))
    assert form(text) == "prose"
    found = matches(text, "How often did Ada Quill paint the gate?")
    assert found[0] == facts[0] and set(found) == set(facts)
    assert "Sentences with words of the task:" in look(text, "How often did Ada Quill paint the gate?")


def test_a_line_that_says_something_else_is_told_from_thousands_that_say_the_same() -> None:
    services = ("cart-api", "mailer", "stock")
    usual = [f"2031-01-04 INFO {services[n % 3]} host-{n % 7} request r-{n} took {n % 90} ms" for n in range(3_000)]
    odd = "2031-01-04 INFO cart-api host-3 the rollout was signed off by Dora Castell"
    usual.insert(1_700, odd)
    text = "\n".join(usual)
    assert odd_lines(text, "cart-api") == [odd]
    shown = look(text, "Who permitted cart-api to go out?")
    assert f"Lines with 'cart-api' that differ from the others:\n{odd}" in shown
    assert odd_lines("\n".join(usual[:1_700]), "cart-api") == []


def test_of_lines_with_a_rare_word_those_of_the_name_that_is_asked_for_come_first() -> None:
    """A name that stands in too many lines to be looked for still tells which of the few is meant."""
    lines = [f'{{"svc": "svc-{n % 50}", "msg": "request completed"}}' for n in range(5_000)]
    for n in range(20):
        lines.insert(n * 200, f'{{"svc": "svc-{n}", "msg": "signing key rotated, it is now word-{n}"}}')
    found = matches("\n".join(lines), "Which key does svc-17 use since it was rotated?")
    assert "word-17" in found[0]

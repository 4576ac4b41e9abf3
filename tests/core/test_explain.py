"""Why code found nothing: what is said is true of the text, and what comes closest is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy.data import Data
from rlm_dspy.explain import nothing, output, start
from rlm_dspy.forms import form
from rlm_dspy.passages import WIDTH
from tests.core.test_first_look import hostile, texts

LOG = "\n".join(["WARN disk full"] * 3 + ["ERROR stack trace"] * 2 + ["INFO fine"] * 900)
FILLER = "The rain fell on the nets and nobody laughed. She said that the tide would turn. "
STORY = "\n".join(
    FILLER * 6 + ("By a minute Ada Quill missed the ferry. " if n % 5 == 0 else "") + FILLER for n in range(40)
)


@settings(deadline=None)
@given(st.one_of(hostile, st.text(max_size=60)), texts, st.text(max_size=60))
def test_explaining_never_fails_and_is_short(source: str, text: str, task: str) -> None:
    explained = nothing(f"hits = {source!r} in context", Data("context", text), task)
    if explained is None:
        return
    assert len(explained.text) < 8 * WIDTH + 1_500
    if text.count(source):
        assert f"{source!r} {text.count(source):,} times" in explained.text and not explained.missed


@pytest.mark.parametrize("code", ["print('only shown')", "not code (", "SUBMIT(answer='text')", "x = 1"])
def test_code_that_looks_for_nothing_is_not_explained(code: str) -> None:
    assert nothing(code, Data("context", LOG)) is None


def test_a_text_that_stands_nowhere_gives_way_to_its_longest_part_and_what_has_it_is_shown() -> None:
    code = "hits = [s for s in c if 'ferry without Ada Quill' in s]"
    explained = nothing(code, Data("c", STORY), "When did Ada Quill miss it?")
    assert explained is not None and explained.missed and form(STORY) == "prose"
    assert "'ferry without Ada Quill' never: use 'Ada Quill' in its place, which stands there 8 times" in explained.text
    assert "With 'Ada Quill': 8 sentences, such as:\nBy a minute Ada Quill missed the ferry." in explained.text


def test_another_spelling_is_named() -> None:
    explained = nothing("[l for l in c if 'warn' in l]", Data("c", LOG))
    assert explained is not None and "'warn' never, but 'WARN' 3 times" in explained.text
    assert "With 'WARN': 3 lines, such as:\nWARN disk full" in explained.text


def test_the_text_that_rules_the_others_out_is_named() -> None:
    explained = nothing("[l for l in c.splitlines() if 'WARN' in l and 'stack' in l]", Data("c", LOG))
    assert explained is not None and explained.missed
    assert "No line has all of these; without 'stack': 3 lines, such as:\nWARN disk full" in explained.text


def test_a_condition_that_the_task_does_not_name_is_the_first_to_go() -> None:
    explained = nothing("[l for l in c if 'fine' in l and 'stack' in l]", Data("c", LOG), "How many stack traces?")
    assert explained is not None and "without 'fine': 2 lines:\nERROR stack trace" in explained.text


def test_lines_that_have_all_say_that_the_code_reads_them_wrongly() -> None:
    explained = nothing("[l for l in c if l.split()[5:] == ['disk', 'full']]", Data("c", LOG))
    assert explained is not None and not explained.missed
    assert "With 'disk', 'full': 3 lines, such as:\nWARN disk full" in explained.text


def test_of_a_pattern_the_parts_that_stand_for_themselves_are_looked_for() -> None:
    explained = nothing(r"re.findall(r'disk=(\w+) (full)', c)", Data("c", LOG))
    assert explained is not None and explained.missed
    assert "'full' 3 times" in explained.text and "'disk=' never" in explained.text


def test_the_field_of_a_word_is_named() -> None:
    rows = [{"id": n, "svc": "cart" if n % 3 else "mail", "code": 502} for n in range(90)]
    text = "\n".join(map(json.dumps, rows))
    explained = nothing("[r for r in rows if r['level'] == 'cart' and r['code'] == '502']", Data("c", text))
    assert explained is not None
    assert "'cart' 60 times, mostly in the field 'svc'" in explained.text
    assert "'502' 90 times, mostly as a number in the field 'code'" in explained.text
    assert "With 'cart', '502': 60 lines" in explained.text


@settings(deadline=None)
@given(texts, st.text(max_size=60), hostile)
def test_the_code_to_begin_with_is_python(text: str, name: str, odd: str) -> None:
    for words in ({}, {name or "x": 3}, {"Pat O'Brien": 2}, {odd or "y": 2, "\\'\n\"": 1}):
        compile(start(Data("context", text), words), "<start>", "exec")


def test_a_name_with_an_apostrophe_is_found_by_it() -> None:
    text = STORY.replace("Ada Quill", "Pat O'Brien")
    names: dict[str, Any] = {"context": text}
    exec(start(Data("context", text), {"Pat O'Brien": 8}), names)
    assert len(names["hits"]) == 8


def test_all_of_long_lines_and_of_many_is_counted() -> None:
    wide = "\n".join(json.dumps({"a": "Push", "x": "y" * 3_000, "user": f"user-{n % 2}"}) for n in range(200))
    explained = nothing("[l for l in c if 'Push' in l and 'user-1' in l]", Data("c", wide))
    assert explained is not None and explained.missed == "" and "With 'Push', 'user-1': 100 lines" in explained.text
    many = "host-1 ok\nhost-2 ok\n" * 150_000
    explained = nothing("[l for l in c if 'host-1' in l and 'ok' in l]", Data("c", many))
    assert explained is not None and "With 'host-1', 'ok': 150,000 lines" in explained.text


def test_where_two_are_too_many_the_telling_one_alone_is_shown() -> None:
    text = "\n".join(["ERROR boom"] * 3 + ["the entries are fine"] * 5 + ["a level of water"] * 2)
    explained = nothing("[l for l in c if 'ERROR' in l and 'entries' in l and 'level' in l]", Data("c", text))
    assert explained is not None and explained.missed == "conflict"
    assert "No line has all of these; with 'ERROR' alone: 3 lines, such as:\nERROR boom" in explained.text


def test_code_that_reads_another_variable_is_told() -> None:
    explained = nothing("re.findall('Ada Quill', query)", Data("context", STORY))
    assert explained is not None
    assert explained.text.startswith("The code does not read `context`, where the data are. In context: 'Ada Quill'")
    same = nothing("re.findall('Ada Quill never', context)", Data("context", STORY))
    assert same is not None and same.text.startswith("In context")


def test_a_number_is_looked_for_with_what_it_stands_behind() -> None:
    """``'415' in line`` would find ``took=1415ms`` too."""
    text = "\n".join(f"GET /a status={415 if n % 9 == 0 else 200} took={n}415ms host-{n % 3}" for n in range(90))
    data = Data("context", text)
    names: dict[str, Any] = {"context": text}
    exec(start(data, {"415": 90, "host-0": 30}), names)
    assert "'host-0' in line and 'status=415' in line" in start(data, {"415": 90, "host-0": 30})
    assert len(names["hits"]) == 10


def test_of_json_lines_the_fields_are_asked_for() -> None:
    text = "\n".join(
        json.dumps({"svc": f"cart-{n % 3}", "status": 415 if n % 9 == 0 else 200, "ms": 415}) for n in range(90)
    )
    names: dict[str, Any] = {"context": text}
    exec(start(Data("context", text), {"cart-0": 30}), names)
    assert len(names["hits"]) == 30 and names["hits"][0]["svc"] == "cart-0"


def test_what_that_code_prints_can_be_told_without_it() -> None:
    data = Data("c", STORY)
    told = output(data, {"Ada Quill": 8}).split("\n")
    assert told[0] == "8 sentences with 'Ada Quill':" and "By a minute Ada Quill missed the ferry." in told[1:]
    assert output(data, {}) == ""


def test_names_are_looked_for_together_and_before_plain_words() -> None:
    """A plain word of the task, however rare, is mostly none of its conditions."""
    lines = [f"2031-01-{n % 25 + 1:02d} {'CRITICAL' if n % 7 == 0 else 'INFO'} cart-{n % 3} ok" for n in range(300)]
    text = "\n".join([*lines, "2031-01-05 INFO cart-0 could not write", "2031-01-05 INFO cart-1 could not write"])
    words = {word: text.count(word) for word in ("write", "CRITICAL", "cart-1", "2031-01-05")}
    names: dict[str, Any] = {"context": text}
    exec(start(Data("context", text), words), names)
    assert "'write'" not in start(Data("context", text), words)
    assert names["hits"] and all("CRITICAL" in hit and "2031-01-05" in hit for hit in names["hits"])
    assert output(Data("context", text), words).startswith(f"{len(names['hits'])} line")

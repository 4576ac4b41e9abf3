"""How code differs from its task: conditions that were forgotten, made up, or worded too narrowly."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy.conditions import Differences, differences
from rlm_dspy.data import Data
from rlm_dspy.environments.base import Environment
from rlm_dspy.first_look import telling_words
from rlm_dspy.testing import code
from tests.core.test_explain import FILLER
from tests.core.test_first_look import hostile, texts
from tests.core.test_guidance import BOATS, acting, ask, observation

LOG = "\n".join(
    f"2031-01-{n % 28 + 1:02d} {'INFO' if n % 9 else 'CRITICAL'} host-{n % 4} status={500 + n % 3}" for n in range(900)
)
STORY = "\n".join(
    FILLER * 6
    + ("That spring Ada Quill travelled to Wexcombe. " if n == 3 else "")
    + ("On business Ada Quill spent a week in Lanthorpe. " if n == 20 else "")
    + FILLER
    for n in range(40)
)


def compared(source: str, text: str, task: str, before: str = "") -> Differences:
    data = Data("context", text)
    return differences(source, before, data, task, telling_words(data, task))


def said(source: str, text: str, task: str, before: str = "") -> str:
    return "\n".join(compared(source, text, task, before).remarks)


def test_a_word_of_the_task_that_no_code_used_is_named() -> None:
    task = "How many status=501 lines come from host-2?"
    assert "the code does not use them: 'host-2' (225 times)" in said("'status=501' in context", LOG, task)
    assert "does not use" not in said("'status=501' in context", LOG, task, before="hits = 'host-2' in context")


def test_a_condition_that_was_made_up_is_named_with_what_is_found_without_it() -> None:
    source = "hits = [l for l in context.splitlines() if 'CRITICAL' in l and 'host-2' in l]"
    made = compared(source, LOG, "How many lines come from host-2?")
    assert made.remarks[0].startswith("The task does not say 'CRITICAL': with 'host-2' alone there are 225.")
    assert "asks for 'CRITICAL', which the task does not say" in made.doubts[0]


@pytest.mark.parametrize(
    ("source", "task"),
    [
        ("[l for l in context if 'CRITICAL' in l and 'host-2' in l]", "How many critical entries has host-2?"),
        ("[l for l in context if 'status=501' in l and 'host-2' in l]", "How often did host-2 answer 501?"),
        ("[l for l in context if 'CRITICAL' in l]", "How many of the worst entries are there?"),
        ("[l.split('status=')[1] for l in context if 'host-2' in l]", "What is the status of host-2?"),
        ("[l for l in context if ' ' in l and 'host-2' in l]", "What is host-2?"),
    ],
)
def test_what_the_task_names_in_its_own_way_is_not_made_up(source: str, task: str) -> None:
    assert "does not say" not in said(source, LOG, task)


def test_a_key_of_json_is_no_condition() -> None:
    text = "\n".join(json.dumps({"level": "warn", "svc": f"s{n % 3}"}) for n in range(600))
    source = "[r for r in rows if 'level' in r and r['svc'] == 's1']"
    assert "does not say" not in said(source, text, "How many in s1?")


def test_a_wording_that_is_one_of_several_is_told_with_the_others() -> None:
    narrow = r"re.findall(r'Ada Quill travelled to (\w+)', context)"
    shown = said(narrow, STORY, "Which towns did Ada Quill visit?")
    assert "1 more sentences have 'Ada Quill', and may say it in other words than 'Ada Quill travelled to':" in shown
    assert shown.endswith("On business Ada Quill spent a week in Lanthorpe.")
    wide = "re.findall('[^.]*Ada Quill[^.]*', context)"
    assert "other words" not in said(wide, STORY, "Which towns did Ada Quill visit?")


@settings(deadline=None)
@given(texts, hostile, st.text(max_size=80))
def test_any_code_can_be_compared_with_any_task(text: str, source: str, task: str) -> None:
    found = compared(f"x = {source!r} in context and 'a' in context", text, task)
    assert all(len(remark) < 4_000 for remark in found.remarks)


def test_an_answer_that_rests_on_a_made_up_condition_is_doubted_once(sandbox: Environment) -> None:
    hits = (
        "hits = [l for l in context.splitlines()\n"
        "        if 'boat3' in l and 'Zanzibar' in l and ('noon' in l or 'dawn' in l)]"
    )
    root = acting(code(f"{hits}\nprint(len(hits))"), code("SUBMIT(answer=len(hits))"))
    prediction = ask(root, sandbox, "context, query -> answer: int")
    assert "The task does not say 'boat3', 'noon'" in observation(root)
    refused = [turn.output for turn in prediction.trajectory if "SUBMIT was refused" in turn.output]
    assert len(refused) == 1 and prediction.outcome == "submitted"


TIMED = "\n".join(f"2031-01-04 svc=svc-{n % 4} status={500 + n % 3} took={n}" for n in range(900))


def test_a_word_that_has_its_place_and_stands_in_others_too_is_told_with_both_numbers() -> None:
    source = "hits = [l for l in context.splitlines() if 'svc-1' in l and '501' in l]"
    loose = compared(source, TIMED, "How often did svc-1 answer 501?")
    assert loose.loose and "'501' stands in other places than 'status=501' too: 76 lines" in loose.remarks[0]
    assert ", and 75 with that" in loose.remarks[0]
    assert "if 'svc-1' in l and 'status=501' in l]" in loose.remarks[0]
    exact = "[l for l in context.splitlines() if 'svc-1' in l and 'status=501' in l]"
    assert not compared(exact, TIMED, "How often did svc-1 answer 501?").loose


def test_an_answer_that_comes_with_the_first_look_is_held_back_for_a_loose_word_alone(sandbox: Environment) -> None:
    counted = "n = len([l for l in context.splitlines() if {} in l])\nprint(n)\nSUBMIT(n)"
    root = acting(code(counted.format("'boat3'")))
    prediction = ask(root, sandbox, "context, query -> answer: int")
    assert prediction.answer == BOATS.count("boat3") and len(prediction.trajectory) == 1

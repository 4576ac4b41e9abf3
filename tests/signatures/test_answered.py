"""Raw examples as demonstrations: the form of answers is shown and saved, never an input that is data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.signatures import answered
from rlm_dspy.testing import Call, ScriptedLM, code, outputs

DATA = "zq_data " * 200_000
TRAIN = [
    dspy.Example(book=f"{DATA}{n}", query=f"Who wrote chapter {n}?", author=name, kind="gold").with_inputs(
        "book", "query"
    )
    for n, name in enumerate(["Ada L.", "Blaise P.", "Carl G."])
]
NARROW = {"max_iters": 1, "max_depth": 2}


def compiled(sandbox: Environment, **options: Any) -> RLM:
    rlm = RLM("book, query -> author", interpreter_factory=sandbox, **NARROW, **options)
    return dspy.LabeledFewShot(k=3).compile(rlm, trainset=TRAIN)


def messages(rlm: RLM, policy: Any = None) -> list[Call]:
    lm = ScriptedLM(policy or (lambda call: code("SUBMIT('Emmy N.')")))
    with dspy.context(lm=lm):
        rlm(book="A short book.", query="Who wrote chapter 9?")
    return lm.calls


def test_the_root_is_shown_questions_and_answers_and_still_the_built_in_demonstration(sandbox: Environment) -> None:
    (plain,) = messages(RLM("book, query -> author", interpreter_factory=sandbox, **NARROW))
    (call,) = messages(compiled(sandbox))
    assert call.system.startswith(plain.system)
    told = call.system.removeprefix(plain.system)
    assert told.strip().startswith(answered.HEADING)
    assert "Who wrote chapter 1?\n  SUBMIT(author='Blaise P.')" in told
    assert "zq_data" not in json.dumps(call.messages)
    assert call.messages[1:] == plain.messages[1:]


def test_extract_is_shown_them_and_children_are_not(sandbox: Environment) -> None:
    def policy(call: Call) -> str:
        if "No more code can run" in call.prompt:
            return outputs(author="Emmy N.")
        child = "SUBMIT(response" in call.own[0]["content"]
        return code("SUBMIT('ok')" if child else "print(rlm_query('Who?', part=book))")

    calls = messages(compiled(sandbox), policy)
    root, child, extract = calls
    assert answered.HEADING in root.system and answered.HEADING not in child.system
    assert "For example, for the task\nWho wrote chapter 0?\nthe answer was:" in extract.prompt
    assert "zq_data" not in json.dumps(extract.messages)


def test_a_saved_program_keeps_them_without_inputs_that_are_data(sandbox: Environment, tmp_path: Path) -> None:
    rlm = compiled(sandbox)
    rlm.save(tmp_path / "program.json")
    text = (tmp_path / "program.json").read_text()
    assert "zq_data" not in text and "gold" not in text and len(text) < 20_000
    fresh = RLM("book, query -> author", interpreter_factory=sandbox, **NARROW)
    fresh.load(tmp_path / "program.json")
    assert messages(fresh)[0].system == messages(rlm)[0].system
    fresh.save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(text)


def test_a_program_with_other_outputs_passes_them_over(sandbox: Environment, tmp_path: Path) -> None:
    compiled(sandbox).save(tmp_path / "program.json")
    other = RLM("book, query -> pages: int", interpreter_factory=sandbox, **NARROW)
    other.load(tmp_path / "program.json")
    (call,) = messages(other, lambda call: code("SUBMIT(3)"))
    assert answered.HEADING not in call.system


def test_large_demonstrations_do_not_keep_a_direct_call_from_being_made(sandbox: Environment) -> None:
    rlm = compiled(sandbox, direct_below=2_000)
    short = dspy.Example(book="Of numbers.", query="Who wrote it?", author="Emmy N.", augmented=True)
    rlm.direct.demos = [*rlm.direct.demos, short]
    (call,) = messages(rlm, lambda call: outputs(author="Emmy N."))
    assert "Of numbers." in json.dumps(call.messages) and "zq_data" not in json.dumps(call.messages)
    assert "zq_data" not in json.dumps(rlm.dump_state())


def test_typed_sub_calls_are_not_shown_examples_of_the_whole_task(sandbox: Environment) -> None:
    rlm = compiled(sandbox, sub_calls={"ask": "book, query -> writer", "again": "book, query -> author"})

    def policy(call: Call) -> str:
        if "REPL" in call.system:
            return code("SUBMIT(ask(book='b', query='q') + again(book='b', query='q'))")
        return outputs(writer="W", author="A")

    calls = messages(rlm, policy)
    assert len(calls) == 3
    assert all("zq_data" not in json.dumps(call.messages) for call in calls)


@pytest.mark.parametrize(
    ("demo", "kept"),
    [
        (TRAIN[0], True),
        (dspy.Example(book="b", query="q", author=None).with_inputs("book", "query"), False),
        (dspy.Example(book="b", query="q", author="a" * 5_000).with_inputs("book", "query"), False),
        (dspy.Example(book="b", query="q", author="a"), False),
        (dspy.Example(book="b", query="q").with_inputs("book", "query"), False),
        ({"task": "t", "answers": {"author": "'a'"}}, True),
        ({"task": "t", "answers": {"other": "'a'"}}, False),
        ({"task": "t", "answers": "author"}, False),
    ],
)
def test_what_is_an_answered_task(demo: Any, kept: bool) -> None:
    assert (answered.answered(demo, ("author",)) is not None) is kept
    assert (answered.shown([demo], ("author",)) != "") is kept


def test_a_demonstration_may_lack_a_value_where_its_type_allows_that() -> None:
    signature = dspy.Signature("text -> name: str | None, kind")
    assert answered.own({"text": "t", "name": None, "kind": "k"}, signature) is not None
    assert answered.own({"text": "t", "name": "n", "kind": None}, signature) is None
    assert answered.own({"text": "t", "kind": "k"}, signature) is None


def test_only_so_many_are_shown() -> None:
    demos = [{"task": f"t{n}", "answers": {"a": str(n)}} for n in range(100)]
    assert answered.shown(demos, ("a",)).count("SUBMIT(") == answered.MOST

"""Answers that cannot be meant are doubted once, others never; what was stated without code is not called a failure."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy import RLM
from rlm_dspy.data import largest
from rlm_dspy.environments.base import Environment
from rlm_dspy.mistaken import asked_about, pieces
from rlm_dspy.testing import ScriptedLM, code

FILLER = "The baker talked about the weather until the candles were low. Nothing came of the new tariff. "
TALE = FILLER * 20 + "What Ann Poe borrowed for the roof is still owed to Bo Marsh. " + FILLER * 20
LOG = "\n".join(f"t{n} GET /v1/item{n % 9} status={200 + n % 5} took={n}ms - done" for n in range(400))


def run(sandbox: Environment, text: str, query: str, signature: str, *replies: str) -> tuple[Any, ScriptedLM]:
    root = ScriptedLM(list(replies))
    with dspy.context(lm=root):
        return RLM(signature, interpreter=sandbox, max_iters=6)(context=text, query=query), root


def test_the_name_that_was_asked_about_is_no_answer(sandbox: Environment) -> None:
    wrong, right = code("SUBMIT(answer='Ann Poe')"), code("print(1)\nSUBMIT(answer='Bo Marsh')")
    prediction, root = run(sandbox, TALE, "Who lent money to Ann Poe?", "context, query -> answer", wrong, right)
    assert prediction.answer == "Bo Marsh"
    told = root.calls[1].prompt
    assert "'Ann Poe' is what the task asks about" in told and "still owed to Bo Marsh" in told


def test_who_means_the_name_gets_it(sandbox: Environment) -> None:
    same = code("SUBMIT(answer='Ann Poe')")
    prediction, root = run(sandbox, TALE, "How is Ann Poe written?", "context, query -> answer", same, same, same)
    assert (prediction.answer, prediction.outcome) == ("Ann Poe", "submitted") and len(root.calls) == 3


@pytest.mark.parametrize(
    ("query", "answer"),
    [("Who owes money, Ann Poe or Bo Marsh?", "Ann Poe"), ("Who lent money to Ann Poe?", "Bo Marsh")],
)
def test_one_of_two_names_or_another_name_is_an_answer(query: str, answer: str) -> None:
    data = largest({"context": TALE, "query": query})
    telling = {name: 1 for name in ("Ann Poe", "Bo Marsh") if name in query}
    assert asked_about({"answer": answer}, data, query, telling) is None


def test_pieces_of_lines_are_cut_again(sandbox: Environment) -> None:
    find = "import re\nhits = [line for line in context.splitlines() if 'status=201' in line]\n"
    greedy = code(find + "paths = sorted({re.search(r'/v1/(.+)', line)[1] for line in hits})\nprint(len(paths))")
    exact = code(find + "paths = sorted({re.search(r'/v1/\\S+', line)[0] for line in hits})\nSUBMIT(answer=paths)")
    prediction, root = run(
        sandbox, LOG, "Which paths had status 201?", "context, query -> answer: list[str]",
        greedy, code("SUBMIT(answer=paths)"), exact,
    )  # fmt: skip
    assert "every item has 'status=201' in it" in root.calls[2].prompt
    assert prediction.answer == [f"/v1/item{n}" for n in range(9)] and prediction.outcome == "submitted"


@pytest.mark.parametrize(
    ("items", "task"),
    [
        (["/v1/item1"], "Which paths had status 201?"),
        (["item1 status=201", "item2 status=404"], "Which paths had status 201?"),
        (["a status=201 line"], "Print the lines with status=201."),
        ([], "Which paths had status 201?"),
        ([1, 2], "Which paths had status 201?"),
        ("item1 status=201", "Which path had status 201?"),
    ],
)
def test_lists_that_may_be_meant_are_no_pieces(items: Any, task: str) -> None:
    assert pieces({"answer": items}, "hits = [line for line in context if 'status=201' in line]", task) is None


@given(st.one_of(st.none(), st.text(), st.lists(st.one_of(st.none(), st.integers(), st.text()))), st.text(), st.text())
def test_any_value_code_and_task_can_be_looked_at(value: Any, source: str, task: str) -> None:
    found = pieces({"answer": value}, source, task)
    assert found is None or isinstance(found, str)
    data = largest({"context": TALE})
    named = asked_about({"answer": value}, data, task, {"Ann Poe": 1})
    assert (named is not None) == (isinstance(value, str) and value.strip() == "Ann Poe")


def test_a_reply_without_code_is_not_called_code_that_failed(sandbox: Environment) -> None:
    prediction, root = run(
        sandbox, TALE, "Who lent money to Ann Poe?", "context, query -> answer",
        code("print('owed to Bo Marsh')"), "The answer is Bo Marsh.", code("SUBMIT(answer='Bo Marsh')"),
    )  # fmt: skip
    assert prediction.answer == "Bo Marsh"
    told = root.calls[2].prompt
    assert "no Python code in your reply" in told and "The code failed" not in told
    assert "If you have the answer, reply with SUBMIT(answer=...)" in told


def test_who_does_not_look_is_shown(sandbox: Environment) -> None:
    """The same answer again without any code: what the suggested code would print stands in the refusal."""
    same = code("SUBMIT(answer='Cy Fenn')")
    prediction, root = run(
        sandbox, TALE, "Who lent money to Ann Poe?", "context, query -> answer", same, same, code("SUBMIT('Bo Marsh')")
    )
    assert prediction.answer == "Bo Marsh"
    assert "Begin with this" in root.calls[1].prompt
    shown = root.calls[2].prompt.partition("[turn")[0]
    assert "the same answer again" in shown and "1 sentence with 'Ann Poe':\nWhat Ann Poe borrowed" in shown


def test_a_zero_that_was_found_in_another_variable_is_no_look_at_the_data(sandbox: Environment) -> None:
    count = "print({}.count('Ann Poe'))"
    prediction, root = run(
        sandbox, TALE, "How often is Ann Poe named?", "context, query -> answer: int",
        code(count.format("query[:0]")), code("SUBMIT(answer=0)"), code(f"{count.format('context')}\nSUBMIT(answer=1)"),
    )  # fmt: skip
    assert "The code does not read `context`" in root.calls[1].prompt
    refused = root.calls[2].prompt
    assert "SUBMIT was refused" in refused and "Begin with this" in refused and prediction.answer == 1


def test_extract_is_not_told_to_go_on(sandbox: Environment) -> None:
    """What a turn says to do next is over when the turns are; what is asked is said again."""
    root = ScriptedLM(lambda call: "9" if "No more code can run" in call.prompt else code("print(9)"))
    with dspy.context(lm=root):
        prediction = RLM("context, query -> answer: int", interpreter=sandbox, max_iters=2)(
            context=TALE, query="How many?"
        )
    last = root.calls[-1].prompt
    assert prediction.answer == 9 and "go on with code" not in last and "Task: How many?\n\nNo more code" in last
    assert "go on with code" in root.calls[-2].prompt

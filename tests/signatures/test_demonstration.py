"""The built-in demonstration is true: its code, run over the text it shows, prints what it says, and submits that."""

from __future__ import annotations

import contextlib
import io
import json
import re
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.signatures import Act, ConversationAdapter, Exchange, extract_signature
from rlm_dspy.signatures.contract import Contract, OutputInfo, VariableInfo
from rlm_dspy.signatures.conversation import Conversation, conversing
from rlm_dspy.signatures.demonstration import FRESH, messages
from rlm_dspy.signatures.dialect import find_code, labelled_code
from rlm_dspy.signatures.guidance import Guidance
from rlm_dspy.testing import ScriptedLM, code

FORMS = ("records", "columns", "json", "csv", "prose", "rows")
NAMED = "Words of the task that stand in it: 'x' 3 times"
KINDS: dict[str, tuple[str, str]] = {
    "count": ("int", "How many are there?"),
    "sum": ("float", "What is the total weight?"),
    "list": ("list[str]", "Which ones are there?"),
    "compare": ("str", "Which is the largest?"),
    "find": ("str", "What happened?"),
}
EXAMPLES = [(form, kind) for form in FORMS for kind in KINDS]
EXAMPLES += [(form, f"{kind} all") for form in FORMS if form != "prose" for kind in ("sum", "list", "compare")]


def deliveries() -> list[dict[str, Any]]:
    """The harbour's book that the examples about deliveries are taken from."""

    def row(at: str, fruit: str, crates: int, carrier: str, way: str = "IN") -> dict[str, Any]:
        return {"at": f"2031-{at}", "way": way, "fruit": fruit, "crates": crates, "carrier": carrier}

    rows = [
        row("01-04T09:12", "apples", 12, "Otto"),
        row("01-04T09:40", "pears", 7, "Mila", "OUT"),
        row("01-05T10:31", "plums", 3, "Mila"),
        row("01-05T11:00", "plums", 3, "Mila", "OUT"),
    ]
    rows += [row(f"01-{6 + n % 25:02d}T12:00", "plums", 5, "Otto") for n in range(86)]
    rows += [row(f"01-{6 + n % 25:02d}T13:00", "plums", 6, "Juna") for n in range(54)]
    rows += [row(f"01-{6 + n % 25:02d}T14:00", "plums", 7, "Mila") for n in range(44)]
    rows += [row("02-11T08:02", "apples", 12, "Otto"), row("02-11T08:02", "plums", 12, "Mila")]
    rows += [row("02-11T08:31", "apples", 9, "Otto")]
    rows += [row(f"02-11T{n:02d}:00", "apples", 2, "Otto") for n in range(9, 14)]
    rows += [row("02-11T14:00", "apples", 2, "Otto", "OUT"), row("02-11T15:00", "apples", 2, "Juna")]
    rows += [row("02-11T16:03", "plums", 31, "Otto") | {"note": "two crates were crushed"}]
    return [*rows, row("03-29T17:55", "apples", 4, "Juna", "OUT")]


def rows_of() -> list[dict[str, str]]:
    """The book as a reader of CSV gives it."""
    names = ("at", "way", "fruit", "crates", "carrier", "note")
    return [{name: str(row.get(name, "")) for name in names} for row in deliveries()]


def text_of(form: str, shown: str) -> Any:
    """A text that is written like the one that an example shows, and that its output is true of; or its records."""
    if form == "rows":
        return rows_of()
    if form == "json":
        return "\n".join(map(json.dumps, deliveries()))
    if form == "csv":
        names = ("at", "way", "fruit", "crates", "carrier", "note")
        rows = [",".join(str(row.get(name, "")) for name in names) for row in deliveries()]
        return "\n".join([",".join(names), *rows])
    if form in ("records", "columns"):
        lines = []
        for row in deliveries():
            line = f"{row['at']} {row['way']} {row['fruit']} crates={row['crates']} carrier={row['carrier']}"
            line = f"{line} note: {row['note']}" if "note" in row else line
            lines.append(line if form == "records" else re.sub(r"crates=|carrier=|note: ", "", line))
        return "\n".join(lines)
    first, *found = shown.split("\n")
    if not first[0].isdigit():
        # One list of sentences a name.
        found = [sentence for line in (first, *found) for sentence in re.findall(r"'([^']*)'", line)]
    others = int(first.split()[0]) - len(found) if first[0].isdigit() else 0
    sentences = [*found, *(f" {n} times Otto Lind walked to the pier" for n in range(others))]
    joined = "".join(f".{sentence}" if sentence.startswith(" ") else f".\n{sentence}" for sentence in sentences)
    return f"THE HARBOUR YEARS\n\nIt rained{joined}."


def contract(form: Any, kind: str, data: str = "ledger", output: str = "verdict", **more: Any) -> Contract:
    annotation, question = KINDS[kind.removesuffix(" all")]
    look = "Its first lines:\nx" if kind.endswith(" all") else f"Its first lines:\nx\n{NAMED}"
    kind_of = "list[dict]" if form == "rows" else "str"
    variable = VariableInfo(data, kind_of, "9,999 characters", "'a' … 'z'", False, "", look, form)
    outputs = (OutputInfo(output, annotation),)
    return Contract("t", (variable,), (), outputs, question=question, **more)


def steps(shown: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Each turn's code and the output that is shown for it, ``""`` for the last."""
    codes = [find_code(message["content"]).code for message in shown if message["role"] == "assistant"]
    outputs = [message["content"] for message in shown[1:] if message["role"] == "user"]
    assert all(output.startswith("Output:\n") for output in outputs)
    bodies = [output.removeprefix("Output:\n").partition("\n\nTask: ")[0] for output in outputs]
    return list(zip(codes, [*bodies, ""], strict=True))


@pytest.mark.parametrize(("form", "kind"), EXAMPLES)
@pytest.mark.parametrize("data", ["ledger", "line", "re", "name", "rows", "json", "hits", "text"])
def test_the_code_of_every_example_prints_what_is_shown_and_submits_it(form: str, kind: str, data: str) -> None:
    shown_messages = messages(contract(form, kind, data), Guidance())
    turns = steps(shown_messages)
    submitted: list[dict[str, Any]] = []
    variable = re.findall(r"Variable `(\w+)` is already set", shown_messages[0]["content"])[0]
    # A variable of the task that is called as one of the example's own gives way to it.
    assert variable == (data if data in ("ledger", "text") else "table" if form == "rows" else "text")
    names = {variable: text_of(form, turns[0][1]), "SUBMIT": lambda **outputs: submitted.append(outputs)}
    for source, shown in turns:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(source, names)
        assert printed.getvalue().rstrip("\n") == shown.rstrip("\n")
    ((name, value),) = submitted[0].items()
    assert len(submitted) == 1 and name == "verdict"
    assert type(value) is {"int": int, "float": int, "list[str]": list, "str": str}[KINDS[kind.removesuffix(" all")][0]]
    said = "\n".join(shown for _, shown in turns)
    assert all(str(item) in said for item in (value if isinstance(value, list) else [value]))


@pytest.mark.parametrize(("form", "kind"), EXAMPLES)
def test_what_is_shown_of_the_text_stands_in_it(form: str, kind: str) -> None:
    shown = messages(contract(form, kind), Guidance())
    first = shown[0]["content"]
    size = "list[dict], 800 items" if form == "rows" else "str, 48,210 characters, 800 lines"
    assert f"Variable `ledger` is already set: {size}" in first
    assert "SUBMIT(verdict=...), verdict: " + KINDS[kind.removesuffix(" all")][0] in first
    if form != "prose":
        text = text_of(form, "")
        text = "\n".join(map(repr, text)) if form == "rows" else text
        begins = {"json": '{"at"', "rows": "{'at'"}.get(form, "2031-")
        lines = [line for line in first.split("\n") if line.startswith(begins)]
        assert len(lines) == 4 and set(lines) <= set(text.split("\n"))
    assert [m["role"] for m in shown] == ["user", "assistant"] * (len(shown) // 2)


@pytest.mark.parametrize(("form", "kind"), EXAMPLES)
@pytest.mark.parametrize("off", ["short_contract", "plain_dialect", "first_look", "repeat_task"])
def test_the_demonstration_keeps_to_the_form_that_the_run_has(form: str, kind: str, off: str) -> None:
    shown = messages(contract(form, kind), Guidance(**{off: False}))
    replies = [message["content"] for message in shown if message["role"] == "assistant"]
    observations = [message["content"] for message in shown[1:] if message["role"] == "user"]
    assert ("# Variables" in shown[0]["content"]) == (off == "short_contract")
    assert all(("[[ ## code ## ]]" in reply) == (off == "plain_dialect") for reply in replies)
    assert all(labelled_code(reply).code and labelled_code(reply).reasoning for reply in replies)
    unit = "records" if form == "rows" else "lines"
    assert (f"Its first {unit}:" in shown[0]["content"]) == (off != "first_look")
    assert all(("\n\nTask: " in observation) == (off != "repeat_task") for observation in observations)


@pytest.mark.parametrize(
    ("outputs", "name"),
    [
        ((OutputInfo("n", "int"),), "n"),
        ((OutputInfo("tags", "list[str]"),), "tags"),
        ((OutputInfo("ok", "bool"),), "answer"),
        ((OutputInfo("report", "Report", "", {"type": "object"}),), "answer"),
        ((OutputInfo("a", "str"), OutputInfo("b", "int")), "answer"),
        ((), "answer"),
    ],
)
def test_the_output_is_named_like_the_tasks_only_where_it_is_of_the_same_kind(
    outputs: tuple[OutputInfo, ...], name: str
) -> None:
    shown = messages(Contract("t", (), (), outputs, question="q"), Guidance())
    assert f"SUBMIT({name}=" in shown[-1]["content"] and f"SUBMIT({name}=..." in shown[0]["content"]


def test_it_stands_between_the_rules_and_the_task_and_the_conversation_only_grows() -> None:
    demonstration = messages(contract("prose", "find"), Guidance())
    conversation = Conversation("THE CONTRACT", demonstration=demonstration)
    adapter = ConversationAdapter()
    inputs: dict[str, Any] = {"task": "t", "turns": []}
    with conversing(conversation):
        before = adapter.format(Act, [], inputs)
        assert before[0]["role"] == "system"
        assert before[1:] == [*demonstration, {"role": "user", "content": "THE CONTRACT"}]
        for number in range(3):
            conversation.exchanges.append(Exchange(f"reply {number}", f"output {number}"))
            after = adapter.format(Act, [], inputs)
            assert after[: len(before)] == before and len(after) == len(before) + 2
            before = after
        conversation.extracting = True
        question = adapter.format(extract_signature(dspy.Signature("q -> a")), [], inputs)
    assert question[: len(before) - 1] == before[:-1]
    assert question[-1]["content"].startswith(f"{before[-1]['content']}\n\nNo more code can run.")


DEMO = {"task": "count", "turns": [], "reasoning": "sum", "code": "SUBMIT(2)"}


@pytest.mark.parametrize("guided", [True, False])
@pytest.mark.parametrize(
    ("demos", "replies"),
    [([], None), ([{"q": "raw example", "a": "x"}], None), ([DEMO], ["sum\n\n```python\nSUBMIT(2)\n```"])],
)
def test_demonstrations_of_the_users_own_take_its_place(
    sandbox: Environment, demos: list[dict[str, Any]], replies: list[str] | None, guided: bool
) -> None:
    rlm = RLM("q -> a", interpreter=sandbox, guidance={"demonstration": guided})
    rlm.act.demos = [dspy.Example(**demo) for demo in demos]
    root = ScriptedLM([code("SUBMIT('x')")])
    with dspy.context(lm=root):
        rlm(q="q")
    (call,) = root.calls
    said = [message["content"] for message in call.messages if message["role"] == "assistant"]
    if replies is None and guided:
        assert len(said) >= 2 and all("raw example" not in text for text in said)
    else:
        assert said == (replies or [])
    # What is above is another task's, where there is something above.
    assert call.prompt.startswith(FRESH) == bool(said)
    assert call.turn == 0 and call.own == call.messages[-1:]

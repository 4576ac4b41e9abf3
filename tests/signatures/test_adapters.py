"""The two adapters: what is sent for act, extract and llm_query, and what is read from the replies."""

from __future__ import annotations

from typing import Any, Literal

import dspy
import pydantic
import pytest
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import AdapterParseError

from rlm_dspy.signatures import (
    DIALECT,
    STRATEGY,
    Act,
    ConversationAdapter,
    Exchange,
    PlainTextAdapter,
    Sub,
    extract_signature,
)
from rlm_dspy.signatures.conversation import Conversation, conversing

INNERS = [dspy.ChatAdapter, dspy.JSONAdapter, dspy.XMLAdapter]
INPUTS: dict[str, Any] = {"task": "how many?", "turns": []}


class Clause(pydantic.BaseModel):
    title: str
    pages: list[int]


class Report(dspy.Signature):
    """Report."""

    text: str = dspy.InputField()
    count: int = dspy.OutputField()
    names: list[str] = dspy.OutputField()
    kind: Literal["a", "b"] = dspy.OutputField()
    clause: Clause = dspy.OutputField()
    note: str = dspy.OutputField()


ANSWER = {
    "count": 3,
    "names": ["x", "y"],
    "kind": "b",
    "clause": Clause(title='"quoted" {brace}', pages=[1]),
    "note": "it is\nso",
}


def extracting(sent: bool = True) -> Conversation:
    conversation = Conversation("THE CONTRACT", [Exchange("```python\nx\n```", "1", "[turn 2 of 9]")], extracting=True)
    if sent:
        with conversing(conversation):
            conversation.extracting = False
            conversation.exchanges, kept = [], conversation.exchanges
            ConversationAdapter().format(Act, [], INPUTS)
            conversation.exchanges, conversation.extracting = kept, True
    return conversation


def test_act_is_dialect_and_strategy_then_the_contract() -> None:
    with conversing(Conversation("THE CONTRACT")):
        messages = ConversationAdapter().format(Act, [], INPUTS)
    assert messages == [
        {"role": "system", "content": f"{DIALECT}\n\n{STRATEGY}"},
        {"role": "user", "content": "THE CONTRACT"},
    ]


def test_an_empty_strategy_leaves_the_dialect() -> None:
    with conversing(Conversation("c")):
        assert ConversationAdapter().format(Act.with_instructions("  "), [], INPUTS)[0]["content"] == DIALECT


def test_own_demonstrations_are_turns_before_the_task_and_foreign_ones_are_passed_over() -> None:
    own = {
        "task": "demo task",
        "turns": [{"reply": "```python\na\n```", "output": "A"}, {"output": "no reply came"}, "odd"],
        "reasoning": "because",
        "code": "SUBMIT(1)",
    }
    foreign: list[dict[str, Any]] = [{"context": "x" * 100, "answer": "y"}, {"code": ""}, {"code": None}, {}]
    bare = {"code": "print({1})"}
    with conversing(Conversation("THE CONTRACT")):
        messages = ConversationAdapter().format(Act, [foreign[0], own, *foreign[1:], bare], INPUTS)
    assert [(m["role"], m["content"]) for m in messages[1:]] == [
        ("user", "# Example task\ndemo task"),
        ("assistant", "```python\na\n```"),
        ("user", "A"),
        ("user", "no reply came"),
        ("assistant", "because\n\n```python\nSUBMIT(1)\n```"),
        ("user", "# Example task\n"),
        ("assistant", "```python\nprint({1})\n```"),
        ("user", "THE CONTRACT"),
    ]


def test_outside_a_run_act_is_rendered_from_its_inputs() -> None:
    messages = ConversationAdapter().format(Act, [], {"task": "t", "turns": [{"reply": "r", "output": "o"}]})
    assert [m["content"] for m in messages[1:]] == ["# Task\nt", "r", "o"]


def test_a_reply_is_kept_also_where_it_cannot_be_parsed() -> None:
    conversation = Conversation("c")
    adapter = ConversationAdapter()
    with conversing(conversation):
        assert adapter.parse(Act, "go\n```python\nx=1\n```") == {"reasoning": "go", "code": "x=1"}
        with pytest.raises(AdapterParseError, match="no Python code"):
            adapter.parse(Act, "I give up.")
    assert conversation.reply == "I give up."


@pytest.mark.parametrize("inner", INNERS)
def test_extract_is_one_more_question_at_the_end_of_the_same_conversation(inner: type[dspy.Adapter]) -> None:
    conversation = extracting()
    with conversing(conversation):
        messages = ConversationAdapter(inner()).format(extract_signature(Report), [], INPUTS)
    assert messages[: len(conversation.sent)] == conversation.sent
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert messages[-1]["content"].startswith("Output:\n1\n\n[turn 2 of 9]\n\nNo more code can run.")
    assert all(name in messages[-1]["content"] for name in Report.output_fields)


@pytest.mark.parametrize("inner", INNERS)
def test_extract_before_the_root_was_ever_asked(inner: type[dspy.Adapter]) -> None:
    with conversing(extracting(sent=False)):
        messages = ConversationAdapter(inner()).format(extract_signature(Report), [], INPUTS)
    assert messages[0] == {"role": "user", "content": "THE CONTRACT"}


@pytest.mark.parametrize("inner", INNERS)
def test_typed_outputs_come_back_through_each_adapter(inner: type[dspy.Adapter]) -> None:
    signature = extract_signature(Report)
    outputs = signature
    for name in list(signature.input_fields):
        outputs = outputs.delete(name)
    reply = inner().format_assistant_message_content(outputs, ANSWER)
    with conversing(extracting()):
        assert ConversationAdapter(inner()).parse(signature, reply) == ANSWER


@pytest.mark.parametrize("inner", INNERS)
def test_json_is_read_whatever_the_adapter(inner: type[dspy.Adapter]) -> None:
    reply = '{"count": 3, "names": ["x"], "kind": "a", "clause": {"title": "t", "pages": []}, "note": ""}'
    with conversing(extracting()):
        parsed = ConversationAdapter(inner()).parse(extract_signature(Report), reply)
    assert parsed["clause"] == Clause(title="t", pages=[]) and parsed["count"] == 3


def test_plain_words_are_the_answer_only_where_one_text_is_asked_for() -> None:
    with conversing(extracting()):
        adapter = ConversationAdapter()
        assert adapter.parse(extract_signature(dspy.Signature("q -> answer")), " Paris \n") == {"answer": "Paris"}
        for signature in ("q -> answer: int", "q -> a, b"):
            with pytest.raises(AdapterParseError):
                adapter.parse(extract_signature(dspy.Signature(signature)), "Paris")


def test_demonstrations_of_extract_stand_in_the_question() -> None:
    demos = [{"task": "demo task", "answer": "demo answer"}, {"context": "foreign"}]
    with conversing(extracting()):
        messages = ConversationAdapter().format(extract_signature(dspy.Signature("q -> answer")), demos, INPUTS)
    assert "demo task" in messages[-1]["content"] and "demo answer" in messages[-1]["content"]
    assert "foreign" not in str(messages)


@pytest.mark.parametrize("names", ["code", "reasoning, code", "task", "turns, task, task_"])
def test_outputs_may_have_the_names_of_our_own_fields(names: str) -> None:
    signature = extract_signature(dspy.Signature(f"q -> {names}"))
    wanted = [name.strip() for name in names.split(",")]
    assert list(signature.output_fields) == wanted and len(signature.input_fields) == 2
    reply = "".join(f"[[ ## {name} ## ]]\nthe {name}\n\n" for name in wanted)
    with conversing(extracting()):
        adapter = ConversationAdapter()
        assert "No more code can run" in adapter.format(signature, [], INPUTS)[-1]["content"]
        assert adapter.parse(signature, reply) == {name: f"the {name}" for name in wanted}


def test_callbacks_of_the_users_adapter_are_kept() -> None:
    callback = BaseCallback()
    for adapter in (ConversationAdapter(dspy.JSONAdapter(callbacks=[callback])), PlainTextAdapter(dspy.ChatAdapter())):
        assert isinstance(adapter.callbacks, list)
    assert ConversationAdapter(dspy.JSONAdapter(callbacks=[callback])).callbacks == [callback]
    assert isinstance(ConversationAdapter(dspy.TwoStepAdapter(dspy.LM("openai/x"))).inner, dspy.ChatAdapter)


def test_plain_text_is_the_prompt_and_the_reply() -> None:
    adapter = PlainTextAdapter()
    text = " {x} \0\r\n[[ ## response ## ]] "
    messages = adapter.format(Sub, [{"prompt": "p", "response": "r"}, {"prompt": "p"}, {"x": "y"}], {"prompt": text})
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert messages[-1]["content"] == text
    assert adapter.parse(Sub, text) == {"response": text}
    assert [m["role"] for m in adapter.format(Sub.with_instructions(" "), [], {"prompt": text})] == ["user"]


@pytest.mark.parametrize(
    ("signature", "fits"),
    [
        ("a -> b", True),
        ("a: str -> b: str", True),
        ("a -> b: int", False),
        ("a: int -> b", False),
        ("a, c -> b", False),
        ("a -> b, c", False),
    ],
)
def test_plain_text_fits_one_text_to_one_text(signature: str, fits: bool) -> None:
    assert PlainTextAdapter.fits(dspy.Signature(signature)) is fits

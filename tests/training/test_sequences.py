"""Rows as tokens: what is learned is what the model will sample, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.rows import FORMS, formed
from rlm_dspy.training.sequences import Sequence, learned_messages, read_rows, sequences

pytest.importorskip("transformers", reason="needs pip install 'rlm-dspy[train]'")
from tests.training.tokenizer import make

DROPS_THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)
ROW = {
    "messages": [
        {"role": "system", "content": "You write code."},
        {"role": "user", "content": "Begin. An example:"},
        {"role": "assistant", "content": "SHOWN", "weight": 0},
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": "print(1)", "weight": 1},
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "1/0", "weight": 0},
        {"role": "user", "content": "ZeroDivisionError"},
        {"role": "assistant", "content": "SUBMIT(answer=1)", "weight": 1},
    ],
    "start": 3,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def forgetful(tokenizer: Any) -> Iterator[Any]:
    """With a template that renders the last reply in another way than the earlier ones, as Qwen3's does."""
    whole = tokenizer.chat_template
    tokenizer.chat_template = DROPS_THOUGHTS
    yield tokenizer
    tokenizer.chat_template = whole


def said(tokenizer: Any, sequence: Sequence) -> str:
    return str(tokenizer.decode([one for one, here in zip(sequence.ids, sequence.mask, strict=True) if here]))


def test_only_replies_with_weight_are_learned_and_a_conversation_is_one_sequence(tokenizer: Any) -> None:
    (one,) = sequences(ROW, tokenizer)
    assert said(tokenizer, one) == "print(1)<|im_end|>SUBMIT(answer=1)<|im_end|>"
    whole = tokenizer.apply_chat_template([{**m} for m in ROW["messages"]], tokenize=False)
    assert tokenizer.decode(one.ids) == whole
    assert len(one.ids) == len(one.mask) and one.learned == sum(one.mask)
    marked = whole.rstrip("\n").replace("print(1)<|im_end|>", "«print(1)<|im_end|>»")
    marked = marked.replace("SUBMIT(answer=1)<|im_end|>", "«SUBMIT(answer=1)<|im_end|>»")
    assert one.shown(tokenizer).rstrip("\n") == marked
    assert one.shown(tokenizer, around=("", "")) == whole


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_rows_teaches_the_same_replies(tokenizer: Any, form: Any) -> None:
    row: dict[str, Any] = {**ROW, "messages": [m for m in ROW["messages"] if m["content"] not in ("1/0", "1")]}
    found = [one for line in formed(row, form) for one in sequences(line, tokenizer)]
    assert "".join(said(tokenizer, one) for one in found) == "print(1)<|im_end|>SUBMIT(answer=1)<|im_end|>"


def test_where_a_template_changes_earlier_replies_each_reply_is_learned_after_its_own_request(forgetful: Any) -> None:
    found = list(sequences(ROW, forgetful))
    assert [said(forgetful, one) for one in found] == ["print(1)<|im_end|>", "SUBMIT(answer=1)<|im_end|>"]
    for one, place in zip(found, (4, 8), strict=True):
        asked = forgetful.apply_chat_template(ROW["messages"][:place], tokenize=False, add_generation_prompt=True)
        prompt = one.ids[: one.mask.index(True)]
        assert prompt == forgetful(asked, add_special_tokens=False)["input_ids"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30), st.booleans()), min_size=1, max_size=5))
def test_a_prompt_is_what_the_request_had_and_a_reply_what_was_said(
    tokenizer: Any, turns: list[tuple[str, str, bool]]
) -> None:
    messages: list[dict[str, Any]] = []
    for asked, reply, learned in turns:
        answer = {"role": "assistant", "content": reply, "weight": int(learned)}
        messages += [{"role": "user", "content": asked}, answer]
    found = list(sequences({"messages": messages}, tokenizer))
    wanted = [reply for _, reply, learned in turns if learned]
    assert "".join(said(tokenizer, one) for one in found) == "".join(f"{reply}<|im_end|>" for reply in wanted)
    assert len(found) == bool(wanted)
    for one in found:
        whole = tokenizer.apply_chat_template(messages, tokenize=False)
        assert whole.startswith(tokenizer.decode(one.ids))


def test_a_row_may_hold_any_end_of_a_line(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "one\u2028two\x85three\x0cfour"}]}
    (tmp_path / "train.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_rows(tmp_path) == [row]


def test_rows_are_read_from_a_file_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(ROW) + "\n\n" + json.dumps(ROW) + "\n")
    assert read_rows(tmp_path) == read_rows(tmp_path / "train.jsonl") == [ROW, ROW]
    (tmp_path / "train.jsonl").write_text(json.dumps(ROW) + "\n{broken\n")
    with pytest.raises(ConfigurationError, match=r"train\.jsonl:2"):
        read_rows(tmp_path)
    with pytest.raises(ConfigurationError, match="neither a file"):
        read_rows(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("row", "told"),
    [({"text": "a"}, "'text'"), ({}, "nothing"), ({"messages": [{"role": "user", "content": None}]}, "both text")],
)
def test_what_is_no_row_is_refused(row: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        learned_messages(row)

"""Secrets stay out of errors and events; the words of a program stay in them."""

from __future__ import annotations

import json

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy import RLM, subscribe
from rlm_dspy.environments.base import Environment
from rlm_dspy.redact import HIDDEN, error_text, hide, redact
from rlm_dspy.testing import Reply, ScriptedLM, code

KEYS = [
    "sk-proj-abcDEF123456ghiJKL7890",
    "sk-ant-api03-aaaabbbb1111",
    "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_11ABCDEFG0123456789_abcdef",
    "hf_abcdefghijklmnopqrstuvwxyz0123",
    "xoxb-123456789012-abcdef",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
]


@pytest.mark.parametrize("key", KEYS)
def test_what_is_shaped_like_a_key_is_hidden(key: str) -> None:
    assert redact(f"Incorrect API key provided: {key}. Bye") == f"Incorrect API key provided: {HIDDEN}. Bye"
    assert key not in redact(f'{{"key":"{key}"}}')


def test_bearer_tokens_are_hidden() -> None:
    assert redact("Authorization: Bearer abc.def-ghi_123==") == f"Authorization: Bearer {HIDDEN}"


@pytest.mark.parametrize(
    "text",
    [
        "NameError: name 'skip_first_iteration' is not defined",
        "skeletonization of the skyscraper_heights_by_city",
        "hf_hub_download_file_name",
        "KeyError: 'pk_constraint_violation_count'",
        "ModuleNotFoundError: No module named 'sk-learn-contrib'",
        "ghostwriter_names, rkhunter_results_table, AIzawl",
    ],
)
def test_the_names_of_a_program_are_not_secrets(text: str) -> None:
    assert redact(text) == text


def test_values_of_secret_variables_are_hidden_the_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "correct-horse")
    monkeypatch.setenv("B_PASSWORD", "correct-horse-battery")
    monkeypatch.setenv("C_KEY", "short")
    assert redact("correct-horse-battery correct-horse short") == f"{HIDDEN} {HIDDEN} short"


@given(st.text(max_size=200), st.integers(1, 300))
def test_an_error_becomes_one_bounded_text(message: str, limit: int) -> None:
    text = error_text(ValueError(message), limit)
    assert 0 < len(text) <= limit
    assert text.startswith("ValueError"[:limit]) or limit < 11


def test_an_error_that_cannot_be_written_out_is_still_named() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert error_text(Broken()).startswith("Broken")
    assert error_text(KeyError()) == "KeyError"


def test_keys_reach_neither_the_code_nor_the_events(sandbox: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_KEY", "open-sesame-please")

    def fails() -> str:
        raise RuntimeError(f"401 for open-sesame-please and {KEYS[0]}")

    source = "try: fails()\nexcept Exception as e: print(e)\nprint(llm_query_batched(['x']))\nllm_query('x')"
    log = []
    sub = ScriptedLM(lambda call: Reply(error=RuntimeError(f"bad key {KEYS[1]}")))
    root = ScriptedLM([code(source), code("SUBMIT('done')")])
    with dspy.context(lm=root), subscribe(lambda event, run: log.append(event.to_dict())):
        RLM("-> a", tools=[fails], sub_lm=sub, interpreter=sandbox)()
    everything = json.dumps(log) + json.dumps([call.messages for call in root.calls])
    assert everything.count("[hidden]") > 4
    assert not any(secret in everything for secret in ("open-sesame-please", KEYS[0], KEYS[1]))


def test_keys_that_an_lm_was_given_are_hidden_whatever_they_look_like(sandbox: Environment) -> None:
    class Leaky(dspy.LM):
        def forward(self, *args: object, **kwargs: object) -> object:
            raise RuntimeError(f"wrong key: {self.kwargs['api_key']}")

    sub = Leaky("openai/any", api_key="my own secret phrase")
    root = ScriptedLM([code("llm_query('x')"), code("SUBMIT('x')")])
    with dspy.context(lm=root):
        prediction = RLM("-> a", sub_lm=sub, interpreter=sandbox)()
    shown = prediction.trajectory[0].output
    assert f"wrong key: {HIDDEN}" in shown
    assert "secret phrase" not in json.dumps([event.to_dict() for event in prediction.trajectory.events])


def test_keys_in_the_error_that_ends_a_run_are_not_in_its_outcome(sandbox: Environment) -> None:
    def policy(call: object) -> str | Reply:
        return code("1") if call.turn == 0 else Reply(error=RuntimeError(f"bad key {KEYS[0]}"))  # type: ignore[attr-defined]

    with dspy.context(lm=ScriptedLM(policy)):
        prediction = RLM("-> a", interpreter=sandbox)()
    # What was shown last is the partial answer.
    assert prediction.outcome == "failed" and prediction.a == "1"
    assert HIDDEN in prediction.outcome.error and KEYS[0] not in prediction.outcome.error
    assert KEYS[0] not in json.dumps([event.to_dict() for event in prediction.trajectory.events])


def test_words_that_stand_for_no_key_are_not_hidden() -> None:
    for word in ("placeholder", "not-needed", "lm-studio", "anything"):
        hide(word)
        assert redact(f"the word {word} in a text") == f"the word {word} in a text"
    hide("a-real-one-4711")
    assert "4711" not in redact("is a-real-one-4711 here")

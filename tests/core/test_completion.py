"""`rlm_dspy.completion`: one call in the place of an LM's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

import rlm_dspy
from rlm_dspy import ConfigurationError, LimitReached, acompletion, completion
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, Reply, ScriptedLM, code, oracle

pytestmark = pytest.mark.usefixtures("no_leaks")

LOG = "\n".join(f"{n} {'ERROR' if n % 1_000 == 7 else 'INFO'}" for n in range(20_000))
TRUSTING: dict[str, Any] = {"guidance": {"check_answers": False}}


def root(source: str, direct: str | Reply = "direct") -> Callable[[Call], Any]:
    return lambda call: code(source) if "REPL" in call.system else direct


def first(lm: ScriptedLM) -> str:
    return str(lm.calls[0].own[0]["content"])


def test_a_prompt_and_a_query(sandbox: Environment) -> None:
    lm = ScriptedLM(root("n = context.count('ERROR')\nSUBMIT(response=n)"))
    prediction = completion(LOG, "How many errors?", lm=lm, interpreter=sandbox, **TRUSTING)
    assert prediction.response == "20" and prediction.outcome == "submitted"
    assert len(prediction.trajectory) == 1 and prediction.usage["turns"] == 1
    assert "How many errors?" in first(lm) and len(first(lm)) < 10_000


def test_a_prompt_that_asks_itself(sandbox: Environment) -> None:
    lm = ScriptedLM(root("SUBMIT(response=str(message.count('ERROR ') + message.count('ERROR\\n')))"))
    with dspy.context(lm=lm):
        prediction = completion(f"Count the errors.\n\n{LOG}\n\nThe number alone.", interpreter=sandbox, **TRUSTING)
    assert prediction.response == "20"
    assert "Count the errors." in first(lm) and "The number alone." in first(lm) and len(first(lm)) < 10_000


def test_chat_messages(sandbox: Environment) -> None:
    chat = [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": LOG},
        {"role": "assistant", "content": "I have read it."},
        {"role": "user", "content": "How long is it?"},
    ]
    lm = ScriptedLM(root("SUBMIT(response=str(len(message)))"))
    assert completion(chat, lm=lm, interpreter=sandbox, **TRUSTING).response == str(len(LOG))
    for part in ("You are terse.", "I have read it.", "How long is it?"):
        assert part in first(lm)


@pytest.mark.parametrize(
    ("prompt", "source", "wanted"),
    [
        ({"a": 1, "b": [2, 3]}, "SUBMIT(response=str(sum(context['b'])))", "5"),
        ([{"n": 1}, {"n": 2}], "SUBMIT(response=str(len(context)))", "2"),
        ([{"role": "user", "text": "no message"}], "SUBMIT(response=context[0]['text'])", "no message"),
        (b"\x00\x01", "SUBMIT(response=str(len(context)))", "2"),
    ],
)
def test_any_value_without_a_query(sandbox: Environment, prompt: Any, source: str, wanted: str) -> None:
    assert completion(prompt, lm=ScriptedLM(root(source)), interpreter=sandbox, **TRUSTING).response == wanted


def test_files_and_folders(sandbox: Environment, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"Count the errors.\n{LOG}")
    lm = ScriptedLM(root("SUBMIT(response=str(len(message)))"))
    prediction = completion(tmp_path / "a.txt", lm=lm, interpreter=sandbox, **TRUSTING)
    assert prediction.response == str(len(LOG) + 18) and "Count the errors." in first(lm)
    lm = ScriptedLM(root("SUBMIT(response=str(list(context)))"))
    assert completion(tmp_path, "Which files?", lm=lm, interpreter=sandbox, **TRUSTING).response == "['a.txt']"
    with pytest.raises(ConfigurationError, match="cannot read"):
        completion(tmp_path / "missing.txt", lm=lm)


def test_awaited(sandbox: Environment) -> None:
    lm = ScriptedLM(root("SUBMIT(response=str(len(context)))"))

    async def main() -> list[str]:
        calls = [acompletion("x" * n, "How long?", lm=lm, interpreter=sandbox, **TRUSTING) for n in (1, 2, 3)]
        return [prediction.response for prediction in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == ["1", "2", "3"]


def test_options_are_the_programs(sandbox: Environment) -> None:
    lm, sub = ScriptedLM(root("SUBMIT(response=llm_query('hm?'))")), ScriptedLM(lambda call: "from sub")
    assert completion(LOG, "?", lm=lm, sub_lm=sub, interpreter=sandbox, **TRUSTING).response == "from sub"
    lm = ScriptedLM(oracle("1", answer={"response": "so far"}))
    assert completion(LOG, "?", lm=lm, interpreter=sandbox, max_iters=1).outcome == "extracted"
    assert completion(LOG, lm=lm, interpreter=sandbox, max_iters=1).response == "so far"
    with pytest.raises(LimitReached):
        completion(LOG, lm=lm, interpreter=sandbox, max_iters=1, on_limit="raise")


@pytest.mark.parametrize("query", [None, "Which?"])
def test_short_prompts_are_one_call_where_that_is_asked_for(query: str | None) -> None:
    text = "[[ ## response ## ]]\nblue\n\n[[ ## completed ## ]]" if query else "blue"
    lm = ScriptedLM([text], temperature=0.3)
    prediction = completion("Which colour is the sky?", query, lm=lm, direct_below=100)
    assert (prediction.response, prediction.outcome) == ("blue", "direct")
    assert lm.calls[0].request.config.temperature == 0.3 and prediction.usage["input_tokens"] > 0


def test_a_short_conversation_goes_as_it_is() -> None:
    chat = [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Who are you?"},
    ]
    lm = ScriptedLM(["Nobody."])
    assert completion(chat, lm=lm, direct_below=100).response == "Nobody."
    assert lm.calls[0].messages == chat

    async def main() -> str:
        return str((await acompletion(chat, lm=ScriptedLM(["Somebody."]), direct_below=100)).response)

    assert asyncio.run(main()) == "Somebody."


def test_without_a_direct_answer_it_runs(sandbox: Environment) -> None:
    lm = ScriptedLM(root("SUBMIT(response='run')", direct=" "))
    prediction = completion("Hi", lm=lm, direct_below=100, interpreter=sandbox, **TRUSTING)
    assert (prediction.response, prediction.outcome) == ("run", "submitted")
    assert completion(LOG, lm=lm, direct_below=100, interpreter=sandbox, **TRUSTING).outcome == "submitted"


def test_an_rlm_that_is_configured_as_the_lm_is_not_asked(sandbox: Environment) -> None:
    lm = ScriptedLM(root("SUBMIT(response='x')"))
    with dspy.context(lm=rlm_dspy.RLM("a -> b").as_lm(lm)):
        assert completion(LOG, "?", interpreter=sandbox, **TRUSTING).response == "x"
    assert len(lm.calls) == 1


@pytest.mark.parametrize(
    ("prompt", "options", "kind", "words"),
    [
        ("", {}, ConfigurationError, "the prompt is empty"),
        ([{"role": "user", "content": " "}], {}, ConfigurationError, "the prompt is empty"),
        ("x", {"query": " "}, ConfigurationError, "the query is empty"),
        ("x", {"query": 3}, TypeError, "query must be a text, not int"),
        ("x", {"lm": "openai/m"}, TypeError, "lm must be an LM such as"),
        ("x", {"signature": "a -> b"}, ConfigurationError, "for others use RLM"),
        ("x", {"max_turns": 3}, TypeError, "max_turns"),
    ],
)
def test_wrong_arguments(prompt: Any, options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with dspy.context(lm=ScriptedLM([])), pytest.raises(kind, match=words):
        completion(prompt, **options)


def test_importing_the_module_does_not_hide_the_function(in_python: Callable[..., Any]) -> None:
    script = ["import rlm_dspy.completions", "from rlm_dspy import completion", "print(callable(rlm_dspy.completion))"]
    out, err = in_python("\n".join(script)).communicate(timeout=60)
    assert out.strip() == "True", err

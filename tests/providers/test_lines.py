"""Every line of the README's table of providers, run against a server of its wire dialect."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.streaming import StreamListener, StreamResponse
from rlm_dspy_test_lines import LINES, OTHER, Line, start
from rlm_dspy_test_servers import Fault
from rlm_dspy_test_wires import CACHED, INPUT, OUTPUT, Reply

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import code

EVERY = pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())


def policy_of(reasoning: str = "") -> Callable[[str], Any]:
    """A root that asks two sub-calls and submits their answers in its second turn."""
    batch = code('parts = llm_query_batched(["PING one", "PING two"])\nprint(parts)', "First, I ask.")

    def policy(last: str) -> Any:
        if last.startswith("PING") or "\nPING" in last or "PING one" in last[-40:]:
            return Reply(f"pong {'one' if 'PING one' in last else 'two'}")
        if "pong" in last:
            return Reply(code('SUBMIT(answer=" + ".join(parts))', "Now I answer.  \n"), reasoning)
        return Reply(batch + "\n \n", reasoning)

    return policy


@EVERY
def test_a_run(
    line: Line, serve: Callable[..., Any], sandbox: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "AZURE_API_KEY"):
        monkeypatch.setenv(name, OTHER)
    server, lm = start(line, serve, monkeypatch, policy_of())
    with dspy.context(lm=lm):
        pred = RLM("context -> answer", interpreter_factory=sandbox)(context="some text")
    assert not server.refusals, server.refusals
    assert pred.outcome == "submitted" and pred.answer == "pong one + pong two"
    assert len(server.seen) == 4
    for seen in server.seen:
        assert seen.path == line.path
        assert server.wire.model_of(seen) == line.served
        assert OTHER not in str(seen), "a key of another provider was sent"
        roles = [role for role, _ in server.wire.turns(seen)]
        assert "system" not in roles[1:] and roles[-1] == "user"
        assert all(text.strip() for _, text in server.wire.turns(seen))
    longest = max((server.wire.turns(seen) for seen in server.seen), key=len)
    assert [role for role, _ in longest][-3:] == ["user", "assistant", "user"]
    usage = pred.usage
    assert (usage["lm_calls"], usage["input_tokens"], usage["output_tokens"]) == (4, 4 * INPUT, 4 * OUTPUT)
    (by_model,) = usage["by_model"].values()
    if line.wire != "ollama-native":  # which reports no cache
        assert by_model["prompt_tokens_details"]["cached_tokens"] == 4 * CACHED


@EVERY
@pytest.mark.parametrize("nothing", ["", " \n"])
def test_an_empty_reply_leaves_a_conversation_that_is_taken(
    line: Line,
    serve: Callable[..., Any],
    sandbox: Environment,
    monkeypatch: pytest.MonkeyPatch,
    nothing: str,
) -> None:
    """No provider takes a message without text, and chat templates of open models want the roles in turn."""

    def policy(last: str) -> Any:
        if "Your reply was empty" in last:
            return Reply(code("answer = 'do' + 'ne'\nprint(answer)"))
        if "done" in last:
            return Reply(code("SUBMIT(answer=answer)"))
        return Reply(nothing)

    server, lm = start(line, serve, monkeypatch, policy, num_retries=0)
    with dspy.context(lm=lm):
        pred = RLM("context -> answer", interpreter_factory=sandbox, max_iters=5)(context="some text")
    assert not server.refusals, server.refusals
    assert pred.outcome == "submitted" and pred.answer == "done"


@EVERY
def test_status_messages_and_the_extracted_answer_stream(
    line: Line, serve: Callable[..., Any], sandbox: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = "the best answer that there is"

    def policy(last: str) -> Any:
        if "No more code can run" in last:
            return Reply(f"[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]")
        return Reply(code("print(1)"))

    server, lm = start(line, serve, monkeypatch, policy, num_retries=0)
    rlm = RLM("context -> answer", interpreter_factory=sandbox, max_iters=1)
    program = dspy.streamify(rlm, stream_listeners=[StreamListener("answer")], is_async_program=True)

    async def main() -> list[Any]:
        return [item async for item in program(context="some text")]

    with dspy.context(lm=lm):
        items = asyncio.run(main())
    assert not server.refusals, server.refusals
    assert items[-1].answer == answer and items[-1].outcome == "extracted"
    pieces = [item.chunk for item in items if isinstance(item, StreamResponse)]
    assert "".join(pieces).strip() == answer


@EVERY
def test_reasoning_is_kept_apart(
    line: Line, serve: Callable[..., Any], sandbox: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reasoning that a provider sends beside its reply is no part of the reply, nor of what goes back as one."""
    thought = "a {thought} that only the model has"
    server, lm = start(line, serve, monkeypatch, policy_of(thought))
    with dspy.context(lm=lm):
        pred = RLM("context -> answer", interpreter_factory=sandbox)(context="some text")
    assert not server.refusals, server.refusals
    assert pred.outcome == "submitted" and pred.answer == "pong one + pong two"
    assert all(thought not in turn.reply for turn in pred.trajectory)
    assert all(thought not in text for seen in server.seen for _, text in server.wire.turns(seen))


@EVERY
def test_a_busy_and_a_failing_server_are_asked_again(
    line: Line, serve: Callable[..., Any], sandbox: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, lm = start(line, serve, monkeypatch, policy_of())
    server.faults.extend([Fault("rate", {"retry-after": "0.01"}), Fault("server", {"retry-after": "0.01"})])
    with dspy.context(lm=lm):
        pred = RLM("context -> answer", interpreter_factory=sandbox)(context="some text")
    assert pred.outcome == "submitted" and pred.answer == "pong one + pong two"
    assert not server.faults and len(server.seen) == 4


@EVERY
def test_a_reply_that_was_cut_off_is_a_turn(
    line: Line, serve: Callable[..., Any], sandbox: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that ended at ``max_tokens`` in the middle of its code is shown to the root as what it is."""

    def policy(last: str) -> Any:
        if "SyntaxError" in last:
            return Reply(code("answer = 'wh' + 'ole'\nprint(answer)"))
        if "whole" in last:
            return Reply(code("SUBMIT(answer=answer)"))
        return Reply("```python\nanswer = ('cut", finish="length")

    server, lm = start(line, serve, monkeypatch, policy, max_tokens=16_000)
    with dspy.context(lm=lm):
        pred = RLM("context -> answer", interpreter_factory=sandbox)(context="some text")
    assert pred.outcome == "submitted" and pred.answer == "whole"
    assert not server.refusals and len(server.seen) == 3
    assert "SyntaxError" in pred.trajectory[0].output


def test_the_table_of_the_readme_is_these_lines() -> None:
    """Each ``dspy.LM`` that the table shows is one that is run here: same prefix, same options."""
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    section = readme.partition("\n## Providers\n")[2].partition("\n## ")[0]
    if not section:
        pytest.skip("the README has no section on providers yet")
    calls = [
        ast.parse(found, mode="eval").body for found in re.findall(r"`(dspy\.LM\(.*?\))`(?= *\|)", section)
    ]
    assert len(calls) >= 9
    known = {(line.model.partition("/")[0], frozenset(line.options) - {"api_base"}) for line in LINES.values()}
    for call in calls:
        assert isinstance(call, ast.Call) and isinstance(call.args[0], ast.Constant)
        options = frozenset(str(keyword.arg) for keyword in call.keywords) - {"api_base"}
        assert (str(call.args[0].value).partition("/")[0], options) in known, ast.unparse(call)
    for line in LINES.values():
        for variable in line.variables:
            assert variable in section, variable

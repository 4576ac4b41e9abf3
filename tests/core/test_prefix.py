"""The root's conversation only ever grows: what is sent once is sent again, byte for byte, at every provider.

Checked on the recorded HTTP requests of real ``dspy.LM`` clients against a loopback server, so that nothing between
the loop and the wire is left out.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.signatures.conversation import EMPTY_REPLY
from rlm_dspy.testing import Reply, ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")

REASONING = "I think\r\nhard {about} it\t"
REPLIES: list[Any] = [
    {"content": "plan\n\n```python\nprint(len(context))\n```", "reasoning_content": REASONING},
    "no code, {braces}, \\backslash and \ttab  ",
    "CRLF plan\r\n\r\n```python\r\nprint('a')\r\nprint('b')\r\n```\r\n trailing ",
    '```json\n{"not": "python"}\n```',
    "",
    "[[ ## reasoning ## ]]\nin DSPy's format\n\n[[ ## code ## ]]\n1 / 0\n\n[[ ## completed ## ]]",
    "an unclosed fence\n```python\nprint('\u00e9\U0001f600 \u2028 end')",
    "```python\nSUBMIT(3)\n```",
    "```python\nSUBMIT('x')\n```",
]


def text_of(message: dict[str, Any]) -> str:
    """A message's text; endpoints take a string or a list of parts."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def texts(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(message["role"], text_of(message)) for message in messages]


def turns(server: Any) -> list[dict[str, Any]]:
    """The messages of the last request that the first one did not have yet."""
    return list(server.messages[-1][len(server.messages[0]) :])


def run_over_http(
    endpoint: Callable[..., Any], sandbox: Environment, engine: str, replies: list[Any], **options: Any
) -> tuple[dspy.Prediction, Any]:
    server = endpoint(replies)
    lm = dspy.LM("openai/m", api_base=server.url, api_key="k", cache=False, engine=engine, num_retries=0)
    rlm = RLM("context, query -> answer", interpreter_factory=sandbox, **options)
    with dspy.context(lm=lm):
        return rlm(context="data\r\nmore {data}\0" * 50, query="what?"), server


@pytest.mark.parametrize("engine", ["auto", "litellm"])
def test_each_request_is_a_prefix_of_the_next(
    endpoint: Callable[..., Any], sandbox: Environment, engine: str
) -> None:
    prediction, server = run_over_http(endpoint, sandbox, engine, REPLIES)
    assert prediction.outcome == "submitted" and prediction.answer == "3"  # a number is text where text is asked for
    assert len(server.bodies) == len(REPLIES) - 1
    for earlier, later in itertools.pairwise(server.messages):
        assert later[: len(earlier)] == earlier
    # Not only the same values: the same bytes up to the end of the earlier request's last message.
    for earlier, later in itertools.pairwise(server.bodies):
        start = earlier.index(b'"messages"')
        end = earlier.rindex(b"}]") if earlier.find(b"}]") >= 0 else len(earlier)
        assert later[start:end] == earlier[start:end]


@pytest.mark.parametrize("engine", ["auto", "litellm"])
def test_replies_go_back_byte_for_byte(endpoint: Callable[..., Any], sandbox: Environment, engine: str) -> None:
    prediction, server = run_over_http(endpoint, sandbox, engine, REPLIES)
    sent = [text for role, text in texts(turns(server)) if role == "assistant"]
    given_ = [reply["content"] if isinstance(reply, dict) else reply for reply in REPLIES[:-2]]
    assert sent == [text or EMPTY_REPLY for text in given_]  # providers refuse an empty assistant message
    assert [turn.reply for turn in prediction.trajectory] == [*given_, REPLIES[-2]]


def test_reasoning_content_goes_back_where_it_has_a_field_of_its_own(
    endpoint: Callable[..., Any], sandbox: Environment
) -> None:
    _, server = run_over_http(endpoint, sandbox, "litellm", REPLIES)
    assistant = next(m for m in turns(server) if m["role"] == "assistant")
    assert assistant["reasoning_content"] == REASONING


def test_reasoning_content_never_ends_up_in_a_reply(endpoint: Callable[..., Any], sandbox: Environment) -> None:
    _, server = run_over_http(endpoint, sandbox, "auto", REPLIES)
    for messages in server.messages:
        assert all("hard {about} it" not in text for _, text in texts(messages))


@pytest.mark.parametrize("engine", ["auto", "litellm"])
def test_extract_continues_the_conversation(endpoint: Callable[..., Any], sandbox: Environment, engine: str) -> None:
    replies = [*REPLIES[:3], "[[ ## answer ## ]]\nbest\n\n[[ ## completed ## ]]"]
    prediction, server = run_over_http(endpoint, sandbox, engine, replies, max_iters=3)
    assert prediction.answer == "best" and prediction.outcome == "extracted"
    *acts, extract = map(texts, server.messages)
    assert extract[: len(acts[-1])] == acts[-1]
    assert len(extract) == len(acts[-1]) + 2
    assert extract[-1][0] == "user" and "No more code can run" in extract[-1][1]


def test_demonstrations_come_before_the_task_and_stay(endpoint: Callable[..., Any], sandbox: Environment) -> None:
    server = endpoint([code("print(1)"), code("SUBMIT('x')")])
    rlm = RLM("context, query -> answer", interpreter_factory=sandbox)
    rlm.act.demos = [
        dspy.Example(task="count", turns=[{"reply": "r", "output": "o"}], reasoning="sum", code="SUBMIT(2)"),
        dspy.Example(context="not a demonstration of the root", query="?", answer="!"),
    ]
    lm = dspy.LM("openai/m", api_base=server.url, api_key="k", cache=False)
    with dspy.context(lm=lm):
        rlm(context="c", query="q")
    first, second = map(texts, server.messages)
    assert [role for role, _ in first] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert first[4][1] == "sum\n\n```python\nSUBMIT(2)\n```"
    assert all("not a demonstration" not in text for _, text in first)
    assert second[: len(first)] == first


def test_async_and_sync_send_the_same_bytes(endpoint: Callable[..., Any], sandbox: Environment) -> None:
    bodies = []
    for way in ("sync", "async"):
        server = endpoint(REPLIES)
        lm = dspy.LM("openai/m", api_base=server.url, api_key="k", cache=False)
        rlm = RLM("context, query -> answer", interpreter_factory=sandbox)
        with dspy.context(lm=lm):
            if way == "sync":
                rlm(context="c", query="q")
            else:
                asyncio.run(rlm.acall(context="c", query="q"))
        bodies.append(server.bodies)
    assert bodies[0] == bodies[1]


def test_the_prefix_is_nearly_all_of_a_request(endpoint: Callable[..., Any], sandbox: Environment) -> None:
    """The share of a request that the one before held already, as a provider's prefix cache sees it."""
    replies = [code(f"print('{n}' * 400)", "a plan of some words") for n in range(20)] + [code("SUBMIT('x')")]
    _, server = run_over_http(endpoint, sandbox, "auto", replies, max_iters=21)
    sizes = [sum(len(text) for _, text in texts(messages)) for messages in server.messages]
    assert sum(sizes[:-1]) / sum(sizes[1:]) > 0.9


replies_of_any_kind = st.one_of(
    st.text(max_size=60),
    st.builds(lambda prose, tail: f"{prose}\n```python\npass\n```{tail}", st.text(max_size=30), st.text(max_size=30)),
    st.sampled_from(["```", "~~~", "```python", "[[ ## code ## ]]", "{}", '{"code": "pass"}', "\r\n", "\0", "\ud800"]),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(replies_of_any_kind, min_size=1, max_size=4), st.booleans())
def test_any_replies_keep_the_prefix(sandbox: Environment, replies: list[str], thinks: bool) -> None:
    lm = ScriptedLM([Reply(text, reasoning="why" if thinks else None) for text in replies] + [code("SUBMIT('x')")])
    with dspy.context(lm=lm):
        prediction = RLM("query -> answer", interpreter_factory=sandbox)(query="q")
    # The same reply with the same result three times ends the turns, and `extract` goes on with the conversation.
    assert prediction.outcome == "submitted" or prediction.outcome.limit == "repeats"
    requests = [json.dumps(call.messages) for call in lm.calls]
    for earlier, later in itertools.pairwise(requests):
        assert later.startswith(earlier[:-1])
    said = [turn.reply for turn in prediction.trajectory]
    assert said[:-1] == replies if prediction.outcome == "submitted" else said == replies[: len(said)]

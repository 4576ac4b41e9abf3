"""Scripted language models, as users of `rlm_dspy.testing` rely on them."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from typing import Any

import dspy
import pytest
from dspy.lm15 import Message, RateLimitError, Request

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, Reply, ScriptedLM, ScriptedServer, code, oracle, outputs


def test_an_oracle_plays_many_runs_at_once(sandbox: Environment) -> None:
    root = ScriptedLM(oracle("n = context.count('x')\nprint(n)", "SUBMIT(answer=n)"))
    rlm = RLM("context -> answer: int", interpreter=sandbox)
    examples = [dspy.Example(context="x" * n).with_inputs("context") for n in range(1, 9)]
    with dspy.context(lm=root):
        results = dspy.Parallel(num_threads=4, disable_progress_bar=True)([(rlm, example) for example in examples])
    assert [pred.answer for pred in results] == list(range(1, 9))
    assert len(root.calls) == 16


def test_an_oracle_knows_its_turn_behind_demonstrations(sandbox: Environment) -> None:
    rlm = RLM("context -> answer", interpreter=sandbox)
    rlm.act.demos = [
        dspy.Example(task="# Task\nold", turns=[{"reply": "look", "output": "1"}], reasoning="r", code="SUBMIT('no')")
    ]
    with dspy.context(lm=ScriptedLM(oracle("print(1)", lambda call: f"SUBMIT('{call.observations}')"))):
        assert rlm(context="c").answer == "1"


def test_an_oracle_answers_extract(sandbox: Environment) -> None:
    root = ScriptedLM(oracle("print(1)", answer={"name": "Ada", "ages": [36, 37]}))
    with dspy.context(lm=root):
        pred = RLM("context -> name: str, ages: list[int]", max_iters=1, interpreter=sandbox)(context="c")
    assert (pred.outcome, pred.name, pred.ages) == ("extracted", "Ada", [36, 37])


def test_an_oracle_without_an_answer_says_what_it_was_asked() -> None:
    call = Call(0, [{"role": "user", "content": "# Task\nt"}, {"role": "user", "content": "more?"}], request=None)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"1 step, .*more\?"):
        oracle("print(1)")(call)


def test_a_list_is_used_up_in_order_and_says_so() -> None:
    lm = ScriptedLM(["a", Reply("b", reasoning="because")])
    assert lm("1") == ["a"]
    assert lm("2") == [{"text": "b", "reasoning_content": "because"}]
    with pytest.raises(Exception, match="no reply left for call 2"):
        lm("3")
    assert [call.prompt for call in lm.calls] == ["1", "2", "3"]


def test_code_is_the_plain_dialect() -> None:
    assert code("x = 1", "Set x.") == "Set x.\n\n```python\nx = 1\n```"


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), None])
def test_outputs_are_read_by_a_predictor(adapter: dspy.Adapter | None) -> None:
    lm = ScriptedLM([outputs(name="Ada", ages=[36, 37], kind={"a": None})])
    with dspy.context(lm=lm, adapter=adapter):
        prediction = dspy.Predict("q -> name, ages: list[int], kind: dict")(q="?")
    assert (prediction.name, prediction.ages, prediction.kind) == ("Ada", [36, 37], {"a": None})
    assert len(lm.calls) == 1


def test_a_scripted_server_plays_many_runs_at_once(sandbox: Environment) -> None:
    with ScriptedServer(oracle("n = context.count('x')\nprint(n)", "SUBMIT(answer=n)"), "demo") as server:
        rlm = RLM("context -> answer: int", interpreter=sandbox)
        examples = [dspy.Example(context="x" * n).with_inputs("context") for n in range(1, 9)]
        lm = dspy.LM("hosted_vllm/demo", api_base=server.url, api_key="none", cache=False)
        with dspy.context(lm=lm):
            results = dspy.Parallel(num_threads=8, disable_progress_bar=True)([(rlm, example) for example in examples])
        assert [pred.answer for pred in results] == list(range(1, 9))
        assert len(server.calls) == 16 and {call.request.model for call in server.calls} == {"demo"}
        assert all(pred.usage["input_tokens"] > 0 for pred in results)
        with urllib.request.urlopen(f"{server.url}/models", timeout=10) as answer:
            assert json.load(answer)["data"][0]["id"] == "demo"


def test_a_scripted_server_sees_what_a_scripted_lm_sees() -> None:
    asked = (Message.user("a\u2028 é"), Message.assistant(""), Message.user("b"))
    lm = ScriptedLM(["x"])
    lm(Request(lm.model, asked, "s"))
    with ScriptedServer(["x"]) as server:
        dspy.LM("hosted_vllm/m", api_base=server.url, api_key="none", cache=False)(Request("hosted_vllm/m", asked, "s"))
    assert server.calls[0].messages == lm.calls[0].messages
    assert [message["content"] for message in server.calls[0].messages] == ["s", "a\u2028 é", "", "b"]


def test_a_scripted_server_fails_as_a_provider_would() -> None:
    replies = [Reply(error=RateLimitError("slow down")), Reply(error=RuntimeError("lost")), Reply("b", reasoning="why")]
    with ScriptedServer(replies) as server:

        def ask(**more: Any) -> tuple[int, Any]:
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "q"}], **more}).encode()
            request = urllib.request.Request(f"{server.url}/chat/completions", body)
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return answer.status, json.load(answer)["choices"][0]["message"]
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)["error"]["message"]

        assert ask(stream=True) == (400, "this server does not stream: leave stream out")
        status, message = ask()
        assert status == 429 and message.startswith("RateLimitError: slow down")
        assert ask() == (500, "RuntimeError: lost")
        assert ask() == (200, {"role": "assistant", "content": "b", "reasoning_content": "why"})
        status, message = ask()
        assert status == 400 and "no reply left for call 3" in message
        assert ask(messages=[{"role": "tool", "content": "x"}])[0] == 400


def test_a_scripted_server_that_is_closed_lets_go_of_its_port_and_waits_for_no_delay() -> None:
    asked = threading.Event()

    def policy(call: Call) -> Reply:
        asked.set()
        return Reply("late", delay=600)

    server = ScriptedServer(policy)
    said: list[Any] = []
    lm = dspy.LM("hosted_vllm/m", api_base=server.url, api_key="none", cache=False, num_retries=0)
    waiting = threading.Thread(target=lambda: said.append(lm("q")))
    waiting.start()
    assert asked.wait(20)
    server.close()
    server.close()
    waiting.join(20)
    assert said == [["late"]]
    port = int(server.url.split(":")[2].split("/")[0])
    with ScriptedServer(["again"], port=port) as other:
        assert other.url == server.url

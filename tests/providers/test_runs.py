"""The fix reaches whoever started a run: as a note on what is raised, in the outcome, and in the events."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import LMAuthError, LMError, LMNotConfiguredError, LMTransportError, LMUnsupportedModelError
from rlm_dspy_test_lines import KEY
from rlm_dspy_test_wires import Reply

import rlm_dspy
from rlm_dspy import RLM, RunFailed
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import ScriptedLM, code


def lm_of(server: Any, engine: str = "auto", **options: Any) -> dspy.LM:
    settings = {"api_key": KEY, "engine": engine, "cache": False, "num_retries": 0, **options}
    return dspy.LM("openai/m", api_base=server.url, **settings)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("engine", ["auto", "litellm"])
def test_an_error_before_the_first_turn_has_the_fix_as_a_note(
    serve: Callable[..., Any], sandbox: Environment, engine: str, is_async: bool
) -> None:
    server = serve("openai", "m", KEY)
    server.always = "auth"
    ended = []
    rlm = RLM("context -> answer", interpreter_factory=sandbox)

    def watch(event: Any, run: Any) -> None:
        if event.kind == "run_ended":
            ended.append(event)

    with dspy.context(lm=lm_of(server, engine)), rlm_dspy.subscribe(watch), pytest.raises(LMAuthError) as caught:
        asyncio.run(rlm.acall(context="c")) if is_async else rlm(context="c")
    (note,) = caught.value.__notes__
    assert note.startswith("Fix: The server at http://127.0.0.1:") and "refused the key given as api_key" in note
    assert note in "".join(traceback.format_exception_only(caught.value))
    # The server sent the key back; DSPy's own exception says what the server said, our record of it does not.
    assert ended[0].error.endswith(note) and KEY not in ended[0].error
    assert caught.value.trajectory is not None  # type: ignore[attr-defined]


def test_a_missing_key_names_its_variable(sandbox: Environment) -> None:
    rlm = RLM("context -> answer", interpreter_factory=sandbox)
    with dspy.context(lm=dspy.LM("anthropic/claude-haiku-4-5", cache=False)), pytest.raises(LMNotConfiguredError) as it:
        rlm(context="c")
    assert 'export ANTHROPIC_API_KEY="..."' in it.value.__notes__[0]


def test_the_lm_of_the_predictor_is_the_one_that_is_explained(
    serve: Callable[..., Any], sandbox: Environment
) -> None:
    server = serve("vllm", "there")
    rlm = RLM("context -> answer", interpreter_factory=sandbox)
    rlm.act.lm = dspy.LM("hosted_vllm/their", api_base=server.url, cache=False, num_retries=0)
    with dspy.context(lm=dspy.LM("openai/m", api_key=KEY)), pytest.raises(LMUnsupportedModelError) as caught:
        rlm(context="c")
    assert 'use dspy.LM("hosted_vllm/there", ...)' in caught.value.__notes__[0]


def test_an_error_after_the_first_turn_is_explained_in_the_outcome(
    serve: Callable[..., Any], sandbox: Environment
) -> None:
    def policy(last: str) -> Reply:
        if "No more code can run" in last:
            return Reply("[[ ## answer ## ]]\nas far as it went\n\n[[ ## completed ## ]]")
        return Reply(code("print('first')"))

    server = serve("openai", "m", KEY, policy)
    after_one: list[str] = []

    class Watch(dspy.utils.BaseCallback):
        def on_lm_end(self, call_id: str, outputs: Any, exception: Any = None) -> None:
            server.always = "quota" if not after_one else None
            after_one.append(call_id)

    rlm = RLM("context -> answer", interpreter_factory=sandbox)
    with dspy.context(lm=lm_of(server), callbacks=[Watch()]):
        pred = rlm(context="c")
    assert pred.outcome == "extracted" and pred.answer == "as far as it went"
    assert "LMBillingError" in pred.outcome.error
    assert "\nFix: The quota or credit of the account" in pred.outcome.error


def test_a_conversation_that_a_provider_finds_too_long_goes_on_shorter(
    serve: Callable[..., Any], sandbox: Environment
) -> None:
    def policy(last: str) -> Reply:
        if "Reply with the summary alone" in last:
            return Reply("A summary.")
        acted = "Output:" in last
        return Reply(code("SUBMIT(answer=str(found))" if acted else "print('much ' * 2_000)\nfound = 1"))

    server = serve("openai", "m", KEY, policy)
    after: list[str] = []

    class Watch(dspy.utils.BaseCallback):
        def on_lm_end(self, call_id: str, outputs: Any, exception: Any = None) -> None:
            server.always = "context" if not after else None
            after.append(call_id)

    rlm = RLM("context -> answer", interpreter_factory=sandbox)
    with dspy.context(lm=lm_of(server), callbacks=[Watch()]):
        pred = rlm(context="c")
    assert (pred.outcome, pred.answer) == ("submitted", "1")
    assert [event.kind for event in pred.trajectory.events].count("compacted") == 1


def test_a_failed_run_that_raises_has_the_fix_in_its_message(serve: Callable[..., Any], sandbox: Environment) -> None:
    server = serve("openai", "m", KEY, lambda _: Reply(code("print('first')")))
    asked: list[str] = []

    class Watch(dspy.utils.BaseCallback):
        def on_lm_end(self, call_id: str, outputs: Any, exception: Any = None) -> None:
            asked.append(call_id)
            server.always = "quota"

    rlm = RLM("context -> answer", interpreter_factory=sandbox, on_limit="raise")
    with dspy.context(lm=lm_of(server), callbacks=[Watch()]), pytest.raises(RunFailed) as caught:
        rlm(context="c")
    assert "Fix: The quota or credit of the account" in str(caught.value)
    assert isinstance(caught.value.__cause__, LMError) and "quota" in caught.value.__cause__.__notes__[0]
    assert caught.value.prediction.outcome == "failed"


def test_an_error_of_extract_is_explained_with_its_own_lm(serve: Callable[..., Any], sandbox: Environment) -> None:
    server = serve("openai", "m", KEY)
    server.close()
    rlm = RLM("context -> answer", interpreter_factory=sandbox, max_iters=1)
    rlm.act.lm = ScriptedLM([code("print(1)")])
    rlm.extract.lm = lm_of(server)
    pred = rlm(context="c")
    assert pred.outcome == "failed" and pred.outcome.limit == "max_iters"
    assert f"Fix: Nothing answers at {server.url}: start the server" in pred.outcome.error


def test_errors_of_other_origin_get_no_note(sandbox: Environment) -> None:
    class Broken(RuntimeError):
        pass

    def fail(_: Any) -> str:
        raise Broken("no")

    with dspy.context(lm=ScriptedLM(fail)), pytest.raises(Exception) as caught:
        RLM("context -> answer", interpreter_factory=sandbox)(context="c")
    assert not hasattr(caught.value, "__notes__")


def test_a_key_in_a_header_is_hidden_from_events(serve: Callable[..., Any], sandbox: Environment) -> None:
    secret = "portkey secret 0123456789"
    server = serve("portkey", "@my-openai/gpt-5.4-mini", "another key")
    server.wire.error = lambda kind, seen: (401, {"status": "failure", "message": f"not valid: {secret}"})
    lm = dspy.LM(
        "openai/@my-openai/gpt-5.4-mini",
        api_base=server.url,
        api_key="unused",
        extra_headers={"x-portkey-api-key": secret},
        cache=False,
    )
    seen = []
    rlm = RLM("context -> answer", interpreter_factory=sandbox)
    with dspy.context(lm=lm), rlm_dspy.subscribe(lambda event, run: seen.append(str(event))):
        with pytest.raises(LMAuthError):
            rlm(context="c")
    assert any("run_ended" in event or "RunEnded" in event for event in seen)
    assert not any(secret in event for event in seen)


def test_a_run_against_nothing_ends_soon(sandbox: Environment) -> None:
    lm = dspy.LM("hosted_vllm/m", api_base="http://127.0.0.1:9/v1", cache=False, num_retries=0)
    with dspy.context(lm=lm), pytest.raises(LMTransportError) as caught:
        RLM("context -> answer", interpreter_factory=sandbox)(context="c")
    (note,) = caught.value.__notes__
    assert note == "Fix: Nothing answers at http://127.0.0.1:9/v1: start the server, or correct api_base."

"""Limits on tokens and money hold through every door: children, modules, tools, sessions, LMs that report nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy.lm15 import Message, Request, Response, TextPart, Usage

from rlm_dspy import RLM, ConfigurationError
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, ScriptedLM, code

PRICES = {"scripted/lm": (1.0, 1.0)}
UNPRICED = ScriptedLM(lambda call: "[[ ## a ## ]]\nyes\n\n[[ ## completed ## ]]", model="scripted/unpriced")
BEST = "[[ ## answer ## ]]\nbest\n\n[[ ## completed ## ]]"


class Silent(ScriptedLM):
    """An LM whose server reports no usage."""

    def __init__(self, policy: Callable[[Call], str], model: str = "scripted/lm") -> None:
        super().__init__(policy, model=model)
        engine: Any = self._scripted
        complete = engine.complete

        def silent(request: Request) -> Response:
            text = complete(request).message.text
            message = Message.assistant([TextPart(text)])
            return Response(id=None, model=request.model, message=message, finish_reason="stop", usage=Usage())

        engine.complete = silent


class Inside(dspy.Module):
    """A module with an RLM in it."""

    def __init__(self, sub_lm: dspy.BaseLM) -> None:
        super().__init__()
        self.parts = [RLM("q -> a", sub_lm=sub_lm)]

    def forward(self, q: str) -> dspy.Prediction:
        prediction: dspy.Prediction = self.parts[0](q=q)
        return prediction


def test_what_a_child_held_back_for_its_last_word_is_its_parents_again(sandbox: Environment) -> None:
    def policy(call: Call) -> str:
        if "the result" in call.own[0]["content"]:
            return code("SUBMIT('ok')")
        many = "print(rlm_query_batched([f'q{n}' for n in range(20)]), budget()['tokens'])"
        return code([many, "SUBMIT(str(budget()['tokens']))"][min(call.observations, 1)])

    rlm = RLM("context -> answer: int", interpreter=sandbox, max_depth=2, max_tokens=1_000_000, guidance=False)
    with dspy.context(lm=ScriptedLM(policy)):
        prediction = rlm(context="x")
    used = prediction.usage["input_tokens"] + prediction.usage["output_tokens"]
    # Only what the root itself holds back for its own last word is missing.
    assert prediction.usage["children"] == 20 and 1_000_000 - used - 3_000 < prediction.answer <= 1_000_000 - used


@pytest.mark.parametrize(
    "options",
    [
        {"child": RLM("prompt -> result", sub_lm=UNPRICED), "max_depth": 2},
        {"child": RLM("prompt -> result", models={"m": UNPRICED}), "max_depth": 2},
        {"sub_calls": {"ask": Inside(UNPRICED)}},
    ],
    ids=["sub_lm of the child", "models of the child", "RLM in a module"],
)
def test_money_is_limited_over_rlms_inside_too(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"the price of scripted/unpriced is unknown.*prices="):
        RLM("context -> answer", max_cost=1.0, prices=PRICES, **options)
    RLM("context -> answer", max_cost=1.0, prices={**PRICES, "scripted/unpriced": (1, 1)}, **options)


def test_prices_that_an_inner_rlm_knows_count_in_the_whole_tree(sandbox: Environment) -> None:
    sub = ScriptedLM(lambda call: "yes" * 100, model="scripted/sub")
    child = RLM("prompt -> result", sub_lm=sub, prices={"scripted/sub": (5, 5)}, interpreter=sandbox, guidance=False)
    root = ScriptedLM(
        [code("print(rlm_query('q'))"), code("SUBMIT(llm_query('q'))"), code("SUBMIT('done')")],
    )
    rlm = RLM("context -> answer", child=child, max_depth=2, max_cost=1.0, prices=PRICES, interpreter=sandbox)
    with dspy.context(lm=root):
        prediction = rlm.with_options(guidance=False)(context="x")
    tokens = {row["model"]: row["input_tokens"] + row["output_tokens"] for row in prediction.usage["table"]}
    assert prediction.usage["by_depth"]["1"]["cost"] is not None and len(sub.calls) == 1
    total = sum(row["cost"] for row in prediction.usage["table"])
    assert prediction.usage["cost"] == pytest.approx(total) and tokens["scripted/sub"] > 0


def test_a_session_refuses_a_limit_on_money_that_cannot_be_kept(sandbox: Environment) -> None:
    rlm = RLM("context -> answer", interpreter=sandbox, guidance=False)
    with pytest.raises(ConfigurationError, match="scripted/unpriced"):
        RLM("context -> answer", sub_lm=UNPRICED).session(max_cost=0.01)
    with rlm.session(max_cost=0.01) as session, dspy.context(lm=UNPRICED):
        with pytest.raises(ConfigurationError, match="scripted/unpriced"):
            session(context="x")
    assert not UNPRICED.calls


def test_a_tool_that_calls_an_unpriced_lm_ends_a_run_whose_money_is_limited(sandbox: Environment) -> None:
    unpriced = ScriptedLM(lambda call: "[[ ## a ## ]]\nyes\n\n[[ ## completed ## ]]", model="scripted/unpriced")

    def ask(q: str) -> str:
        """Ask."""
        with dspy.context(lm=unpriced):
            return str(dspy.Predict("q -> a")(q=q).a)

    asking = code("for n in range(20):\n    print(ask(str(n)))")
    root = ScriptedLM(lambda call: BEST if call.observations else asking)
    rlm = RLM("context -> answer", tools=[ask], max_cost=1.0, prices=PRICES, interpreter=sandbox, guidance=False)
    with dspy.context(lm=root):
        prediction = rlm(context="x")
        assert len(unpriced.calls) == 1 and prediction.outcome == "extracted" and prediction.outcome.limit == "max_cost"
        assert "scripted/unpriced costs is unknown" in prediction.trajectory[0].output
        free = rlm.with_options(prices={**PRICES, "scripted/unpriced": (0, 0)})
    with dspy.context(lm=ScriptedLM([code("SUBMIT(ask('q'))")])):
        assert free(context="x").answer == "yes"


@pytest.mark.parametrize("limit", [{"max_tokens": 20_000}, {"max_cost": 0.02}], ids=["tokens", "money"])
def test_an_lm_that_reports_no_usage_is_counted_as_it_was_estimated(
    sandbox: Environment, limit: dict[str, Any]
) -> None:
    sub = Silent(lambda call: "yes")
    root = ScriptedLM(
        lambda call: code("print(llm_query_batched([f'{n}' * 400 for n in range(300)]).count('yes'))")
        if not call.observations
        else BEST
    )
    rlm = RLM("context -> answer", sub_lm=sub, prices=PRICES, interpreter=sandbox, guidance=False, max_llm_calls=500)
    with dspy.context(lm=root):
        prediction = rlm.with_options(**limit)(context="x")
        assert 0 < len(sub.calls) < 100 and prediction.usage["by_role"]["sub"]["input_tokens"] > 0
    free = RLM("context -> answer", sub_lm=sub, prices=PRICES, interpreter=sandbox, guidance=False)
    with dspy.context(lm=ScriptedLM([code("SUBMIT(llm_query('q'))")])):
        usage = free(context="x").usage
    # Without a limit nothing is estimated, and what is not known is not called free.
    assert usage["by_role"]["sub"]["cost"] is None and usage["cost"] is None and json.dumps(usage)


def test_an_rlm_in_the_place_of_the_lm_is_no_lm_call_of_its_own(sandbox: Environment) -> None:
    lm = ScriptedLM([code("SUBMIT('x')")])
    rlm = RLM("context -> answer", interpreter=sandbox, guidance=False, prices=PRICES)
    with dspy.context(lm=rlm.as_lm(lm=lm)):
        usage = rlm(context="x").usage
    assert usage["lm_calls"] == len(lm.calls) == 1 and [row["model"] for row in usage["table"]] == ["scripted/lm"]

"""Scripted language models, as users of `rlm_dspy.testing` rely on them."""

from __future__ import annotations

import dspy
import pytest

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, Reply, ScriptedLM, code, oracle, outputs


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

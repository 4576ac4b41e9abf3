"""Whatever is learned, or loaded, a run's own contract stands in its prompts; and what was learned stands there too."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import dspy
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rlm_dspy import environments
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, ScriptedLM, code, outputs

SAVED = Path(__file__).with_name("saved_by_another_version.json")


def zq_tool(text: str, times: int = 2) -> str:
    """Say a text several times."""
    return text * times


TOLD = [
    "Variable `log` = ",
    "Variable `query`: the text of the task below.",
    "`zq_tool(text: str, times: int = 2) -> str` - Say a text several times.",
    "`llm_query(prompt: str) -> str`",
    "`ask(note: str) -> str`",
    "`rlm_query(prompt: str, **inputs) -> str`",
    "`SHOW_VARS()",
    "`budget()",
    "3 turns",
    "37 sub-LM calls",
    "1 level of children",
    "Give the answer with SUBMIT(amount=..., complaints=...), amount: int; complaints: int.",
    "Task: What is the sum",
]

texts = st.text(st.characters(codec="utf-8"), max_size=400)


@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_no_text_in_any_predictor_takes_anything_from_the_contract(sandbox: Environment, toy: Any, data: Any) -> None:
    """Instructions, demonstrations, and the prefix of fields, which COPRO rewrites: of parent, child and sub-calls."""
    rlm = toy.program(
        sandbox, tools=[zq_tool], sub_calls={"ask": "note -> kind"}, max_llm_calls=37, sub_lm=None
    ).with_options(max_iters=3)
    for name, predictor in rlm.named_predictors():
        signature = predictor.signature.with_instructions(data.draw(texts, label=name))
        last = list(signature.fields)[-1]
        predictor.signature = signature.with_updated_fields(last, prefix=data.draw(texts, label=f"{name}.{last}"))
        said = data.draw(texts, label=f"demo of {name}")
        demo: dict[str, Any] = dict.fromkeys(signature.fields, said)
        demo |= {"turns": [{"reply": said, "output": said}], "answers": {"amount": said, "complaints": said}}
        predictor.demos = [dspy.Example(augmented=True, **demo), dspy.Example(**demo).with_inputs("task")]

    def policy(call: Call) -> str:
        if "SUBMIT(response" in call.own[0]["content"]:
            return code("SUBMIT('child')")
        if "level of children" in call.own[0]["content"] and call.turn < 3:
            child = ", rlm_query('task of the child', part=log)" if call.turn == 0 else ""
            return code(f"print(ask(note='n'), llm_query('p'){child})")
        return outputs(kind="k", amount=1, complaints=2)

    lm = ScriptedLM(policy)
    with dspy.context(lm=lm):
        prediction = rlm(log="short", query=toy.QUERY)
    assert [turn.error for turn in prediction.trajectory] == [False] * 3
    assert (prediction.amount, prediction.complaints, prediction.outcome) == (1, 2, "extracted")
    roots = [call for call in lm.calls if "level of children" in call.own[0]["content"] and call.turn < 3]
    assert len(roots) >= 3
    for call in roots[:3]:
        first = call.own[0]["content"]
        assert [part for part in TOLD if part not in first] == []
        assert "```python" in call.system
        # DSPy itself expands tabs in instructions.
        assert rlm.act.signature.instructions.strip() in call.system
    (child,) = [call for call in lm.calls if "SUBMIT(response" in call.own[0]["content"]]
    first = child.own[0]["content"]
    assert "Variable `part` = " in first and "`zq_tool(" in first and "task of the child" in first


@pytest.mark.parametrize("place", ["subprocess", "inprocess"])
def test_a_program_saved_under_another_dspy_keeps_what_it_learned(
    toy: Any, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The file was compiled with ``max_llm_calls=50``, no tools, in ``subprocess``, and says it was DSPy 3.5.2."""
    versions = json.loads(SAVED.read_text())["metadata"]["dependency_versions"]
    assert versions["dspy"] == "3.5.2" != dspy.__version__
    rlm = toy.program(environments.get(place), tools=[zq_tool], max_llm_calls=37, max_seconds=90.0)
    lm = ScriptedLM(toy.root)
    with dspy.context(lm=lm):
        assert toy.scores(rlm)["act"] == 0.0
        with caplog.at_level(logging.WARNING):
            rlm.load(SAVED)
        del lm.calls[:]
        seen = len(lm.calls)
        assert toy.scores(rlm) == {"act": 1.0, "sub": 1.0, "all": 1.0}
    # DSPy says so itself.
    assert "3.5.2" in caplog.text
    first = lm.calls[seen]
    assert "Learned: look twice." in first.system
    assert "# Example task" in json.dumps(first.messages)
    contract = first.own[0]["content"]
    told = ["`zq_tool(", "37 sub-LM calls", "90 seconds", "4 turns", environments.get(place).instructions[:40]]
    assert [part for part in told if part not in contract] == []
    # What was learned goes on from there.
    again = toy.program(environments.get(place))
    again.load_state(rlm.dump_state())
    assert again.dump_state() == rlm.dump_state()
    assert [demo["task"] for demo in again.act.fitting_demos()] == [toy.QUERY] * len(rlm.act.demos)

"""What DSPy's own optimisers rely on: traces that show every predictor of an RLM, and a contract that none can lose.

That each of them improves an RLM is proven in tests/optimizers.
"""

from __future__ import annotations

import copy
import json
import pickle
import re
from typing import Any

import dspy
import pytest
from dspy.teleprompt.bootstrap_trace import bootstrap_trace_data
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")

TRICK = "TRICK"
ANSWER = re.compile(r"secret is (\w+)")


def zq_tool(text: str) -> str:
    """Upper-case a text."""
    return text.upper()


def root(call: Call) -> str:
    """Two turns: ask the sub-LM, submit. Hard documents need the trick."""
    if "No more code can run" in call.prompt:
        return "[[ ## answer ## ]]\nunknown\n\n[[ ## completed ## ]]"
    own = call.own
    before = call.messages[: len(call.messages) - len(own)]
    knows = any(TRICK in m["content"] for m in before)
    replies = [m for m in own if m["role"] == "assistant"]
    hard = "hard document" in own[0]["content"]
    if not replies:
        return code("print(llm_query('find the secret in: ' + zq_document))", "look")
    answer = own[-1]["content"].split("\n")[1]
    if hard and not knows:
        return code("print('at a loss')")
    return code(f"SUBMIT({answer!r})  # {TRICK}", "done")


def sub(call: Call) -> str:
    """Finds the secret in a text."""
    found = ANSWER.search(call.prompt)
    return found[1] if found else "?"


def examples(kind: str, count: int) -> list[dspy.Example]:
    return [
        dspy.Example(
            zq_document=f"{kind} document {n}. The secret is {kind}{n}.", zq_question="what?", answer=f"{kind}{n}"
        ).with_inputs("zq_document", "zq_question")
        for n in range(count)
    ]


TRAIN = [*examples("easy", 4), *examples("hard", 2)]


def metric(gold: Any, pred: Any, trace: Any = None, *_: Any) -> float:
    return float(pred is not None and pred.answer == gold.answer)


def program(sandbox: Environment) -> RLM:
    return RLM(
        "zq_document, zq_question -> answer",
        tools=[zq_tool],
        sub_lm=ScriptedLM(sub, model="scripted/sub"),
        interpreter_factory=sandbox,
        max_iters=3,
        max_llm_calls=37,
        max_output_chars=41_000,
    )


def assert_contract_is_whole(rlm: RLM, lm: ScriptedLM) -> None:
    """Whatever the instructions are, the root is told variables, functions, limits and how to answer."""
    before = len(lm.calls)
    rlm(zq_document="easy document 9. The secret is nine.", zq_question="what?")
    first = lm.calls[before]
    told = ["Variable `zq_document` = ", "`zq_tool(text: str) -> str`", "`llm_query(", "37 sub-LM"]
    told += ["SUBMIT(answer=...), answer: str", "Variable `zq_question`"]
    assert [part for part in told if part not in first.prompt] == []
    assert "```python" in first.system


@pytest.fixture
def lm() -> Any:
    root_lm = ScriptedLM(root, model="scripted/root")
    with dspy.context(lm=root_lm):
        yield root_lm


def test_trace_holds_every_predictor_by_identity(sandbox: Environment, lm: ScriptedLM) -> None:
    """What GEPA, fine-tuning and GRPO read: steps of predictors that ``named_predictors`` lists."""
    rlm = program(sandbox)
    known = {id(predictor): name for name, predictor in rlm.named_predictors()}
    with dspy.context(trace=[]):
        rlm(zq_document="hard document 1. The secret is one.", zq_question="what?")
        trace = list(dspy.settings.trace)
    names = [known[id(predictor)] for predictor, _, _ in trace]
    assert names == ["act", "sub", "act", "act", "extract"]
    for predictor, inputs, outputs in trace:
        assert set(inputs) == set(predictor.signature.input_fields)
        assert set(dict(outputs)) == set(predictor.signature.output_fields)
        assert json.loads(json.dumps(inputs)) == inputs
        assert len(json.dumps(inputs)) < 20_000
    assert len({predictor.signature for predictor, _, _ in trace}) == 3


def test_bootstrap_trace_data_for_finetuning(sandbox: Environment, lm: ScriptedLM) -> None:
    rlm = program(sandbox)
    data = bootstrap_trace_data(rlm, TRAIN, metric=metric, num_threads=2)
    assert [item["score"] for item in data] == [1.0] * 4 + [0.0] * 2
    adapter = dspy.ChatAdapter()
    for item in data:
        for predictor, inputs, outputs in item["trace"]:
            row = adapter.format_finetune_data(
                signature=predictor.signature, demos=predictor.demos, inputs=inputs, outputs=outputs
            )
            assert row["messages"][-1]["role"] == "assistant"
            assert "zq_tool" not in json.dumps(row)


def test_trace_stays_small_for_large_inputs_and_long_runs(sandbox: Environment) -> None:
    """No trace entry grows with the inputs, nor without bound with the number of turns."""
    replies = [code("print(text[:9000])") for _ in range(14)] + [code("SUBMIT('x')")]
    with dspy.context(lm=ScriptedLM(replies), trace=[]):
        RLM("text -> answer", interpreter_factory=sandbox)(text="A" * 2_000_000)
        sizes = [len(json.dumps(inputs)) for _, inputs, _ in dspy.settings.trace]
    assert max(sizes) < 16_000


@pytest.mark.parametrize(
    "instructions",
    [
        "",
        "Reply in French, in verse, without code.",
        "{zq_document} {{braces}} {0} %s $x",
        "[[ ## code ## ]]\nSUBMIT('no')\n[[ ## completed ## ]]",
        "```python\nSUBMIT('no')\n```",
        "x" * 50_000,
        "\0\r\n\u2028",
    ],
)
def test_any_instructions_leave_the_contract_whole(sandbox: Environment, lm: ScriptedLM, instructions: str) -> None:
    rlm = program(sandbox)
    for predictor in rlm.predictors():
        predictor.signature = predictor.signature.with_instructions(instructions)
    assert_contract_is_whole(rlm, lm)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(codec="utf-8"), max_size=300), st.text(st.characters(codec="utf-8"), max_size=50))
def test_any_text_as_strategy_or_demonstration_leaves_the_contract_whole(
    sandbox: Environment, instructions: str, demo: str
) -> None:
    lm = ScriptedLM(root)
    rlm = program(sandbox)
    rlm.act.signature = rlm.act.signature.with_instructions(instructions)
    turns = [{"reply": demo, "output": demo}]
    rlm.act.demos = [dspy.Example(task=demo, turns=turns, reasoning=demo, code=demo)]
    with dspy.context(lm=lm):
        assert_contract_is_whole(rlm, lm)
    system = lm.calls[0].system
    assert rlm.act.signature.instructions.strip() in system  # DSPy itself expands tabs


@pytest.mark.parametrize("wrapper", [dspy.BestOfN, dspy.Refine])
def test_best_of_n_and_refine(sandbox: Environment, wrapper: Any) -> None:
    answers = iter(["wrong", "right", "never asked"])

    def policy(call: Call) -> str:
        if "REPL" in call.system:
            return code(f"SUBMIT({next(answers)!r})")
        return '[[ ## discussion ## ]]\nd\n\n[[ ## advice ## ]]\n{"act": "Be right."}\n\n[[ ## completed ## ]]'

    rlm = RLM("query -> answer", interpreter_factory=sandbox)
    with dspy.context(lm=ScriptedLM(policy)):
        best = wrapper(module=rlm, N=3, reward_fn=lambda args, pred: float(pred.answer == "right"), threshold=1.0)
        assert best(query="?").answer == "right"


def test_instructions_that_are_set_in_place_are_those_of_one_program() -> None:
    """As InferRules sets them; DSPy's predictors share the class of their signature with their copies."""
    first, second = RLM("q -> a"), RLM("q -> a")
    copied, deep = first.deepcopy(), copy.deepcopy(first)
    for name in ("act", "sub", "extract"):
        before = getattr(first, name).signature.instructions
        getattr(copied, name).signature.instructions = "changed in place"
        for program in (first, second, deep):
            assert getattr(program, name).signature.instructions == before
        assert getattr(first.with_options(max_iters=3), name) is getattr(first, name)
    assert pickle.loads(pickle.dumps(copied)).act.signature.instructions == "changed in place"

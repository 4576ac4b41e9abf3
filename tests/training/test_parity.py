"""The messages that the endpoint sees in training are those of an ordinary call, byte for byte."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, tasks
from rlm_dspy.testing import Call, code
from tests.training.conftest import is_sub

pytest.importorskip("verifiers", reason="needs pip install 'rlm-dspy[train]'")
pytestmark = pytest.mark.heavy

SUBSET = {"id": "rlm-dspy-needles", "num_tasks": 1, "tokens": 1_000, "seed": 5, "kinds": ["find"]}
OPTIONS = {
    "max_iters": 8,
    "max_depth": 2,
    "max_llm_calls": 40,
    "sub_calls": {"classify": "line: str, kinds: list[str] -> kind: str, why: str"},
}
ROOT = [
    "print(len(context), context[:50])",
    "no code, \tand odd bytes: \u2028 \x7f é 𝄞 'quotes' \"and\" ``` fences \\n",
    "1 / 0",
    "",
    "print(llm_query_batched(['a \u2028 b', 'c\\n\\n', 'd']))\nprint(classify(line='x', kinds=['k']))",
    "print(rlm_query('Count', text='one two'), predict('text -> n: int', text='4'))",
    "SUBMIT(answer='nothing')",
    "SUBMIT(answer='nothing')",
]
CHILD = ["print(text)", "print(llm_query(text))", "SUBMIT(response='2')"]


def model(call: Call) -> str:
    """A root that errs in every way, its children and sub-calls."""
    last = call.prompt
    if is_sub(call):
        return f"heard {last!r}"
    if "[[ ## kind ## ]]" in last:
        return "[[ ## kind ## ]]\nk\n\n[[ ## why ## ]]\nso\n\n[[ ## completed ## ]]"
    if "[[ ## n ## ]]" in last or "`n`" in call.system:
        return "[[ ## n ## ]]\n4\n\n[[ ## completed ## ]]"
    child = "`prompt`" in call.own[0]["content"]
    step = (CHILD if child else ROOT)[call.turn]
    return code(step) if step and not step.startswith("no code") else step


def seen(server: Any) -> tuple[list[str], list[str]]:
    """Conversations of roots in order, and all other requests."""
    asked = [json.dumps(messages) for messages in server.messages]
    long = [text for text in asked if "`context`" in text]
    return long, sorted(text for text in asked if text not in long)


@pytest.mark.parametrize("guidance", [True, False])
def test_root_sub_calls_and_children_see_the_same_bytes(serve: Any, play: Any, guidance: bool) -> None:
    options = {**OPTIONS, "guidance": guidance}
    trained, used = serve(model), serve(model)
    harness = {"environment": "subprocess", "options": options}
    (episode,) = play(trained, taskset=SUBSET, agent={"harness": harness}, children="child")
    assert episode.ok, [error.message for trace in episode.traces for error in trace.errors]
    example = tasks.example(0, 1_000, 5, "needles", ["find"])
    lm = dspy.LM("hosted_vllm/m", api_base=used.url, api_key="none", cache=False)
    with dspy.context(lm=lm):
        prediction = RLM(example.signature, interpreter="subprocess", **options)(**example.inputs())
    roots, others = seen(trained)
    assert len(roots) >= 7 and len(others) >= 8
    assert (roots, others) == seen(used)
    told = episode.by_agent["agent"][0].info["rlm"]
    assert told["prediction"] == {"answer": prediction.answer} and told["outcome"] == prediction.outcome


PROGRAM = """
from typing import Literal

import dspy
import pydantic

from rlm_dspy import RLM


class Finding(pydantic.BaseModel):
    line: int
    kind: Literal["plan", "fact"]


class Survey(dspy.Signature):
    \"\"\"Survey the lines of the context, "as they stand" \u2028 and tell what is there.\"\"\"

    context: str = dspy.InputField()
    query: str = dspy.InputField(desc="what is asked; 'quotes' may be in it")
    findings: list[Finding] = dspy.OutputField()
    share: float = dspy.OutputField(desc="between 0 and 1")


def measure(text: str, per: int = 2) -> dict[str, int]:
    \"\"\"Characters of a text, and how many of ``per`` they are.\"\"\"
    return {"chars": len(text), "parts": len(text) // per}


class Surveyor(dspy.Module):
    \"\"\"Plans by a predictor of its own, surveys by an RLM, and has another RLM check what it found.\"\"\"

    def __init__(self):
        super().__init__()
        self.plan = dspy.ChainOfThought("query -> steps: list[str]")
        self.survey = RLM(
            Survey, tools=[measure], sub_calls={"judge": "line: str -> kind: Literal['plan', 'fact'], weight: int"},
            max_iters=ITERS, max_depth=2, max_llm_calls=30, interpreter="subprocess", guidance=False,
        )
        self.check = RLM(
            "found: str, share: float -> answer: str", max_iters=3, interpreter="subprocess", guidance=False
        )

    async def aforward(self, context, query):
        steps = (await self.plan.acall(query=query)).steps
        survey = await self.survey.acall(context=context, query=query + " " + "; ".join(steps))
        return await self.check.acall(found=str(survey.findings), share=survey.share)
"""
SURVEY = [
    "print(measure(context, per=7), measure(text='x'))",
    "print(judge(line='a \u2028 b'), judge_batched([{'line': 'c'}, {'line': 'd'}]))",
    "print(rlm_query('How many words?', text='one two'), predict('text -> n: int', text='4'))",
    "SUBMIT(findings=[{'line': 'no number', 'kind': 'fact'}], share=2)",
    "SUBMIT(findings=[{'line': 3, 'kind': 'fact'}], share=0.25)",
]
CHECK = ["print(found, share)", "SUBMIT(answer=found)"]


def surveyor(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, iters: int) -> Any:
    """The module `PROGRAM`, imported by its name ``surveyor_program``."""
    (tmp_path / "surveyor_program.py").write_text(PROGRAM.replace("ITERS", str(iters)), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "surveyor_program", raising=False)
    return importlib.import_module("surveyor_program")


def replies(fields: dict[str, str]) -> str:
    """In the form of ``dspy.ChatAdapter``."""
    return "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items())


def surveyed(call: Call) -> str:
    """A model that plays each part of the program, erring once in a typed reply and once in what it submits."""
    opening, last = call.own[0]["content"], call.prompt
    if "[[ ## steps ## ]]" in last:
        return replies({"reasoning": "as asked", "steps": "['look', 'count \u2028 all']"})
    if "[[ ## kind ## ]]" in opening:
        repaired = "cannot be used" in last
        return replies({"kind": "fact" if repaired or "\u2028" not in opening else "neither", "weight": "3"})
    if is_sub(call):
        return "heard"
    if "`n`" in call.system or "[[ ## n ## ]]" in opening:
        return "4"
    steps = CHILD if "`prompt`" in opening else CHECK if "`found`" in opening else SURVEY
    return code(steps[call.turn])


def test_a_program_of_ones_own_sees_the_same_bytes(
    serve: Any, play: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = surveyor(tmp_path, monkeypatch, iters=8)
    trained, used = serve(surveyed), serve(surveyed)
    harness = {"program": "surveyor_program:Surveyor"}
    (episode,) = play(trained, taskset=SUBSET, agent={"harness": harness}, children="child")
    assert episode.ok, [error.message for trace in episode.traces for error in trace.errors]
    example = tasks.example(0, 1_000, 5, "needles", ["find"])
    with dspy.context(lm=dspy.LM("hosted_vllm/m", api_base=used.url, api_key="none", cache=False)):
        prediction = asyncio.run(module.Surveyor().acall(**example.inputs()))
    roots, others = seen(trained)
    assert (roots, others) == seen(used)
    asked = "".join(others)
    for part in ("`found`", "`prompt`", "[[ ## steps ## ]]", "[[ ## kind ## ]]", "cannot be used", "measure"):
        assert part in asked + "".join(roots), part
    assert len(roots) == len(SURVEY), "one request a turn"
    told = episode.by_agent["agent"][0].info["rlm"]
    assert told["prediction"]["answer"] == prediction.answer == str([module.Finding(line=3, kind="fact")])


def test_no_step_of_training_asks_again_in_another_form(
    serve: Any, play: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where DSPy's ChatAdapter would ask once more as a JSONAdapter: at every kind of request there is."""
    surveyor(tmp_path, monkeypatch, iters=2)

    def unreadable(call: Call) -> str:
        opening, last = call.own[0]["content"], call.prompt
        if "[[ ## steps ## ]]" in last:
            return replies({"reasoning": "as asked", "steps": "['look']"})
        if "[[ ## kind ## ]]" in opening:
            return "neither"
        if is_sub(call):
            return ""
        if call.turn == 0 and "SUBMIT(findings:" in opening:
            return code("print(judge_batched([{'line': 'a'}, {'line': 'b'}]))\nprint(llm_query('x'))")
        return "no answer at all"

    server = serve(unreadable)
    (episode,) = play(server, taskset=SUBSET, agent={"harness": {"program": "surveyor_program:Surveyor"}})
    root = episode.by_agent["agent"][0]
    assert episode.ok and root.reward == 0.0, "what cannot be read is the policy's doing"
    told = root.info["rlm"]
    assert "JSONAdapter" not in json.dumps(told)
    # A plan; two turns and `extract`; two judgements, each asked for once more with what was wrong; an `llm_query`; of
    # the second RLM, which takes what the first has left, three turns and `extract`, whose answer may be any text.
    assert told["outcome"] == "extracted" and len(server.bodies) == 1 + (2 + 1) + 2 * 2 + 1 + (3 + 1)
    assert not any("response_format" in body for body in server.bodies)
    assert not any("JSON object" in json.dumps(messages) for messages in server.messages)


def test_a_predictor_whose_reply_cannot_be_read_is_asked_once(
    serve: Any, play: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    surveyor(tmp_path, monkeypatch, iters=2)
    server = serve(lambda call: "no steps")
    (episode,) = play(server, taskset=SUBSET, agent={"harness": {"program": "surveyor_program:Surveyor"}})
    root = episode.by_agent["agent"][0]
    assert episode.ok and root.reward == 0.0 and len(server.bodies) == 1
    assert "JSONAdapter" not in json.dumps(root.info["rlm"]), root.info["rlm"]

"""The messages that the endpoint sees in training are those of an ordinary call, byte for byte."""

from __future__ import annotations

import json
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

"""Every family of tasks as a task set: found by its name, right answers score, and hacks do not."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from rlm_dspy import tasks
from rlm_dspy.testing import Call, code
from tests.training.conftest import traces

pytest.importorskip("verifiers", reason="needs pip install 'rlm-dspy[train]'")
pytestmark = pytest.mark.heavy

HACKS = ("answer", "query", "''", "None", "list(range(5000))", "[[a, b] for a in range(60) for b in range(a)]")
HARNESS = {"environment": "subprocess", "options": {"guidance": False, "max_iters": 3}}


def subset(family: str) -> dict[str, Any]:
    return {"id": f"rlm-dspy-{family.replace('_', '-')}", "num_tasks": len(tasks.get(family).KINDS), "tokens": 1_000}


def plays(family: str, answer: Any) -> Any:
    """A root that submits what ``answer`` says of the example that it was given."""
    examples = {one.query: one for one in tasks.generate(subset(family)["num_tasks"], 1_000, 0, family)}

    def root(call: Call) -> str:
        example = next(one for query, one in examples.items() if query in call.own[0]["content"])
        return code(f"import datetime\nSUBMIT(answer={answer(example)})")

    return root


@pytest.mark.parametrize("family", tasks.families())
def test_it_has_a_module_of_its_own(family: str) -> None:
    from rlm_dspy.training.factory import FamilyTaskset

    module = importlib.import_module(f"rlm_dspy_{family}")
    (found,) = (one for name in module.__all__ if issubclass(one := getattr(module, name), FamilyTaskset))
    assert found.FAMILY == family


@pytest.mark.parametrize("family", tasks.families())
def test_the_gold_of_every_kind_scores(serve: Any, play: Any, family: str) -> None:
    server = serve(plays(family, lambda example: repr(example.answer)))
    found = play(server, taskset=subset(family), agent={"harness": HARNESS})
    roots = [traces(episode)["agent"] for episode in found]
    assert [root.rewards["correct"].score for root in roots] == [1.0] * len(roots)
    assert all(root.rewards["format"].score == 1.0 and root.metrics["turns"] == 1 for root in roots)


@pytest.mark.parametrize("family", tasks.families())
def test_no_hack_scores(serve: Any, play: Any, family: str) -> None:
    for hack in HACKS:
        server = serve(plays(family, lambda example, hack=hack: hack))
        found = play(server, taskset=subset(family), agent={"harness": HARNESS}, limit=2)
        assert all(episode.ok and traces(episode)["agent"].rewards["correct"].score < 0.35 for episode in found), hack

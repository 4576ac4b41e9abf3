"""Task sets of one's own: as the README has one; and their answers stay out of the code's reach."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import policy, traces

pytest.importorskip("verifiers", reason="needs pip install 'rlm-dspy[train]'")
pytestmark = pytest.mark.heavy

SOURCE = """
import dspy
import verifiers.v1 as vf
from rlm_dspy.training import Case, CaseData, CaseTask, RLMEnv, RLMHarness

GOLD = 8461

class Secret(CaseData):
    def case(self):
        return Case({"context": "nothing is in here", "query": "Which number?"}, "context, query -> answer: int", None)

class SecretTask(CaseTask, vf.Task[Secret]):
    def judge(self, case, prediction):
        return float(prediction.get("answer") == GOLD)

class SecretTaskset(vf.Taskset[SecretTask, vf.TasksetConfig]):
    def load(self):
        yield SecretTask(Secret(prompt="p", name="n"), self.config.task)

__all__ = ["SecretTaskset", "RLMEnv", "RLMHarness"]
"""
HACK = """
import glob, re, sys
found = []
for path in glob.glob(PLACE + "/**", recursive=True):
    try:
        found += re.findall(rb"GOLD = (\\d+)", open(path, "rb").read())
    except OSError:
        pass
try:
    from MODULE import GOLD
    found.append(GOLD)
except Exception as error:
    print(repr(error))
SUBMIT(answer=int((found + [0])[0]))
"""


@pytest.mark.parametrize("package", [False, True], ids=["module", "package"])
@pytest.mark.parametrize("shown", [False, True], ids=["as it is", "by choice"])
def test_code_cannot_read_the_source_of_its_own_task(
    serve: Any, play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: bool, shown: bool
) -> None:
    name = f"secret_{'package' if package else 'module'}_{'shown' if shown else 'hidden'}"
    file = tmp_path / name / "__init__.py" if package else tmp_path / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(SOURCE)
    os.chmod(tmp_path, 0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    harness: dict[str, Any] = {"options": {"guidance": {"check_answers": False}}, "environment": "local"}
    harness["environment_options"] = {"readable": [str(tmp_path)]}
    if shown:
        # Something else is hidden, so the program's author has taken it in hand.
        (tmp_path / "other.txt").write_text("x")
        harness["environment_options"]["hidden"] = [str(tmp_path / "other.txt")]
    hack = HACK.replace("PLACE", repr(str(tmp_path))).replace("MODULE", name)
    try:
        (episode,) = play(serve(policy(hack)), taskset={"id": name}, agent={"harness": harness})
    finally:
        sys.modules.pop(name, None)
    assert episode.ok, episode.errors
    assert traces(episode)["agent"].rewards["correct"].score == float(shown)


def test_the_task_set_of_the_readme_plays(
    serve: Any, play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "training" / "README.md").read_text()
    (block,) = re.findall(r"## A task set of your own\n.*?```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_tasks.py").write_text(block)
    monkeypatch.syspath_prepend(str(tmp_path))
    step = "SUBMIT(answer=10 if len(context.splitlines()) == 10 else 0)"
    try:
        episodes = play(serve(policy(step)), taskset={"id": "my-tasks"}, limit=2)
    finally:
        sys.modules.pop("my_tasks", None)
    assert [traces(one)["agent"].rewards["correct"].score for one in episodes] == [1.0, 0.0]

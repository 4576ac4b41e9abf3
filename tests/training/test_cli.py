"""verifiers' own command line over the same tasks, and the scores it comes to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import tasks
from rlm_dspy.testing import Call, code
from tests.training.conftest import NO_KEY, is_sub

pytest.importorskip("verifiers", reason="needs pip install 'rlm-dspy[train]'")
pytestmark = pytest.mark.heavy

CONFIG = """
model = "m"
num_rollouts = 2
max_concurrent = 8
push = false
rich = "None"
output_dir = "{out}"

[client]
base_url = "{url}"
api_key_var = "{key}"

[select]
limit = 8

[env.taskset]
id = "rlm-dspy-tasks"
family = "log_forensics"
num_tasks = 8
tokens = 1000
seed = 9

[env.agent.harness]
environment = "subprocess"
options = {{ guidance = {{ check_answers = false }} }}
"""


def test_vf_eval_scores_as_the_tasks_do(serve: Any, tmp_path: Path) -> None:
    examples = {one.query: one for one in tasks.generate(8, 1_000, 9, "log_forensics")}

    def answer(call: Call) -> str:
        """Right, wrong, and half right answers, the same for a question each time."""
        if is_sub(call):
            return "sub"
        example = next(one for query, one in examples.items() if query in call.own[0]["content"])
        gold, place = example.answer, list(examples).index(example.query)
        if place % 2:
            return code(f"SUBMIT(answer={gold!r})")
        wrong = [*gold[:1], "nothing"] if isinstance(gold, list) else gold + 1 if isinstance(gold, int) else "nothing"
        return code(f"SUBMIT(answer={wrong!r})")

    server = serve(answer)
    config = tmp_path / "eval.toml"
    config.write_text(CONFIG.format(out=tmp_path / "out", url=server.url, key=NO_KEY))
    command = [str(Path(sys.executable).with_name("vf-eval")), "@", str(config)]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    (written,) = (tmp_path / "out").rglob("traces.jsonl")
    episodes = [json.loads(line) for line in written.read_text().splitlines()]
    assert len(episodes) == 16
    seen = set()
    for episode in episodes:
        (root,) = (trace for trace in episode["traces"] if trace["agent"]["name"] == "agent")
        told = root["info"]["rlm"]
        example = examples[told["query"]]
        ours = tasks.score(example, dspy.Prediction(**told["prediction"]))
        assert root["rewards"]["correct"]["score"] == ours
        seen.add((told["query"], ours))
    assert len(seen) == 8 and {0.0, 1.0} < {score for _, score in seen}, seen

"""Rows to fine-tune on, from what verifiers writes of rollouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy.training.samples import main, samples


def node(parent: int | None, role: str, content: str | None, sampled: bool = False) -> dict[str, Any]:
    return {"parent": parent, "message": {"role": role, "content": content}, "sampled": sampled}


ROOT = [
    node(None, "system", "You write code."),
    node(0, "user", "Count."),
    node(1, "assistant", "print(1)", sampled=True),
    node(2, "user", "1"),
    node(3, "assistant", "SUBMIT(answer=1)", sampled=True),
]
CALLS = [
    node(None, "user", "a"),
    node(0, "assistant", "heard a", sampled=True),
    node(None, "user", "b"),
    node(2, "assistant", None, sampled=True),
    node(None, "user", "never answered"),
]


def episode(score: float = 1.0, formed: bool = True, ok: bool = True) -> dict[str, Any]:
    info = {"rlm": {"formed": formed}}
    rewards = {"correct": {"score": score, "weight": 1.0}, "format": {"score": 1.0, "weight": 0.0}}
    root = {"agent": {"name": "agent"}, "ok": ok, "info": info, "rewards": rewards, "nodes": ROOT}
    sub = {"agent": {"name": "sub"}, "ok": True, "info": {}, "rewards": {}, "nodes": CALLS}
    return {"task": {"data": {"name": "needles 0"}}, "traces": [sub, root]}


def test_a_root_is_one_row() -> None:
    (row,) = samples([episode()])
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert [message["content"] for message in row["completion"]] == ["print(1)", "1", "SUBMIT(answer=1)"]
    assert (row["seat"], row["reward"], row["task"]) == ("agent", 1.0, "needles 0")


def test_each_sub_call_is_one_where_they_are_asked_for() -> None:
    rows = list(samples([episode()], seats=["sub"]))
    assert [row["completion"][0]["content"] for row in rows] == ["heard a", ""]


@pytest.mark.parametrize("bad", [episode(score=0.5), episode(formed=False), episode(ok=False), {"traces": []}])
def test_what_was_not_good_is_left_out(bad: dict[str, Any]) -> None:
    assert list(samples([bad], seats=["agent", "sub"])) == []


def test_the_command_writes_a_folder_and_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = tmp_path / "traces.jsonl"
    traces.write_text(json.dumps(episode()) + "\n" + json.dumps(episode(score=0.0)) + "\n")
    out = tmp_path / "rows"
    assert main([str(traces), "--out", str(out)]) == 0
    rows = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 1 and rows[0]["seat"] == "agent"
    with pytest.raises(SystemExit):
        main([str(traces), "--out", str(out)])
    assert "there already" in capsys.readouterr().err
    assert main([str(traces), "--out", str(tmp_path / "none"), "--min-reward", "2"]) == 1
    with pytest.raises(SystemExit):
        main([str(tmp_path / "no.jsonl"), "--out", str(tmp_path / "none")])


def test_any_text_can_be_written_and_a_damaged_line_is_named_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces, out = tmp_path / "traces.jsonl", tmp_path / "rows"
    any_text = episode()
    any_text["traces"][1] = {**any_text["traces"][1], "nodes": [*ROOT[:4], node(3, "assistant", "\ud800 é", True)]}
    whole = json.dumps(any_text) + "\n"
    traces.write_text(whole + whole[:40])
    with pytest.raises(SystemExit):
        main([str(traces), "--out", str(out)])
    assert f"line 2 of {traces} is no JSON" in capsys.readouterr().err and not (out / "train.jsonl").exists()
    traces.write_text(whole)
    assert main([str(traces), "--out", str(out)]) == 0
    assert json.loads((out / "train.jsonl").read_text())["completion"][-1]["content"] == "\ud800 é"

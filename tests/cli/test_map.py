"""``rlm-dspy map``: the command, and going on after Ctrl-C and SIGKILL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy.cli import exits, main

ROOT = """
import os, signal
from pathlib import Path
HERE = Path({here!r})

def root(call):
    with open(HERE / "calls", "a") as file:
        file.write("x")
    for name, at in {deeds!r}:
        if (HERE / "calls").stat().st_size >= at and not (HERE / name).exists():
            (HERE / name).write_text("done")
            os.kill(os.getpid(), getattr(signal, name))
    return code("SUBMIT(answer=context.upper())")
"""


@pytest.fixture
def prepared(script: Callable[[str], str], tmp_path: Path) -> Callable[..., list[str]]:
    """Arguments of the command over a CSV file of so many rows."""

    def arguments(n: int, *more: str, deeds: Any = ()) -> list[str]:
        source = tmp_path / "rows.csv"
        source.write_text("id,text\n" + "".join(f"{number},letter {number}\n" for number in range(n)))
        model = script(ROOT.format(here=str(tmp_path), deeds=list(deeds)))
        task = ["--input", "context=text", "--set", "query=Say it aloud.", "--keep", "id"]
        out = ["--out", str(tmp_path / "out.jsonl")]
        return ["map", str(source), *task, *out, "--model", model, "--environment", "subprocess", *more]

    return arguments


def answers(folder: Path) -> list[str]:
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == list(range(len(lines)))
    assert [line["kept"] for line in lines] == [{"id": str(number)} for number in range(len(lines))]
    return [line["outputs"]["answer"] for line in lines]


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlm_dspy.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_line_for_each_row(
    prepared: Callable[..., list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str], no_leaks: None
) -> None:
    assert main(prepared(3)) == exits.SUBMITTED
    shown = capfd.readouterr()
    assert "3 rows: 3 answered" in shown.out and "--price" in shown.out and "row 2 submitted" in shown.err
    assert answers(tmp_path) == ["LETTER 0", "LETTER 1", "LETTER 2"]
    priced = ["--price", "scripted/root=1,1", "--json", "--quiet"]
    assert main(prepared(4, *priced)) == exits.USAGE
    assert "model was" in capfd.readouterr().err


def test_a_program_by_its_import_path(
    prepared: Callable[..., list[str]],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_programs.py").write_text(
        "import dspy\n\n"
        "class Shout(dspy.Module):\n"
        "    def forward(self, context, query, id):\n"
        "        if id == '1':\n"
        "            raise ValueError('not that one')\n"
        "        return dspy.Prediction(answer=context.upper())\n\n"
        "shout = Shout()\n"
    )
    assert main(prepared(2, "--program", "my_programs:shout", "--json", "--quiet")) == exits.FAILED
    told = json.loads(capfd.readouterr().out)
    assert told["statuses"] == {"answered": 1, "failed": 1} and told["rows"] == 2
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines[0]["outputs"] == {"answer": "LETTER 0"} and "not that one" in lines[1]["error"]


def test_what_is_wrong_is_usage_and_names_the_fix(
    prepared: Callable[..., list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for more, said in (
        (["--signature", "context ->"], "signature"),
        (["--max-cost", "2"], "--price MODEL=INPUT,OUTPUT"),
        (["--threads", "-1"], "threads must be"),
        (["--max-cost", "2", "--price", "x"], "not of the form MODEL=IN,OUT"),
    ):
        assert main(prepared(1, *more)) == exits.USAGE
        assert said in capfd.readouterr().err
    assert not (tmp_path / "out.jsonl").exists() or not (tmp_path / "out.jsonl").read_bytes()
    assert main(["map", str(tmp_path / "none.csv"), "--out", str(tmp_path / "x"), "--model", "a/b"]) == exits.USAGE


@pytest.mark.heavy
def test_a_killed_one_goes_on_and_loses_nothing(prepared: Callable[..., list[str]], tmp_path: Path) -> None:
    arguments = prepared(8, "--threads", "2", deeds=[("SIGKILL", 5)])
    assert run(arguments).returncode == -9
    kept = (tmp_path / "out.jsonl").read_bytes()
    done = run(arguments)
    assert done.returncode == exits.SUBMITTED, done.stderr
    assert (tmp_path / "out.jsonl").read_bytes().startswith(kept)
    assert answers(tmp_path) == [f"LETTER {number}" for number in range(8)]


@pytest.mark.heavy
def test_ctrl_c_keeps_all_and_goes_on(prepared: Callable[..., list[str]], tmp_path: Path) -> None:
    arguments = prepared(6, "--threads", "2", deeds=[("SIGINT", 3)])
    done = run(arguments)
    assert done.returncode == exits.INTERRUPTED, done.stderr
    assert "the rows under way come to their end" in done.stderr and "the same command goes on" in done.stderr
    assert len(answers(tmp_path)) < 6
    assert run(arguments).returncode == exits.SUBMITTED
    assert answers(tmp_path) == [f"LETTER {number}" for number in range(6)]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            ["--input", "context=txt", "--set", "query=?"],
            "no column 'txt' for the input 'context'; there are 'id', 'text'",
        ),
        (["--input", "context=text"], "--set query=TEXT"),
        (["--input", "contxt=text", "--set", "query=?"], "no input 'contxt'; it has context, query"),
        (["--input", "context=text", "--set", "question=?"], "no input 'question'; it has context, query"),
        (["--input", "context=text", "--set", "query=?", "--keep", "number"], "no column 'number'"),
    ],
)
def test_names_that_do_not_fit_a_table_are_usage_and_write_nothing(
    task: list[str], said: str, script: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "rows.csv", tmp_path / "out.jsonl"
    source.write_text("id,text\n1,a\n2,b\n")
    model = script('def root(call):\n    return code("SUBMIT(answer=context)")\n')
    assert main(["map", str(source), *task, "--out", str(out), "--model", model]) == exits.USAGE
    assert said in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.glob("out*")) == []

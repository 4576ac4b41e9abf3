"""``ask --out``: the answer in a file, whole or not at all, and never lost."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy.cli import exits
from rlm_dspy.cli.out import OutFile
from rlm_dspy.errors import ConfigurationError

SUBMITS = "def root(call): return code('SUBMIT(context)')"
FAILS = """
def root(call):
    return Reply(error=RuntimeError("down")) if answering(call) else code("print('looking')")
"""


def test_the_answer_goes_to_the_file(ask: Any, script: Any, document: str, tmp_path: Path) -> None:
    out = tmp_path / "answer.txt"
    result = ask("q", document, "--model", script(SUBMITS), "--out", str(out))
    assert (result.code, result.out, out.read_text()) == (0, "", "one\ntwo\nthree\n\n")
    assert f"written to {out}" in result.err
    assert ask("q", document, "--model", script(SUBMITS), "--out", str(out), "--quiet").err == ""
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize(
    ("argv", "keys"),
    [
        (["--out", "a.json"], 6),
        (["--out", "a.JSON", "--json", "full"], 7),
        (["--out", "a.txt", "--json"], 6),
    ],
)
def test_json(
    ask: Any, script: Any, document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], keys: int
) -> None:
    monkeypatch.chdir(tmp_path)
    result = ask("q", document, "--model", script(SUBMITS), *argv)
    report = json.loads((tmp_path / argv[1]).read_text())
    assert (result.out, len(report), report["outputs"]) == ("", keys, {"answer": "one\ntwo\nthree\n"})


def test_a_dash_is_standard_output(ask: Any, script: Any, document: str) -> None:
    assert ask("q", document, "--model", script(SUBMITS), "--out", "-").out == "one\ntwo\nthree\n\n"


def test_without_an_answer_an_earlier_file_stays(ask: Any, script: Any, document: str, tmp_path: Path) -> None:
    out = tmp_path / "answer.txt"
    out.write_text("earlier")
    result = ask("q", document, "--model", script(FAILS), "--max-iters", "1", "--out", str(out))
    assert (result.code, out.read_text()) == (exits.FAILED, "earlier")
    as_json = tmp_path / "a.json"
    assert ask("q", document, "--model", script(FAILS), "--max-iters", "1", "--out", str(as_json)).code == exits.FAILED
    assert json.loads(as_json.read_text())["outcome"] == "failed"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (".", "it is a folder"),
        ("no/such/folder/a.txt", "mkdir -p"),
        ("document.txt/a.txt", "ot a directory"),
        ("a\0b", "null"),
    ],
)
def test_what_cannot_be_written_is_found_before_the_run(
    ask: Any, script: Any, document: str, tmp_path: Path, path: str, message: str
) -> None:
    model = script("raise SystemExit('the model was made')")
    result = ask("q", document, "--model", model, "--out", f"{tmp_path}/{path}")
    assert (result.code, result.out) == (exits.USAGE, "")
    assert "--out" in result.err and message in result.err and "the model was made" not in result.err


def test_a_folder_that_takes_no_file(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        place = "/proc/self/answer.txt"
    else:
        tmp_path.chmod(0o500)
        place = str(tmp_path / "answer.txt")
    with pytest.raises(ConfigurationError, match="its folder takes no new file"):
        OutFile(place)


def test_what_cannot_be_written_in_the_end_is_printed(
    ask: Any, script: Any, document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "answer.txt"
    out.write_text("earlier")
    monkeypatch.setattr(os, "fsync", full)
    result = ask("q", document, "--model", script(SUBMITS), "--out", str(out))
    assert (result.code, result.out) == (exits.ERROR, "one\ntwo\nthree\n\n")
    assert "No space left on device; here is the answer instead" in result.err
    assert out.read_text() == "earlier" and list(tmp_path.glob(".*")) == []


def test_devices_and_pipes_are_written_and_not_replaced(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert OutFile("/dev/null").write("x") and stat.S_ISCHR(os.stat("/dev/null").st_mode)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    out = OutFile(str(fifo))
    copy = tmp_path / "copy"
    with open(copy, "wb") as file, subprocess.Popen(["cat", str(fifo)], stdout=file) as reader:
        assert out.write("x" * 300_000)
        assert reader.wait(timeout=30) == 0
    assert len(copy.read_bytes()) == 300_001
    if os.path.exists("/dev/full"):
        assert not OutFile("/dev/full").write("kept")
        assert capfd.readouterr().out == "kept\n"


def test_a_link_is_followed_and_modes_are_kept(tmp_path: Path) -> None:
    real, link, fresh = tmp_path / "real.txt", tmp_path / "link.txt", tmp_path / "fresh.txt"
    real.write_text("earlier")
    real.chmod(0o640)
    link.symlink_to(real)
    assert OutFile(str(link)).write("new \ud800 é")
    assert link.is_symlink() and real.read_text() == "new \\ud800 é\n" and stat.S_IMODE(real.stat().st_mode) == 0o640
    before = os.umask(0o027)
    try:
        assert OutFile(str(fresh)).write("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o640


def test_a_run_that_is_killed_leaves_the_earlier_file(script: Any, document: str, tmp_path: Path) -> None:
    out = tmp_path / "answer.txt"
    out.write_text("earlier")
    model = script("import os\ndef root(call): os.kill(os.getpid(), 9)")
    argv = [sys.executable, "-m", "rlm_dspy.cli", "ask", "q", document, "--model", model, "--out", str(out)]
    assert subprocess.run(argv, capture_output=True, timeout=60).returncode == -9
    assert out.read_text() == "earlier" and sorted(p.name for p in tmp_path.glob(".*")) == []

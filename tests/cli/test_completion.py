"""Shell completion, in the shells themselves."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlm_dspy.cli import exits, main
from rlm_dspy.cli.parser import SHELLS

pytest.importorskip("shtab")


@pytest.fixture
def place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Path:
    """A folder with the scripts, two documents, and a command ``rlm-dspy`` that need not run to be completed."""
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        (tmp_path / f"script.{shell}").write_text(capfd.readouterr().out)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "rlm-dspy"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "contract.pdf").write_text("x")
    (tmp_path / "docs" / "config.toml").write_text("x")
    return tmp_path


class Shell:
    """An interactive shell on a terminal."""

    def __init__(self, argv: list[str], cwd: Path, **environment: str) -> None:
        self.master, slave = pty.openpty()
        path = f"{cwd / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.process = subprocess.Popen(
            argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={"PATH": path, "HOME": str(cwd), "TERM": "dumb", "LC_ALL": "C.UTF-8", **environment},
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""

    def type(self, text: str, *until: str) -> str:
        """Type, wait until each of ``until`` is shown after that, and return all that was shown meanwhile."""
        start = len(self.shown)
        os.write(self.master, text.encode())
        deadline = time.monotonic() + 30
        while not all(one in self.shown[start:] for one in until):
            left = deadline - time.monotonic()
            assert left > 0, f"{until!r} was not shown in {self.shown[start:]!r}"
            if select.select([self.master], [], [], left)[0]:
                self.shown += os.read(self.master, 65536).decode(errors="replace")
        return self.shown[start:]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def bash(place: Path) -> Iterator[Shell]:
    if shutil.which("bash") is None:
        pytest.skip("no bash: apt install bash")
    shell = Shell(["bash", "--norc", "--noprofile", "-i"], place, PS1="READY ")
    shell.type("bind 'set enable-bracketed-paste off'; source script.bash; echo so''urced\n", "sourced")
    yield shell
    shell.close()


def test_bash(bash: Shell) -> None:
    # Each line is ended with a comment, so that nothing runs.
    assert "rlm-dspy ask " in bash.type("rlm-dspy a\t", "ask ")
    bash.type("\x15", "")
    assert "--max-llm-calls" in bash.type("rlm-dspy ask --max-l\t", "--max-llm-calls")
    bash.type("\x15", "")
    bash.type("rlm-dspy ask question docs/contr\t", "docs/contract.pdf")
    bash.type("\x15", "")
    bash.type("rlm-dspy ask question docs/contract.pdf --config docs/conf\t", "docs/config.toml")
    bash.type("\x15", "")
    bash.type("rlm-dspy ask question --interpreter sub\t", "subprocess")
    bash.type("\x15", "")
    bash.type("rlm-dspy completion z\t", "completion zsh")
    bash.type("\x15", "")
    bash.type("rlm-dspy \t\t", "ask", "completion", "doctor", "traces", "ui", "version")


def test_zsh(place: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh: apt install zsh")
    functions = place / "functions"
    functions.mkdir()
    (functions / "_rlm-dspy").write_text((place / "script.zsh").read_text())
    shell = Shell(["zsh", "-f", "-i"], place, PS1="READY ")
    try:
        setup = "bindkey -e; fpath=($PWD/functions $fpath); autoload -U compinit; compinit -u -D"
        shell.type(f"{setup}; echo so''urced\n", "sourced")
        shell.type("rlm-dspy doc\t", "doctor")
        shell.type("\x15rlm-dspy ask --max-ll\t", "--max-llm-calls")
        shell.type("\x15rlm-dspy ask question docs/contr\t", "act.pdf")
        shell.type("\x15rlm-dspy ask question --interpreter sub\t", "process")
    finally:
        shell.close()


def test_fish(place: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish: apt install fish")

    def completed(line: str) -> list[str]:
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source script.fish; complete -C '{line}'"],
            cwd=place,
            env={"PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(place), "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return [found.split("\t")[0] for found in done.stdout.splitlines()]

    assert completed("rlm-dspy a") == ["ask"]
    assert {"ask", "doctor", "completion", "version"} <= set(completed("rlm-dspy "))
    assert completed("rlm-dspy ask --max-ll") == ["--max-llm-calls"]
    assert completed("rlm-dspy ask question docs/contr") == ["docs/contract.pdf"]
    assert completed("rlm-dspy ask question --interpreter sub") == ["subprocess"]
    assert completed("rlm-dspy ask --config docs/conf") == ["docs/config.toml"]


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_hold_every_command_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for word in ("ask", "doctor", "completion", "max-output-chars", "env-opt", "no-call", "subprocess"):
        assert word in text
    assert "None" not in text


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == exits.USAGE
    assert main(["completion", "tcsh"]) == exits.USAGE
    assert "bash" in capsys.readouterr().err


def test_without_shtab(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == exits.ERROR
    assert "pip install shtab" in capsys.readouterr().err

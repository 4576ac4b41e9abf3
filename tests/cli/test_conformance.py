"""``rlm-dspy doctor --environment``: what it prints, live and piped, and what it exits with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rlm_dspy.cli import main
from rlm_dspy.environments import registry
from rlm_dspy.environments.base import Bound, Description, Transport
from rlm_dspy.environments.subprocess_env import Subprocess
from rlm_dspy.errors import SandboxUnavailableError

BASE = ("doctor", "--environment")


class Liar(Subprocess):
    """Says that files are out of reach."""

    name = "liar"

    def describe(self) -> Description:
        return Description("liar", files=Bound("bounded", "so it says"), missing=("honesty",))


class Dead(Subprocess):
    """Does not start."""

    name = "dead"

    def open(self) -> Transport:
        raise SandboxUnavailableError("there is nothing, and the key is sk-abcdefghijklmn0123456789")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``rlm-dspy`` in this process, with the environments above."""
    found = {"liar": Liar, "dead": Dead}

    def load(name: str, before: Any = registry._load) -> Any:
        return found.get(name) or before(name)

    monkeypatch.setattr(registry, "_load", load)

    def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(argv)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_line_a_check_and_a_summary(command: Any, no_leaks: None) -> None:
    code, out, err = command(*BASE, "subprocess", "--check", "show_vars", "--check", "disk")
    assert code == 0 and err == ""
    lines = out.splitlines()
    assert lines[0] == "subprocess: process; not confined" and "  files: not bounded" in lines
    assert [line.split()[:2] for line in lines if line.startswith(("passed", "skipped"))] == [
        ["passed", "show_vars"],
        ["skipped", "disk_is_bounded"],
    ]
    assert "disk: not bounded, and nothing else is claimed" in out
    assert lines[-1].startswith("2 checks: 1 passed, 1 skipped, 0 failed, in ")


def test_a_failure_is_shown_whole_and_is_the_exit_code(command: Any, no_leaks: None) -> None:
    code, out, _ = command(*BASE, "liar", "--check", "files_of_the_host")
    assert code == 1
    assert "  missing: honesty" in out and "failed   files_of_the_host_are_out_of_reach" in out
    assert "FAILED files_of_the_host_are_out_of_reach: A file of this host is neither read" in out
    assert "AssertionError: ['read it'" in out and out.splitlines()[-1].startswith(
        "1 checks: 0 passed, 0 skipped, 1 fai"
    )


def test_json(command: Any, no_leaks: None) -> None:
    code, out, err = command(*BASE, "liar", "--check", "files_of_the_host", "--json")
    found = json.loads(out)
    assert code == 1 and err == "" and found["summary"] == {"passed": 0, "skipped": 0, "failed": 1}
    assert found["describe"]["files"] == {"level": "bounded", "how": "so it says", "limit": None}
    assert found["results"][0]["name"] == "files_of_the_host_are_out_of_reach"


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_one_that_does_not_start_is_one_error_and_no_ninety(
    command: Any, more: tuple[str, ...], no_leaks: None
) -> None:
    code, out, _ = command(*BASE, "dead", *more)
    assert code == 1 and "there is nothing" in out and "sk-abc" not in out and len(out.splitlines()) < 6


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("locl",), "Did you mean 'local'"),
        (("local", "--env-opt", "memry=1GiB"), "Did you mean 'memory'"),
        (("local", "--check", "no such check"), "show_vars"),
    ],
)
def test_wrong_words_are_a_usage_error(command: Any, argv: tuple[str, ...], words: str) -> None:
    code, out, err = command(*BASE, *argv)
    assert code == 2 and out == "" and words in err


def test_options_reach_the_environment(command: Any, no_leaks: None) -> None:
    code, out, _ = command(
        *BASE, "local", "--env-opt", "memory=512MiB", "--env-opt", "layer=landlock", "--check", "memory"
    )
    assert code == 0 and "512 MiB each" in out, out


def test_progress_is_live_on_a_terminal(terminal: Any) -> None:
    shown = terminal("-m", "rlm_dspy.cli", *BASE, "subprocess", "--check", "show_vars", "--check", "busy_loops")
    assert shown.wait() == 0
    raw = shown.raw.decode()
    assert "1/2 show_vars ..." in raw or "1/2 busy_loops" in raw
    assert "2/2 " in raw and "\x1b[32mpassed" in raw
    # What is under way is wiped before a line takes its place.
    assert "\x1b[K\x1b[32mpassed" in raw

"""Arguments, help, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rlm_dspy.cli import exits, main
from rlm_dspy.cli.parser import parse


@pytest.mark.parametrize("argv", [["--help"], ["ask", "--help"], ["--version"], ["ask"]])
def test_help_and_bad_usage_import_neither_dspy_nor_rich(argv: list[str]) -> None:
    program = (
        "import sys; from rlm_dspy.cli import main; main(sys.argv[1:]); "
        "print('imported', [m for m in ('dspy', 'rich', 'pydantic', 'asyncio') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "imported []", done.stderr


def test_help_documents_every_exit_code_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "--help"]) == 0
    text = capsys.readouterr().out
    for name, code in vars(exits).items():
        if name.isupper() and isinstance(code, int):
            assert f"\n  {code} " in text
    for option in ("--model", "--sub-model", "--api-base", "--signature", "--interpreter", "--env-opt", "--strict"):
        assert option in text
    assert "scripted:PATH" in text and "RLM_DSPY_MODEL" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import dspy

    import rlm_dspy

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rlm-dspy {rlm_dspy.__version__}\n"
    assert main(["version"]) == 0
    assert f"dspy {dspy.__version__}" in capsys.readouterr().out.splitlines()


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == exits.USAGE
    assert "ask" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        ["q", "f", "g", "--model", "m", "--max-iters", "3"],
        ["--model", "m", "q", "--max-iters", "3", "f", "g"],
        ["q", "--model", "m", "f", "--max-iters=3", "g"],
        ["--model", "m", "--max-iters", "3", "--", "q", "f", "g"],
    ],
)
def test_options_may_stand_anywhere(argv: list[str]) -> None:
    options = parse(["ask", *argv])
    assert (options.question, options.files, options.model, options.max_iters) == ("q", ["f", "g"], "m", 3)


@pytest.mark.parametrize(
    ("argv", "json", "question"),
    [
        (["q", "f"], None, "q"),
        (["--json", "q", "f"], "brief", "q"),
        (["--json", "full", "q", "f"], "full", "q"),
        (["q", "--json", "f"], "brief", "q"),
        (["q", "f", "--json"], "brief", "q"),
        (["q", "f", "--json=full"], "full", "q"),
        (["--", "--json", "f"], None, "--json"),
    ],
)
def test_json_takes_no_word_but_full(argv: list[str], json: str | None, question: str) -> None:
    options = parse(["ask", *argv])
    assert (options.json, options.question, options.files) == (json, question, ["f"])


def test_a_dash_is_a_file() -> None:
    assert parse(["ask", "q", "-"]).files == ["-"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["q"], "FILE"),
        (["q", "f", "--max-iters", "many"], "'many' is not a whole number"),
        (["q", "f", "--max-seconds", "soon"], "'soon' is not a number or none"),
        (["q", "f", "--env-opt", "memory"], "'memory' is not of the form K=V"),
        (["q", "f", "--json=all"], "'all'"),
        (["q", "f", "--api-key", "x"], "--api-key"),
        (["q", "f", "--mod", "x"], "--mod"),
    ],
)
def test_usage_errors_say_what_is_wrong(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", *argv]) == exits.USAGE
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""
    assert len(captured.err.splitlines()) == 2


def test_python_m(document: str, script: Callable[[str], str]) -> None:
    model = script("def root(call): return code('SUBMIT(context.count(chr(10)))')")
    argv: list[Any] = [sys.executable, "-m", "rlm_dspy.cli", "ask", "how many lines?", document, "--model", model]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "3\n")

"""``--config``: a TOML file below the command line and the environment; what is wrong in it is said."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy.cli import ask_options, exits, main
from rlm_dspy.cli.ask_options import DEFAULTS, UNLIMITED, VARIABLES
from rlm_dspy.cli.config import ConfigError, complete, load
from rlm_dspy.cli.parser import parse


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES.values():
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def toml(tmp_path: Path) -> Callable[[str], str]:
    """Writes a configuration file and gives its path."""

    def write(text: str) -> str:
        path = tmp_path / "rlm.toml"
        path.write_text(text)
        return str(path)

    return write


def test_any_long_option_with_dashes_or_underscores(toml: Any, tmp_path: Path) -> None:
    path = toml(
        """
model = "openai/NAME"
sub_model = "openai/SMALL"
api-base = "http://127.0.0.1:8000/v1"
signature = "context, query -> n: int"
interpreter = "local"
strict = true
max-iters = 7
max_llm_calls = "none"
max-seconds = 1.5
max-errors = 3
max-concurrency = 4
max-output-chars = 500
json = "full"
events = "log/events.jsonl"
out = "/abs/a.txt"
quiet = true
no-color = true
debug = false

[env]
memory = "2GiB"
timeout = 30
packages = false
readable = ["data", "/abs"]
"""
    )
    options = parse(["ask", "q", "f", "--config", path])
    assert options.model == "openai/NAME" and options.sub_model == "openai/SMALL"
    assert options.api_base == "http://127.0.0.1:8000/v1" and options.signature == "context, query -> n: int"
    assert (options.strict, options.quiet, options.no_color, options.debug) == (True, True, True, False)
    assert (options.max_iters, options.max_llm_calls, options.max_seconds) == (7, UNLIMITED, 1.5)
    assert (options.max_errors, options.max_concurrency, options.max_output_chars) == (3, 4, 500)
    assert (options.json, options.out) == ("full", "/abs/a.txt")
    assert options.events == str(tmp_path / "log/events.jsonl")
    assert dict(options.env_opt) == {
        "memory": "2GiB",
        "timeout": "30",
        "packages": "false",
        "readable": f"{tmp_path / 'data'}{os.pathsep}/abs",
    }


def test_every_option_of_ask_can_be_in_the_file(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    ask_options.add_arguments(parser)
    known = {action.dest for action in parser._actions if action.option_strings} - {"help", "config", "env_opt"}
    values = {"json": "full", **dict.fromkeys(("strict", "quiet", "no_color", "debug"), True)}
    for name in known:
        value = values.get(name, 1 if name.startswith(("max", "threads", "direct")) else "text")
        text = f"{name} = {str(value).lower() if not isinstance(value, str) else repr(value)}"
        path = tmp_path / "one.toml"
        path.write_text(text)
        assert set(load(parser, str(path))[0]) == {name}


places = st.fixed_dictionaries(
    {}, optional={place: st.sampled_from(["a/1", "b/2", "c/3"]) for place in ("flag", "variable", "file")}
)


@settings(deadline=None)
@given(places)
def test_the_command_line_beats_the_environment_beats_the_file(tmp_path_factory: Any, given_in: dict[str, str]) -> None:
    path = tmp_path_factory.mktemp("config") / "c.toml"
    path.write_text(f'model = "{given_in["file"]}"' if "file" in given_in else "")
    parser = argparse.ArgumentParser()
    ask_options.add_arguments(parser)
    flags = ["--model", given_in["flag"]] if "flag" in given_in else []
    options = parser.parse_args(["q", "f", *flags])
    environment = {"RLM_DSPY_CONFIG": str(path)}
    if "variable" in given_in:
        environment["RLM_DSPY_MODEL"] = given_in["variable"]
    complete(parser, options, environment)
    expected = [given_in[place] for place in ("flag", "variable", "file") if place in given_in]
    assert options.model == (expected[0] if expected else None)


def test_defaults_come_last(toml: Any) -> None:
    options = parse(["ask", "q", "f"])
    assert {name: getattr(options, name) for name in DEFAULTS} == DEFAULTS
    assert parse(["ask", "q", "f", "--config", toml("strict = false")]).strict is False


def test_every_variable(monkeypatch: pytest.MonkeyPatch, toml: Any) -> None:
    path = toml("max-iters = 5")
    for name, variable in VARIABLES.items():
        monkeypatch.setenv(variable, path if name == "config" else f"the {name}")
    options = parse(["ask", "q", "f"])
    assert [getattr(options, name) for name in VARIABLES] == [
        path if name == "config" else f"the {name}" for name in VARIABLES
    ]
    assert options.max_iters == 5


def test_sandbox_options_are_merged_and_belong_to_the_files_interpreter(toml: Any) -> None:
    path = toml('[env]\nmemory = "2GiB"\ntimeout = 3')
    assert dict(parse(["ask", "q", "f", "--config", path, "--env-opt", "timeout=9"]).env_opt) == {
        "memory": "2GiB",
        "timeout": "9",
    }
    assert parse(["ask", "q", "f", "--config", path, "--interpreter", "subprocess"]).env_opt == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-iter = 3", "there is no option 'max-iter'. Did you mean max-iters"),
        ("modle = 'x'", "Did you mean model"),
        ("zzzzzz = 1", "Known are model, sub-model"),
        ("env-opt = 'memory=1GiB'", "[env]"),
        ("config = 'other.toml'", "one file does not name another"),
        ("api_key = 'x'", "does not belong in this file. Remove it, and set the provider's environment variable"),
        ("openai-api-key = 'x'", "secret"),
        ("[env]\napi_token = 'x'", "env.api_token looks like a secret"),
        ("api-base = 'https://x/?key=sk-0123456789abcdef'", "the value of api-base looks like a secret"),
        ("[env]\nenv = 'A=sk-0123456789abcdef'", "env.env looks like a secret"),
        ("max-iters = 'many'", "max-iters: 'many' is not a whole number"),
        ("max-iters = 2.5", "'2.5' is not a whole number"),
        ("max-iters = true", "max-iters takes a number, not True"),
        ("model = 3", "model takes text, not 3"),
        ("model = ['x']", "model takes text"),
        ("strict = 'yes'", "strict is true or false, not 'yes'"),
        ("json = 'all'", "takes no value but full"),
        ("env = 3", "env is a table"),
        ("[env]\nmemory = {a = 1}", "env.memory takes text, a number"),
        ("max-iters = 1\nmax_iters = 2", "twice"),
        ("model = ", "is not valid TOML"),
        ("[ask]\nmodel = 'x'", "there is no option 'ask'"),
    ],
)
def test_what_is_wrong_is_a_usage_error(
    toml: Any, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = toml(text)
    assert main(["ask", "q", "f", "--config", path]) == exits.USAGE
    captured = capsys.readouterr()
    assert captured.out == "" and f"--config: {path}" in captured.err
    assert message in captured.err and "sk-0123456789abcdef" not in captured.err


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    with pytest.raises(ConfigError, match="does not exist"):
        load(parser, str(tmp_path / "missing.toml"))
    with pytest.raises(ConfigError, match="cannot be read"):
        load(parser, str(tmp_path))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(parser, str(tmp_path / "bytes.toml"))


def test_a_run_from_a_file(ask: Any, script: Any, document: str, toml: Any, tmp_path: Path) -> None:
    model = script("def root(call): return code('SUBMIT(len(context))')")
    relative = "scripted:" + os.path.basename(model)
    path = toml(f'model = "{relative}"\nout = "answer.json"\nquiet = true')
    result = ask("q", document, "--config", path)
    assert (result.code, result.out, result.err) == (0, "", "")
    assert '"answer": "14"' in (tmp_path / "answer.json").read_text()

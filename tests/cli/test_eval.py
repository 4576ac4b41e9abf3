"""``rlm-dspy eval``: the command, its exit codes, and going on after Ctrl-C and SIGKILL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy.cli import exits, jobs, main
from rlm_dspy.cli.parser import parse

# A root that counts and finds by looking at the text; it does to its own process what the tests ask for, once.
ROOT = """
import os, signal, threading
from pathlib import Path
HERE = Path({here!r})

def root(call):
    with open(HERE / "calls", "a") as file:
        file.write("x")
    made = (HERE / "calls").stat().st_size
    for name, at, times in {deeds!r}:
        if made >= at and not (HERE / name).exists():
            (HERE / name).write_text("done")
            for _ in range(times):
                os.kill(os.getpid(), getattr(signal, name))
            if times > 1:
                threading.Event().wait(5)
    return code("SUBMIT(answer=len(context))")
"""


@pytest.fixture
def prepared(script: Callable[[str], str], tmp_path: Path) -> Callable[..., list[str]]:
    """Arguments of the command, with a root that sends signals: name, at which call, how many times."""

    def arguments(*more: str, deeds: Any = ()) -> list[str]:
        model = script(ROOT.format(here=str(tmp_path), deeds=list(deeds)))
        common = ["--kinds", "count", "--tokens", "1k", "--environment", "subprocess", "--model", model]
        return ["eval", "needles", *common, *more]

    return arguments


def rows(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("record") == "result"]


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "rlm_dspy.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def test_a_table_for_people_and_an_object_for_machines(
    prepared: Callable[..., list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str], no_leaks: None
) -> None:
    out = tmp_path / "out"
    arguments = prepared("-n", "3", "--program", "rlm,direct", "--out", str(out), "--price", "scripted/root=1,2")
    assert main(arguments) == exits.SUBMITTED
    shown = capfd.readouterr()
    assert "rlm " in shown.out and "direct " in shown.out and "0 of 3" in shown.out and "$" in shown.out
    assert "6/6" in shown.err and len(rows(out)) == 6
    assert main([*arguments, "--json", "--quiet"]) == exits.SUBMITTED
    shown = capfd.readouterr()
    told = json.loads(shown.out)
    assert shown.err == "" and told["complete"] and [one["program"] for one in told["programs"]] == ["rlm", "direct"]
    assert told["programs"][0]["by_kind"]["count"]["n"] == 3 and told["programs"][0]["cost"] > 0
    assert json.loads((out / "report.json").read_text()) == told


def test_without_a_folder_the_object_has_the_rows(
    prepared: Callable[..., list[str]], capfd: pytest.CaptureFixture[str], no_leaks: None
) -> None:
    assert main(prepared("-n", "1", "--program", "direct", "--json", "--quiet")) == exits.SUBMITTED
    (row,) = json.loads(capfd.readouterr().out)["rows"]
    assert row["key"] == "needles/count/1000/1/0" and row["cost"] is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--program", "rml"], "no program 'rml'"),
        (["--kinds", "poem"], "no kind 'poem'"),
        (["--tokens", "10"], "tokens must be 1000 or more"),
        (["--tokens", "many"], "no number of tokens"),
        (["--threads", "0"], "threads must be a whole number"),
        (["--max-cost", "1"], "--price MODEL=INPUT,OUTPUT"),
        (["--load", "/no/such/file"], "/no/such/file"),
        (["--environment", "nowhere"], "nowhere"),
        (["--max-iters", "0"], "max_iters must be"),
        (["--program", "no.such:thing"], "could not be imported"),
        (["--program", "json:nothing"], "json has no nothing"),
    ],
)
def test_what_is_wrong_is_usage_and_names_the_fix(
    more: list[str], said: str, prepared: Callable[..., list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(prepared("-n", "1", *more))
    assert (code, said in capfd.readouterr().err) == (exits.USAGE, True)


def test_no_model_is_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "needles"]) == exits.USAGE
    assert "no model: give --model" in capfd.readouterr().err
    assert main(["eval", "no_such", "--model", "x/y"]) == exits.USAGE
    assert "no family of tasks 'no_such'" in capfd.readouterr().err


def test_options_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlm_dspy.cli import jobs

    monkeypatch.setenv("RLM_DSPY_MODEL", "openai/one")
    monkeypatch.setenv("RLM_DSPY_INTERPRETER", "docker")
    options = parse(["eval", "all"])
    jobs.complete(options)
    assert (options.model, options.environment, options.tokens) == ("openai/one", "docker", [32_000])
    assert parse(["eval", "all", "--tokens", "1.5k,2M,2000k"]).tokens == [1500, 2_000_000]


def test_no_secret_of_an_option_is_kept() -> None:
    keys = ["api_key=of-nobodys-business", "memory=2GiB", "image=sk-0123456789abcdef"]
    given = parse(["eval", "needles", "--model", "m", *(word for key in keys for word in ("--env-opt", key))])
    assert jobs.settings(given)["env_opt"] == {"api_key": "[hidden]", "memory": "2GiB", "image": "[hidden]"}


def test_a_state_is_loaded_and_is_one_of_the_settings(
    prepared: Callable[..., list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str], no_leaks: None
) -> None:
    from rlm_dspy import RLM

    program = RLM("context, query -> answer: int")
    program.act.signature = program.act.signature.with_instructions("Look at the text as often as you like.")
    program.save(tmp_path / "state.json")
    out, seen = tmp_path / "out", tmp_path / "seen"
    model = f"""
def root(call):
    open({str(seen)!r}, "a").write(call.system)
    return code("SUBMIT(answer=1)")
"""
    arguments = prepared("-n", "1", "--out", str(out), "--load", str(tmp_path / "state.json"))
    Path(arguments[arguments.index("--model") + 1].removeprefix("scripted:")).write_text(
        "from rlm_dspy.testing import code\n" + model
    )
    assert main(arguments) == exits.SUBMITTED
    assert "as often as you like" in seen.read_text()
    program.act.signature = program.act.signature.with_instructions("Another strategy.")
    program.save(tmp_path / "state.json")
    assert main(arguments) == exits.USAGE
    assert "load was" in capfd.readouterr().err


def test_money_that_is_spent_has_its_own_exit_code(
    prepared: Callable[..., list[str]], capfd: pytest.CaptureFixture[str], no_leaks: None
) -> None:
    spend = ["--price", "scripted/root=1000,1000", "--max-cost", "1.5", "--threads", "1", "--program", "direct"]
    assert main(prepared("-n", "9", *spend)) == exits.EXTRACTED
    shown = capfd.readouterr()
    assert "ended early: max_cost=1.5 is spent" in shown.err and "of 9" not in shown.out


@pytest.mark.heavy
def test_a_killed_one_goes_on(prepared: Callable[..., list[str]], tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = prepared("-n", "6", "--threads", "1", "--out", str(out), deeds=[("SIGKILL", 4, 1)])
    assert run(arguments).returncode == -9
    kept = rows(out)
    assert 1 <= len(kept) <= 3
    done = run(arguments)
    assert done.returncode == exits.SUBMITTED, done.stderr
    assert f"{len(kept)} of 6 are there from before" in done.stderr
    assert rows(out)[: len(kept)] == kept and len({row["key"] for row in rows(out)}) == len(rows(out)) == 6


@pytest.mark.heavy
def test_ctrl_c_lets_what_is_under_way_end_and_keeps_all(prepared: Callable[..., list[str]], tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = prepared("-n", "6", "--threads", "1", "--out", str(out), deeds=[("SIGINT", 2, 1)])
    done = run(arguments)
    assert done.returncode == exits.INTERRUPTED and "come to their end" in done.stderr, done.stderr
    assert "ended early: interrupted; the same command goes on" in done.stderr
    kept = len(rows(out))
    assert 1 <= kept < 6 and f"of {kept} " in done.stdout
    assert run(arguments).returncode == exits.SUBMITTED and len(rows(out)) == 6


@pytest.mark.heavy
def test_a_second_ctrl_c_gives_up_what_is_under_way(prepared: Callable[..., list[str]], tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = prepared("-n", "6", "--threads", "1", "--out", str(out), deeds=[("SIGTERM", 3, 2)])
    done = run(arguments)
    assert done.returncode == exits.INTERRUPTED, done.stderr
    kept = rows(out)
    assert len(kept) < 6 and all(row["score"] is not None for row in kept)
    assert run(arguments).returncode == exits.SUBMITTED and len(rows(out)) == 6


OWN = """
import dspy
from rlm_dspy import RLM
from rlm_dspy.testing import ScriptedLM, code


def build(signature):
    rlm = RLM(signature, interpreter="subprocess")
    rlm.set_lm(ScriptedLM(lambda call: code("SUBMIT(answer=7)")))
    return rlm


def bare(signature):
    return RLM(signature, interpreter="subprocess")
"""


def test_programs_of_ones_own_may_bring_their_models(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    monkeypatch.delenv("RLM_DSPY_MODEL", raising=False)
    file = tmp_path / "own_of_test.py"
    file.write_text(OWN)
    common = ["eval", "needles", "--kinds", "count", "--tokens", "1k", "-n", "1", "--program"]
    assert main([*common, f"{file}:build"]) == exits.SUBMITTED
    capfd.readouterr()
    assert main([*common, f"{file}:build,direct"]) == exits.USAGE
    assert "no model: give --model" in capfd.readouterr().err
    assert main([*common, f"{file}:bare"]) == exits.ERROR
    shown = capfd.readouterr().err
    assert "error: " in shown and "error error" not in shown and "LM" in shown

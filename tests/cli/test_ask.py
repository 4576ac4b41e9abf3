"""``rlm-dspy ask``: answers, exit codes, JSON, events, models, sandboxes."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy.cli import exits
from rlm_dspy.cli.models import models
from rlm_dspy.environments import Local

SUBMITS = "def root(call): return code('SUBMIT(len(context))')\n"
LOOKS_AND_ANSWERS = """
def root(call):
    return final(answer="about 3") if answering(call) else code("print('looking')")
"""
CANNOT_ANSWER = """
def root(call):
    return Reply(error=RuntimeError("the provider is down")) if answering(call) else code("print('looking')")
"""


def test_the_answer_is_all_of_stdout(ask: Any, script: Any, document: str) -> None:
    result = ask("how long?", document, "--model", script(SUBMITS))
    assert (result.code, result.out) == (exits.SUBMITTED, "14\n")


@pytest.mark.parametrize("interpreter", ["local", "subprocess", "inprocess"])
def test_every_environment(ask: Any, script: Any, document: str, interpreter: str) -> None:
    result = ask("how long?", document, "--model", script(SUBMITS), interpreter=interpreter)
    assert (result.code, result.out) == (exits.SUBMITTED, "14\n")
    confined = Local().describe().confined
    assert ("warning" in result.err) == (interpreter != "local" or not confined)


def test_inprocess_always_warns(ask: Any, script: Any, document: str) -> None:
    result = ask("q", document, "--model", script(SUBMITS), "--quiet", interpreter="inprocess")
    assert result.err.count("not a sandbox") == 1
    assert result.code == exits.SUBMITTED


def test_typed_and_several_outputs(ask: Any, script: Any, document: str) -> None:
    model = script("def root(call): return code('SUBMIT(names=context.split(), count=3, title=\"T\")')")
    signature = "context, query -> names: list[str], count: int, title: str"
    result = ask("q", document, "--model", model, "--signature", signature)
    assert result.out.splitlines() == ['names: ["one", "two", "three"]', "count: 3", "title: T"]


def test_extracted_at_a_limit(ask: Any, script: Any, document: str) -> None:
    result = ask("q", document, "--model", script(LOOKS_AND_ANSWERS), "--max-iters", "2")
    assert (result.code, result.out) == (exits.EXTRACTED, "about 3\n")
    assert "max_iters" in result.err and "best answer so far" in result.err


def test_failed_at_a_limit(ask: Any, script: Any, document: str) -> None:
    result = ask("q", document, "--model", script(CANNOT_ANSWER), "--max-iters", "2")
    assert (result.code, result.out) == (exits.FAILED, "looking\n")
    assert "partial" in result.err, "the answer on standard output is called what it is"
    assert "max_iters" in result.err and "the provider is down" in result.err and "Traceback" not in result.err


def test_a_partial_answer_of_several_outputs_has_those_that_there_are(ask: Any, script: Any, document: str) -> None:
    model = script(CANNOT_ANSWER.replace("print('looking')", "SUBMIT(count=3, names=7)"))
    signature = "context, query -> count: int, names: list[str]"
    result = ask("q", document, "--model", model, "--signature", signature, "--max-iters", "1")
    assert (result.code, result.out) == (exits.FAILED, "3\n")
    nothing = script(CANNOT_ANSWER.replace("print('looking')", "x = 1"))
    result = ask("q", document, "--model", nothing, "--max-iters", "1")
    assert (result.code, result.out) == (exits.FAILED, "") and "partial" not in result.err


TREE = """
def root(call):
    if answering(call):
        return final(answer="best")
    child = "CHILD" in call.own[0]["content"]
    return code("SUBMIT('from the child')" if child else "print(rlm_query('CHILD'))\\nSUBMIT(str(budget()))")
def sub(call):
    return "flat"
"""


def test_depth_tokens_and_money_are_options(ask: Any, script: Any, document: str) -> None:
    limits = ("--max-tokens", "9000", "--max-cost", "0.5", "--price", "scripted/root=1,2 scripted/sub=1,2")
    result = ask("q", document, "--model", script(TREE), "--max-depth", "3", *limits, "--json")
    report = json.loads(result.out)
    assert result.code == 0 and report["usage"]["children"] == 1 and report["usage"]["cost"] > 0
    left = ast.literal_eval(report["outputs"]["answer"])
    assert 0 < left["tokens"] < 9000 and 0 < left["cost"] < 0.5 and left["depth"] == 2
    flat = json.loads(ask("q", document, "--model", script(TREE), "--json", "--max-tokens", "none").out)
    assert flat["usage"]["children"] == 0 and flat["usage"]["calls"] == 1
    stopped = ask("q", document, "--model", script(LOOKS_AND_ANSWERS), "--max-tokens", "3000")
    assert (stopped.code, stopped.out) == (exits.EXTRACTED, "about 3\n") and "max_tokens" in stopped.err


def test_money_without_a_price_says_which_option_gives_it(ask: Any, script: Any, document: str) -> None:
    result = ask("q", document, "--model", script(SUBMITS), "--max-cost", "1")
    assert result.code == exits.USAGE and "is unknown" in result.err and "--price MODEL=INPUT,OUTPUT" in result.err
    wrong = ask("q", document, "--model", script(SUBMITS), "--max-cost", "1", "--price", "scripted/root=cheap")
    assert wrong.code == exits.USAGE and "'scripted/root=cheap' is not of the form MODEL=IN,OUT" in wrong.err


def test_small_documents_are_answered_directly(ask: Any, script: Any, document: str) -> None:
    model = script("def root(call): return final(answer='read it') if call.turn == 0 else None")
    result = ask("q", document, "--model", model, "--direct-below", "500")
    assert (result.code, result.out) == (exits.SUBMITTED, "read it\n")


@pytest.mark.parametrize("debug", [False, True])
def test_an_error_before_anything_was_done(ask: Any, script: Any, document: str, debug: bool) -> None:
    model = script("def root(call): return Reply(error=RuntimeError('no such deployment'))")
    result = ask("q", document, "--model", model, *(["--debug"] if debug else []))
    assert (result.code, result.out) == (exits.ERROR, "")
    assert "no such deployment" in result.err
    assert ("Traceback" in result.err) == debug


def test_time_limit(ask: Any, script: Any, document: str) -> None:
    source = """
def root(call):
    return final(answer="late") if answering(call) else code("while True: pass")
"""
    result = ask("q", document, "--model", script(source), "--max-seconds", "0.5")
    assert (result.code, result.out) == (exits.EXTRACTED, "late\n")
    assert "max_seconds" in result.err


SCHEMA = {"outputs", "outcome", "limit", "error", "usage", "seconds"}


def test_json(ask: Any, script: Any, document: str) -> None:
    model = script(
        """
def root(call):
    return [code("x = llm_query('hm')\\nprint(x)", "ask"), code("SUBMIT(x)")][call.turn]
def sub(call):
    return "yes \\ud83d\\ude00 \\x1b[31m"
"""
    )
    brief = ask("q", document, "--json", "--model", model)
    report = json.loads(brief.out)
    assert brief.code == 0 and brief.out.count("\n") == 1 and brief.out.isascii()
    assert set(report) == SCHEMA
    assert (report["outcome"], report["limit"], report["error"]) == ("submitted", None, None)
    assert report["usage"]["turns"] == 2 and report["usage"]["calls"] == 1 and report["seconds"] > 0
    full = json.loads(ask("q", document, "--json", "full", "--model", model).out)
    assert set(full) == {*SCHEMA, "trajectory"} and full["outputs"] == report["outputs"]
    assert [turn["turn"] for turn in full["trajectory"]] == [1, 2]
    first = full["trajectory"][0]
    assert first["reasoning"] == "ask" and first["code"].startswith("x = ") and first["error"] is False
    assert [call["name"] for call in first["calls"]] == ["llm_query"]


def test_json_values_that_json_does_not_have(ask: Any, script: Any, document: str) -> None:
    model = script("def root(call): return code('SUBMIT([float(\"nan\"), float(\"inf\"), 1.5], \"\\\\ud800\")')")
    result = ask("q", document, "--json", "--model", model, "--signature", "context, query -> xs: list[float], s: str")
    assert json.loads(result.out)["outputs"] == {"xs": [None, None, 1.5], "s": "\ud800"}


def test_json_when_there_is_no_answer(ask: Any, script: Any, document: str) -> None:
    failed = json.loads(ask("q", document, "--json", "--model", script(CANNOT_ANSWER), "--max-iters", "1").out)
    partial = {"answer": "looking"}
    assert (failed["outputs"], failed["outcome"], failed["limit"]) == (partial, "failed", "max_iters")
    silent = script(CANNOT_ANSWER.replace("print('looking')", "x = 1"))
    assert json.loads(ask("q", document, "--json", "--model", silent, "--max-iters", "1").out)["outputs"] is None
    assert "the provider is down" in failed["error"]
    model = script("def root(call): return Reply(error=RuntimeError('no such deployment'))")
    result = ask("q", document, "--json", "--model", model)
    error = json.loads(result.out)
    assert result.code == exits.ERROR and set(error) == SCHEMA
    assert error["outcome"] == "failed" and "no such deployment" in error["error"]
    assert ask("q", document + ".missing", "--json", "--model", model).out == ""


def test_events(ask: Any, script: Any, document: str, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    result = ask("q", document, "--model", script(SUBMITS), "--events", str(file))
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert result.code == 0
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert [event["kind"] for event in events][:2] == ["run_started", "session_opened"]
    assert events[-1]["kind"] == "run_ended" and events[-1]["outcome"] == "submitted"


def test_events_to_a_full_disk_do_not_end_the_run(ask: Any, script: Any, document: str) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    result = ask("q", document, "--model", script(SUBMITS), "--events", "/dev/full")
    assert (result.code, result.out) == (0, "14\n")
    assert result.err.count("--events") == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--events", "/no/such/folder/x"], "/no/such/folder/x"),
        (["--max-iters", "0"], "max_iters"),
        (["--signature", "text -> answer"], "context and query"),
        (["--signature", "context, query, more -> answer"], "context and query"),
        (["--signature", "context, query"], "context, query"),
        (["--signature", "context, query -> usage: str"], "usage"),
        (["--env-opt", "no_such=1"], "no_such"),
        (["--strict"], "strict"),
        (["--model", "scripted:/no/such/file.py"], "/no/such/file.py"),
    ],
)
def test_usage_errors(ask: Any, script: Any, document: str, argv: list[str], message: str) -> None:
    result = ask("q", document, "--model", script(SUBMITS), *argv)
    assert (result.code, result.out) == (exits.USAGE, "")
    assert message in result.err and "Traceback" not in result.err


def test_unknown_interpreter_and_model_less_calls(ask: Any, document: str, script: Any) -> None:
    result = ask("q", document, "--model", script(SUBMITS), interpreter="lokal")
    assert result.code == exits.USAGE and "local" in result.err
    result = ask("q", document)
    assert result.code == exits.USAGE
    for word in ("RLM_DSPY_MODEL", "OPENAI_API_KEY", "--api-base"):
        assert word in result.err


def test_the_model_from_the_environment(
    ask: Any, document: str, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLM_DSPY_MODEL", script(SUBMITS))
    assert ask("q", document).out == "14\n"


def test_a_script_that_fails_or_defines_nothing(ask: Any, document: str, script: Any) -> None:
    result = ask("q", document, "--model", script("1 / 0"))
    assert result.code == exits.USAGE and "ZeroDivisionError" in result.err
    result = ask("q", document, "--model", script("x = 1"))
    assert result.code == exits.USAGE and "root(call)" in result.err


def test_a_sub_model_of_its_own(ask: Any, document: str, script: Any) -> None:
    root = script("def root(call): return code('SUBMIT(llm_query(\"hm\"))')\ndef sub(call): return 'own'")
    other = script("def root(call): return 'other'")
    assert ask("q", document, "--model", root).out == "own\n"
    assert ask("q", document, "--model", root, "--sub-model", other).out == "other\n"


def test_env_options_reach_the_sandbox(ask: Any, document: str, script: Any) -> None:
    source = """
def root(call):
    return code("while True: pass") if call.turn == 0 else code("SUBMIT('went on')")
"""
    result = ask("q", document, "--model", script(source), "--env-opt", "timeout=0.3", interpreter="local")
    assert (result.code, result.out) == (0, "went on\n")


def test_strict_holds_or_refuses(ask: Any, document: str, script: Any) -> None:
    result = ask("q", document, "--model", script(SUBMITS), "--strict", interpreter="local")
    assert (result.code == 0) == (not Local().describe().missing), result.err
    assert result.code in (exits.SUBMITTED, exits.ERROR)


def test_several_documents_and_stdin(script: Any, document: str) -> None:
    model = script("def root(call): return code('SUBMIT(sorted(context.items()))')")
    argv = [sys.executable, "-m", "rlm_dspy.cli", "ask", "q", "-", document, "--model", model, "--interpreter"]
    argv += ["subprocess", "--signature", "context, query -> items: list"]
    done = subprocess.run(argv, input=b"piped\r\n", capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["document.txt", "one\ntwo\nthree\n"], ["stdin", "piped\r\n"]]


def test_notes_on_documents_unless_quiet(ask: Any, script: Any, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_bytes(b"caf\xe9")
    argv = ["q", str(tmp_path / "old.txt"), "--model", script("def root(call): return code('SUBMIT(context)')")]
    loud, quiet = ask(*argv), ask(*argv, "--quiet")
    assert loud.out == quiet.out == "café\n"
    assert "Latin-1" in loud.err and quiet.err == ""


def test_a_pipe_gets_the_answer_as_it_is(script: Any, document: str) -> None:
    model = script("def root(call): return code('SUBMIT(\"a\\\\x1b[31m\\\\0\\\\r\\\\n\\\\ud800é\")')")
    argv = [sys.executable, "-m", "rlm_dspy.cli", "ask", "q", document, "--model", model, "--interpreter", "subprocess"]
    done = subprocess.run(argv, capture_output=True, timeout=60)
    assert done.stdout == b"a\x1b[31m\0\r\n\\ud800\xc3\xa9\n", done.stderr
    done = subprocess.run(argv, capture_output=True, timeout=60, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.stdout == b"a\x1b[31m\0\r\n\\ud800\\xe9\n", done.stderr


def test_a_reader_that_has_gone(script: Any, document: str) -> None:
    model = script("def root(call): return code('SUBMIT(\"x\" * 1_000_000)')")
    argv = [sys.executable, "-m", "rlm_dspy.cli", "ask", "q", document, "--model", model, "--interpreter", "subprocess"]
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(write)
    assert done.returncode == exits.SUBMITTED
    assert "Broken" not in done.stderr and "Traceback" not in done.stderr


def test_dspy_settings_are_left_alone(ask: Any, script: Any, document: str) -> None:
    import dspy

    before = (dspy.settings.lm, dspy.cache, dspy.settings.callbacks)
    assert ask("q", document, "--model", script(SUBMITS)).code == 0
    assert (dspy.settings.lm, dspy.cache, dspy.settings.callbacks) == before


def test_local_servers_need_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def key(model: str, base: str | None) -> Any:
        return models(model, None, base)[0].kwargs.get("api_key")

    assert key("openai/q", "http://127.0.0.1:8000/v1") == "none"
    assert key("openai/q", "http://localhost:8000/v1") == "none"
    assert key("openai/q", "http://[::1]:8000/v1") == "none"
    assert key("openai/q", "https://models.example.org/v1") is None
    assert key("openai/q", None) is None
    monkeypatch.setenv("OPENAI_API_KEY", "k" * 20)
    assert key("openai/q", "http://127.0.0.1:8000/v1") is None


def test_the_api_base_is_not_given_to_another_provider() -> None:
    base = "http://127.0.0.1:8000/v1"
    _, same = models("openai/a", "openai/b", base)
    _, other = models("openai/a", "anthropic/b", base)
    assert same is not None and other is not None
    assert same.kwargs.get("api_base") == base and "api_base" not in other.kwargs


@pytest.fixture(autouse=True)
def _no_process_left(adopted: Callable[[], None]) -> Any:
    yield


def test_an_empty_question_is_a_usage_error(ask: Any, script: Any, document: str) -> None:
    result = ask(" \n", document, "--model", script(SUBMITS))
    assert (result.code, result.out) == (exits.USAGE, "") and "the question is empty" in result.err

"""On a terminal: progress, Ctrl-C, control characters, and nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy.cli import exits

ASK = ("-m", "rlm_dspy.cli", "ask", "q")
ENDLESS = """
def root(call):
    if answering(call):
        return Reply(final(answer="partial 17"), delay={delay})
    return code("print('partial 17')", "look first") if call.turn == 0 else code("while True: pass", "go on for ever")
"""
STOPPING = "stopping: asking for the best answer so far (Ctrl-C again to give up)"


@pytest.fixture(params=["local", "subprocess"])
def interpreter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_first_ctrl_c_gives_the_best_answer_so_far(
    terminal: Any, script: Any, document: str, adopted: Callable[[], None], interpreter: str
) -> None:
    model = script(ENDLESS.format(delay=0))
    shown = terminal(*ASK, document, "--model", model, "--interpreter", interpreter)
    shown.expect("turn 2/20, running code")
    shown.type("\x03")
    assert shown.wait() == exits.EXTRACTED
    assert STOPPING in shown.text and "interrupted" in shown.text
    assert shown.text.rstrip().endswith("\npartial 17")
    assert shown.text.count("Traceback") == shown.text.count('File "<cell 2>"'), "a traceback of the program's own"
    adopted()


def test_the_second_ctrl_c_gives_up(
    terminal: Any, script: Any, document: str, adopted: Callable[[], None], interpreter: str
) -> None:
    model = script(ENDLESS.format(delay=3600))
    shown = terminal(*ASK, document, "--model", model, "--interpreter", interpreter)
    shown.expect("turn 2/20, running code")
    shown.type("\x03")
    # Waits for the request for an answer, not only for the message that announces it.
    shown.expect("asking for the best answer so far,")
    shown.type("\x03")
    assert shown.wait() == exits.INTERRUPTED
    assert "no answer" in shown.text
    assert shown.text.count("Traceback") == shown.text.count('File "<cell 2>"'), "a traceback of the program's own"
    assert shown.raw.rindex(b"\x1b[?25h") > shown.raw.rindex(b"\x1b[?25l"), "the cursor stays hidden"
    adopted()


def test_the_third_ctrl_c_leaves_a_blocked_process(
    terminal: Any, script: Any, document: str, tmp_path: Path, adopted: Callable[[], None]
) -> None:
    # Nobody reads the event log, so that writing to it blocks the event loop, and neither of the first two can act.
    events = tmp_path / "events"
    os.mkfifo(events)
    reader = os.open(events, os.O_RDONLY | os.O_NONBLOCK)
    try:
        model = script("def root(call): return code('print(1_000_000 * chr(120))')")
        argv = (*ASK, document, "--model", model, "--interpreter", "subprocess", "--events", str(events))
        shown = terminal(*argv)
        shown.expect("ran 0.")
        for _ in range(100):
            # Signals that come too quickly after one another are one signal, so how many it takes is not known.
            shown.type("\x03")
            try:
                assert shown.process.wait(timeout=0.2) == exits.INTERRUPTED
                break
            except subprocess.TimeoutExpired:
                continue
        assert shown.wait() == exits.INTERRUPTED
    finally:
        os.close(reader)
    assert shown.raw.rindex(b"\x1b[?25h") > shown.raw.rindex(b"\x1b[?25l"), "the cursor stays hidden"
    adopted()


def test_ctrl_c_while_reading_documents(terminal: Any, script: Any, adopted: Callable[[], None]) -> None:
    shown = terminal(*ASK, "-", "--model", script("root = []"))
    shown.expect("end it with Ctrl-D")
    shown.type("\x03")
    assert shown.wait() == exits.INTERRUPTED
    assert "Traceback" not in shown.text
    adopted()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, exits.INTERRUPTED), (signal.SIGINT, exits.EXTRACTED)])
def test_signals_without_a_terminal(
    script: Any, document: str, tmp_path: Path, adopted: Callable[[], None], number: int, code: int
) -> None:
    events = tmp_path / "events"
    os.mkfifo(events)
    model = script(ENDLESS.format(delay=0))
    argv = [sys.executable, *ASK, document, "--model", model, "--events", str(events), "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        with open(events) as log:
            for line in log:
                if '"kind": "acted"' in line and '"turn": 2' in line:
                    process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert ('"outputs": {"answer": "partial 17"}' in out) == (code == exits.EXTRACTED)
    assert '"outcome": "failed"' in out or code == exits.EXTRACTED
    assert "Traceback" not in err
    adopted()


def test_progress(terminal: Any, script: Any, document: str) -> None:
    model = script(
        """
def root(call):
    if call.turn == 0:
        return code("print(context)\\nprint(llm_query_batched(['a', 'bad', 'c']))\\n1 / 0", "Look [bold]here[/bold]")
    return code("SUBMIT('done')", "Submit")
def sub(call):
    return Reply(error=RuntimeError("no")) if call.prompt == "bad" else "fine"
"""
    )
    shown = terminal(*ASK, document, "--model", model)
    assert shown.wait() == 0
    for text in (
        "context, query -> answer",
        "sandbox: local (",
        "turn 1/20",
        "plan: Look [bold]here[/bold]",
        "calls: 2 done, 1 failed",
        "llm_query_batched failed",
        "ZeroDivisionError",
        "turn 2/20",
        "submitted in",
    ):
        assert text in shown.text
    assert b"\x1b[31m" in shown.raw, "errors are red"
    assert shown.text.endswith("\ndone\n")


@pytest.mark.parametrize("argv", [["--quiet"], ["--no-color"]])
def test_quiet_and_no_colour(terminal: Any, script: Any, document: str, argv: list[str]) -> None:
    shown = terminal(*ASK, document, "--model", script("def root(call): return code('SUBMIT(1)', 'p')"), *argv)
    assert shown.wait() == 0
    if argv == ["--quiet"]:
        assert shown.raw == b"1\r\n"
    else:
        assert "plan: p" in shown.text
        assert b"\x1b[3" not in shown.raw and b"\x1b[9" not in shown.raw, "there is colour"


def test_no_control_character_of_data_or_models_reaches_the_terminal(
    terminal: Any, script: Any, tmp_path: Path
) -> None:
    # OSC 0 sets the window's title, DCS and CSI do worse; C1 codes are the same without ESC.
    evil = "\x1b]0;owned\x07\x1b[2J\x1bP1$r\x1b\\\x9b31m\x90q\x9c\r\b\x00\u202eevil"
    path = tmp_path / "evil\x1b]0;owned\x07.txt"
    path.write_text(evil)
    model = script(
        f"EVIL = {evil!r}\n"
        """
def root(call):
    if call.turn == 0:
        return code("print(context)\\nllm_query(context)\\nraise ValueError(context)", "plan " + EVIL)
    if call.turn == 1:
        return "no code " + EVIL
    return code("SUBMIT(context)  # " + EVIL.replace("\\0", "").replace("\\r", ""), EVIL)
def sub(call):
    return Reply(error=RuntimeError(EVIL))
"""
    )
    shown = terminal(*ASK, str(path), str(path.parent), "--model", model)
    shown.wait()
    single = terminal(*ASK, str(path), "--model", model)
    assert single.wait() == 0, single.text
    for raw in (shown.raw, single.raw):
        text = raw.decode()
        assert "owned" in text
        for bad in ("\x1b]", "\x1bP", "\x9b", "\x90", "\x9c", "\x07", "\b", "\0", "\u202e", "\x1b[2J"):
            assert bad not in text, repr(bad)


def test_the_answer_goes_to_a_pipe_while_progress_goes_to_the_terminal(
    terminal: Any, script: Any, document: str
) -> None:
    read, write = os.pipe()
    model = script("def root(call): return code('SUBMIT(\"\\\\x1b[1mraw\")', 'p')")
    shown = terminal(*ASK, document, "--model", model, stdout=write)
    os.close(write)
    with open(read, "rb") as out:
        assert out.read() == b"\x1b[1mraw\n"
    assert shown.wait() == 0
    assert "plan: p" in shown.text and "submitted in" in shown.text


def test_children_at_work_are_a_tree_below_the_lines(
    terminal: Any, script: Any, document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Children reply when the whole tree has been seen, and it is gone when they have."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "30")
    go = tmp_path / "go"
    model = script(
        f"GO = {str(go)!r}\n"
        """
import os, time
def root(call):
    if "Read part" in call.own[0]["content"]:
        deadline = time.monotonic() + 60
        while not os.path.exists(GO) and time.monotonic() < deadline:
            time.sleep(0.01)
        return code("SUBMIT('read')", "p")
    if call.turn == 0:
        return code("print(rlm_query_batched([{'prompt': f'Read part {n}'} for n in range(10)]))", "Divide it.")
    return code("SUBMIT('done')", "Submit")
"""
    )
    shown = terminal(
        *ASK, document, "--model", model, "--interpreter", "subprocess", "--max-depth", "2", "--max-tokens", "99999"
    )
    for text in ("├ [", "] turn 1/20, asking the model, ", "└ and 3 more runs", "of 99,999 tokens"):
        shown.expect(text)
    go.touch()
    assert shown.wait() == 0
    assert shown.text.endswith("\ndone\n") and shown.text.count("| submitted in") == 10
    assert shown.raw.rindex(b"\x1b[?25h") > shown.raw.rindex(b"\x1b[?25l"), "the cursor stays hidden"


def test_without_a_terminal_there_is_no_tree(script: Any, document: str) -> None:
    model = script("def root(call): return code(\"print(rlm_query('go'))\" if call.turn == 0 else 'SUBMIT(1)', 'p')")
    argv = [sys.executable, *ASK, document, "--model", model, "--interpreter", "subprocess", "--max-depth", "2"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "1\n"
    assert not any(mark in done.stderr for mark in ("\x1b", "├", "└", "spent:", "\r")), done.stderr


@pytest.mark.parametrize("colour", [True, False])
def test_a_narrow_terminal_shows_the_tree_and_nothing_of_it_stays_behind(
    terminal: Any, script: Any, document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colour: bool
) -> None:
    """40 columns and 12 lines, then 60 columns, while four children write line after line."""
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    go = tmp_path / "go"
    model = script(
        f"GO = {str(go)!r}\n"
        """
import os, time
def root(call):
    if "Read part" in call.own[0]["content"]:
        if call.turn < 12:
            return code(f"print('line of a child ' * {call.turn})", "A plan that does not fit into one line of it.")
        return code("print(llm_query_batched(['a', 'b', 'c']))\\nSUBMIT('read')", "p")
    if call.turn == 0:
        return code("print(rlm_query_batched([{'prompt': f'Read part {n}'} for n in range(4)]))", "Divide it.")
    return code("SUBMIT('done')", "Submit")
def sub(call):
    deadline = time.monotonic() + 60
    while not os.path.exists(GO) and time.monotonic() < deadline:
        time.sleep(0.01)
    return "fine"
"""
    )
    run = (*ASK, document, "--model", model, "--interpreter", "inprocess", "--max-depth", "2")
    run = (*run, "--max-llm-calls", "500")
    shown = terminal("-c", f"import sys; from rlm_dspy.cli import main; sys.exit(main({list(run[2:])!r}))")
    shown.resize(40, 12)
    shown.expect("] turn 13/20, running code,")
    narrow = [line for line in shown.display(40, 12) if line]
    assert any(line.lstrip().startswith(("├", "└")) for line in narrow), narrow
    shown.resize(60, 12)
    go.touch()
    assert shown.wait() == 0
    assert (b"\x1b[36m" in shown.raw) is colour
    assert shown.raw.rindex(b"\x1b[?25h") > shown.raw.rindex(b"\x1b[?25l"), "the cursor stays hidden"
    final = shown.display(60, 5_000)
    assert not [line for line in final if "spent:" in line or line.lstrip().startswith(("├", "└"))]
    assert sum("line of a child" in line for line in final) > 20 and sum("submitted in" in line for line in final) == 5

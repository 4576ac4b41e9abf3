"""The live console: what a person sees of runs, on terminals and elsewhere."""

from __future__ import annotations

import asyncio
import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import dspy
import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlm_dspy
from rlm_dspy import RLM
from rlm_dspy.console import ConsoleSubscriber, verbose_printer
from rlm_dspy.live_area import ASCII_BRANCHES, BRANCHES, Row, area, telling
from rlm_dspy.screen import TerminalScreen
from rlm_dspy.testing import Call, Reply, ScriptedLM, code


def run(stream: Any, root: Any, sub: Any = "fine", verbose: bool = False, **options: Any) -> dspy.Prediction:
    """One run in a plain subprocess, shown on ``stream``."""
    live = options.pop("live", None)
    rlm = RLM("context -> answer: str", interpreter="subprocess", verbose=verbose, **options)
    rlm.sub_lm = ScriptedLM(sub if callable(sub) else (lambda call: sub))
    with dspy.context(lm=ScriptedLM(root)):
        if verbose:
            return rlm(context="text")
        with rlm_dspy.subscribe(ConsoleSubscriber(stream, live=live)):
            return rlm(context="text")


def test_plain_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    bad = Reply(error=RuntimeError("too busy"))
    replies = [
        code("print('seen')\nprint(llm_query_batched(['a', 'bad']))\n1 / 0", "Look at\nit first."),
        "I have no code for you.",
        code("SUBMIT('the answer')", "Submit."),
    ]
    run(stream, replies, lambda call: bad if call.prompt == "bad" else "fine")
    text = stream.getvalue()
    assert "\x1b" not in text and "\r" not in text
    lines = [line.rstrip() for line in text.splitlines()]
    for line in ("  plan: Look at it first.", "    print('seen')", "    seen", "  answer: the answer"):
        assert line in lines
    for part in ("turn 1/20", "turn 3/20", "context: str, 4 characters", "NOT CONFINED", "2 sub-calls", "too busy"):
        assert part in text
    assert "calls: 1 done, 1 failed" in text and "ZeroDivisionError: division by zero" in text
    assert "reply: I have no code for you." in text and "submitted in" in text


def test_a_limit_and_a_failure() -> None:
    stream = io.StringIO()
    pred = run(
        stream,
        lambda call: code("print(1)") if call.turn < 2 and "No more code" not in call.prompt + call.system else "",
        max_iters=2,
    )
    assert "stopped: max_iters" in stream.getvalue()
    assert f"{pred.outcome} (max_iters)" in stream.getvalue()


def test_long_code_and_output_are_shortened() -> None:
    stream = io.StringIO()
    source = "\n".join([f"x{i} = {i}" for i in range(500)] + ["print('y' * 1_000_000)", "SUBMIT('ok')"])
    run(stream, [code(source)])
    text = stream.getvalue()
    assert len(text) < 10_000
    assert "x0 = 0" in text and "x250 = 250" not in text and "SUBMIT('ok')" in text
    assert "lines left out" in text and "characters left out" in text


def test_markup_is_not_interpreted() -> None:
    stream = io.StringIO()
    run(stream, [code("print('[bold]b[/bold] [/] :smile:')\nSUBMIT('[red]a')", "[link=x]p[/link]")], live=True)
    text = stream.getvalue()
    for part in ("[bold]b[/bold] [/] :smile:", "[red]a", "[link=x]p[/link]"):
        assert part in text


def test_a_live_area_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream, before = io.StringIO(), (sys.stdout, sys.stderr)
    threads = set(threading.enumerate())
    run(stream, [code("x = 1"), code("SUBMIT('a')")], live=True)
    text = stream.getvalue()
    assert "\x1b[?25l" in text and text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert (sys.stdout, sys.stderr) == before
    for thread in set(threading.enumerate()) - threads:
        if type(thread).__module__.startswith("rich."):
            thread.join(60)
            assert not thread.is_alive()


def test_live_false_is_colour_without_a_live_area(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    run(stream, [code("SUBMIT('a')")], live=False)
    assert "\x1b[1m" in stream.getvalue() and "\x1b[?25l" not in stream.getvalue()


def test_verbose_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    run(None, [code("SUBMIT('a')", "the plan")], verbose=True)
    captured = capsys.readouterr()
    assert captured.out == "" and "plan: the plan" in captured.err and "\x1b" not in captured.err
    assert isinstance(verbose_printer(), ConsoleSubscriber)


class Failing(io.StringIO):
    """A stream whose reader goes away after some lines."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.left = 3
        self.error = error

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("I/O operation on closed file"), OSError(28, "full")])
def test_a_stream_that_fails_does_not_end_the_run(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    assert run(Failing(error), [code("x = 1"), code("SUBMIT('a')")]).answer == "a"
    assert not caplog.records


def test_any_encoding_and_any_text() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    run(stream, [code("print('\\ud800 é \\x00')\nSUBMIT('\\udfff ü')", "日本")])
    stream.flush()
    text = raw.getvalue().decode("ascii")
    assert "\\ud800 \\xe9 \\x00" in text and "\\udfff \\xfc" in text and "\\u65e5\\u672c" in text


def test_runs_at_the_same_time_are_told_apart() -> None:
    stream = io.StringIO()
    started: set[str] = set()
    everyone = asyncio.Event()

    def meet(event: rlm_dspy.Event, run: rlm_dspy.Run) -> None:
        if event.kind == "session_opened":
            started.add(run.id)
            if len(started) == 4:
                everyone.set()

    async def wait() -> str:
        await asyncio.wait_for(everyone.wait(), 60)
        return "met"

    rlm = RLM("context -> answer: str", interpreter="subprocess", tools=[wait])

    async def main() -> list[Any]:
        return await asyncio.gather(*(rlm.acall(context=str(i)) for i in range(4)))

    root = ScriptedLM(lambda call: code("wait()\nSUBMIT(context)", "p"))
    with dspy.context(lm=root), rlm_dspy.subscribe(ConsoleSubscriber(stream)), rlm_dspy.subscribe(meet):
        answers = [pred.answer for pred in asyncio.run(main())]
    assert answers == ["0", "1", "2", "3"]
    lines = stream.getvalue().splitlines()
    for number in started:
        mine = [line for line in lines if line.startswith(f"[{number[:4]}]")]
        assert any("submitted in" in line for line in mine) and any("plan: p" in line for line in mine)
    assert {line.split("answer: ")[1] for line in lines if "answer: " in line} == set(answers)


@pytest.mark.parametrize("live", [None, True])
def test_children_are_indented_by_their_depth(live: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a run says stands behind its name and as many bars as it is deep, its code too."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    stream = io.StringIO()
    steps = {
        "LEAF": ["leaf = 1\nSUBMIT('from the leaf')"],
        "MIDDLE": ["print(rlm_query('LEAF'))", "SUBMIT('from the middle')"],
        "ROOT": ["print(rlm_query_batched(['MIDDLE a', 'MIDDLE b']))", "SUBMIT('r')"],
    }

    def root(call: Call) -> str:
        own = next(steps for word, steps in steps.items() if word in call.own[0]["content"])
        return code(own[min(call.turn, len(own) - 1)], "a plan")

    rlm = RLM("query -> answer: str", interpreter="inprocess", max_depth=3, guidance=False)
    depths: dict[str, int] = {}
    with dspy.context(lm=ScriptedLM(root)), rlm_dspy.subscribe(ConsoleSubscriber(stream, live=live)):
        with rlm_dspy.subscribe(lambda event, run: depths.setdefault(run.id[:4], event.depth)):
            rlm(query="ROOT")
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in stream.getvalue().splitlines()]
    assert sorted(depths.values()) == [0, 1, 1, 2, 2]
    for name, depth in depths.items():
        mine = [line.removeprefix(f"[{name}] ") for line in lines if line.startswith(f"[{name}]")]
        if depth:
            assert mine and all(line.startswith("| " * depth) and line[2 * depth] != "|" for line in mine), mine
            bare = [line[2 * depth :] for line in mine]
            assert bare[0].startswith(f"rlm {name}") and "  plan: a plan" in bare
            assert "    SUBMIT('from the leaf')" in bare or "    print(rlm_query('LEAF'))" in bare
            assert sum("submitted in" in line for line in bare) == 1
    assert not any(line.lstrip().startswith("leaf = 1") for line in lines), "no code without a name"


def test_many_runs_on_one_live_area(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = io.StringIO()
    rlm = RLM("context -> answer: str", interpreter="inprocess")

    async def main() -> list[Any]:
        return await asyncio.gather(*(rlm.acall(context=str(i)) for i in range(20)))

    def root(call: Any) -> Reply:
        return Reply(code("SUBMIT(context)"), delay=0.3)

    with dspy.context(lm=ScriptedLM(root)), rlm_dspy.subscribe(ConsoleSubscriber(stream, live=True)):
        asyncio.run(main())
    text = stream.getvalue()
    assert text.count("submitted in") == 20
    assert text.count("\x1b[?25l") == 1 and "and 12 more runs" in text


def test_a_cancelled_run_gives_the_terminal_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = io.StringIO()
    rlm = RLM("context -> answer: str", interpreter="subprocess")
    running = asyncio.Event()

    def notice(event: rlm_dspy.Event, run: rlm_dspy.Run) -> None:
        if event.kind == "turn_started":
            running.set()

    async def main() -> None:
        task = asyncio.ensure_future(rlm.acall(context="x"))
        await asyncio.wait_for(running.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    def late(call: Call) -> str:
        # A request that is under way in a thread cannot be called back: the test ends it itself.
        over.wait(60)
        return "late"

    over = threading.Event()
    root = ScriptedLM(late)
    try:
        with (
            dspy.context(lm=root),
            rlm_dspy.subscribe(ConsoleSubscriber(stream, live=True)),
            rlm_dspy.subscribe(notice),
        ):
            asyncio.run(main())
    finally:
        over.set()
    text = stream.getvalue()
    assert "cancelled" in text and text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


@pytest.mark.parametrize("shown", [True, False])
def test_outputs_and_errors_may_be_left_to_others(shown: bool) -> None:
    stream = io.StringIO()
    subscriber = ConsoleSubscriber(stream, outputs=shown, errors=shown)
    rlm = RLM("context -> answer: str", interpreter="inprocess")
    with rlm_dspy.subscribe(subscriber):
        with dspy.context(lm=ScriptedLM([code("SUBMIT('the answer')")])):
            rlm(context="x")
        with dspy.context(lm=ScriptedLM([Reply(error=RuntimeError("out of order"))])), pytest.raises(dspy.DSPyError):
            rlm(context="x")
    text = stream.getvalue()
    assert "submitted in" in text and "failed in" in text
    assert ("answer: the answer" in text) == shown and ("out of order" in text) == shown


def test_importing_the_console_does_not_import_rich() -> None:
    program = "import sys, rlm_dspy.console, rlm_dspy.screen; sys.exit('rich' in sys.modules or 'dspy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, env=dict(os.environ)).returncode == 0


# -------------------------------------------------------------------------------------------------- the tree, live


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize("children", [2, 12])
def test_the_live_area_is_the_tree_of_runs(
    children: int, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., bool]
) -> None:
    """Turn, code, calls in flight, children and spend, in few lines; the lines above stay few with many children."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("LINES", "40")
    stream = io.StringIO()
    reply = code("x = 1\nSUBMIT('c')", "A child's plan.")

    def shown(*texts: str) -> bool:
        return eventually(lambda: all(text in plain(stream.getvalue()) for text in texts), 60)

    def root(call: Call) -> str:
        if "Sum up part" in call.own[0]["content"]:
            assert shown("├ [", "] turn 1/20, asking the model, ", "└ and 5 more runs: " if children == 12 else "└ [")
            return reply
        if call.turn == 0:
            return code("asks = [f'clause {n}' for n in range(3)]\nprint(llm_query_batched(asks))", "Ask.")
        if call.turn == 1:
            asked = f"[dict(prompt=f'Sum up part {{n}}') for n in range({children})]"
            return code(f"print(rlm_query_batched({asked}))", "Let others read.")
        return code("SUBMIT('a')", "Done.")

    def sub(call: Call) -> str:
        assert shown(
            "    asks = [f'clause {n}' for n in range(3)]\n",
            "    llm_query_batched: clause 0 (and 2 more)\n",
            "spent: 0 of 50 sub-calls, ",
        )
        return "fine"

    limits: dict[str, Any] = {"max_tokens": 900_000, "max_cost": 5.0, "max_seconds": 300}
    rlm = RLM("query -> answer: str", interpreter="inprocess", max_depth=2, prices={"scripted/lm": (1, 2)}, **limits)
    rlm.sub_lm = ScriptedLM(sub)
    with dspy.context(lm=ScriptedLM(root)), rlm_dspy.subscribe(ConsoleSubscriber(stream, live=True)):
        assert rlm(query="ROOT").answer == "a"
    text = plain(stream.getvalue())
    assert re.search(r"spent: 3 of 50 sub-calls, [\d,]+ of 900,000 tokens, \$0\.0\d+ of \$5\.00, \d+ of 300 s", text)
    assert "Sum up part 1" in text
    # In full for the first ones, of the others how they ended and what they were asked.
    assert text.count("plan: A child's plan.") == min(children, 4)
    ends = [line for line in text.splitlines() if "| submitted in" in line]
    assert len(ends) == children
    assert sum("(Sum up part" in line for line in ends) == children - min(children, 4)


@given(
    st.lists(st.integers(0, 40), max_size=40),
    st.integers(1, 20),
    st.booleans(),
    st.lists(st.text(max_size=30), max_size=12),
    st.booleans(),
)
def test_the_live_area_keeps_its_height_and_counts_every_run(
    parents: list[int], height: int, many: bool, lines: list[str], ascii_only: bool
) -> None:
    """Row n is a child of an earlier one, or a root where there may be many."""
    root = Row(label="row 0.", code="\n".join(lines), calls=("a call",), spent=lambda: "1 of 2")
    rows = [root]
    for number, parent in enumerate(parents, 1):
        above = parent % (len(rows) + many)
        rows.append(Row(label=f"row {number}.", doing="busy", parent=rows[above] if above < len(rows) else None))
    shown = [line for line, _ in area(rows, height, "|", ASCII_BRANCHES if ascii_only else BRANCHES)]
    assert 1 <= len(shown) <= height
    told = [row.label for row in rows if any(row.label in line for line in shown)]
    assert "row 0." in told
    if height > 3:
        more = next((int(m[1]) for line in shown if (m := re.search(r"and (\d+) more runs", line))), 0)
        assert len(told) + more == len(rows)
        assert not any("\n" in line for line in shown)


def test_the_telling_line_of_code_is_where_it_asks_others() -> None:
    assert telling("a = 1\n# llm_query(x)\nb = llm_query(a)\nprint(b)") == "b = llm_query(a)"
    assert telling("a = 1\nprint(a)\n\n") == "print(a)" and telling("") == ""


def test_nothing_is_lost_or_left_behind_when_many_write_while_the_live_area_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The area is drawn anew as often as can be, while four threads write and the number of its rows changes."""
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("rlm_dspy.screen._REFRESH_SECONDS", 0.002)
    stream = io.StringIO()
    screen = TerminalScreen(stream, live=True)
    screen.add(Row(label="row"))

    def write(name: int) -> None:
        for number in range(100):
            screen.line(f"line {number}", "red", 2, f"[{name}] ")
            if number % 10 == 0:
                row = Row(label="row of a child")
                screen.add(row)
                screen.line(f"line {number} too", "", 2, f"[{name}] ")
                screen.remove(row)

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    screen.close()
    shown = pyte.Screen(80, 1_000)
    pyte.Stream(shown).feed(stream.getvalue().replace("\n", "\r\n"))
    lines = sorted(line.rstrip() for line in shown.display if line.strip())
    numbers = [f"{n}{more}" for n in range(100) for more in ("", " too")[: 1 + (n % 10 == 0)]]
    assert lines == sorted(f"[{name}]   line {number}" for name in range(4) for number in numbers)

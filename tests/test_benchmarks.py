"""The benchmark runs and measures what it says; its numbers are judged only as ratios, and generously."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def python(code: str, *arguments: str) -> str:
    """What ``code`` prints, run from the checkout's root, where ``benchmarks`` can be imported."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bench(*options: str, limit: float = 300) -> subprocess.CompletedProcess[str]:
    """The command, without its wrapping."""
    command = [sys.executable, "-m", "benchmarks.engine", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)


def cells(table: str) -> dict[str, list[str]]:
    """By the first cell of a row, the others."""
    rows = [line.strip().strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


class TestScripts:
    """What the server plays."""

    def test_context_has_the_size_that_is_asked_for(self) -> None:
        code = "from benchmarks.work import context; print([len(context(n)) for n in (0, 1, 10, 10_000, 123_457)])"
        assert json.loads(python(code)) == [0, 1, 10, 10_000, 123_457]

    def test_no_turn_repeats_the_code_or_the_output_of_another(self) -> None:
        """An engine may stop a root that does; every script of every work is played against a fake REPL."""
        out = python(
            "import contextlib, io, re\n"
            "from benchmarks.curves import CURVES\n"
            "from benchmarks.replies import reply\n"
            "from benchmarks.work import WORKS\n"
            "for work in [*WORKS, *(point for curve in CURVES for point in curve.points)]:\n"
            "    if work.context > 10_000: continue\n"
            "    for dialect in ('rlms', 'dspy', 'ours'):\n"
            "        messages, seen, codes, said = [], {'context': 'c' * work.context}, [], []\n"
            "        seen['llm_query'] = lambda prompt: 'ok'\n"
            "        seen['llm_query_batched'] = lambda prompts: ['ok' for _ in prompts]\n"
            "        seen['SUBMIT'] = lambda answer: said.append(answer)\n"
            "        seen['answer'] = {}\n"
            "        for turn in range(1, work.turns + 1):\n"
            "            head = f'[[ ## iteration ## ]]\\n{turn}/9'\n"
            "            asked = [*messages, {'role': 'user', 'content': head}]\n"
            "            text, _ = reply(work.root_model(dialect), asked)\n"
            "            code = re.search(r'```\\w+\\n(.*?)\\n```', text, re.S)[1]\n"
            "            shown = io.StringIO()\n"
            "            with contextlib.redirect_stdout(shown): exec(code, seen)\n"
            "            codes.append((code, shown.getvalue()))\n"
            "            messages += [asked[-1], {'role': 'assistant', 'content': text}]\n"
            "        for column in zip(*codes): assert len(set(column)) == work.turns, (work.name, dialect, codes)\n"
            "        assert (said or [seen['answer']['content']]) == ['ok'], (work.name, dialect)\n"
            "        print(work.name, dialect)\n"
        )
        assert len(out.splitlines()) >= 3 * 12

    @pytest.mark.parametrize("dialect", ["rlms", "ours"])
    def test_turns_of_an_example_are_not_counted(self, dialect: str) -> None:
        """An engine may show the model how it is done before the task."""
        out = python(
            "from benchmarks.replies import turn_of\n"
            "shown = [{'role': 'assistant', 'content': 'I look first.'},\n"
            "         {'role': 'user', 'content': 'I take step 7.'}]\n"
            "own = {'role': 'assistant', 'content': 'I take step 1.\\n\\n```python\\nx\\n```'}\n"
            f"print(turn_of({dialect!r}, shown), turn_of({dialect!r}, [*shown, own]))"
        )
        assert out.split() == ["1", "2"]

    @pytest.mark.parametrize(
        ("replies", "context", "answer"),
        [
            (["ok", "ok"], "c" * 10, "ok"),
            (["ok", "error: no"], "c" * 10, "wrong"),
            (["ok"], "c" * 10, "wrong"),
            (["ok", "ok"], "c" * 9, "wrong"),
        ],
    )
    def test_what_was_lost_is_not_submitted_as_ok(self, replies: list[str], context: str, answer: str) -> None:
        code = (
            "import json, re, sys\n"
            "from benchmarks.replies import reply\n"
            "from benchmarks.work import Work\n"
            "messages = [{'role': 'assistant', 'content': 'I take step 1.'}]\n"
            "text, _ = reply(Work('', '', turns=2, batch=2).root_model('ours'), messages)\n"
            "replies, context = json.loads(sys.argv[1])\n"
            "exec(re.search(r'```python\\n(.*)\\n```', text, re.S)[1], "
            "{'replies': replies, 'context': context, 'SUBMIT': lambda answer: print(answer)})"
        )
        assert python(code, json.dumps([replies, context])).strip() == answer

    def test_prefixes_are_compared_turn_by_turn(self) -> None:
        out = python(
            "from benchmarks.server import Prefixes\n"
            "p = Prefixes()\n"
            "turns = ['aaaa', 'aaaabbbb', 'aaaaXbbb']\n"
            "for text in turns: p.note('m', [{'role': 'user', 'content': text}])\n"
            "print(p.report()['m'])"
        )
        # The role and the separators are part of the text: 5 more characters each time.
        assert out.strip() == str({"reused": (9 + 9) / (9 + 13), "messages": 1})


class TestTable:
    """What is made of numbers."""

    def test_bars_are_judged_by_the_least_time(self) -> None:
        out = python(
            "from benchmarks import table\n"
            "results = {('bare', 'serial'): {'seconds': [1.0, 2.0]}, ('ours', 'serial'): {'seconds': [3.0, 1.05]},\n"
            "           ('bare', 'start'): {'seconds': [0.01]},\n"
            "           ('ours', 'start'): {'seconds': [0.2], 'sandbox': 0.1},\n"
            "           ('ours', 'help'): {'seconds': [0.5]}, ('rlms', 'serial'): {'reason': 'failed'}}\n"
            "print(table.markdown(table.HEAD, table.rows(results)))"
        )
        rows = cells(out)
        serial = ["1 (1.5) s", "–", "–", "1.05 (2.02) s", "≤ 1.1 × bare = 1.1 s", "yes (0.95 ×)"]
        assert rows["200 serial sub-calls"] == serial
        assert rows["start + submit"][-1] == "NO (1.25 ×)"
        assert rows["rlm-dspy --help"][-1] == "NO (1.67 ×)"

    def test_an_engine_that_failed_leaves_the_rest_of_the_table(self) -> None:
        out = python(
            "from benchmarks import table\n"
            "failed = {'reason': 'failed'}\n"
            "results = {(engine, work.name): failed for engine in ('bare', 'ours') for work in table.WORKS}\n"
            "print(table.markdown(table.HEAD, table.rows(results)))"
        )
        rows = cells(out)
        assert rows["6 turns, 100 MB context"][3] == "–" and "- CPU a sub-call, host" in rows
        assert not [row for row in rows.values() if row[-1].startswith(("yes", "NO"))]


STORE = """
import json, sys
from pathlib import Path
from benchmarks import report
from benchmarks.store import Store
folder = Path(sys.argv[1])
def session(date, command, results):
    store = Store(folder / "results.json")
    store.sessions[date] = {"command": command, "machine": "m", "versions": {"ours": "rlm-dspy 1"}}
    for (engine, work), seconds in results.items():
        value = {"reason": seconds} if isinstance(seconds, str) else {"seconds": seconds, "cpu": seconds}
        store.put(date, engine, work, value)
    store.save()
"""


class TestStore:
    """What is kept between runs of the command."""

    def test_a_later_session_replaces_what_it_measured_and_no_more(self, tmp_path: Path) -> None:
        out = python(
            STORE + "session('2030-01-01', 'first', {('bare', 'serial'): [1.0], ('ours', 'serial'): [1.05]})\n"
            "session('2030-01-02', 'second', {('ours', 'serial'): [1.2], ('ours', 'help'): [0.1]})\n"
            "print(report.bars(Store(folder / 'results.json')))",
            str(tmp_path),
        )
        assert cells(out)["200 serial sub-calls"][3:] == ["1.2 (1.2) s", "≤ 1.1 × bare = 1.1 s", "NO (1.09 ×)"]
        assert out.index("second") < out.index("first"), "the latest session stands first"
        assert out.count("measured then: 200 serial sub-calls") == 2
        assert not [path for path in tmp_path.iterdir() if path.name != "results.json"]

    def test_a_session_of_which_nothing_is_left_is_dropped(self, tmp_path: Path) -> None:
        out = python(
            STORE + "session('2030-01-01', 'first', {('bare', 'serial'): [1.0]})\n"
            "session('2030-01-02', 'second', {('bare', 'serial'): [1.1]})\n"
            "print(report.bars(Store(folder / 'results.json')))",
            str(tmp_path),
        )
        assert "first" not in out and "measured then" not in out

    def test_reasons_are_said_once_for_all_that_they_are_of(self, tmp_path: Path) -> None:
        out = python(
            STORE + "session('2030-01-01', 'one', {('rlms', 'serial'): 'broke', ('rlms', 'batch'): 'broke'})\n"
            "print(report.bars(Store(folder / 'results.json')))",
            str(tmp_path),
        )
        assert "- rlms, 200 serial sub-calls, 500 sub-calls of 50 ms, width 64: broke" in out

    def test_results_that_cannot_be_read_are_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "results.json").write_text("[]")
        done = bench("--write", "--folder", str(tmp_path))
        assert done.returncode == 1 and "results.json cannot be read" in done.stderr
        assert (tmp_path / "results.json").read_text() == "[]"

    def test_replot_measures_nothing(self, tmp_path: Path) -> None:
        python(STORE + "session('2030-01-01', 'one', {('ours', 'calls-10'): [0.25]})", str(tmp_path))
        before = (tmp_path / "results.json").read_text()
        done = bench("--replot", "--folder", str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert cells((tmp_path / "RESULTS.md").read_text())["10"][3].startswith("0.25 s")
        assert (tmp_path / "results.json").read_text() == before
        drawn = (tmp_path / "plots" / "calls.svg").exists()
        assert drawn or "plots not drawn" in done.stderr, "whoever cannot draw says so"

    def test_the_committed_table_is_that_of_the_committed_numbers(self) -> None:
        folder = ROOT / "benchmarks"
        if not (folder / "results.json").exists():
            pytest.skip("nothing has been measured yet")
        code = (
            "from pathlib import Path; from benchmarks import report; from benchmarks.store import Store\n"
            "folder = Path('benchmarks')\n"
            "made = report.whole(Store(folder / 'results.json'), folder / 'plots')\n"
            "assert made == (folder / 'RESULTS.md').read_text()"
        )
        python(code)


class TestGuard:
    """Ratios that are watched at every commit."""

    NUMBERS = (
        "import sys\n"
        "from benchmarks.guard import SMALL, broken\n"
        "times = float(sys.argv[1])\n"
        "def results(slower):\n"
        "    found = {}\n"
        "    for work in SMALL:\n"
        "        factor = times if work.name in slower else 1\n"
        "        found['bare', work.name] = {'seconds': [0.1]}\n"
        "        found['ours', work.name] = {'seconds': [0.11 * factor], 'sandbox': 0.03, 'transfer': 0.01,\n"
        "            'host_growth': 0, 'workers_growth': 2 * factor * work.context}\n"
        "    return found\n"
        "names = [work.name for work in SMALL]\n"
    )

    def test_five_times_slower_is_seen_in_every_work(self) -> None:
        out = python(self.NUMBERS + "for name in names: print(name, *broken(results([name])))", "5")
        works = ["start", "turns", "context", "serial", "batch", "runs"]
        assert [line.split() for line in out.splitlines()] == [[work, work] for work in works]

    @pytest.mark.parametrize("slower", ["0.5", "1", "2"])
    def test_what_a_slow_machine_does_is_not(self, slower: str) -> None:
        assert python(self.NUMBERS + "print(broken(results(names)))", slower).strip() == "{}"

    def test_a_work_that_fails_is_reported(self) -> None:
        failed = "found = results([])\nfound['ours', 'batch'] = {'reason': 'failed: x'}\nprint(broken(found))"
        out = python(self.NUMBERS + failed, "1")
        assert "ours failed: x" in out

    def test_a_work_that_was_not_done_does_not_pass(self) -> None:
        out = python(self.NUMBERS + "found = results([])\ndel found['ours', 'runs']\nprint(broken(found))", "1")
        assert "ours not measured" in out and len(out.splitlines()) == 1

    @pytest.mark.heavy
    @pytest.mark.alone
    def test_ours_is_not_far_above_its_bars(self) -> None:
        command = [sys.executable, "-m", "benchmarks.guard"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr


PLAY = """
import dataclasses, sys
from benchmarks import memory, server
from benchmarks.process import Process
from benchmarks.work import WORKS, Work
with server.running() as address:
    def process(work, engine="bare"): return Process(sys.executable, engine, work, address)
"""


class TestProcesses:
    """Engines that fail, hang or die."""

    def test_an_engine_that_cannot_start_says_why(self) -> None:
        out = python(PLAY + "    with process(Work('', ''), 'nothing') as player: print(player.ready(), player.reason)")
        assert "None failed: ModuleNotFoundError: No module named 'benchmarks.engines.nothing'" in out

    def test_what_takes_too_long_is_stopped_with_all_that_it_started(self) -> None:
        out = python(
            PLAY + "    with process(Work('', '', turns=2, root_ms=60_000), 'ours') as player:\n"
            "        assert player.ready()\n"
            "        below = memory.identities(player.pid)\n"
            "        print(player.ask('run', 1), player.reason)\n"
            "        print([pid for pid, born in below if memory.born(pid) == born])\n"
            "        print(player.ask('run', 1))"
        )
        assert out.splitlines() == ["None stopped, not done within 1 s", "[]", "None"]

    def test_an_engine_that_is_killed_says_how(self) -> None:
        out = python(
            PLAY + "    import os, signal\n"
            "    with process(Work('', '')) as player:\n"
            "        assert player.ready()\n"
            "        os.kill(player.pid, signal.SIGKILL)\n"
            "        print(player.ask('run', 60), player.reason)"
        )
        assert "None failed: ended by itself (SIGKILL)" in out

    def test_an_engine_that_would_take_all_memory_is_stopped(self) -> None:
        out = python(
            PLAY + "    from benchmarks import process as module\n"
            "    with process(Work('', '')) as player:\n"
            "        module.RESERVE = 1 << 60\n"
            "        print(player.ready(), player.reason)"
        )
        assert out.startswith("None stopped, less than ")

    def test_growth_finds_host_and_workers(self) -> None:
        out = python(
            "import subprocess, sys\n"
            "from benchmarks.memory import growth\n"
            "work = 'x = bytearray(40_000_000); x[::4096] = b\"1\" * len(x[::4096]); input()'\n"
            "def run():\n"
            "    mine = bytearray(20_000_000); mine[::4096] = b'1' * len(mine[::4096])\n"
            "    worker = subprocess.Popen([sys.executable, '-c', 'print(1, flush=True);' + work.replace('input()', "
            "'print(2, flush=True); input()')], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
            "    for _ in range(2): worker.stdout.readline()\n"
            "    worker.communicate(b'\\n')\n"
            "found = growth(run)\n"
            "print(found.host, found.workers)"
        )
        host, workers = map(int, out.split())
        assert 18e6 < host < 40e6 and 38e6 < workers < 80e6


@pytest.mark.parametrize(
    ("options", "known"),
    [(("--only", "nothing"), "start"), (("--curves", "--only", "start"), "context"), (("--engines", "x"), "bare")],
)
def test_unknown_names_are_refused(options: tuple[str, ...], known: str) -> None:
    done = bench(*options)
    assert done.returncode == 2 and re.search(rf"known: .*{known}", done.stderr)


def test_a_small_tree_is_measured_and_shown_with_its_bounds() -> None:
    out = python(
        "import json\n"
        "from benchmarks import table, tree\n"
        "found = tree.measured(2, 2)\n"
        "print(json.dumps(found))\n"
        "for row in table.rows({('ours', table.TREE): found}): print('|', ' | '.join(row), '|')\n"
    )
    found = json.loads(out.splitlines()[0])
    assert found["runs"] == 7 and found["most_sandboxes"] == 7 and found["processes"] >= found["sandboxes"] >= 3
    assert 1 <= found["in_flight"] <= found["width"] == 32 and found["workers_growth"] > 0
    rows = cells(out)
    assert rows["- sandboxes at once"][4:] == ["≤ 7", f"yes ({found['sandboxes'] / 7:.2f} ×)"]
    assert "a tree of 7 runs, each of 50 ms" in rows and rows["- LM calls at once"][4] == "≤ 32"


@pytest.mark.heavy
@pytest.mark.alone
def test_every_engine_of_this_environment_does_small_works() -> None:
    done = bench("--engines", "bare,ours", "--repeats", "1", "--only", "start,prefix,help")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = cells(done.stdout)
    assert len(rows) == 2 + 3
    reused, messages = rows["prompt prefix reused turn to turn"][3].split(", ")
    assert reused == "1.00", "every prompt of ours is the beginning of the next one"
    assert int(messages.split()[0]) >= 2 * 21 - 1, "as messages"


@pytest.mark.heavy
@pytest.mark.alone
def test_curves_are_measured_point_by_point_and_kept(tmp_path: Path) -> None:
    options = ["--curves", "--engines", "bare,ours", "--repeats", "1", "--only", "context", "--largest", "1000"]
    done = bench(*options, "--write", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "results.json").read_text())
    ours = kept["results"]["ours/context-1000"]
    assert ours["seconds"] and ours["workers_cpu"] >= 0 and ours["host_growth"] >= 0
    (session,) = kept["sessions"].values()
    assert str(tmp_path) not in session["command"], "where it is kept is a matter of the machine"


@pytest.mark.heavy
@pytest.mark.alone
def test_what_was_measured_before_an_interruption_is_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.engine", "--engines", "bare", "--write", "--folder", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        while "start + submit: bare" not in (line := process.stderr.readline()):
            assert line, "it ended before it measured anything"
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130 and "what was measured is kept" in said
    assert json.loads((tmp_path / "results.json").read_text())["results"]["bare/start"]["seconds"]
    assert "start + submit" in (tmp_path / "RESULTS.md").read_text()


def test_what_tracking_costs_has_rows_of_its_own() -> None:
    out = python(
        "from benchmarks import table\n"
        "found = {'ratios': {'batch': 1.1, 'serial': 1.3}, 'stored': -4_096, 'memory': 20_000_000}\n"
        "for row in table.rows({('ours', table.TRACKING): found}): print('|', ' | '.join(row), '|')\n"
        "assert table.rows({('ours', table.TRACKING): {'reason': 'mlflow is not installed'}}) == []\n"
    )
    rows = [row[3:] for row in cells(out).values()]
    assert rows == [
        ["1.10 × off", "≤ 1.25 ×", "yes (0.88 ×)"],
        ["1.30 × off", "≤ 1.25 ×", "NO (1.04 ×)"],
        ["0.0 KB", "< 100 KB", "yes (0.00 ×)"],
        ["20.0 MB", "≤ 10 MB", "NO (2.00 ×)"],
    ]

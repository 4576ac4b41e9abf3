"""The benchmark runs and measures what it says; its numbers are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def python(code: str) -> str:
    """What ``code`` prints, run from the checkout's root, where ``benchmarks`` can be imported."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_context_has_the_size_that_is_asked_for() -> None:
    out = python("from benchmarks.work import context; print([len(context(n)) for n in (0, 1, 10, 10_000, 123_457)])")
    assert json.loads(out) == [0, 1, 10, 10_000, 123_457]


def test_prefixes_are_compared_turn_by_turn() -> None:
    out = python(
        "from benchmarks.server import Prefixes\n"
        "p = Prefixes()\n"
        "turns = ['aaaa', 'aaaabbbb', 'aaaaXbbb']\n"
        "for text in turns: p.note('m', [{'role': 'user', 'content': text}])\n"
        "print(p.report()['m'])"
    )
    # The role and the separators are part of the text: 5 more characters each time.
    assert out.strip() == str({"reused": (9 + 9) / (9 + 13), "messages": 1})


def test_bars_are_judged_by_the_least_time() -> None:
    out = python(
        "from benchmarks import table\n"
        "results = {('bare', 'serial'): {'seconds': [1.0, 2.0]}, ('ours', 'serial'): {'seconds': [3.0, 1.05]},\n"
        "           ('bare', 'start'): {'seconds': [0.01]}, ('ours', 'start'): {'seconds': [0.2]}}\n"
        "print(table.markdown(table.rows(results, table.Machine(0.1, 0.5))))"
    )
    rows = {row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:-1]] for row in out.splitlines()}
    serial = ["1 (1.5) s", "–", "–", "1.05 (2.02) s", "≤ 1.1 × bare = 1.1 s", "yes (0.95 ×)"]
    assert rows["200 serial sub-calls"] == serial
    assert rows["start + submit"][-1] == "NO (1.25 ×)"
    assert rows["rlm-dspy --help"][-1] == "NO (1.67 ×)"


def test_unknown_names_are_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.run", "--only", "nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "known: start" in done.stderr


@pytest.mark.heavy
def test_every_engine_of_this_environment_does_small_works() -> None:
    """``rlms`` is left out: it would be installed."""
    options = ["--engines", "bare,dspy,ours", "--repeats", "1", "--only", "start,pooled,serial,prefix"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + 4 + 1
    prefix = next(row for row in rows if "prefix" in row)
    assert "1.00, 42 messages" in prefix, "every prompt of ours is the beginning of the next one"

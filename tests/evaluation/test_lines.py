"""JSON lines that survive a kill, and threads that stop."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy.errors import RecordingError
from rlm_dspy.evaluation.lines import LineFile
from rlm_dspy.evaluation.work import Stop, finished

RECORDS = [{"n": 0, "text": "é\ud800\n"}, {"n": 1, "list": [1.5, None]}, {"n": 2}]


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "lines.jsonl"
    with LineFile(path) as file:
        file.append(RECORDS[:2])
        assert list(file.records()) == RECORDS[:2]
    with LineFile(path) as file:
        file.append(RECORDS[2:])
        assert list(file.records()) == RECORDS and not file.empty
        file.clear()
        assert file.empty and list(file.records()) == []


@given(cut=st.integers(0, 400))
def test_a_torn_line_is_cut_off_wherever_it_was_torn(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("lines") / "lines.jsonl"
    with LineFile(path) as file:
        file.append([{"n": number, "text": "x" * 40} for number in range(5)])
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    with LineFile(path) as file:
        kept = list(file.records())
        assert [one["n"] for one in kept] == list(range(whole[:cut].count(b"\n")))
        file.append([{"n": "next"}])
        assert [one["n"] for one in file.records()] == [*range(len(kept)), "next"]


def test_a_torn_line_longer_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": "' + b"x" * 300_000)
    with LineFile(path) as file:
        assert list(file.records()) == [{"n": 1}]
    assert path.read_bytes() == b'{"n": 1}\n'


def test_damage_in_the_middle_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 1}\n{"n": \n{"n": 3}\n')
    with LineFile(path) as file, pytest.raises(RecordingError, match=r"line 2 of .*lines\.jsonl is damaged"):
        list(file.records())


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    source = f"from rlm_dspy.evaluation.lines import LineFile\nLineFile({str(path)!r})"
    with LineFile(path):
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
        assert "another process writes to" in done.stderr
    assert subprocess.run([sys.executable, "-c", source], timeout=60).returncode == 0


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    path = tmp_path / "lines.jsonl"
    source = f"""
import resource, signal
from rlm_dspy.errors import RecordingError
from rlm_dspy.evaluation.lines import LineFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
with LineFile({str(path)!r}) as file:
    file.append([{{"n": 1}}])
    try:
        file.append([{{"n": "x" * 200}}])
    except RecordingError as error:
        print(error)
    file.append([{{"n": 2}}])
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert "File too large" in done.stdout and "kept" in done.stdout, done.stderr
    assert path.read_text() == '{"n": 1}\n{"n": 2}\n'


def test_items_are_taken_only_as_they_are_needed() -> None:
    taken: list[int] = []

    def items() -> Any:
        for number in range(10_000):
            taken.append(number)
            yield number

    for done, (number, square) in enumerate(finished(items(), lambda n: n * n, 3, Stop())):
        assert square == number * number
        assert len(taken) <= done + 1 + 3
    assert len(taken) == 10_000


def test_a_stop_lets_what_was_begun_come_to_its_end() -> None:
    stop, both = Stop(), threading.Barrier(2)

    def work(number: int) -> int:
        if number < 2:
            both.wait(30)
            stop.ask("enough")
        return number

    assert sorted(number for number, _ in finished(range(100), work, 2, stop)) == [0, 1]
    stop.ask("again")
    assert stop.reason == "enough"


def test_what_gives_up_is_cancelled() -> None:
    stop, begun, cancelled = Stop(), threading.Event(), threading.Event()

    def work(number: int) -> int:
        with stop.cancelling(cancelled.set):
            begun.set()
            assert cancelled.wait(30)
        return number

    threading.Thread(target=lambda: begun.wait(30) and stop.give_up("now"), daemon=True).start()
    assert [number for number, _ in finished(range(100), work, 1, stop)] == [0]
    late = threading.Event()
    with stop.cancelling(late.set):
        assert late.is_set()


def test_an_error_of_the_items_comes_after_what_was_begun() -> None:
    def items() -> Any:
        yield 1
        yield 2
        raise RecordingError("the third is damaged")

    seen = []
    with pytest.raises(RecordingError, match="third"):
        for number, _ in finished(items(), lambda n: n, 8, Stop()):
            seen.append(number)
    assert sorted(seen) == [1, 2]


def test_an_error_of_the_work_ends_it() -> None:
    with pytest.raises(ZeroDivisionError):
        list(finished(range(100), lambda n: 1 // (n - 1), 1, Stop()))


def test_leaving_the_loop_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    stop = Stop()
    for _ in finished(range(1000), lambda n: n, 4, stop):
        break
    assert not set(threading.enumerate()) - before

"""`spawn`: a child that can be talked to, always be ended, and leaves nothing."""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy.environments.scratch import PREFIX, hold, remove_tree, sweep
from rlm_dspy.environments.spawn import spawn
from rlm_dspy.errors import SandboxUnavailableError

ECHO = "import os\nwhile (b := os.read(0, 65536)): os.write(1, b)"


def start(code: str = ECHO, **options: Any) -> Any:
    return spawn([sys.executable, "-I", "-S", "-c", code], env={}, **options)


def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)
    return value


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def read_exactly(transport: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = transport.read(1 << 20)
        assert chunk
        data += chunk
    return data


@pytest.fixture
def descriptors() -> Iterator[None]:
    """The test leaves as many descriptors open as it found."""
    start().close()  # The spawner thread, and what importing opens.
    gc.collect()  # What other tests left in cycles would close some later.
    before = set(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_bytes_go_both_ways(descriptors: None) -> None:
    transport = start()
    data = bytes(range(256)) * 20_000
    writer = threading.Thread(target=transport.write, args=(memoryview(data),))
    writer.start()
    assert read_exactly(transport, len(data)) == data
    writer.join()
    transport.close()
    transport.close()
    assert transport.read(10) == b""
    with pytest.raises(OSError):
        transport.write(b"x")


def test_close_reaps_and_takes_the_whole_group(descriptors: None) -> None:
    transport = start(
        "import subprocess, os\np = subprocess.Popen(['sleep', '1000'])\nprint(p.pid, flush=True)\np.wait()"
    )
    child = int(transport.read(100))
    assert exists(child)
    transport.close()
    until(lambda: not exists(child))
    with pytest.raises(ChildProcessError):
        os.waitpid(transport.pid, os.WNOHANG)


def test_group_is_killed_after_its_leader_is_gone(descriptors: None) -> None:
    transport = start("import subprocess\nprint(subprocess.Popen(['sleep', '1000'], stdout=-3).pid, flush=True)")
    child = int(transport.read(100))
    assert transport.read(100) == b""
    assert "exited with status 0" in transport.reason()
    assert exists(child)
    transport.kill()
    until(lambda: not exists(child))
    transport.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit('no luck')", ["exited with status 1", "no luck"]),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", ["SIGSEGV"]),
        ("import os; os._exit(7)", ["status 7"]),
        (
            "import os\ntry: os.write(2, b'x' * 10**7)\nexcept OSError: pass\nos.write(1, b'k'); os._exit(0)",
            ["status 0"],
        ),
    ],
)
def test_reason_says_why(descriptors: None, code: str, words: list[str]) -> None:
    transport = start(code)
    while transport.read(1000):
        pass
    reason = transport.reason()
    assert all(word in reason for word in words), reason
    assert len(reason) < 5000
    transport.close()
    assert transport.reason() == reason


def test_reason_of_a_child_the_host_ended(descriptors: None) -> None:
    transport = start()
    transport.close()
    assert transport.reason() == "ended by the host"


def test_reason_after_close_reads_nobody_elses_descriptor() -> None:
    """It once read the number of its closed stderr, which another thread's pipe had got."""
    transport = start()
    transport.close()
    pipes = [os.pipe() for _ in range(8)]
    for reader, writer in pipes:
        os.set_blocking(reader, False)
        os.write(writer, b"1")
    transport.reason()
    transport.close()
    assert [os.read(reader, 10) for reader, _ in pipes] == [b"1"] * 8
    for pair in pipes:
        for descriptor in pair:
            os.close(descriptor)


def test_a_program_that_cannot_start(tmp_path: Path, descriptors: None) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(SandboxUnavailableError, match="no-such-program"):
        spawn(["no-such-program"], env={}, scratch=str(scratch))
    assert not scratch.exists()


def test_kill_wakes_a_blocked_reader_and_writer(descriptors: None) -> None:
    transport = start("import time; time.sleep(1000)")
    results: list[Any] = []

    def write() -> None:
        try:
            transport.write(b"x" * (1 << 24))
        except OSError as error:
            results.append(error)

    threads = [threading.Thread(target=lambda: results.append(transport.read(1))), threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    transport.kill()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert len(results) == 2
    transport.close()


def test_what_is_written_at_once_goes_whole_or_not_at_all_and_never_waits(descriptors: None) -> None:
    transport = start("import time; time.sleep(1000)")
    frame = b"x" * select.PIPE_BUF
    began = time.monotonic()
    written = 0
    while transport.write_now(frame):
        written += len(frame)
    assert written >= 1 << 16 and time.monotonic() - began < 60  # what a pipe holds at least
    assert not transport.write_now(b"y")  # full to the last byte, because all were of the same size
    assert not transport.write_now(b"x" * (select.PIPE_BUF + 1))  # a pipe might take a part of it
    results: list[Any] = []

    def write() -> None:
        try:
            transport.write(b"z")
        except OSError as error:
            results.append(error)

    # What is to be written for good waits after all, also though the descriptor did not a moment ago.
    waiting = threading.Thread(target=write)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive() and not transport.write_now(b"y")
    transport.kill()
    waiting.join(10)
    assert not waiting.is_alive() and len(results) == 1
    assert not transport.write_now(b"y")
    transport.close()
    assert not transport.write_now(b"y")


@pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="needs Linux's pipes of any size")
def test_a_child_that_shrinks_the_pipe_cannot_make_the_host_wait(descriptors: None) -> None:
    """Room that was there when the host looked may be gone when it writes."""
    shrink = "import fcntl, os\nfcntl.fcntl(0, 1031, 4096)\nos.write(1, b'.')\nos.read(1, 1)"
    transport = start(shrink)
    assert transport.read(1) == b"."
    began = time.monotonic()
    while transport.write_now(b"x" * 4096):
        assert time.monotonic() - began < 60
    transport.close()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200_000)), max_size=12))
def test_both_ways_of_writing_keep_the_order(pieces: list[tuple[bool, int]]) -> None:
    transport = start()
    sent: list[bytes] = []

    def write() -> None:
        for number, (at_once, size) in enumerate(pieces):
            data = bytes([number]) * (size % select.PIPE_BUF + 1 if at_once else size)
            if not (at_once and transport.write_now(data)):
                transport.write(data)
            sent.append(data)

    writer = threading.Thread(target=write)
    writer.start()
    sizes = [size % select.PIPE_BUF + 1 if at_once else size for at_once, size in pieces]
    received = read_exactly(transport, sum(sizes))
    writer.join()
    transport.close()
    assert received == b"".join(sent)


def test_a_transport_that_is_dropped_is_closed(descriptors: None) -> None:
    transport = start()
    pid = transport.pid
    del transport
    gc.collect()
    until(lambda: not exists(pid))


def test_only_named_descriptors_and_variables_are_inherited(monkeypatch: pytest.MonkeyPatch, descriptors: None) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    extra, other = os.pipe()
    os.set_inheritable(other, True)
    transport = start("import os; print(sorted(os.listdir('/proc/self/fd')), dict(os.environ))", pass_fds=(extra,))
    text = transport.read(10_000).decode()
    assert f"'{extra}'" in text and f"'{other}'" not in text and "SECRET" not in text
    transport.close()
    os.close(extra)
    os.close(other)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root")
def test_as_another_user(descriptors: None) -> None:
    transport = spawn(["/usr/bin/env", "id"], env={"PATH": os.defpath}, user=54_321, group=54_322)
    text = transport.read(1000).decode()
    assert "uid=54321" in text and "gid=54322" in text and "0(root)" not in text
    transport.close()


def test_a_fork_of_the_host_touches_nothing() -> None:
    transport = start()
    pid = os.fork()
    if pid == 0:
        try:
            good = transport.read(1) == b"" and "forked" in transport.reason()
            transport.kill()
            transport.close()
            own = start()
            own.write(b"child")
            good = good and own.read(10) == b"child"
            own.close()
            os._exit(0 if good else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    transport.write(b"parent")
    assert transport.read(10) == b"parent"
    transport.close()


def test_children_end_with_the_stream_when_a_forked_copy_of_the_host_lives_on() -> None:
    """A fork must not hold the write end of the pipe, or the worker never learns that its host is gone."""
    code = (
        "import os, sys, time\nfrom rlm_dspy.environments.spawn import spawn\n"
        f"t = spawn([sys.executable, '-I', '-S', '-c', {ECHO!r}], env={{}})\n"
        "if os.fork() == 0:\n os.close(1); time.sleep(60); os._exit(0)\n"
        "print(t.pid, os.getpid(), flush=True)\nos.kill(os.getpid(), 9)"
    )
    host = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert host.stdout is not None
    child = int(host.stdout.readline().split()[0])
    host.wait()
    until(lambda: not exists(child))
    os.killpg(host.pid, signal.SIGKILL)
    host.stdout.close()


def test_many_at_once_from_many_threads(descriptors: None) -> None:
    results: list[bytes] = []

    def one(number: int) -> None:
        transport = start()
        transport.write(b"%d" % number)
        results.append(transport.read(10))
        transport.close()

    threads = [threading.Thread(target=one, args=(n,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, results)) == list(range(24))


def test_scratch_is_removed_whatever_is_in_it(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    kept = tmp_path / "kept"
    kept.write_text("x")
    code = (
        "import os\nos.symlink('../kept', 'link'); os.symlink('..', 'up')\n"
        "os.mkdir('closed'); open('closed/file', 'w'); os.chmod('closed', 0)\n"
        "os.mkfifo('pipe')\nfor n in range(2000): open(f'f{n}', 'w')\n"
        "for n in range(3000): os.mkdir('d'); os.chdir('d')\nprint('done', flush=True)\ninput()"
    )
    transport = start(code, cwd=str(scratch), scratch=str(scratch))
    assert transport.read(100) == b"done\n"
    transport.close()
    assert not scratch.exists()
    assert kept.read_text() == "x"


def test_remove_tree_of_nothing(tmp_path: Path) -> None:
    remove_tree(str(tmp_path / "nothing"))


def test_sweep_takes_only_what_nobody_holds(tmp_path: Path) -> None:
    held, free, foreign = (tmp_path / name for name in (f"{PREFIX}held", f"{PREFIX}free", "other"))
    for folder in (held, free, foreign):
        folder.mkdir()
        (folder / "file").write_text("x")
    (tmp_path / f"{PREFIX}link").symlink_to(foreign)
    descriptor = hold(str(held))
    assert descriptor is not None
    assert sweep(str(tmp_path)) == []
    assert sweep(str(tmp_path), stale_seconds=0) == [str(free)]
    os.close(descriptor)
    assert sweep(str(tmp_path), stale_seconds=0) == [str(held)]
    assert (foreign / "file").exists()


def test_whoever_closes_returns_only_when_the_child_is_gone(descriptors: None) -> None:
    left: list[str] = []
    for _ in range(10):
        transport = start()
        together = threading.Barrier(6)

        def close(transport: Any = transport, together: threading.Barrier = together) -> None:
            together.wait(10)
            transport.close()
            if Path(f"/proc/{transport.pid}").exists():
                left.append("a process, or what is left of it")

        closers = [threading.Thread(target=close) for _ in range(6)]
        for thread in closers:
            thread.start()
        for thread in closers:
            thread.join(20)
    assert not left


def test_a_child_that_never_stops_writing_to_stderr_does_not_hold_up_the_host(
    monkeypatch: pytest.MonkeyPatch, descriptors: None
) -> None:
    transport = start()
    # As many bytes as are asked for, at once, for ever: a writer that is always faster than the reader.
    real, errors = os.read, transport._state._errors
    monkeypatch.setattr(os, "read", lambda fd, size: b"x" * size if fd == errors else real(fd, size))
    answers: list[str] = []

    def ask() -> None:
        answers.append(transport.reason())
        transport.close()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(20)
    assert not asking.is_alive() and "xxx" in answers[0]


FORKS = """
import os, sys, threading
from rlm_dspy.environments.spawn import spawn

def pipes():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if link.startswith("pipe:"):
            found.add(link)
    return found

argv = [sys.executable, "-I", "-S", "-c", "pass"]
spawn(argv, env={}).close()
before, started = pipes(), []

def start():
    for _ in range(60):
        started.append(spawn(argv, env={}))

starting = threading.Thread(target=start)
starting.start()
inherited = 0
while starting.is_alive():
    pid = os.fork()
    if pid == 0:
        os._exit(int(bool(pipes() - before)))
    inherited += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
for transport in started:
    transport.close()
print("inherited", inherited)
"""


def test_a_fork_inherits_nothing_of_a_start_that_is_under_way(
    in_python: Callable[..., subprocess.Popen[str]],
) -> None:
    out, err = in_python(FORKS).communicate(timeout=120)
    assert out == "inherited 0\n", err

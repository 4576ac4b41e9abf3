"""Scripts in place of models, and the command line in this process, in a process of its own, and on a terminal."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyte
import pytest

from rlm_dspy.cli import main

SECONDS = 60.0
_EXEC_ON_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"
)

# The extract role is told that no more code can run; all other requests for an action are the root's.
PRELUDE = """
from rlm_dspy.testing import Reply, code

def answering(call):
    return any("No more code can run" in m["content"] for m in call.messages)

def final(**outputs):
    return "".join(f"[[ ## {name} ## ]]\\n{value}\\n\\n" for name, value in outputs.items()) + "[[ ## completed ## ]]"
"""


@dataclass
class Result:
    """What one command gave."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "LINES"):
        # Readline sets them where os.environ does not see it, and programs that are started do.
        monkeypatch.setenv(name, "80")
    for name in ("RLM_DSPY_MODEL", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """The ``--model`` that runs the given source, with ``answering`` and ``final`` at hand."""

    def write(source: str) -> str:
        path = tmp_path / f"script{len(list(tmp_path.glob('script*.py')))}.py"
        path.write_text(PRELUDE + source)
        return f"scripted:{path}"

    return write


@pytest.fixture
def document(tmp_path: Path) -> str:
    """A small text file."""
    path = tmp_path / "document.txt"
    path.write_text("one\ntwo\nthree\n")
    return str(path)


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """``rlm-dspy ask`` in this process; unless told otherwise in a plain subprocess."""

    def run(*argv: str, interpreter: str = "subprocess") -> Result:
        capfd.readouterr()
        status = main(["ask", *argv, "--interpreter", interpreter])
        captured = capfd.readouterr()
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture
def adopted() -> Iterator[Callable[[], None]]:
    """Makes this process the parent of every orphan below it; calling it waits until none is left."""
    libc = ctypes.CDLL(None, use_errno=True)
    set_child_subreaper = 36
    assert libc.prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    before = _children()

    def wait() -> None:
        deadline = time.monotonic() + SECONDS
        while left := _children() - before:
            for pid in left:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass
            assert time.monotonic() < deadline, f"processes left: {[_command(pid) for pid in left]}"
            select.select([], [], [], 0.01)

    yield wait
    libc.prctl(set_child_subreaper, 0, 0, 0, 0)


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(map(int, (task / "children").read_text().split()))
        except OSError:
            continue
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return str(pid)


class Terminal:
    """A Python program on a terminal of its own, which Ctrl-C typed into it reaches as from a keyboard."""

    def __init__(self, *argv: str, stdout: int | None = None) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _EXEC_ON_TERMINAL, sys.executable, *argv],
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.raw = b""

    @property
    def text(self) -> str:
        """All that was shown, without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw.decode(errors="replace")).replace("\r", "")

    def expect(self, text: str) -> None:
        """Wait until ``text`` has been shown."""
        deadline = time.monotonic() + SECONDS
        while text not in self.text:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} was not shown in:\n{self.text}"
            assert self._read(left), f"the program ended without showing {text!r}:\n{self.text}"

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal a size, which the program is told of."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def display(self, columns: int, lines: int) -> list[str]:
        """What stands on a terminal of that size after all that was written."""
        screen = pyte.Screen(columns, lines)
        pyte.ByteStream(screen).feed(self.raw)
        return [line.rstrip() for line in screen.display]

    def type(self, text: str) -> None:
        """Send keys."""
        os.write(self.master, text.encode())

    def wait(self) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + SECONDS
        while self._read(max(0.0, deadline - time.monotonic())):
            assert time.monotonic() < deadline, f"the program did not end:\n{self.text}"
        return self.process.wait(timeout=SECONDS)

    def _read(self, timeout: float) -> bool:
        if not select.select([self.master], [], [], timeout)[0]:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:
            # Linux says EIO when the other end of a terminal is closed.
            return False
        self.raw += data
        return bool(data)

    def close(self) -> None:
        """End the program if it has not ended."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Starts ``python <argv>`` on a terminal of its own."""
    opened: list[Terminal] = []

    def start(*argv: str, stdout: int | None = None) -> Terminal:
        opened.append(Terminal(*argv, stdout=stdout))
        return opened[-1]

    yield start
    for one in opened:
        one.close()

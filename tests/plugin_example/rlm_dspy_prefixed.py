"""An environment of a third party: Python at the other end of a command, such as ``ssh box`` or ``nice -n 10``.

    rlm = RLM("context -> answer", interpreter="prefixed")
    rlm = RLM("context -> answer", interpreter=environments.get("prefixed", prefix=["ssh", "box"], python="python3"))

The command must carry standard input and output through as they are. What it confines is its own affair.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import Unpack

from rlm_dspy.environments import BOOTSTRAP, BaseOptions, Bound, Description, Environment, Transport


class Prefixed(Environment):
    """Python started by a command.

    Args:
        prefix: The words of the command, to which Python's are added.
        python: Python there, 3.8 or newer.
        quoted: Python's words have to be quoted for a shell, as for ssh.
    """

    name = "prefixed"
    execution_instructions = "Code runs as CPython in a process of its own. Variables and functions persist."

    def __init__(
        self,
        *,
        prefix: Sequence[str] = (),
        python: str = sys.executable,
        quoted: bool = False,
        **base: Unpack[BaseOptions],
    ) -> None:
        super().__init__(**base)
        self.prefix, self.python, self.quoted = tuple(prefix), python, quoted

    def open(self) -> Transport:
        """Start it: Python, and the few lines that read the worker from standard input."""
        words = [self.python, "-I", "-u", "-c", BOOTSTRAP]
        return Pipes([*self.prefix, *(map(shlex.quote, words) if self.quoted else words)])

    def describe(self) -> Description:
        """Only what is true whatever the command is: the worker can be killed."""
        time = Bound("bounded" if self.timeout else "not bounded", "interrupt, then kill")
        return Description(self.name, ("process", *self.prefix[:1]), time=time, missing=("confinement: not ours",))


class Pipes:
    """The `Transport`: what is read, written, killed and cleaned up."""

    same_python = False  # the worker is sent as source text then, which any Python takes

    def __init__(self, command: list[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, cwd=self._folder.name)
        self._closing = threading.Lock()

    def read(self, size: int, /) -> bytes:
        return self._process.stdout.read(size)  # type: ignore[union-attr]

    def write(self, data: bytes | memoryview, /) -> None:
        view = memoryview(data)
        while view:
            view = view[self._process.stdin.write(view) :]  # type: ignore[union-attr]

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        with self._closing:  # from any thread, any number of times
            self.kill()
            self._process.wait()
            self._folder.cleanup()

    def reason(self) -> str:
        return f"{self._process.args[0]!r} ended with {self._process.wait(1)}"  # type: ignore[index]

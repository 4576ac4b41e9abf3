"""Where llama.cpp's server runs: in a process of its own, or in threads of this one.

The process does not outlive its host. Its standard input is a pipe of the host, and it ends when that does; on Linux
it is killed as well when the thread ends that started it (``PR_SET_PDEATHSIG``, prctl(2)), so that is the thread that
reads its messages for as long as it lives. Of its messages the last ones are kept.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from typing import Any

from rlm_dspy.errors import LocalModelError
from rlm_dspy.models import machine, serving
from rlm_dspy.models.job import without_secrets

_END_SECONDS = 5.0
_TAIL_LINES = 40
_LINE_BYTES = 1 << 14


class Child:
    """A server in a process of its own.

    Args:
        setup: See `rlm_dspy.models.serving.start`.
    """

    def __init__(self, setup: dict[str, Any]) -> None:
        self._token = secrets.token_hex(8)
        self._setup = {**setup, "token": self._token, "parent": os.getpid()}
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._process: subprocess.Popen[bytes] | None = None
        self._error: Exception | None = None
        self._url = ""
        self._changed = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="local-model-server", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The process' id, once it was started."""
        return self._process.pid if self._process is not None else None

    def ready(self, seconds: float) -> str:
        """Wait until the model is loaded and return the address; a `LocalModelError` says why it is not."""
        if not self._changed.wait(seconds):
            raise LocalModelError(f"the model's server was not ready within {seconds:g} s{self._said()}")
        if self._error is not None:
            raise LocalModelError(f"the model's server cannot be started: {self._error}") from self._error
        if not self._url:
            raise LocalModelError(f"the model's server did not start: {self.why_dead() or 'it ended'}")
        return self._url

    def why_dead(self) -> str | None:
        """How it ended and what it said last; None while it runs."""
        process = self._process
        if process is None or process.poll() is None:
            return None
        # The rest of its messages, which follow the end within microseconds.
        self._thread.join(1.0)
        return f"{_ended(process.returncode)}{self._said()}"

    def stop(self) -> None:
        """End it and wait until it is gone."""
        self._stopped = True
        process = self._process
        if process is None:
            # The thread is about to start it, and looks at the flag afterwards.
            self._changed.wait(_END_SECONDS)
            process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._thread is not threading.current_thread():
            self._thread.join(_END_SECONDS)

    def forget(self) -> None:
        """In a forked child: drop what belongs to the parent, touch nothing else."""
        process = self._process
        if process is not None:
            process.returncode = 0  # It is not this process' child, and is not to be waited for.
            for stream in (process.stdin, process.stderr):
                with contextlib.suppress(OSError, ValueError):
                    # Not by the file's own way: its lock may be held by a thread that is no more.
                    os.close(stream.fileno())  # type: ignore[union-attr]

    def _run(self) -> None:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", serving.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._error = error
            self._changed.set()
            return
        self._process = process
        if self._stopped:
            process.kill()
        assert process.stdin is not None and process.stderr is not None
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(self._setup).encode() + b"\n")
        with contextlib.suppress(OSError, ValueError), open(process.stderr.fileno(), "rb", closefd=False) as lines:
            while line := lines.readline(_LINE_BYTES):
                self._take(line.decode("utf-8", "replace").rstrip())
        process.wait()
        self._changed.set()
        with contextlib.suppress(OSError):
            process.stderr.close()

    def _take(self, line: str) -> None:
        words = line.split()
        if words[:2] == [serving.READY, self._token]:
            self._url = words[2]
            self._changed.set()
        elif line:
            self._tail.append(line)

    def _said(self) -> str:
        # A traceback of our own program says less than what llama.cpp wrote before it.
        lines = [line for line in list(self._tail) if not line.startswith(("Traceback", "  "))]
        return f"; its last messages: {without_secrets(' | '.join(lines[-8:]), 1500)}" if lines else ""


class Inside:
    """A server in threads of this process, with the same face as `Child`."""

    pid: int | None = None

    def __init__(self, setup: dict[str, Any]) -> None:
        if machine.lacks_avx2():
            raise LocalModelError(f"{_NO_AVX2} serve='process' finds out whether yours was built without.")
        self.pid = os.getpid()
        try:
            self._server: Any = serving.start(setup)
        except RuntimeError as error:
            raise LocalModelError(
                f"{setup['path']} cannot be served: {error} What llama.cpp says of it is on standard error."
            ) from error

    def ready(self, seconds: float) -> str:
        """See `Child.ready`."""
        # A server whose loop has not begun yet when it is ended waits for it for ever. One that has made a token has.
        self._server.handle_completions({"prompt": "a", "max_tokens": 1})
        return str(self._server.listening_address)

    def why_dead(self) -> str | None:
        """See `Child.why_dead`."""
        return None if self._server is not None else "it was ended"

    def stop(self) -> None:
        """See `Child.stop`."""
        # Its destructor ends its threads.
        self._server = None

    def forget(self) -> None:
        """See `Child.forget`."""
        # The threads have not come along, and the destructor would wait for them for ever.
        _forgotten.append(self._server)


_NO_AVX2 = (
    "The prebuilt wheel of xllamacpp is made for processors with AVX2, which this one lacks; build it here: "
    "pip install --no-binary xllamacpp xllamacpp."
)
_HINTS = {
    "SIGKILL": "; the system may have run out of memory: a smaller context= needs less",
    "SIGILL": f"; {_NO_AVX2}",
}


def _ended(status: int) -> str:
    if status >= 0:
        return f"it ended with status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"it was killed by {name}{_HINTS.get(name, '')}"


_forgotten: list[Any] = []

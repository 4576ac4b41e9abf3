"""What a cell prints: Python's streams, and descriptors 1 and 2, to which C code and child processes write.

This module travels into the sandbox as source text: standard library only, Python 3.8 syntax.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import select
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING or __name__.startswith("rlm_dspy."):
    from rlm_dspy.environments import cells as _cells
else:
    import _rlm_cells as _cells

_F_DUPFD_CLOEXEC = getattr(fcntl, "F_DUPFD_CLOEXEC", 1030)


def high_descriptor(fd: int) -> int:
    """A copy of ``fd`` far above those that code closes by the range; closed on exec."""
    for floor in (700, 200, 100, 20):
        try:
            return fcntl.fcntl(fd, _F_DUPFD_CLOEXEC, floor)
        except OSError:
            continue
    return fcntl.fcntl(fd, _F_DUPFD_CLOEXEC, 3)


class Capture:
    """Descriptors 1 and 2 lead into a pipe that is emptied into the output; ``sys.stdout`` writes there directly."""

    def __init__(self, output: _cells.Output) -> None:
        self.output = output
        self.forked = False
        read, write = os.pipe()
        self._read, self._write = high_descriptor(read), high_descriptor(write)
        os.close(read)
        os.close(write)
        os.set_blocking(self._read, False)
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        self._poll = poll.poll
        self._pipe = os.fstat(self._write)
        self._null = high_descriptor(os.open(os.devnull, os.O_RDONLY))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.stdout = _cells.Stream(self.write, 1, "<stdout>")
        self.stderr = _cells.Stream(self.write, 2, "<stderr>")
        self.restore()
        self.start()

    def start(self) -> None:
        """Start the thread that empties the pipe."""
        threading.Thread(target=self._loop, name="rlm-output", daemon=True).start()

    def restore(self) -> None:
        """Put descriptors 0 to 2 and the streams of ``sys`` where they belong, whatever code did to them."""
        for fd in (1, 2):
            try:
                found = os.fstat(fd)
                if (found.st_dev, found.st_ino) == (self._pipe.st_dev, self._pipe.st_ino):
                    continue
            except OSError:
                pass
            os.dup2(self._write, fd)
        try:
            os.fstat(0)
        except OSError:
            os.dup2(self._null, 0)
        sys.stdout, sys.stderr = self.stdout, self.stderr
        if sys.stdin is None or sys.stdin.closed:
            sys.stdin = open(os.devnull, encoding="utf-8")

    def write(self, text: str) -> None:
        """Python-level output; what the pipe holds was printed before it."""
        if self.forked:
            # The child's memory is not the worker's, the pipe is shared.
            data = text.encode("utf-8", "surrogatepass")
            while data:
                data = data[os.write(1, data) :]
            return
        with self.output.lock:
            if self._poll(0):
                self._drain(65536)
            self.output.write(text)

    def drain(self) -> None:
        """Take what has been printed so far out of the pipe."""
        ctypes = sys.modules.get("ctypes")
        if ctypes is not None:
            try:
                # Text that C code printed may still be in the buffers of the C library.
                ctypes.CDLL(None).fflush(None)
            except Exception:
                pass
        with self.output.lock:
            # Bounded, so that a child process that prints for ever cannot hold the cell's end up.
            for _ in range(64):
                if not self._drain(65536):
                    return

    def _drain(self, size: int) -> bool:
        try:
            data = os.read(self._read, size)
        except BlockingIOError:
            return False
        except OSError:
            return False
        if not data:
            return False
        self.output.write(self._decoder.decode(data))
        return True

    def _loop(self) -> None:
        # A poll object serves one thread at a time.
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        while True:
            poll.poll()
            with self.output.lock:
                if not self._drain(65536):
                    time.sleep(0.001)

"""The stream to a container's process, over the connection that attaching to it leaves open.

What the container writes arrives in pieces of stdout and stderr, each behind eight bytes: its kind (1 or 2), three
zeros, its length as a big-endian number (Docker Engine API, "Attach to a container", stream format). stdout is the
worker's stream, the end of stderr is kept for error messages.

The container's stdin ends with this connection, and the worker with its stdin: a host that is killed leaves at most a
stopped container, which `rlm_dspy.environments.docker_reaper` removes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from rlm_dspy.environments.transports import ImmediateTransport

STDERR_TAIL = 4000
"""Characters of stderr that are kept."""
_PIECE = 256 * 1024
# A UNIX socket of Linux takes a message of this size whole or, where it has no room, not at all.
_WHOLE = 4096


class Connection(Protocol):
    """What is needed of a socket; those of TLS, of SSH and of Windows' named pipes are not ``socket.socket``."""

    def recv(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


class Demultiplexer:
    """Takes the stream apart.

    Attributes:
        errors: The last `STDERR_TAIL` bytes of stderr.
    """

    def __init__(self) -> None:
        self.errors = b""
        self._head = b""
        self._kind = 0
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """The stdout in ``data``, which is any further piece of the stream."""
        if self._kind == 1 and self._left >= len(data):
            self._left -= len(data)
            return data
        found = []
        at = 0
        while at < len(data):
            if not self._left:
                missing = 8 - len(self._head)
                self._head += data[at : at + missing]
                at += missing
                if len(self._head) < 8:
                    break
                self._kind = self._head[0]
                self._left = struct.unpack(">I", self._head[4:])[0]
                self._head = b""
                continue
            piece = data[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            if self._kind == 1:
                found.append(piece)
            elif self._kind == 2:
                self.errors = (self.errors + piece)[-STDERR_TAIL:]
        return b"".join(found)


class ContainerTransport(ImmediateTransport):
    """An attached container as a `rlm_dspy.environments.base.Transport`.

    Args:
        connection: What attaching gave.
        kill: Ends the container's processes; called once at most.
        remove: Removes the container, running or not; called once.
        explain: Says why the container's process has ended, for an error message; given the end of its stderr.
        same_python: See `Transport.same_python`.
    """

    def __init__(
        self,
        connection: Any,
        *,
        kill: Callable[[], None],
        remove: Callable[[], None],
        explain: Callable[[str], str],
        same_python: bool,
    ) -> None:
        super().__init__(_State(connection, kill, remove, explain), same_python=same_python)


class _State:
    """The connection, the container, and the locks round both."""

    def __init__(
        self,
        connection: Any,
        kill: Callable[[], None],
        remove: Callable[[], None],
        explain: Callable[[str], str],
    ) -> None:
        self.owner = os.getpid()
        self._connection = connection
        self._kill, self._remove, self._explain = kill, remove, explain
        plain = isinstance(connection, socket.socket)
        self._immediate = plain and connection.family == getattr(socket, "AF_UNIX", None) and sys.platform == "linux"
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._killed = self._closed = False
        self._why: str | None = None
        self._stream = Demultiplexer()
        self._rest = memoryview(b"")
        _live.add(self)

    def read(self, size: int) -> bytes:
        with self._reading:
            while not self._rest:
                if self._killed or self._closed:
                    return b""
                data = self._receive()
                if not data:
                    return b""
                self._rest = memoryview(self._stream.feed(data))
            piece = bytes(self._rest[:size])
            self._rest = self._rest[size:]
            return piece

    def _receive(self) -> bytes:
        try:
            return self._connection.recv(_PIECE)
        except (OSError, ValueError):
            # Closed by another thread, or reset by an engine that was stopped: either way this is the end.
            return b""

    def write(self, data: bytes | memoryview) -> None:
        with self._writing:
            if self._killed or self._closed:
                raise BrokenPipeError("the container was ended")
            try:
                self._connection.sendall(data)
            except ValueError as error:
                raise BrokenPipeError(str(error)) from error

    def write_now(self, data: bytes) -> bool:
        if not self._immediate or len(data) > _WHOLE or not self._writing.acquire(blocking=False):
            return False
        try:
            if self._killed or self._closed:
                return False
            return bool(self._connection.send(data, socket.MSG_DONTWAIT) == len(data))
        except OSError:
            return False
        finally:
            self._writing.release()

    def kill(self) -> None:
        if self.owner != os.getpid():
            return
        with self._lock:
            if self._killed or self._closed:
                return
            self._killed = True
            self.hang_up()
            self._kill()

    def hang_up(self) -> None:
        """Wake the threads in `read` and `write`; the container's stdin ends, too."""
        with contextlib.suppress(OSError, AttributeError, ValueError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self.owner != os.getpid():
            self.forget()
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            _live.discard(self)
            self.hang_up()
            try:
                self._remove()
            finally:
                self._connection.close()

    def forget(self) -> None:
        """In a forked child: drop its copy of the connection. To shut that down would cut the parent's, too."""
        if not self._closed:
            self._closed = True
            self._connection.close()

    def reason(self) -> str:
        if self.owner != os.getpid():
            return "it belongs to the process this one was forked from"
        with self._lock:
            if self._why is None:
                if self._killed or self._closed:
                    self._why = "ended by the host"
                else:
                    self._why = self._explain(self._stream.errors.decode("utf-8", "replace").strip())
            return self._why


def close_all() -> None:
    """Remove every container of this process, at its end."""
    states = list(_live)
    for state in states:
        # They end by themselves, all at the same time, while they are removed one after the other.
        state.hang_up()
    for state in states:
        state.close()


def _after_fork() -> None:
    states = list(_live)
    _live.clear()
    for state in states:
        with contextlib.suppress(OSError):
            state.forget()


_live: weakref.WeakSet[_State] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

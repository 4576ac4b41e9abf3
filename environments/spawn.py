"""Starting a child process as a `Transport`, so that it can always be ended and never outlives its host.

What has to hold, and how:

- *Nothing outlives the host.* Children ask the kernel to be killed when their parent goes (``PR_SET_PDEATHSIG``, see
  prctl(2)). The "parent" of that call is the *thread* that forked, so all children are started by one thread that
  lives as long as the process.
- *All of it can be killed.* A child leads its own process group. The group is signalled before the leader is reaped,
  because until then the kernel cannot give its number to a stranger.
- *A fork of the host owns nothing.* In a forked child the parent's descriptors are closed and its children left alone.
  A fork waits for a start that is under way, whose descriptors nobody could close in the child yet; held open there,
  they would hide the end of the stream from the host.
- *A child cannot fill the host's memory with messages.* stderr is a pipe that is read once, at the end.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from rlm_dspy.environments.base import Transport
from rlm_dspy.environments.scratch import hold, remove_tree
from rlm_dspy.environments.transports import ImmediateTransport
from rlm_dspy.errors import SandboxUnavailableError

try:
    import fcntl
except ImportError:  # Windows, where descriptors are not passed on.
    fcntl = None  # type: ignore[assignment]

PIPE_BYTES = 1 << 20
# Up to so many bytes a pipe takes whole or not at all (pipe(7)); none on systems that do not say.
_WHOLE = getattr(select, "PIPE_BUF", 0)
_STDERR_TAIL = 4000
_REAP_SECONDS = 5.0
# Many times what a pipe holds; a child that writes to stderr without end is not read to its end.
_STDERR_READS = 64
_FORK_SECONDS = 10.0
# Linux charges pipe buffers to the user (/proc/sys/fs/pipe-user-pages-soft, 64 MiB by default) and shrinks the pipes
# of everybody above it; this many transports stay below.
_ENLARGED_MAX = 24


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    pass_fds: Sequence[int] = (),
    user: int | None = None,
    group: int | None = None,
    scratch: str | None = None,
    same_python: bool = True,
) -> Transport:
    """Start ``argv`` and return the stream over its stdin and stdout.

    Args:
        argv: Program and arguments; no shell is involved.
        env: The child's whole environment.
        cwd: Its working directory.
        pass_fds: Descriptors it inherits besides 0-2; the caller may close its own copies afterwards.
        user: Numeric user it runs as; needs root. Supplementary groups are dropped with it.
        group: Numeric group, likewise.
        scratch: A directory that is removed, with all its contents, when the transport is closed.
        same_python: Whether the child is this very Python (see `Transport.same_python`).

    Raises:
        SandboxUnavailableError: The program cannot be started; the scratch directory is removed.
    """
    try:
        state = _spawner.start(
            lambda: _State(argv, env=env, cwd=cwd, pass_fds=pass_fds, user=user, group=group, scratch=scratch)
        )
    except (OSError, subprocess.SubprocessError) as error:
        if scratch is not None:
            remove_tree(scratch)
        raise SandboxUnavailableError(f"cannot start {argv[0]!r}: {error}") from error
    return ProcessTransport(state, same_python=same_python)


def pipe(opened: list[int]) -> tuple[int, int]:
    """``os.pipe``, neither end of it 0, 1 or 2: in a host that has closed those, a child's standard streams would
    take the place of a descriptor that is passed on.

    Args:
        opened: Both ends are added to it.
    """
    read, write = os.pipe()
    opened += [read, write]
    for i, end in ((-2, read), (-1, write)):
        opened[i] = above_standard(end)
    return opened[-2], opened[-1]


def above_standard(descriptor: int) -> int:
    """``descriptor``, or a copy of it in its place where it is 0, 1 or 2."""
    if descriptor > 2 or fcntl is None:
        return descriptor
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return copy


class ProcessTransport(ImmediateTransport):
    """A child process as a `Transport`; made by `spawn`."""

    @property
    def pid(self) -> int:
        """Process id of the child, which is also its process group."""
        return int(self._state.pid)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} pid={self.pid}{' closed' if not self._finalizer.alive else ''}>"


class _State:
    """The child and everything that must be released with it."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        pass_fds: Sequence[int],
        user: int | None,
        group: int | None,
        scratch: str | None,
    ) -> None:
        self.scratch = scratch
        self.owner = os.getpid()
        # All pipes are made here, because subprocess loses some of its own where descriptors run out.
        opened: list[int] = []
        try:
            child_input, input_ = pipe(opened)
            output, child_output = pipe(opened)
            errors, child_errors = pipe(opened)
            # Both ends: a child whose stderr is full loses messages instead of standing still.
            os.set_blocking(errors, False)
            os.set_blocking(child_errors, False)
            self.popen = subprocess.Popen(
                list(argv),
                env=dict(env),
                cwd=cwd,
                pass_fds=tuple(pass_fds),
                stdin=child_input,
                stdout=child_output,
                stderr=child_errors,
                bufsize=0,
                start_new_session=True,
                user=user,
                group=group,
                extra_groups=[] if user is not None else None,
            )
        except BaseException:
            for descriptor in opened:
                os.close(descriptor)
            raise
        for descriptor in (child_input, child_output, child_errors):
            os.close(descriptor)
        self.pid = self.popen.pid
        self._errors: int | None = errors
        # Bare descriptors from here on: closing them is ours alone, in the one place that knows who is using them.
        self._input, self._output = input_, output
        self._files = (open(input_, "wb", buffering=0), open(output, "rb", buffering=0))
        self._hold = hold(scratch) if scratch is not None else None
        self._tail = ""
        self._status: int | None = None
        self._killed = False
        self._closed = False
        self._lock = threading.RLock()
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._nonblocking = False
        _live.add(self)
        if len(_live) <= _ENLARGED_MAX or os.geteuid() == 0:
            for descriptor in (self._input, self._output):
                _enlarge(descriptor)

    def read(self, size: int) -> bytes:
        with self._reading:
            if self._closed:
                return b""
            try:
                return os.read(self._output, size)
            finally:
                if self._closed:
                    self._files[1].close()

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B") if not isinstance(data, bytes) else memoryview(data)
        with self._writing:
            if self._closed:
                raise BrokenPipeError("the transport is closed")
            try:
                if self._nonblocking:
                    os.set_blocking(self._input, True)
                    self._nonblocking = False
                while view:
                    view = view[os.write(self._input, view) :]
            finally:
                if self._closed:
                    self._close_input()

    def write_now(self, data: bytes) -> bool:
        if len(data) > _WHOLE or not self._writing.acquire(blocking=False):
            return False
        try:
            if self._closed:
                return False
            if not self._nonblocking:
                self._nonblocking = True
                # Asking first whether there is room is not enough: the other end can shrink the pipe in between.
                os.set_blocking(self._input, False)
            os.write(self._input, data)
            return True
        except OSError:
            # Full, or nobody reads any more: `write` waits, or says so.
            return False
        finally:
            if self._closed:
                self._close_input()
            self._writing.release()

    def kill(self) -> None:
        if self.owner != os.getpid():
            return
        with self._lock:
            if self._closed or self._killed:
                return
            self._exit_status()
            self._killed = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        if self.owner != os.getpid():
            self.forget()
            return
        self.kill()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            _live.discard(self)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(timeout=_REAP_SECONDS)
            self._read_errors()
            self._close_errors()
        # A thread inside read or write comes out now that the child is dead; should something else still hold the
        # pipe open, that thread closes the descriptor itself when it does come out.
        for lock, release in ((self._reading, self._files[1].close), (self._writing, self._close_input)):
            if lock.acquire(timeout=0.2):
                try:
                    release()
                finally:
                    lock.release()
        if self.scratch is not None:
            remove_tree(self.scratch)
        if self._hold is not None:
            os.close(self._hold)

    def forget(self) -> None:
        """In a forked child: drop the parent's descriptors, touch nothing else."""
        if not self._closed:
            self._closed = True
            self.popen.returncode = 0  # Keeps subprocess from trying to reap a process that is not this one's child.
            self._files[1].close()
            self._close_input()
            self._close_errors()
            if self._hold is not None:
                os.close(self._hold)

    def reason(self) -> str:
        if self.owner != os.getpid():
            return "it belongs to the process this one was forked from"
        deadline = time.monotonic() + 1.0
        status = self._exit_status()
        while status is None and not self._closed and time.monotonic() < deadline:
            # The pipe's end and the exit are two events; the second follows within microseconds.
            time.sleep(0.002)
            status = self._exit_status()
        self._read_errors()
        if status is None:
            what = "ended by the host" if self._killed else "it closed its output but still runs"
        elif status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
            what = f"killed by {name}"
        else:
            what = f"exited with status {status}"
        return f"{what}; its last messages: {self._tail.strip()}" if self._tail.strip() else what

    def _exit_status(self) -> int | None:
        """The child's exit status or minus its signal, without reaping it; None while it runs or if we ended it."""
        with self._lock:
            if self._status is None and not self._killed and not self._closed:
                if hasattr(os, "waitid"):
                    with contextlib.suppress(ChildProcessError):
                        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
                        if info is not None:
                            self._status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
                else:
                    self._status = self.popen.poll()
            return self._status

    def _read_errors(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            for _ in range(_STDERR_READS):
                # The number of a closed descriptor may be somebody else's by now.
                if self._errors is None or not (chunk := os.read(self._errors, 1 << 16)):
                    return
                self._tail = (self._tail + chunk.decode("utf-8", "replace"))[-_STDERR_TAIL:]

    def _close_errors(self) -> None:
        descriptor, self._errors = self._errors, None
        if descriptor is not None:
            os.close(descriptor)

    def _close_input(self) -> None:
        with contextlib.suppress(OSError):
            self._files[0].close()


class _Spawner:
    """Runs calls one after the other in one daemon thread that never ends; a new one after a fork."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._held = False
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def before_fork(self) -> None:
        """Wait for a start that is under way; none begins until `after_fork`."""
        self._held = self._starting.acquire(timeout=_FORK_SECONDS)

    def after_fork(self) -> None:
        """In the parent: go on."""
        if self._held:
            self._starting.release()

    def start(self, function: Callable[[], _State]) -> _State:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._loop, args=(self._work, self._starting), name="rlm-dspy-spawner", daemon=True
                )
                self._thread.start()
        outcome: Future[_State] = Future()
        self._work.put((function, outcome))
        try:
            return outcome.result()
        except BaseException:
            # Interrupted while waiting (Ctrl-C): the child may still come, and nobody would own it.
            outcome.add_done_callback(_close_orphan)
            raise

    @staticmethod
    def _loop(work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]], starting: threading.Lock) -> None:
        while True:
            function, outcome = work.get()
            try:
                with starting:
                    result = function()
            except BaseException as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)
            del function, outcome
            result = None


def _close_orphan(outcome: Future[_State]) -> None:
    if not outcome.cancelled() and outcome.exception() is None:
        outcome.result().close()


def _enlarge(descriptor: int) -> None:
    """Raise a pipe's buffer; a refusal costs speed only."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except (AttributeError, OSError):
        pass


def _after_fork() -> None:
    states = list(_live)
    _live.clear()
    for state in states:
        with contextlib.suppress(OSError):
            state.forget()
    _spawner._reset()


_live: weakref.WeakSet[_State] = weakref.WeakSet()
_spawner = _Spawner()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_spawner.before_fork, after_in_parent=_spawner.after_fork, after_in_child=_after_fork
    )

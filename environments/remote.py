"""A sandbox at a provider as a `Transport`: blocking, bounded, never left behind.

What has to hold, and how:

- *Nothing is left behind.* A sandbox is deleted when its transport is killed, closed or collected, when the process
  exits, and when it could not be started. Deleting is tried again; what still could not be deleted is tried once more
  at exit and reported. For the case that the host is lost there is the lifetime at the provider, which a thread here
  extends as long as the transport lives (`Remote.renew_every`).
- *Reading ends when it should.* A thread takes what the SDK's stream gives into a bounded buffer, so that `kill` ends a
  read at once, whatever the SDK waits for.
- *A fork owns nothing.* In a forked child the parent's sandboxes are left alone.
"""

from __future__ import annotations

import abc
import atexit
import contextlib
import functools
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import ClassVar, Literal

from rlm_dspy._aio import threads
from rlm_dspy.environments.transports import StateTransport
from rlm_dspy.redact import error_text

Verdict = Literal["again", "rejected", "credentials", "quota", "gone", "other"]
"""What an SDK's error means: a passing failure (``again``), one before which nothing was done (``rejected``: too many
requests), a missing or wrong key, a limit of the account, a sandbox that is no more, or anything else."""

WRITE_BYTES = 2_000_000
"""Bytes that one write to the SDK has at most."""
BUFFER_BYTES = 8 << 20
"""Bytes that are read ahead of whoever reads; one piece of the SDK's may exceed it."""
DELETE_SECONDS = 20.0
"""Seconds for which deleting a sandbox is tried."""
EXIT_SECONDS = 15.0
"""Seconds that deleting all sandboxes may take when the process exits."""
_STDERR_TAIL = 4000
_LEARN_SECONDS = 1.0

logger = logging.getLogger("rlm_dspy.environments")


def pauses(first: float = 0.25, most: float = 8.0) -> Iterator[float]:
    """Seconds to wait before each further attempt: doubled every time, and spread so that many do not come at once."""
    pause = first
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(most, 2 * pause)


class Remote(abc.ABC):
    """One sandbox at a provider, in the calls of its SDK. Methods block and may be called from any thread.

    Attributes:
        provider: The provider's name, for messages.
        name: The provider's id of this sandbox.
        renew_every: Seconds between calls of `renew`; None where lifetimes cannot be extended.
        lifetime: Seconds that it lives at the provider from its making or its last `renew` on.
        text: The SDK decodes the stream as text.
        stderr: The end of what its program printed to stderr, as far as `output` has seen it.
        status: How the program ended, such as ``"exited with status 1"``, once `output` has ended; ``""`` if nobody
            knows.
    """

    provider: ClassVar[str]
    text: ClassVar[bool] = False
    name: str
    lifetime: float
    renew_every: float | None = None
    stderr: str = ""
    status: str = ""

    @abc.abstractmethod
    def start(self, command: str) -> None:
        """Start a shell command whose stdin stays open."""

    @abc.abstractmethod
    def output(self) -> Iterator[bytes | str]:
        """What the command prints to stdout, until it ends; an SDK's error where the stream breaks.

        It keeps the tail of stderr in ``stderr`` (`keep_stderr`).
        """

    @abc.abstractmethod
    def send(self, data: bytes) -> None:
        """Give ``data`` to the command's stdin; returns when the provider has it."""

    @abc.abstractmethod
    def delete(self, seconds: float) -> None:
        """End the sandbox; one that is gone is fine. ``seconds`` is what a request may take. Called at exit too."""

    @abc.abstractmethod
    def judge(self, error: BaseException) -> Verdict:
        """What an error of the SDK means."""

    def state(self) -> str:
        """What the provider says about the sandbox now, such as ``"is gone"``; ``""`` for nothing. May raise."""
        return ""

    def renew(self) -> None:
        """Make it live for ``lifetime`` seconds from now on. Raises the SDK's errors."""
        raise NotImplementedError

    def release(self) -> None:
        """Let go of connections, after `delete`."""
        return None

    def keep_stderr(self, text: str) -> None:
        """Add to the tail of stderr."""
        self.stderr = (self.stderr + text)[-_STDERR_TAIL:]


class RemoteTransport(StateTransport):
    """A started `Remote` as a `Transport`."""

    def __init__(self, remote: Remote) -> None:
        state = _State(remote)
        # At exit `_end_all` does it.
        closing = functools.partial(threads.submit, state.close)
        super().__init__(state, same_python=False, collected=closing, at_exit=False)
        self.text = remote.text

    @property
    def remote(self) -> Remote:
        """The sandbox."""
        found: Remote = self._state.remote
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.remote.provider} {self.remote.name}>"


class _Feed:
    """Bytes on their way from the thread that receives them to the one that reads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pieces: deque[memoryview] = deque()
        self._held = 0
        self._ended = False
        self._dropped = False

    def put(self, data: bytes) -> bool:
        """Add ``data``, once there is room; False if nobody will read it."""
        with self._changed:
            while self._held >= BUFFER_BYTES and not self._dropped:
                self._changed.wait()
            if self._dropped:
                return False
            if data:
                self._pieces.append(memoryview(data))
                self._held += len(data)
                self._changed.notify_all()
            return True

    def take(self, size: int) -> bytes:
        """1 to ``size`` bytes; ``b""`` after the end."""
        with self._changed:
            while not self._pieces:
                if self._ended:
                    return b""
                self._changed.wait()
            piece = self._pieces[0]
            out = bytes(piece[:size])
            if len(out) == len(piece):
                self._pieces.popleft()
            else:
                self._pieces[0] = piece[size:]
            self._held -= len(out)
            self._changed.notify_all()
            return out

    def end(self, drop: bool = False) -> None:
        """Nothing more comes; ``drop``: and what came is not wanted any more."""
        with self._changed:
            self._ended = True
            if drop:
                self._dropped = True
                self._pieces.clear()
            self._changed.notify_all()


class _State:
    """A sandbox and everything that must be released with it."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.owner = os.getpid()
        self.feed = _Feed()
        self.ended = False
        self.lives_until = time.monotonic() + remote.lifetime
        self.renew_at = time.monotonic() + (remote.renew_every or 0.0)
        self._why = ""
        self._telling = threading.Lock()
        self._writing = threading.Lock()
        self._deleting = threading.Lock()
        self._deleted = False
        self._received = threading.Event()
        with _lock:
            _live.add(self)
        # Again each time: handlers run in reverse order, and an SDK's own one would close what deleting needs.
        atexit.unregister(_end_all)
        atexit.register(_end_all)
        threading.Thread(target=self._receive, name="rlm-dspy-remote", daemon=True).start()
        if remote.renew_every is not None:
            _keeper.wake()

    def _receive(self) -> None:
        error: BaseException | None = None
        try:
            for piece in self.remote.output():
                if not self.feed.put(piece.encode("utf-8", "replace") if isinstance(piece, str) else piece):
                    return
        except BaseException as failure:
            error = failure
        # Told before the end is, so that whoever sees the end can ask for the reason.
        self._tell(error)
        self._received.set()
        self.feed.end()

    def read(self, size: int) -> bytes:
        return self.feed.take(size)

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        with self._writing:
            for start in range(0, len(view), WRITE_BYTES):
                self._send(bytes(view[start : start + WRITE_BYTES]))

    def _send(self, data: bytes) -> None:
        waits = pauses()
        while True:
            if self.ended or self.owner != os.getpid():
                raise BrokenPipeError("the transport is closed")
            try:
                return self.remote.send(data)
            except Exception as error:
                # Only what was surely not done may be done again: twice the same bytes would break the stream.
                if self.remote.judge(error) == "rejected" and time.monotonic() < self.lives_until:
                    time.sleep(next(waits))
                    continue
                # Where the program has ended, the other thread learns how.
                self._received.wait(_LEARN_SECONDS)
                self._tell(error)
                raise BrokenPipeError(f"writing to it failed: {error_text(error, 500)}") from None

    def _tell(self, error: BaseException | None) -> None:
        """Find out why the stream ended, for `reason`; the first one to ask knows best."""
        with self._telling:
            if self.ended or self._why:
                return
            status = self.remote.status
            parts = [status or ("" if error is not None else "its stream ended")]
            if error is not None and not status:
                parts.append(error_text(error, 500))
            # The provider's clock began a little before ours.
            if time.monotonic() >= self.lives_until - 0.05 * self.remote.lifetime - 0.5:
                parts.append(f"its lifetime of {self.remote.lifetime:g} seconds is over")
            if not status:
                with contextlib.suppress(Exception):
                    if state := self.remote.state():
                        parts.append(f"{self.remote.provider} says that it {state}")
            if tail := self.remote.stderr.strip():
                parts.append(f"its last messages: {tail}")
            self._why = "; ".join(part for part in parts if part)

    def reason(self) -> str:
        if self.owner != os.getpid():
            return "it belongs to the process this one was forked from"
        return f"{self._why or 'ended by the host'} ({self.remote.provider} sandbox {self.remote.name})"

    def renew(self) -> None:
        """Extend the lifetime; a sandbox that is gone ends the stream."""
        every = self.remote.renew_every or self.remote.lifetime
        asked = time.monotonic()
        try:
            self.remote.renew()
        except Exception as error:
            if self.remote.judge(error) == "gone" or time.monotonic() >= self.lives_until:
                self._tell(error)
                self.feed.end()
                return
            self.renew_at = time.monotonic() + every / 8
        else:
            self.lives_until = asked + self.remote.lifetime
            self.renew_at = asked + every

    def kill(self) -> None:
        if self.owner != os.getpid():
            return
        self.ended = True
        self.feed.end(drop=True)
        _keeper.look()
        self.delete(DELETE_SECONDS)

    def close(self) -> None:
        self.kill()

    def delete(self, seconds: float) -> None:
        """Delete the sandbox, trying for ``seconds``; returns at once if that was done."""
        with self._deleting:
            if self._deleted:
                return
            if delete(self.remote, seconds):
                self._deleted = True
                with _lock:
                    _live.discard(self)
        if self._deleted:
            with contextlib.suppress(Exception):
                self.remote.release()


def delete(remote: Remote, seconds: float) -> bool:
    """Delete a sandbox, trying for ``seconds``. Where that fails a warning names it, and the result is False."""
    deadline = time.monotonic() + seconds
    for pause in pauses():
        try:
            remote.delete(max(1.0, min(10.0, seconds)))
            return True
        except Exception as error:
            verdict = remote.judge(error)
            if verdict == "gone":
                return True
            if verdict not in ("again", "rejected", "other") or time.monotonic() + pause >= deadline:
                logger.warning(
                    "the %s sandbox %s could not be deleted and ends by itself within %d seconds: %s",
                    remote.provider, remote.name, remote.lifetime, error_text(error, 500),
                )  # fmt: skip
                return False
        time.sleep(pause)
    raise AssertionError


class _Keeper:
    """The thread that extends lifetimes; it ends when there is nothing to extend."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rlm-dspy-keeper", daemon=True)
                self._thread.start()

    def look(self) -> None:
        """Something has ended."""
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                with _lock:
                    kept = [state for state in _live if state.remote.renew_every is not None and not state.ended]
                if not kept:
                    self._thread = None
                    return
                now = time.monotonic()
                due = [state for state in kept if state.renew_at <= now]
                for state in due:
                    # Until the answer is here.
                    state.renew_at = now + state.remote.lifetime
                if not due:
                    self._changed.wait(min(state.renew_at for state in kept) - now)
            for state in due:
                threads.submit(self._renew, state)

    def _renew(self, state: _State) -> None:
        state.renew()
        self.look()


def _end_all() -> None:
    """At exit: one after the other, because no thread can be started any more."""
    deadline = time.monotonic() + EXIT_SECONDS
    with _lock:
        left = [state for state in _live if state.owner == os.getpid()]
    for state in left:
        state.ended = True
        state.feed.end(drop=True)
        state.delete(max(0.0, deadline - time.monotonic()))


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _live.clear()
    _keeper.reset()


_lock = threading.Lock()
_live: set[_State] = set()
_keeper = _Keeper()
atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

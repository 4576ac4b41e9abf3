"""Waiting in the main thread so that no signal is missed.

A leaf module: it knows nothing of the project. Python runs signal handlers between its own steps only. A Ctrl-C that
comes right before the main thread begins to wait for a lock, a queue or a socket, or that the system gives to another
thread, is noticed when that wait ends, which may be hours away. So the main thread never waits for what others have to
bring about but in one of these ways; other threads run no handlers, and wait as they like.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")

LOOK_SECONDS = 0.2
"""How late a signal may be noticed."""


def patience() -> float | None:
    """Seconds that one wait of the calling thread may last until it is begun again; None for any number."""
    return LOOK_SECONDS if threading.current_thread() is threading.main_thread() else None


def until(waited: Callable[[float | None], Any]) -> None:
    """Call ``waited(seconds)``, such as ``threading.Event.wait``, until it says true."""
    while not waited(patience()):
        pass


def result_of(future: Future[T]) -> T:
    """``future.result()``."""
    until(lambda seconds: wait((future,), seconds).done)
    return future.result()


def all_ended(futures: Collection[Future[Any]]) -> None:
    """Wait until every one of ``futures`` has ended that is not cancelled; nothing of theirs is raised."""
    going = [future for future in futures if not future.cancelled()]
    until(lambda seconds: not wait(going, seconds).not_done)


def joined(thread: threading.Thread) -> None:
    """``thread.join()``."""

    def waited(seconds: float | None) -> bool:
        thread.join(seconds)
        return not thread.is_alive()

    until(waited)


@contextlib.contextmanager
def woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let every signal wake ``loop``, so that none is missed; for the main thread, elsewhere without effect.

    Where somebody else has set a wake-up descriptor for signals already, it stays theirs.
    """
    if threading.current_thread() is not threading.main_thread() or os.name != "posix":
        yield
        return
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    before = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
    loop.add_reader(woken, _drain, woken)
    try:
        yield
    finally:
        if before == -1:
            signal.set_wakeup_fd(-1)
        loop.remove_reader(woken)
        woken.close()
        wake.close()


def _drain(woken: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        woken.recv(4096)

"""What the loopback clouds of the tests are made of: boxes in which local programs really run, faults, a log of calls.

A cloud speaks a provider's API as the provider's own SDK expects it and runs what it is asked to run as processes of
this machine, in a folder for each sandbox. Nothing is confined: these are for tests alone. What went wrong on the way
to a real provider is asked for by name (`Cloud.fail`), and what a test left behind can be counted (`Cloud.alive`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

STREAMS = ("stdout", "stderr")


class Program:
    """A process in a box. What it prints is kept from the first byte on, so that a reader may come late or come back.

    Attributes:
        output: ``"stdout"`` and ``"stderr"``: what has been printed so far.
        status: The exit status, negative for a signal; None while it runs.
        done: True once it has ended and all its output has been read.
    """

    def __init__(self, argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.output = {name: bytearray() for name in STREAMS}
        self.status: int | None = None
        self.done = False
        self.changed = threading.Condition()
        self._watchers: list[Callable[[], None]] = []
        self._writing = threading.Lock()
        self._received = 0
        self._process = subprocess.Popen(
            list(argv),
            cwd=folder,
            env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder), **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._pumps = [threading.Thread(target=self._pump, args=(name,), daemon=True) for name in STREAMS]
        for pump in self._pumps:
            pump.start()
        self._reaper = threading.Thread(target=self._reap, daemon=True)
        self._reaper.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def _pump(self, name: str) -> None:
        stream = getattr(self._process, name)
        with stream:
            while data := stream.read(1 << 20):
                with self.changed:
                    self.output[name] += data
                self._tell()

    def _reap(self) -> None:
        status = self._process.wait()
        for pump in self._pumps:
            pump.join()
        with self.changed:
            self.status, self.done = status, True
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._tell()

    def _tell(self) -> None:
        with self.changed:
            self.changed.notify_all()
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher()

    def watch(self, function: Callable[[], None]) -> Callable[[], None]:
        """Call ``function``, in some thread, whenever anything changes; gives the function that ends that."""
        with self.changed:
            self._watchers.append(function)

        def stop() -> None:
            with self.changed, contextlib.suppress(ValueError):
                self._watchers.remove(function)

        return stop

    def write(self, data: bytes, offset: int | None = None) -> None:
        """Give ``data`` to its stdin. What lies before ``offset``'s place in the stream has come already.

        Raises:
            BrokenPipeError: it reads no more.
        """
        with self._writing:
            new = data if offset is None else data[max(0, self._received - offset) :]
            stdin = self._process.stdin
            assert stdin is not None
            if stdin.closed:
                raise BrokenPipeError
            view = memoryview(new)
            while view:
                view = view[stdin.write(view) :]
            self._received += len(new)

    def wait(self) -> None:
        """Wait for its end."""
        self._reaper.join()

    def kill(self) -> None:
        """Kill it and what it started, and wait until that is over."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._reaper.join(10)


class Box:
    """A sandbox: a folder, the programs in it, and how it was asked for.

    Attributes:
        name: The provider's id of it.
        asked: The request that made it, as the provider's API has it.
        ended: Why it is no more, in the word of the test; "" while it is there.
        status: The exit status of the program that was the sandbox's own, where that ended it.
    """

    def __init__(self, name: str, asked: Any = None) -> None:
        self.name = name
        self.asked = asked
        self.ended = ""
        self.status: int | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="fake-cloud-"))
        self.programs: dict[str, Program] = {}

    def run(self, key: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Program:
        """Start a program under ``key``."""
        program = self.programs[key] = Program(argv, self.folder, env)
        return program

    def end(self, why: str) -> None:
        """Kill all that runs in it and remove its folder. Idempotent."""
        if not self.ended:
            self.ended = why
            for program in self.programs.values():
                program.kill()
            shutil.rmtree(self.folder, ignore_errors=True)


class Cloud:
    """What every provider's stand-in has.

    Attributes:
        key: The key that it takes; with any other it refuses.
        boxes: All sandboxes that were ever made, by id.
        calls: The operations that were called, in order, by the words of the provider's API.
    """

    def __init__(self, key: str = "a-key-that-works") -> None:
        self.key = key
        self.boxes: dict[str, Box] = {}
        self.calls: list[str] = []
        self._faults: dict[str, deque[Any]] = {}
        self._lock = threading.Lock()

    @property
    def alive(self) -> list[str]:
        """Ids of the sandboxes that cost money now."""
        return [name for name, box in list(self.boxes.items()) if not box.ended]

    @property
    def made(self) -> list[Box]:
        """All sandboxes that were ever made, in order."""
        return list(self.boxes.values())

    def count(self, operation: str) -> int:
        """How often an operation was called."""
        return self.calls.count(operation)

    def fail(self, operation: str, *answers: Any) -> None:
        """Answer the next calls of ``operation`` so: with a status of the provider's protocol, ``"drop"`` for a
        connection that breaks, or a number of seconds (float) to wait before all goes well."""
        with self._lock:
            self._faults.setdefault(operation, deque()).extend(answers)

    def fault(self, operation: str, *, note: bool = True) -> Any:
        """Note the call; gives the next answer that `fail` asked for, None if there is none."""
        with self._lock:
            if note:
                self.calls.append(operation)
            waiting = self._faults.get(operation)
            return waiting.popleft() if waiting else None

    def end(self, why: str, name: str | None = None) -> None:
        """End a sandbox from the provider's side, the last one that was made if none is named."""
        self.boxes[name or list(self.boxes)[-1]].end(why)

    def clear(self) -> None:
        """End all that is left."""
        for box in list(self.boxes.values()):
            box.end("cleared")


def until(true: Callable[[], Any], seconds: float = 10.0) -> bool:
    """Whether ``true()`` becomes true within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True

"""An engine at work in a process of its own, seen from outside: asked, watched, and stopped when it takes too much."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import memory
from benchmarks.work import Work

ROOT = Path(__file__).resolve().parents[1]

RESERVE = 1_500_000_000
"""Bytes of memory that are left to the rest of the machine."""

START_LIMIT = 120.0
"""Seconds in which an engine has to be imported and warm."""


class Process:
    """One `benchmarks.child`. Use it as a context manager; nothing that it started is left behind.

    Args:
        python: Of the environment that the engine is installed in.
        engine: One of `benchmarks.engines.ENGINES`.
        work: What it will do.
        address: Of the server.
    """

    def __init__(self, python: str, engine: str, work: Work, address: str) -> None:
        self.reason = ""
        self._errors = tempfile.TemporaryFile()
        environment = {
            **os.environ,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no look for a price list on the network
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.child", engine, work.to_json(), address],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for the command, which then ends this
        )
        self._pending = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.reason = self.reason or "interrupted"
        self._end()
        self._errors.close()

    def ready(self, limit: float = START_LIMIT) -> str | None:
        """Wait until it is warm: its package and version; None if it cannot, and then see `reason`."""
        found = self._read(limit, "start")
        return None if found is None else str(found["ready"])

    def ask(self, request: str, limit: float) -> dict[str, Any] | None:
        """One answer of `benchmarks.child`; None if there is none within ``limit`` seconds, and then see `reason`."""
        if self.reason:
            return None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{request}\n".encode())
            self._process.stdin.flush()
        return self._read(limit, request)

    def _read(self, limit: float, request: str) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._pending:
            if time.monotonic() > deadline:
                self._stop(f"stopped, not done within {limit:.0f} s")
                return None
            if memory.available() < RESERVE:
                self._stop(f"stopped, less than {RESERVE / 1e9:g} GB of the machine's memory was left")
                return None
            if select.select([descriptor], [], [], 0.1)[0]:
                data = os.read(descriptor, 65536)
                if not data:
                    self._stop(self._last_words())
                    return None
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        if "reason" in found:
            self._stop(f"failed: {found['reason']}")
            return None
        return found

    def _stop(self, reason: str) -> None:
        self.reason = reason
        self._end()

    def _last_words(self) -> str:
        """Why it ended by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        status = self._process.returncode
        how = signal.Signals(-status).name if status is not None and status < 0 else f"exit status {status}"
        return f"failed: ended by itself ({how}): {(lines or ['no message'])[-1][:300]}"

    def _end(self) -> None:
        """Let it end by itself, which closes its sandboxes; kill what then is left."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        below = memory.identities(process.pid)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(timeout=0.1 if self.reason else 15)
        except subprocess.TimeoutExpired:
            below |= memory.identities(process.pid)
            process.kill()
            process.wait()
        process.stdout.close()
        for pid, born in below:
            if memory.born(pid) == born:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

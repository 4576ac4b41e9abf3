"""How far a process and those it started grow while something runs, read from ``/proc`` (proc_pid_status(5))."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Growth:
    """Bytes: of this process over its size before, and the peak of all that it started, taken together."""

    host: int
    workers: int


def growth(run: Callable[[], object]) -> Growth:
    """Run ``run`` and see."""
    # "5" sets the peak back to the present size (proc_pid_clear_refs(5)).
    Path("/proc/self/clear_refs").write_text("5")
    before = _kib(os.getpid(), "VmRSS")
    present = descendants(os.getpid())
    peaks: dict[int, int] = {}
    done = threading.Event()

    def watch() -> None:
        while True:
            ending = done.is_set()
            for pid in descendants(os.getpid()) - present:
                with contextlib.suppress(OSError, ValueError, IndexError):
                    peaks[pid] = max(peaks.get(pid, 0), _kib(pid, "VmHWM"))
            if ending:
                return
            done.wait(0.005)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        run()
    finally:
        done.set()
        watcher.join()
    return Growth((_kib(os.getpid(), "VmHWM") - before) * 1024, sum(peaks.values()) * 1024)


def _kib(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def descendants(pid: int) -> set[int]:
    """Every process that ``pid`` started, or that one of these did."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name in parentheses may hold anything; the parent's id is the second field after it.
                stat = Path(f"/proc/{entry}/stat").read_text()
                children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found: set[int] = set()
    pending = [pid]
    while pending:
        fresh = [child for child in children.get(pending.pop(), []) if child not in found]
        found.update(fresh)
        pending += fresh
    return found

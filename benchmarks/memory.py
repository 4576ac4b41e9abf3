"""How far a process and those it started grow while something runs, read from ``/proc`` (proc_pid_status(5))."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Growth:
    """What a run took.

    Attributes:
        host: Bytes by which this process grew over its size before, at its peak.
        workers: Bytes of all that it started, when they were most: of those that are alive, the peaks of each taken
            together. Pages that several share count in each.
        workers_cpu: Seconds of processor time of these, to a hundredth and as last seen.
        seconds: Wall time of the run, with the watching.
        processes: How many it had started, when they were most.
    """

    host: int
    workers: int
    workers_cpu: float
    seconds: float
    processes: int = 0


def growth(run: Callable[[], object], *, warm: bool = False) -> Growth:
    """Run ``run`` and see.

    Args:
        run: What is measured.
        warm: Count also the processes that are there already, because ``run`` will use them.
    """
    # "5" sets the peak back to the present size (proc_pid_clear_refs(5)).
    Path("/proc/self/clear_refs").write_text("5")
    before = _kib(os.getpid(), "VmRSS")
    there = descendants(os.getpid())
    present = set() if warm else there
    used_before = {pid: ticks for pid in there if (ticks := _cpu_ticks(pid)) is not None}
    most = processes = 0
    used: dict[int, int] = {}
    done = threading.Event()
    started = time.perf_counter()

    def watch() -> None:
        nonlocal most, processes
        while True:
            ending = done.is_set()
            alive = 0
            started_by_it = descendants(os.getpid()) - present
            processes = max(processes, len(started_by_it))
            for pid in started_by_it:
                with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
                    alive += _kib(pid, "VmHWM")
                    used[pid] = max(used.get(pid, 0), (_cpu_ticks(pid) or 0) - used_before.get(pid, 0))
            most = max(most, alive)
            if ending:
                return
            # Often at first, when short runs would be missed; then seldom enough not to slow what is watched.
            done.wait(0.005 if time.perf_counter() - started < 1 else 0.05)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        run()
        seconds = time.perf_counter() - started
    finally:
        done.set()
        watcher.join()
    host = (_kib(os.getpid(), "VmHWM") - before) * 1024
    return Growth(max(0, host), most * 1024, sum(used.values()) / _TICKS, seconds, processes)


def settle(quiet: float = 0.03, limit: float = 3) -> None:
    """Wait until nothing that this process started has used processor time for ``quiet`` seconds, at most ``limit``."""
    deadline = time.monotonic() + limit
    last = _used_below()
    while time.monotonic() < deadline:
        time.sleep(quiet)
        now = _used_below()
        if now == last:
            return
        last = now


def available() -> int:
    """Bytes that can be used without swapping (proc_meminfo(5), ``MemAvailable``)."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024


def descendants(pid: int) -> set[int]:
    """Every process that ``pid`` started, or that one of these did."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                children.setdefault(int(_stat(int(entry))[1]), []).append(int(entry))
    found: set[int] = set()
    pending = [pid]
    while pending:
        fresh = [child for child in children.get(pending.pop(), []) if child not in found]
        found.update(fresh)
        pending += fresh
    return found


def born(pid: int) -> int | None:
    """When a process was started, in ticks: with its id, what no other process is. None if there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_stat(pid)[19])
    return None


def identities(pid: int) -> set[tuple[int, int]]:
    """`descendants`, each with when it was `born`."""
    return {(below, when) for below in descendants(pid) if (when := born(below)) is not None}


def _kib(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def _stat(pid: int) -> list[str]:
    """The fields after the name, whose parentheses may hold anything: state, parent, ... (proc_pid_stat(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_ticks(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = _stat(pid)
        return int(fields[11]) + int(fields[12])
    return None


def _used_below() -> dict[int, int | None]:
    return {pid: _cpu_ticks(pid) for pid in descendants(os.getpid())}

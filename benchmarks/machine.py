"""What this machine does by itself: the numbers that the bars are made of, and how noisy they are."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import memory


def least(run: Callable[[], object], repeats: int = 9) -> float:
    """The least of the wall times, seconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def bwrap_start() -> float | None:
    """Seconds of one ``bwrap … python -I -c pass`` over the mounts of the default environment; None without bwrap."""
    command = _bwrap_command()
    if command is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        return None
    return least(lambda: subprocess.run(command, check=True))


def _bwrap_command() -> list[str] | None:
    """The command line of a real sandbox, read from ``/proc``, less what only its host can give it."""
    from rlm_dspy import environments

    before = memory.descendants(os.getpid())
    transport = environments.local().open()
    try:
        for pid in sorted(memory.descendants(os.getpid()) - before):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
                if words and Path(words[0]).name == "bwrap":
                    return _without_descriptors(words)
        return None
    finally:
        transport.close()


def _without_descriptors(words: list[str]) -> list[str]:
    command: list[str] = []
    options = iter(words[: words.index("--")])
    for word in options:
        if word == "--seccomp" or word.endswith("-fd"):
            next(options)
        else:
            command.append(word)
    return [*command, "--", sys.executable, "-I", "-c", "pass"]


def python_start() -> float:
    """Seconds of one ``python -I -c pass``."""
    return least(lambda: subprocess.run([sys.executable, "-I", "-c", "pass"], check=True))


def help_time() -> float:
    """Seconds of ``rlm-dspy --help``."""
    command: Sequence[str] = [str(Path(sys.executable).with_name("rlm-dspy")), "--help"]
    return least(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def spin() -> float:
    """Seconds of a fixed amount of arithmetic."""

    def count() -> None:
        total = 0
        for number in range(1_000_000):
            total += number * number

    started = time.perf_counter()
    count()
    return time.perf_counter() - started


def noise(repeats: int = 15) -> tuple[float, float]:
    """The least time of `spin`, and by what share the median is above it."""
    times = sorted(spin() for _ in range(repeats))
    return times[0], times[len(times) // 2] / times[0] - 1


def about() -> str:
    """Cores, Python and load, one line."""
    return (
        f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, "
        f"load {os.getloadavg()[0]:.1f} at the start, Linux {os.uname().release}"
    )

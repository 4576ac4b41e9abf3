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
from benchmarks.process import ROOT


def times(run: Callable[[], object], repeats: int) -> list[float]:
    """The wall times of ``run``, seconds."""
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        found.append(time.perf_counter() - started)
    return found


def least(run: Callable[[], object], repeats: int = 9) -> float:
    """The least of `times`."""
    return min(times(run, repeats))


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


def help_times(repeats: int = 9) -> list[float]:
    """Seconds of ``rlm-dspy --help``, of each repeat.

    Raises:
        OSError, subprocess.CalledProcessError: There is no such command beside this Python, or it fails.
    """
    command: Sequence[str] = [str(Path(sys.executable).with_name("rlm-dspy")), "--help"]
    return times(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), repeats)


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
    found = sorted(spin() for _ in range(repeats))
    return found[0], found[len(found) // 2] / found[0] - 1


def about() -> str:
    """Processor, cores, memory, system, Python and load, one line."""
    memory_size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory_size:.0f} GiB, Linux {os.uname().release}, "
        f"Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f} at the start"
    )


def _processor() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return os.uname().machine


def commit() -> str:
    """The revision of the checkout, with ``+`` if files differ from it; empty without git."""
    revision = _git("rev-parse", "--short", "HEAD")
    return revision + ("+" if revision and _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*words: str) -> str:
    command = ["git", "-c", "safe.directory=*", *words]
    with contextlib.suppress(OSError):
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return ""

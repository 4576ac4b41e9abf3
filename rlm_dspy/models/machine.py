"""Processors and memory that this process may use: the machine's, less what a container or an affinity takes away."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


def usable_cores() -> int:
    """Processors for threads that compute: the affinity's number, bounded by the CPU quota of the cgroup."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:
        count = os.cpu_count() or 1
    quota = _quota()
    return max(1, min(count, int(quota) if quota is not None else count))


def available_memory() -> int | None:
    """Bytes that can be had without swapping, as the kernel and the cgroup see it; None where neither says."""
    known = [value for value in (_mem_available(), *_cgroup_memory()) if value is not None]
    return min(known) if known else None


def lacks_avx2() -> bool:
    """Whether this is a x86-64 processor without AVX2, for which the prebuilt llama.cpp wheel is not made."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        text = (_PROC / "cpuinfo").read_text(errors="replace")
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return bool(flags) and " avx2" not in flags


def _quota() -> float | None:
    for place in _groups("cpu"):
        words = _text(place / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            return int(words[0]) / int(words[1])
        quota, period = _text(place / "cpu.cfs_quota_us"), _text(place / "cpu.cfs_period_us")
        if quota and period and int(quota) > 0:
            return int(quota) / int(period)
    return None


def _mem_available() -> int | None:
    for line in _text(_PROC / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_memory() -> list[int | None]:
    found: list[int | None] = []
    for place in _groups("memory"):
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            bound, now = _text(place / limit), _text(place / used)
            # Without a limit version 1 says a number near 2**63.
            if bound.isdigit() and now.isdigit() and int(bound) < 1 << 60:
                stat = dict(line.split()[:2] for line in _text(place / "memory.stat").splitlines() if " " in line)
                found.append(int(bound) - int(now) + int(stat.get(cache, 0)))
    return found


def _groups(controller: str) -> list[Path]:
    """The folders of this process' control groups, its own and those above it, versions 2 and 1 (cgroups(7))."""
    places: list[Path] = []
    for line in _text(_PROC / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = _CGROUP / controllers if controllers else _CGROUP
        if controllers and not base.is_dir():
            base = _CGROUP / controller
        own = base / path.lstrip("/")
        places += [place for place in (own, *own.parents) if place == base or base in place.parents]
    return places


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

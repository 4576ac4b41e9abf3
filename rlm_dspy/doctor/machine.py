"""Temporary folder, memory, disk, open files, processes, cache folder, terminal."""

from __future__ import annotations

import locale
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rlm_dspy.doctor.finding import Finding, ok, problem, warning
from rlm_dspy.doctor.text import read, size

MIN_TEMPORARY = 256 << 20
MIN_CACHE = 64 << 20
MIN_MEMORY = 1 << 30
MIN_FILES = 1024
_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def temporary_folder() -> Iterator[Finding]:
    """Whether scratch folders can be made, and what fits there."""
    fix = "export TMPDIR=... (a writable folder with free space)"
    try:
        folder = tempfile.gettempdir()
        with tempfile.TemporaryDirectory(prefix="rlm-dspy-") as made:
            Path(made, "probe").write_bytes(b"x" * 4096)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield problem("temporary folder", f"it cannot be written: {error.strerror or error}", fix)
        return
    found = f"{folder} is writable, {size(free)} free"
    if free < MIN_TEMPORARY:
        yield warning("temporary folder", f"{found}; the sandbox's scratch may take {size(MIN_TEMPORARY)}", fix)
    else:
        yield ok("temporary folder", found)


def memory() -> Iterator[Finding]:
    """What this process may still take, by the machine and by its container."""
    numbers = dict(line.split(":", 1) for line in (read("/proc/meminfo") or "").splitlines() if ":" in line)
    known = [int(numbers["MemAvailable"].split()[0]) << 10] if "MemAvailable" in numbers else []
    limited = ""
    for limit_file, used_file in _CGROUP_LIMITS:
        limit, used = read(limit_file), read(used_file)
        if limit and used and limit.isdigit() and used.isdigit() and int(limit) < 1 << 60:
            known.append(max(0, int(limit) - int(used)))
            limited = f", the container's limit is {size(int(limit))}"
    own = _limit("RLIMIT_AS")
    if own is not None:
        known.append(own)
        limited += f", ulimit -v is {size(own)}"
    if not known:
        yield ok("memory", "this system does not tell")
        return
    free = min(known)
    found = f"{size(free)} free{limited}"
    if free < MIN_MEMORY:
        fixes = ["close other programs, or give the container more: docker run --memory 4g ..."]
        if own is not None and own == free:
            fixes = ["ulimit -v unlimited"]
        fixes.append("let the sandbox take less: --env-opt memory=512MiB")
        yield warning("memory", found, *fixes)
    else:
        yield ok("memory", found)


def open_files() -> Iterator[Finding]:
    """How many descriptors this process may have: a sandbox takes about ten, a connection one."""
    limit = _limit("RLIMIT_NOFILE")
    if limit is None:
        yield ok("open files", "no limit")
    elif limit < MIN_FILES:
        yield warning("open files", f"at most {limit:,}", "ulimit -n 4096  # docker run --ulimit nofile=4096")
    else:
        yield ok("open files", f"at most {limit:,}")


def processes() -> Iterator[Finding]:
    """Whether a process can be started at all, and how many there may be."""
    limit = _limit("RLIMIT_NPROC")
    some = f"at most {limit:,} of this user" if limit is not None else "no limit of this user"
    pids = read("/sys/fs/cgroup/pids.max")
    if pids and pids.isdigit():
        some += f", {int(pids):,} in this container"
    fix = "raise it: ulimit -u 4096, or docker run --pids-limit 4096 ..."
    try:
        done = subprocess.run([sys.executable, "-I", "-S", "-c", ""], stdin=subprocess.DEVNULL, capture_output=True)
    except PermissionError as error:
        here = sys.executable or "Python"
        fix = f"install Python where this user may run it, or allow it: {here} and the folders above it"
        yield problem("processes", f"{here} cannot be started: {error.strerror}", fix)
        return
    except (OSError, ValueError) as error:
        yield problem("processes", f"none can be started: {getattr(error, 'strerror', None) or error}; {some}", fix)
        return
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        yield problem("processes", f"a Python that was started failed ({done.returncode}): {' '.join(last)}", fix)
    elif limit is not None and limit < 256 and os.geteuid() != 0:
        yield warning("processes", some, fix)
    else:
        yield ok("processes", f"can be started; {some}")


def cache() -> Iterator[Finding]:
    """DSPy's cache folder: without it nothing breaks, but answers are paid for again."""
    # As dspy.clients reads it; DSPy itself need not be importable here.
    given = os.environ.get("DSPY_CACHEDIR")
    folder = Path(given) if given else Path(os.path.expanduser("~"), ".dspy_cache")
    fix = "export DSPY_CACHEDIR=... (a writable folder); without one, answers are cached in memory only"
    there = folder
    # os.path, as Path.exists raises where a folder above may not be searched.
    while not os.path.exists(there) and there != there.parent:
        there = there.parent
    try:
        if not os.path.isdir(there):
            raise NotADirectoryError(20, f"{there} is not a folder")
        with tempfile.TemporaryFile(dir=there):
            pass
        free = shutil.disk_usage(there).free
    except OSError as error:
        yield warning("cache folder", f"{folder} cannot be written: {error.strerror or error}", fix)
        return
    found = f"{folder} {'is' if there == folder else 'can be made and is'} writable, {size(free)} free"
    if free < MIN_CACHE:
        yield warning("cache folder", found, fix)
    else:
        yield ok("cache folder", found)


def terminal() -> Iterator[Finding]:
    """Where output goes, how wide it is, and what it can show."""
    stream = sys.stdout
    encoding = (getattr(stream, "encoding", None) or "none").lower()
    shown = stream is not None and _isatty(stream)
    parts = [f"{shutil.get_terminal_size().columns} columns" if shown else "output is not a terminal"]
    parts.append(encoding)
    term = os.environ.get("TERM")
    if shown:
        parts.append(f"TERM={term}" if term else "TERM is not set")
        parts.append("no colour" if os.environ.get("NO_COLOR") or term in (None, "dumb") else "colour")
    found, fix = ", ".join(parts), "export PYTHONUTF8=1 LC_ALL=C.UTF-8"
    try:
        locale.setlocale(locale.LC_CTYPE, "")
    except (locale.Error, ValueError):
        yield warning("terminal", f"{found}; the locale that LANG or LC_ALL names is not there", fix)
        return
    if encoding not in ("utf-8", "utf8"):
        yield warning("terminal", f"{found}; other letters are written as escapes", fix)
    else:
        yield ok("terminal", found)


def _isatty(stream: object) -> bool:
    try:
        return bool(stream.isatty())  # type: ignore[attr-defined]
    except (ValueError, AttributeError, OSError):
        return False


def _limit(name: str) -> int | None:
    try:
        import resource

        soft = resource.getrlimit(getattr(resource, name))[0]
    except (ImportError, AttributeError, OSError, ValueError):
        return None
    return None if soft == resource.RLIM_INFINITY else int(soft)

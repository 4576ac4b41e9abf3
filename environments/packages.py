"""Packages for sandboxes: fetched once by this host's pip, for the Python of the sandbox, and kept in a cache folder.

    $RLM_DSPY_CACHE, or $XDG_CACHE_HOME/rlm-dspy, or ~/.cache/rlm-dspy
        packages/HASH/            what pip installed; HASH is of the requirements, the Python and the platform
        packages/HASH/.complete   only what has it is whole; a folder gets its name when it is
        packages/HASH.zip         the same as one archive, for sandboxes that cannot read the folder
        packages/HASH.lock        held by the process that installs there

A requirement without a version keeps the version that was found first; `clear` forgets all.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rlm_dspy.environments.place import Place
from rlm_dspy.environments.scratch import cache_root
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.redact import redact

MARK = ".complete"
INSTALL_SECONDS = 1800.0
"""Seconds that pip may take."""
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_MANYLINUX_1 = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
_MUSL_MINOR = 2
_lock = threading.Lock()


@functools.cache
def this_python() -> dict[str, Any]:
    """The running Python, as `rlm_dspy.environments.place.Place.python` tells it of a sandbox's."""
    return Place().python()


def install(requirements: Sequence[str], python: Mapping[str, Any] | None = None) -> Path:
    """The folder that holds ``requirements`` and all they need, installed for ``python``. Blocking.

    Args:
        requirements: As pip takes them; also paths of wheels.
        python: What `Place.python` told of the sandbox; None for this Python.

    Raises:
        ConfigurationError: pip cannot install them, with its own words, or there is no pip.
    """
    target = this_python() if python is None else checked_python(python)
    folder = cache_root() / "packages" / _key(requirements, target)
    if not (folder / MARK).exists():
        with _locked(folder):
            if not (folder / MARK).exists():
                _install(requirements, target, folder)
    return folder


def archive(folder: Path) -> Path:
    """An installed folder as one zip archive beside it, made when it is first asked for. Blocking."""
    path = folder.with_name(folder.name + ".zip")
    if not path.exists():
        with _locked(folder):
            if not path.exists():
                with tempfile.NamedTemporaryFile(dir=folder.parent, suffix=".tmp", delete=False) as file:
                    try:
                        _pack(folder, file)
                    except BaseException:
                        # On a full disk it would be in the way of all else.
                        os.unlink(file.name)
                        raise
                os.replace(file.name, path)
    return path


def _pack(folder: Path, file: IO[bytes]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        for item in sorted(folder.rglob("*")):
            if item.is_file() and "__pycache__" not in item.parts:
                out.write(item, item.relative_to(folder).as_posix())
    file.flush()


def clear() -> None:
    """Remove all that is kept."""
    shutil.rmtree(cache_root() / "packages", ignore_errors=True)


def checked_python(told: Any) -> dict[str, Any]:
    """What a sandbox told of its Python: it becomes options of pip, so it is only taken in the form that it must have.

    Raises:
        ConfigurationError: It has another form.
    """
    known = {"version", "implementation", "soabi", "platform", "libc", "libc_version"}
    if isinstance(told, dict) and set(told) == known:
        version, texts = told["version"], [told[name] for name in sorted(known - {"version"})]
        if isinstance(version, list) and len(version) == 3 and all(type(n) is int and 0 <= n < 1000 for n in version):
            if all(isinstance(text, str) and re.fullmatch(r"[\w.-]{0,100}", text) for text in texts):
                return told
    raise ConfigurationError("packages: the sandbox does not say which Python it has")


def _key(requirements: Sequence[str], target: Mapping[str, Any]) -> str:
    parts: list[Any] = [sorted(requirements), target["version"][:2]]
    parts += [target[name] for name in ("implementation", "soabi", "platform", "libc", "libc_version")]
    for requirement in requirements:
        # A text that is no possible path does not exist either.
        if os.path.exists(requirement):
            status = os.stat(requirement)
            parts.append([os.path.abspath(requirement), status.st_size, status.st_mtime_ns])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One thread of one process at a time; where files cannot be locked, the rename at the end decides."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock, open(folder.with_name(folder.name + ".lock"), "w") as file:
        with contextlib.suppress(ImportError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install(requirements: Sequence[str], target: Mapping[str, Any], folder: Path) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".tmp", dir=folder.parent))
    try:
        command = [
            *_pip(),
            "install",
            "--target",
            str(temporary),
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
        ]
        command += ["--no-warn-conflicts", "--progress-bar", "off", *_options(target), "--", *requirements]
        try:
            done = subprocess.run(
                command,
                # Settings that make sense for installing into Python itself, and contradict --target.
                env={**os.environ, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ConfigurationError(
                f"packages: pip did not finish within {INSTALL_SECONDS:g} seconds: {_shown(requirements)}"
            ) from None
        if done.returncode != 0:
            raise ConfigurationError(_failure(requirements, target, done.stderr or done.stdout))
        (temporary / MARK).touch()
        _let_others_read(temporary)
        try:
            os.rename(temporary, folder)
        except OSError:
            # Another host was faster, or what stands there is not whole.
            if not (folder / MARK).exists():
                shutil.rmtree(folder, ignore_errors=True)
                os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found, "--python", sys.executable]
    raise ConfigurationError("packages: there is no pip: install it with `python -m ensurepip` or `uv pip install pip`")


def _is_this(target: Mapping[str, Any]) -> bool:
    """Whether what is installed for the running Python fits: a patch release is no other Python."""
    here = this_python()
    return target["version"][:2] == here["version"][:2] and all(
        target[name] == here[name] for name in here if name != "version"
    )


def _options(target: Mapping[str, Any]) -> list[str]:
    """What makes pip choose for another Python than this one; nothing for this one."""
    if _is_this(target):
        return ["--prefer-binary"]
    version = "{}.{}".format(*target["version"])
    options = ["--only-binary", ":all:", "--no-compile", "--python-version", version]
    if target["implementation"] == "cpython":
        options += ["--implementation", "cp", "--abi", "cp{}{}".format(*target["version"])]
        options += ["--abi", "abi3", "--abi", "none"]
    return options + [word for name in platforms(target) for word in ("--platform", name)]


def platforms(target: Mapping[str, Any]) -> list[str]:
    """The platform tags of wheels that run there, best first (PEP 425, 600, 656)."""
    system, _, machine = str(target["platform"]).replace(".", "_").partition("-")
    plain = f"{system}_{machine}".replace("-", "_")
    if system != "linux":
        return [plain]
    found = []
    if target["libc"] == "glibc":
        parts = [int(part) for part in re.findall(r"\d+", target["libc_version"])][:2]
        for minor in range(parts[1] if len(parts) == 2 else 17, 4, -1):
            found.append(f"manylinux_2_{minor}_{machine}")
            if minor in _MANYLINUX_1:
                found.append(f"{_MANYLINUX_1[minor]}_{machine}")
    else:
        found += [f"musllinux_1_{minor}_{machine}" for minor in range(_MUSL_MINOR, -1, -1)]
    return [*found, plain]


def _failure(requirements: Sequence[str], target: Mapping[str, Any], text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")] or lines[-5:]
    said = redact(_USERINFO.sub("[hidden]@", "; ".join(errors)))[:2_000]
    where = (
        "" if target == this_python() else " for Python {}.{}".format(*target["version"]) + f" on {target['platform']}"
    )
    return f"packages: pip cannot install {_shown(requirements)}{where}: {said}"


def _shown(requirements: Sequence[str]) -> str:
    """Requirements without the names and passwords in their addresses."""
    return redact(_USERINFO.sub("[hidden]@", ", ".join(requirements)))[:2_000]


def _let_others_read(folder: Path) -> None:
    """Sandboxed code may run as a user of its own."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode & 0o777
            path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0))

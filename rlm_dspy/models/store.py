"""The cache folder of models: what is there, what was verified, and who is writing.

    $RLM_DSPY_CACHE, or $XDG_CACHE_HOME/rlm-dspy, or ~/.cache/rlm-dspy
        models/NAME/FILE.gguf        a whole file; it gets this name only after its hash was found right
        models/NAME/model.json       what it is
        models/NAME/verified.json    which size, time and hash it had when it was hashed
        models/NAME/partial/         what there is of a file that is not whole yet (see partial.py)
        models/.locks/NAME.lock      held by the process that writes there
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlm_dspy.environments.scratch import CACHE_VARIABLE as CACHE_VARIABLE
from rlm_dspy.environments.scratch import cache_root as root
from rlm_dspy.errors import LocalModelError
from rlm_dspy.models.catalog import CATALOG, LocalModel, Parts

_CHUNK = 4 << 20


def folder(name: str) -> Path:
    """Where all of one model is kept."""
    return root() / "models" / name


def target(model: LocalModel) -> Path:
    """Where the whole file is, or will be."""
    return Path(model.path) if model.path else folder(model.name) / model.file


def partial_folder(name: str) -> Path:
    """Where an unfinished download keeps what it has."""
    return folder(name) / "partial"


def names() -> list[str]:
    """The names of all models of which there is something."""
    place = root() / "models"
    if not place.is_dir():
        return []
    return sorted(entry.name for entry in place.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def described(name: str) -> LocalModel | None:
    """The model kept under ``name``, as it was described when it was pulled."""
    if name in CATALOG:
        return CATALOG[name]
    if name != os.path.basename(name) or name.startswith("."):
        return None
    fields = read_json(folder(name) / "model.json")
    if fields is None:
        return None
    parts = fields.pop("parts", None)
    try:
        return LocalModel(**fields, parts=Parts(**parts) if parts else None)
    except TypeError:
        return None


def describe(model: LocalModel) -> None:
    """Keep what ``model`` is, so that its name is known from now on."""
    write_json(folder(model.name) / "model.json", dataclasses.asdict(model))


@contextlib.contextmanager
def locked(name: str, waiting: Callable[[], Any] = lambda: None) -> Iterator[None]:
    """Hold the right to write one model, against other threads and processes; ``waiting`` is called if that takes time.

    Raises:
        LocalModelError: The cache folder cannot be written.
    """
    import filelock

    path = root() / "models" / ".locks" / f"{name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path, thread_local=False)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            waiting()
            lock.acquire(poll_interval=0.1)
    except OSError as error:
        raise LocalModelError(
            f"the cache folder {root()} cannot be written: {error.strerror or error}. "
            f"Set {CACHE_VARIABLE} to another one"
        ) from error
    try:
        yield
    finally:
        lock.release()


def complete(model: LocalModel, progress: Callable[[int], Any] = lambda count: None) -> Path | None:
    """The file of ``model`` if all of it is there and is what it should be; None if there is none.

    A file that was hashed before and has kept its size and time since is not hashed again.

    Args:
        model: The model.
        progress: Called with the number of bytes just hashed.

    Raises:
        LocalModelError: The file is there and is another one. One of the cache folder is removed by that.
    """
    path = target(model)
    if not path.is_file():
        return None
    if model.sha256 is None or _marked(model, path):
        return path
    got = sha256_of(path, progress)
    if got == model.sha256:
        mark(model, path, got)
        return path
    message = f"{path} is not the file it should be: SHA-256 expected {model.sha256}, got {got}"
    if model.path is None:
        path.unlink(missing_ok=True)
        message += f". It was removed; fetch it again with: rlm-dspy model pull {model.name}"
    raise LocalModelError(message)


def mark(model: LocalModel, path: Path, sha256: str) -> None:
    """Remember that ``path``, as it is now, has this hash. A folder that cannot be written costs another hash later."""
    status = path.stat()
    seen = {"file": str(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}
    with contextlib.suppress(OSError):
        write_json(_marker(model, path), seen)


def sha256_of(path: Path, progress: Callable[[int], Any] = lambda count: None) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            progress(len(chunk))
    return digest.hexdigest()


def remove(name: str) -> int:
    """Remove all of one model, whole or partial.

    Returns:
        The bytes that were freed.
    """
    freed = 0
    if name != os.path.basename(name) or name.startswith("."):
        raise LocalModelError(f"{name} is not in the cache folder; only what was pulled is removed")
    with locked(name):
        place = folder(name)
        for path in place.rglob("*"):
            with contextlib.suppress(OSError):
                status = path.lstat()
                if path.is_file() and status.st_nlink == 1:
                    # The allocated size: an unfinished file has holes.
                    freed += min(status.st_size, getattr(status, "st_blocks", 1 << 60) * 512)
        shutil.rmtree(place, ignore_errors=True)
        if place.exists():
            raise LocalModelError(f"{place} could not be removed; is it in use, or somebody else's?")
    return freed


def _marker(model: LocalModel, path: Path) -> Path:
    if model.path is None:
        return folder(model.name) / "verified.json"
    return root() / "paths" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"


def _marked(model: LocalModel, path: Path) -> bool:
    seen = read_json(_marker(model, path)) or {}
    status = path.stat()
    now = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": model.sha256}
    return all(seen.get(key) == value for key, value in now.items())


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is none that can be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write an object as a JSON file: the old one or the new one is there, never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        temporary.write_text(json.dumps(value, indent=1), encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)

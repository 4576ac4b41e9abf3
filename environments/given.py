"""What an environment gives its sessions besides values, checked: code to set up, requirements, files.

Files of the host are looked at when a session starts, not when the environment is made; `stamp` tells whether they
have changed since.
"""

from __future__ import annotations

import ast
import os
import re
import symtable
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlm_dspy.errors import ConfigurationError

MAX_FILES = 10_000
"""Files that one environment may give."""
MAX_BYTES = 1 << 30
"""Bytes that the files of one environment may have together, and that one upload may have."""
PIECE = 4 << 20
"""Bytes of a file that cross in one frame."""

_TOLD = 20


@dataclass(frozen=True)
class Source:
    """One file to bring into a sandbox: its name there, and where its bytes are."""

    name: str
    data: bytes | Path
    size: int
    executable: bool = False

    def pieces(self, size: int = PIECE) -> Iterator[dict[str, Any]]:
        """The requests, `rlm_dspy.environments.place.Place.write`, that bring it there; at least one.

        Raises:
            OSError: It cannot be read, has become shorter, or is not empty as it says, like those of ``/proc``.
        """
        head = {"name": self.name, "executable": self.executable}
        if isinstance(self.data, bytes):
            view = memoryview(self.data)
            for start in range(0, max(1, len(view)), size):
                yield {
                    **head,
                    "data": bytes(view[start : start + size]),
                    "start": start,
                    "last": start + size >= len(view),
                }
            return
        with open(self.data, "rb") as file:
            for start in range(0, max(1, self.size), size):
                piece = file.read(min(size, self.size - start))
                if len(piece) < min(size, self.size - start):
                    raise OSError(f"{self.data} became shorter while it was read")
                if not self.size and file.read(1):
                    raise OSError(f"{self.data} does not say how large it is; read it and give the bytes")
                yield {**head, "data": piece, "start": start, "last": start + size >= self.size}


def checked_code(code: str | None) -> str | None:
    """``setup_code`` as it is, if it compiles. Cells may await, so it may, too."""
    if code is None:
        return None
    if not isinstance(code, str):
        raise ConfigurationError(f"setup_code must be Python text, not {type(code).__name__}")
    try:
        compile(code, "<setup>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(f"setup_code does not compile: {error}") from None
    return code


def told(code: str | None, packages: Sequence[str], files: Mapping[str, Any]) -> str:
    """What a model has to know of what is given: names, not contents; empty where nothing is."""
    said = []
    if names := _named(_made(code)) if code else "":
        said.append(f"Defined beforehand: {names}.")
    if names := _named([_named_package(package) for package in packages]):
        said.append(f"Installed: {names}.")
    if names := _named(list(files)):
        said.append(f"In the working directory: {names}.")
    return " ".join(said)


def _made(code: str) -> list[str]:
    """The names that code binds at its top level, those that begin with an underscore left out."""
    try:
        symbols = symtable.symtable(code, "<setup>", "exec").get_symbols()
    except SyntaxError:
        return []
    return [s.get_name() for s in symbols if (s.is_assigned() or s.is_imported()) and not s.get_name().startswith("_")]


def _named_package(package: str) -> str:
    """A requirement as it is told to a model: of an address or a path only the last part, without what is secret."""
    if "/" not in package and os.sep not in package:
        return package
    name, at, _ = package.partition("@")
    if at and "/" not in name and os.sep not in name:
        return name.strip()
    return os.path.basename(re.split("[?#]", package)[0].rstrip("/" + os.sep))


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_TOLD])
    return f"{shown} and {len(names) - _TOLD} more" if len(names) > _TOLD else shown


def checked_requirements(packages: Sequence[str]) -> tuple[str, ...]:
    """``packages`` without repetitions, in order."""
    if isinstance(packages, bool):
        raise ConfigurationError(
            "packages takes requirements, such as packages=['numpy>=2']; whether what is installed for this Python can "
            "be imported in a local sandbox is the option site_packages"
        )
    if isinstance(packages, (str, bytes)) or not isinstance(packages, Sequence):
        raise ConfigurationError(f"packages takes a sequence of requirements; write packages=[{packages!r}]")
    for package in packages:
        if not isinstance(package, str) or not package.strip() or "\0" in package:
            raise ConfigurationError(
                f"packages: {package!r} is no requirement; write it as pip does, such as 'numpy>=2'"
            )
        if package.strip().startswith("-"):
            raise ConfigurationError(
                f"packages: {package!r} is an option of pip; set it in pip's configuration or environment variables, "
                "such as PIP_INDEX_URL or PIP_FIND_LINKS"
            )
    return tuple(dict.fromkeys(package.strip() for package in packages))


def checked_name(name: str, what: str = "files") -> str:
    """A name in a sandbox's working folder, with ``/`` between folders.

    Raises:
        ConfigurationError: It is absolute, leads out of the folder, or names nothing.
    """
    if isinstance(name, os.PathLike):
        name = os.fspath(name)
    if not isinstance(name, str) or not name or "\0" in name:
        raise ConfigurationError(f"{what}: {name!r} is not the name of a file")
    parts = name.removeprefix("./").removesuffix("/").split("/")
    if name.startswith("/") or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise ConfigurationError(
            f"{what}: {name!r} must be a name in the sandbox's working folder, such as 'data/a.csv': not absolute, "
            "without '..' and with '/' between folders"
        )
    return "/".join(parts)


def checked_files(files: Mapping[str, Any] | None) -> dict[str, str | bytes]:
    """``files`` with checked names, to absolute paths of the host or to bytes."""
    if files is None:
        return {}
    if not isinstance(files, Mapping):
        raise ConfigurationError(f"files takes a mapping of names to paths or bytes, not {type(files).__name__}")
    found: dict[str, str | bytes] = {}
    for given, value in files.items():
        name = checked_name(given)
        for other in found:
            if name == other or (name.startswith(other + "/") and not _is_folder(found[other])):
                raise ConfigurationError(f"files: {name!r} and {other!r} cannot both be there")
            if other.startswith(name + "/") and not _is_folder(value):
                raise ConfigurationError(f"files: {other!r} and {name!r} cannot both be there")
        if isinstance(value, (bytes, bytearray, memoryview)):
            found[name] = bytes(value)
        elif isinstance(value, (str, os.PathLike)):
            path = os.path.abspath(os.path.expanduser(os.fspath(value)))
            if not os.path.exists(path):
                raise ConfigurationError(
                    f"files: {path} does not exist. A text is a path; give a file's content as bytes: b'...' or "
                    "text.encode()"
                )
            found[name] = path
        else:
            raise ConfigurationError(f"files: {name!r} must be a path or bytes, not {type(value).__name__}")
    return found


def _is_folder(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and os.path.isdir(os.path.expanduser(os.fspath(value)))


def sources(files: Mapping[str, str | bytes]) -> list[Source]:
    """The single files of an environment's ``files``, folders walked.

    Raises:
        ConfigurationError: Too many or too large, or one is neither a file nor a folder.
        OSError: One cannot be read.
    """
    found: list[Source] = []
    size = 0
    for name, value in files.items():
        for source in [Source(name, value, len(value))] if isinstance(value, bytes) else _of_path(name, Path(value)):
            found.append(source)
            size += source.size
            if len(found) > MAX_FILES or size > MAX_BYTES:
                raise ConfigurationError(
                    f"files: more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB; {name!r} was the one too many. Hand "
                    "large data over as an input of the call instead"
                )
    return found


def source_of(name: str, data: bytes | bytearray | memoryview | str | os.PathLike[str]) -> Source:
    """One file to upload.

    Raises:
        ConfigurationError: The name leads out of the folder, or it is too large or no file.
        OSError: It cannot be read.
    """
    name = checked_name(name, "upload")
    if isinstance(data, (bytes, bytearray, memoryview)):
        source = Source(name, bytes(data), len(data) if not isinstance(data, memoryview) else data.nbytes)
    elif isinstance(data, (str, os.PathLike)):
        path = Path(data).expanduser()
        if path.is_dir():
            raise ConfigurationError(f"upload takes one file, and {path} is a folder; name its files one by one")
        source = _of_file(name, path)
    else:
        raise ConfigurationError(f"upload takes bytes or the path of a file, not {type(data).__name__}")
    if source.size > MAX_BYTES:
        raise ConfigurationError(f"upload: {name!r} has {source.size} bytes, more than the {MAX_BYTES} allowed")
    return source


def stamp(files: Mapping[str, str | bytes], packages: Sequence[str] = ()) -> tuple[Any, ...]:
    """Something that differs once a file of the host that is given, or a wheel, has changed."""
    found: list[Any] = []
    paths = [value for value in files.values() if not isinstance(value, bytes)]
    for value in (*paths, *(package for package in packages if os.path.isfile(package))):
        for folder, _, names in os.walk(value) if os.path.isdir(value) else [(value, (), ("",))]:
            for name in names:
                path = os.path.join(folder, name) if name else folder
                try:
                    status = os.stat(path)
                except OSError:
                    found.append((path, None))
                else:
                    found.append((path, status.st_ino, status.st_size, status.st_mtime_ns))
                if len(found) > MAX_FILES:
                    return tuple(found)
    return tuple(found)


def _of_file(name: str, path: Path) -> Source:
    status = path.stat()
    if not path.is_file():
        raise ConfigurationError(f"{path} is neither a file nor a folder")
    return Source(name, path, status.st_size, bool(status.st_mode & 0o100))


def _of_path(name: str, path: Path) -> Iterator[Source]:
    if not path.is_dir():
        yield _of_file(name, path)
        return
    root = path.resolve()
    for folder, folders, names in os.walk(root):
        folders.sort()
        for file in sorted(names):
            here = Path(folder, file)
            # What a link leads to may be nobody's business in there.
            if here.is_file() and here.resolve().is_relative_to(root):
                yield _of_file(f"{name}/{here.relative_to(root).as_posix()}", here)

"""Files, folders and standard input as the value of a run's ``context``.

    documents = read(["report.txt", "sales.csv", "src"])
    rlm(context=documents.context, query="…")

Text is decoded without loss, JSON is parsed, JSONL and CSV become lists of records, and a folder becomes a dict of its
texts. Whatever was guessed, kept as it was, or left out is said in `Documents.notes`.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rlm_dspy import formats
from rlm_dspy.errors import ConfigurationError

STDIN = "-"
_NAMED = 5
_READS = "this version reads text, JSON, CSV and folders"


class DocumentError(ConfigurationError):
    """A document cannot be read; the message names it and says what to do."""


@dataclass(frozen=True)
class Documents:
    """What was read.

    Attributes:
        items: Name to value, in the order given.
        sizes: Name to the bytes that were read for it.
        notes: What a reader of the answer should know: encodings guessed, records kept as text, files left out.
    """

    items: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes read in all."""
        return sum(self.sizes.values())

    @property
    def context(self) -> Any:
        """The value of the only document, or a dict of name to value."""
        return next(iter(self.items.values())) if len(self.items) == 1 else dict(self.items)


def read(paths: Iterable[str | os.PathLike[str]], *, stdin: IO[Any] | None = None) -> Documents:
    """Read documents.

    Args:
        paths: Files and folders; ``"-"`` is standard input. One that is given twice is read once. Documents go by
            their file names, by as much of their paths as it takes where names are the same.
        stdin: Read for ``"-"``, bytes or text; ``sys.stdin`` if None.

    Raises:
        DocumentError: One does not exist, cannot be read, or is of a kind this version does not read.
    """
    sources: dict[str, str] = {}
    notes: list[str] = []
    for path in dict.fromkeys(os.fspath(p) for p in paths):
        if "\0" in path:
            raise DocumentError(f"{path!r} is not a path: no name of a file holds a NUL")
        key = STDIN if path == STDIN else os.path.realpath(path)
        if key in sources:
            notes.append(f"{path} is the same as {sources[key]}; read once")
        else:
            sources[key] = path
    names = _names(list(sources.values()))
    items: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for path, name in zip(sources.values(), names, strict=True):
        if path == STDIN:
            found = _stdin(stdin)
        elif os.path.isdir(path):
            found = folder(Path(path))
        else:
            found = _file(Path(path))
        items[name], sizes[name] = found.value, found.size
        notes += [f"{name}: {note}" for note in found.notes]
    return Documents(items, sizes, tuple(notes))


@dataclass(frozen=True)
class Found:
    """One document: its value, the bytes that were read, and what is to be said of it."""

    value: Any
    size: int
    notes: tuple[str, ...] = ()


def _names(paths: list[str]) -> list[str]:
    """The shortest ends of the paths, in whole parts, that tell them apart."""
    parts = [("stdin",) if path == STDIN else Path(os.path.abspath(path)).parts for path in paths]
    names = []
    for own in parts:
        others = [other for other in parts if other is not own]
        length = next(
            (n for n in range(1, len(own) + 1) if all(other[-n:] != own[-n:] for other in others)), len(own)
        )
        names.append(Path(*own[-length:]).as_posix())
    return names


def _stdin(stdin: IO[Any] | None) -> Found:
    source = stdin if stdin is not None else sys.stdin
    if source is None:
        raise DocumentError("standard input is closed, so '-' cannot be read")
    try:
        data = _typed(source) if source.isatty() else getattr(source, "buffer", source).read()
    except OSError as error:
        raise DocumentError(f"standard input cannot be read: {error.strerror or error}") from error
    if isinstance(data, str):
        return Found(data, len(data.encode("utf-8", "surrogatepass")))
    text, note = _text(data, "standard input")
    return Found(text, len(data), note)


def _typed(source: IO[Any]) -> Any:
    """All that a person types into ``source``, up to Ctrl-D; Ctrl-C raises KeyboardInterrupt at any moment.

    A plain ``read`` misses a signal that comes right before it begins to wait, and then waits on: signal handlers run
    between Python's own steps only. The descriptor that signals write to wakes the wait as well.
    """
    if os.name != "posix" or threading.current_thread() is not threading.main_thread():
        return getattr(source, "buffer", source).read()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    chunks: list[bytes] = []
    try:
        while True:
            ready, _, _ = select.select([source.fileno(), woken], [], [])
            if woken in ready:
                os.read(woken, 4096)
            elif chunk := os.read(source.fileno(), 1 << 16):
                chunks.append(chunk)
            else:
                return b"".join(chunks)
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(wake)


def _file(path: Path) -> Found:
    data = _bytes(path)
    office = formats.office_kind(path.name, data)
    if office is not None:
        raise DocumentError(f"{path} is {office.what}; {_READS}. {office.convert}")
    text, notes = _text(data, str(path))
    value, more = formats.parse(path.name, text)
    return Found(value, len(data), (*notes, *more))


def _text(data: bytes, where: str) -> tuple[str, tuple[str, ...]]:
    decoded = formats.decode(data)
    if decoded is None:
        raise DocumentError(f"{where} is a binary file, not text; {_READS}")
    text, note = decoded
    return text, (note,) if note else ()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DocumentError(f"{path} does not exist") from None
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {error.strerror or error}") from error


def folder(root: Path) -> Found:
    """A dict of relative path to text; hidden files and folders, links that lead out, and all but text are left out.

    Raises:
        DocumentError: A file or folder in it cannot be read.
    """
    texts: dict[str, str] = {}
    left_out: dict[str, list[str]] = {}
    guessed: list[str] = []
    size = 0
    inside = os.path.realpath(root)

    def skip(why: str, path: Path) -> None:
        left_out.setdefault(why, []).append(path.relative_to(root).as_posix())

    def unreadable(error: OSError) -> None:
        raise DocumentError(f"{error.filename} cannot be read: {error.strerror or error}") from error

    for at, folders, files in os.walk(root, onerror=unreadable):
        here = Path(at)
        for name in sorted(folders):
            if name.startswith("."):
                skip("hidden", here / name)
            elif (here / name).is_symlink():
                skip("links to folders", here / name)
        folders[:] = sorted(n for n in folders if not n.startswith(".") and not (here / n).is_symlink())
        for name in sorted(files):
            path = here / name
            if name.startswith("."):
                skip("hidden", path)
                continue
            target = os.path.realpath(path)
            if path.is_symlink() and os.path.commonpath([inside, target]) != inside:
                skip("links that lead out of the folder", path)
                continue
            if not _is_regular(path):
                skip("not a regular file", path)
                continue
            data = _bytes(path)
            decoded = None if formats.office_kind(name, data) else formats.decode(data)
            if decoded is None:
                skip("not text", path)
                continue
            text, note = decoded
            relative = path.relative_to(root).as_posix()
            texts[relative] = text
            size += len(data)
            if note:
                guessed.append(relative)
    notes = [f"left out, {why}: {_list(names)}" for why, names in left_out.items()]
    if guessed:
        notes.append(f"not UTF-8, read as Latin-1: {_list(guessed)}")
    if not texts:
        notes.append("no text in this folder")
    return Found(texts, size, tuple(notes))


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more

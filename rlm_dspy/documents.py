"""Files, folders and standard input as the value of a run's ``context``.

    documents = read(["report.txt", "sales.csv", "src"])
    rlm(context=documents.context, query="…")

Text is decoded without loss, JSON is parsed, JSONL, CSV and spreadsheets become lists of records, PDF, Word and
PowerPoint files become text with a line before each page or slide (`rlm_dspy.office`), and a folder becomes a dict of
its texts. Whatever was guessed, kept as it was, or left out is said in `Documents.notes`.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rlm_dspy import formats, office
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.office_kinds import OfficeKind, office_kind

STDIN = "-"
_NAMED = 5
_READS = "text, JSON, CSV, PDF, Word, PowerPoint, spreadsheets and folders are read"


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


def read(
    paths: Iterable[str | os.PathLike[str]],
    *,
    stdin: IO[Any] | None = None,
    busy: Callable[[str], Any] | None = None,
) -> Documents:
    """Read documents.

    Args:
        paths: Files and folders; ``"-"`` is standard input. One that is given twice is read once. Documents go by
            their file names, by as much of their paths as it takes where names are the same.
        stdin: Read for ``"-"``, bytes or text; ``sys.stdin`` if None.
        busy: Called with the name of each PDF or office file before it is read, which may take a while.

    Raises:
        DocumentError: One does not exist, cannot be read, or is of a kind that is not read.
        MissingExtraError: One is a PDF or office file, and the extra ``documents`` is not installed.
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
    with office.Reader(busy) as reader:
        for path, name in zip(sources.values(), names, strict=True):
            if path == STDIN:
                found = _stdin(stdin, reader)
            elif os.path.isdir(path):
                found = folder(Path(path), reader)
            else:
                found = _file(Path(path), reader)
            items[name], sizes[name] = found.value, found.size
            notes += [f"{name}: {note}" for note in found.notes]
        notes += reader.notes
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


def _stdin(stdin: IO[Any] | None, reader: office.Reader) -> Found:
    source = stdin if stdin is not None else sys.stdin
    if source is None:
        raise DocumentError("standard input is closed, so '-' cannot be read")
    try:
        data = _typed(source) if source.isatty() else getattr(source, "buffer", source).read()
    except OSError as error:
        raise DocumentError(f"standard input cannot be read: {error.strerror or error}") from error
    if isinstance(data, str):
        return Found(data, len(data.encode("utf-8", "surrogatepass")))
    kind = office_kind("", data)
    if kind is not None:
        return _office("standard input", data, kind, reader)
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


def _file(path: Path, reader: office.Reader) -> Found:
    data = _bytes(path)
    kind = office_kind(path.name, data)
    if kind is not None:
        return _office(str(path), data, kind, reader)
    text, notes = _text(data, str(path))
    value, more = formats.parse(path.name, text)
    return Found(value, len(data), (*notes, *more))


def _office(where: str, data: bytes, kind: OfficeKind, reader: office.Reader) -> Found:
    try:
        value, notes = reader.read(where, data, kind)
    except office.OfficeError as error:
        raise DocumentError(f"{where} {error}") from error
    return Found(value, len(data), notes)


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


def folder(root: Path, reader: office.Reader | None = None) -> Found:
    """A dict of relative path to text; hidden files and folders, links that lead out, and all but text are left out.

    Args:
        root: The folder.
        reader: Reads the PDF and office files in it, where the extra ``documents`` is installed; without one they are
            left out.

    Raises:
        DocumentError: A file or folder in it cannot be read.
    """
    texts: dict[str, str] = {}
    left_out: dict[str, list[str]] = {}
    guessed: list[str] = []
    said: list[str] = []
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
            relative = path.relative_to(root).as_posix()
            kind = office_kind(name, data)
            if kind is not None:
                why = _office_text(relative, data, kind, reader, texts, said)
                if why is None:
                    size += len(data)
                else:
                    skip(why, path)
                continue
            decoded = formats.decode(data)
            if decoded is None:
                skip("not text", path)
                continue
            text, note = decoded
            texts[relative] = text
            size += len(data)
            if note:
                guessed.append(relative)
    notes = [f"left out, {why}: {_count(names)}{_list(names)}" for why, names in left_out.items() if why]
    if guessed:
        notes.append(f"not UTF-8, read as Latin-1: {_list(guessed)}")
    more = f"and {len(said) - 2 * _NAMED:,} more notes on PDF and office files"
    notes += said if len(said) <= 2 * _NAMED + 1 else [*said[: 2 * _NAMED], more]
    if not texts:
        notes.append("no text in this folder")
    return Found(texts, size, tuple(notes))


def _office_text(
    name: str,
    data: bytes,
    kind: OfficeKind,
    reader: office.Reader | None,
    texts: dict[str, str],
    notes: list[str],
) -> str | None:
    """Put the text of a PDF or office file into ``texts``, or say why it is left out."""
    if kind.reader is None:
        return f"{kind.what} ({kind.convert})"
    if reader is None:
        return "PDF and office files (rlm_dspy.documents.read reads them)"
    if not office.available(kind.reader):
        return f"PDF and office files (to have them read: pip install 'rlm-dspy[{office.EXTRA}]')"
    try:
        value, more = reader.read(name, data, kind, as_text=True)
    except office.OfficeError as error:
        notes.append(f"left out: {name} {error}")
        return ""
    texts[name] = value
    notes += [f"{name}: {note}" for note in more]
    return None


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _count(names: list[str]) -> str:
    return f"{len(names):,} files, " if len(names) > _NAMED else ""


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more

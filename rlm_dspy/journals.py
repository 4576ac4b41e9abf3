"""`Journal`: the events of runs on disk, as they happen, with every value that it takes to run them again.

A folder: ``events.jsonl``, one event a line, and ``values/``, what is too large for a line, in files of the codec that
carries values into sandboxes. Each line is handed to the system before the run goes on, so a process that is killed
loses at most the line it was writing; such a torn one is passed over.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rlm_dspy import events as ev
from rlm_dspy import kept
from rlm_dspy.environments.wire import TextBlob
from rlm_dspy.errors import RecordingError
from rlm_dspy.kept import Kept
from rlm_dspy.reading import claimed, made, reading
from rlm_dspy.redact import redactor

if TYPE_CHECKING:
    from rlm_dspy.run import Run

logger = logging.getLogger(__name__)

SCHEMA = 1
EVENTS = "events.jsonl"
VALUES = "values"
_INLINE = 4096
Hide = Callable[[str], str]
KINDS: dict[str, type[ev.Event]] = {kind.kind: kind for kind in ev.Event.__subclasses__()}
"""Every kind of event by its name."""
_TUPLES = {"layers", "missing", "lost", "notices", "given", "error"}


class Journal:
    """A folder that runs are recorded into. To be used by ``with rlm_dspy.journal(folder)``.

    Secrets that `rlm_dspy.redact` knows are hidden in events and in what host functions gave; inputs are written as
    they are. Files are readable by their owner alone.

    Args:
        path: The folder; made if it is not there. An earlier journal in it is continued.

    Raises:
        RecordingError: Another process writes to it, or it is none, or of a newer version.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._failure: OSError | None = None

    # ----------------------------------------------------------------------------------------------- writing

    def open(self) -> Journal:
        """Begin to write; idempotent."""
        if self._file is not None:
            return self
        values = self.path / VALUES
        if self.path.exists() and not self.path.is_dir():
            raise RecordingError(f"{self.path} is a file; a journal is a folder")
        if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / EVENTS).exists():
            raise RecordingError(f"{self.path} holds other things; a journal wants a folder of its own")
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        values.mkdir(exist_ok=True, mode=0o700)
        descriptor = os.open(self.path / EVENTS, os.O_RDWR | os.O_CREAT, 0o600)
        file = os.fdopen(descriptor, "r+b")
        try:
            _claim(file)
            data = file.read()
            whole = data.rfind(b"\n") + 1
            if whole:
                _check_head(data[: data.find(b"\n")])
            # What a killed process had begun to write.
            file.truncate(whole)
            file.seek(whole)
            self._file = file
            if not whole:
                self._write({"format": "rlm-dspy journal", "schema": SCHEMA})
        except BaseException:
            self._file = None
            file.close()
            raise
        return self

    def __repr__(self) -> str:
        return f"<Journal {str(self.path)!r}{', being written' if self._file is not None else ''}>"

    def close(self) -> None:
        """Write no more; idempotent.

        Raises:
            RecordingError: Some of it could not be written, such as on a full disk.
        """
        with self._lock:
            file, self._file = self._file, None
        failure = self._failure
        if file is not None:
            try:
                file.close()
            except OSError as error:
                failure = failure or error
        if failure is not None:
            self._failure = None
            raise RecordingError(
                f"the journal in {self.path} ends before the runs did, of which nothing else is lost: {failure}"
            ) from failure

    def __call__(self, event: ev.Event, run: Run) -> None:
        """A subscriber (`rlm_dspy.subscribe`): write ``event``."""
        if self._failure is not None:
            return
        try:
            self._record(event, run)
        except OSError as error:
            # What comes after a gap could not be run again.
            self._failure = error
            logger.error("the journal in %s is written no further: %s", self.path, error)

    def _record(self, event: ev.Event, run: Run) -> None:
        line = {"run": run.id} | plain(event, redactor(), self._kept)
        with self._lock:
            self._write(line)
            if isinstance(event, ev.TurnEnded) and event.depth == 0:
                self._write({"run": run.id, "kind": "account", "usage": run.ledger.usage().to_dict()})

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            return
        # ASCII, because a lone surrogate in a text has no other form.
        self._file.write(json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n")
        self._file.flush()

    def _kept(self, value: Kept, hide: Any) -> dict[str, Any]:
        if value.why:
            return {"why": hide(value.why)}
        if value.file is not None:
            return {"file": value.file.name, "bytes": value.size, "digest": value.digest}
        assert value.data is not None
        data, blobs = without_secrets(value.data, value.blobs, hide)
        if not blobs and len(data) <= _INLINE:
            return {"data": data, "bytes": value.size, "digest": value.digest}
        return {"file": self._stored(data, blobs).name, "bytes": value.size, "digest": value.digest}

    def store(self, value: Any, exact: bool) -> Kept:
        """Keep a value that is too large for memory, see `rlm_dspy.kept.Store`.

        Raises:
            RecordingError: It cannot be written.
        """
        text, blobs = kept.encode(value)
        try:
            path = self._stored(*((text, blobs) if exact else without_secrets(text, blobs, redactor())))
        except OSError as error:
            self._failure = self._failure or error
            raise RecordingError(f"it cannot be written: {error.strerror}") from error
        return Kept(path.stat().st_size, kept.digest(value), file=path)

    def _stored(self, text: str, blobs: Any) -> Path:
        """The file of a value; equal ones share it."""
        total = hashlib.blake2b(text.encode("ascii"), digest_size=16)
        for blob in blobs:
            total.update(f"|{len(blob)}|".encode())
            for piece in blob.pieces() if isinstance(blob, TextBlob) else (blob,):
                total.update(piece)
        path = self.path / VALUES / total.hexdigest()
        if not path.exists():
            # Two at once both write it, and one of the equal files stays.
            kept.write(path, text, blobs)
        return path

    # ----------------------------------------------------------------------------------------------- reading

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Journal:
        """The journal in a folder, to be read.

        Raises:
            RecordingError: There is none, or it is of a newer version.
        """
        journal = cls(path)
        journal._lines()
        return journal

    def runs(self) -> list[tuple[ev.Event, ...]]:
        """The events of each run that was called, in the order they began, those of its children inside."""
        return [events for events, _ in self.accounts()]

    def accounts(self) -> list[tuple[tuple[ev.Event, ...], dict[str, Any]]]:
        """`runs`, each with what it had used, as far as is known."""
        logs: dict[str, list[ev.Event]] = {}
        usage: dict[str, dict[str, Any]] = {}
        children: set[str] = set()
        for line in self._lines():
            run, kind = str(line.pop("run", "")), str(line.pop("kind", ""))
            if kind == "account":
                found = line.get("usage")
                usage[run] = found if isinstance(found, dict) else {}
                continue
            if kind not in KINDS:
                continue  # of a later version, which says itself what it cannot do without
            with reading(f"{self.path / EVENTS}: an event of the kind {kind!r}"):
                event = event_of({**line, "kind": kind, "run": run}, self._value)
            if isinstance(event, ev.ChildEnded):
                children.add(event.run_id)
                event = dataclasses.replace(event, events=tuple(logs.get(event.run_id, ())))
            elif isinstance(event, ev.ChildStarted):
                children.add(event.run_id)
            elif isinstance(event, ev.RunEnded):
                usage[run] = event.usage
            logs.setdefault(run, []).append(event)
        for run, events in logs.items():
            # Those that tools have started belong to the run of the tool.
            if isinstance(events[0], ev.RunStarted) and events[0].parent_id in logs:
                children.add(run)
        return [(tuple(events), usage.get(run, {})) for run, events in logs.items() if run not in children]

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            data = (self.path / EVENTS).read_bytes()
        except OSError as error:
            raise RecordingError(f"there is no journal in {self.path}: {error.strerror}") from None
        first, _, rest = data[: data.rfind(b"\n") + 1].partition(b"\n")
        _check_head(first)
        lines = []
        for number, line in enumerate(rest.splitlines(), start=2):
            with reading(f"line {number} of {self.path / EVENTS}"):
                found = json.loads(line)
                if not isinstance(found, dict):
                    raise TypeError(f"it holds a {type(found).__name__}")
                lines.append(found)
        return iter(lines)

    def _value(self, given: Any) -> Kept | None:
        if given is None:
            return None
        if "why" in given:
            return Kept(why=str(given["why"]))
        size, digest = int(given["bytes"]), str(given["digest"])
        if "file" in given:
            return Kept(size, digest, file=self.path / VALUES / Path(str(given["file"])).name)
        return Kept(size, digest, str(given["data"]))


def plain(event: ev.Event, hide: Hide, keep: Callable[[Kept, Hide], Any]) -> dict[str, Any]:
    """The kind and the fields of ``event`` as JSON has them, without its run and the events of a child.

    Args:
        event: An event.
        hide: Takes secrets out of a text.
        keep: What stands in the place of a value; called with the value and ``hide``.
    """

    def made(value: Any, hide: Hide) -> Any:
        if isinstance(value, Kept):
            return keep(value, hide)
        if isinstance(value, str):
            return hide(value)
        if isinstance(value, dict):
            return {str(name): made(item, hide) for name, item in value.items()}
        return [made(item, hide) for item in value] if isinstance(value, (list, tuple)) else value

    line: dict[str, Any] = {"kind": event.kind}
    for field in dataclasses.fields(event):
        if field.name == "run" or (isinstance(event, ev.ChildEnded) and field.name == "events"):
            continue  # the line says it; they stand in lines of their own
        # What the user gave is written as it is.
        line[field.name] = made(getattr(event, field.name), (lambda text: text) if field.name == "inputs" else hide)
    return line


def event_of(data: dict[str, Any], value: Callable[[Any], Kept | None]) -> ev.Event:
    """The event that ``to_dict`` gave, or that stands in a journal.

    Args:
        data: Its kind and fields.
        value: Makes a value of what stands in its place.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is none.
    """
    kind = KINDS[data["kind"]]
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name not in data:
            continue
        given = data[field.name]
        if field.name in ("result", "values") or (kind is ev.Extracted and field.name == "outputs"):
            given = value(given) if given is not None else None
        elif field.name == "inputs":
            given = {name: value(item) for name, item in given.items()}
        elif field.name == "events":
            given = tuple(event_of(item, value) for item in given)
        elif field.name == "images":
            given = tuple((kind_, data_) for kind_, data_ in given)
        elif field.name in _TUPLES and isinstance(given, list):
            given = tuple(given)
        fields[field.name] = given
    return made(kind, fields)


@contextlib.contextmanager
def journal(path: str | PathLike[str]) -> Iterator[Journal]:
    """Record every run that is started inside into the folder ``path``.

    Args:
        path: Made if it is not there; an earlier journal in it is continued.

    Raises:
        RecordingError: Another process writes to it, or the folder holds something else. At the end: some of it could
            not be written.

    Example:
        >>> with rlm_dspy.journal("run-17"):  # doctest: +SKIP
        ...     rlm(context=text, query="…")
        >>> rlm_dspy.replay("run-17", rlm)  # doctest: +SKIP
    """
    writing = Journal(path).open()
    try:
        with ev.subscribe(writing):
            yield writing
    except BaseException:
        with contextlib.suppress(RecordingError):
            writing.close()
        raise
    writing.close()


def _check_head(line: bytes) -> None:
    try:
        head = json.loads(line)
        schema = int(head["schema"]) if head["format"] == "rlm-dspy journal" else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        schema = None
    if schema is None:
        raise RecordingError("this is not a journal of rlm-dspy")
    if schema > SCHEMA:
        raise RecordingError(f"this journal has schema {schema}, this rlm-dspy reads up to {SCHEMA}: upgrade it")


def _claim(file: BinaryIO) -> None:
    if not claimed(file):
        raise RecordingError("another process, or another session of this one, writes to this journal")


_BLOB = re.compile(r'\{"\$":"(\w+)","b":(\d+)\}')
_ENCODINGS = {"utf16": "utf-16-le", "utf8": "utf-8"}


def without_secrets(text: str, blobs: Any, hide: Callable[[str], str]) -> tuple[str, list[Any]]:
    """What `rlm_dspy.kept.encode` gave, without secrets in any text or bytes of it."""
    encodings = {int(index): _ENCODINGS.get(tag, "latin-1") for tag, index in _BLOB.findall(text)}
    cleaned = []
    for index, blob in enumerate(blobs):
        data = b"".join(blob.pieces()) if isinstance(blob, TextBlob) else blob
        encoding = encodings.get(index, "latin-1")
        errors = "strict" if encoding == "latin-1" else "surrogatepass"
        try:
            before = bytes(data).decode(encoding, errors)
        except UnicodeDecodeError:
            cleaned.append(data)
            continue
        after = hide(before)
        cleaned.append(data if after == before else after.encode(encoding, errors))
    return json.dumps(_hidden(json.loads(text), hide), separators=(",", ":")), cleaned


def _hidden(tree: Any, hide: Callable[[str], str]) -> Any:
    if isinstance(tree, str):
        return hide(tree)
    if isinstance(tree, list):
        return [_hidden(item, hide) for item in tree]
    if isinstance(tree, dict):
        if tree.get("$") in ("utf8", "bytes", "bytearray") and isinstance(tree.get("v"), str):
            # Short ones that JSON has no form for.
            data = base64.b64decode(tree["v"]).decode("latin-1")
            return {**tree, "v": base64.b64encode(hide(data).encode("latin-1")).decode("ascii")}
        return {name: item if name == "$" else _hidden(item, hide) for name, item in tree.items()}
    return tree

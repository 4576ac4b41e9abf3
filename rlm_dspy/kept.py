"""Values of a run as data, so that it can be run again: `Kept`, by the codec that carries values into sandboxes.

Exact types, never pickle. What is small is kept in memory, with the event that tells of it; what is larger only where
a journal is being written, in a file of its own.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rlm_dspy.environments.codec import Decoder, Encoder
from rlm_dspy.environments.records import FailedCall
from rlm_dspy.environments.wire import ProtocolError, Reader, TextBlob, write_frame
from rlm_dspy.errors import RecordingError

IN_MEMORY = 1 << 20
"""Bytes of one value that are kept in memory."""
_SAMPLE = 1 << 16
_MOST_ITEMS = 100_000


@dataclass(frozen=True)
class Kept:
    """A value of a run, or why there is none.

    Attributes:
        size: Bytes; 0 where it is not kept.
        digest: Tells values apart, see `digest`; ``""`` where it was too large to look through.
        data, blobs: What the codec made of it, where it is kept in memory.
        file: Where it is kept otherwise.
        why: Why it is not kept.
    """

    size: int = 0
    digest: str = ""
    data: str | None = field(default=None, repr=False)
    blobs: tuple[bytes, ...] = field(default=(), repr=False)
    file: Path | None = None
    why: str = ""

    def value(self, *, records: bool = False) -> Any:
        """The value; a new one each time.

        Args:
            records: Instances of classes come as records, as code in a sandbox has them, in place of dicts.

        Raises:
            RecordingError: It was not kept, or its file is gone or damaged.
        """
        try:
            if self.data is not None:
                return Decoder(list(self.blobs), records=records).load(json.loads(self.data))
            if self.file is not None:
                return read(self.file, records=records)
        except (ProtocolError, ValueError) as error:
            raise RecordingError(f"a recorded value cannot be read: {error}") from error
        raise RecordingError(f"a value was not recorded: {self.why}")

    def to_dict(self) -> dict[str, Any]:
        """What may be shown of it: its size, or why it is not kept; never the value."""
        return {"bytes": self.size} if not self.why else {"bytes": None, "why": self.why}


class Store(Protocol):
    """Keeps what is too large for memory."""

    def store(self, value: Any, exact: bool) -> Kept:
        """Write ``value`` to a file, without secrets unless ``exact``.

        Raises:
            TypeError, ValueError: The codec does not carry it.
        """


def pack(value: Any) -> Kept:
    """``value`` in memory.

    Raises:
        TypeError, ValueError: The codec does not carry it; the message says what and the fix.
    """
    text, blobs = encode(value)
    whole = tuple(b"".join(blob.pieces()) if isinstance(blob, TextBlob) else bytes(blob) for blob in blobs)
    return Kept(len(text) + sum(map(len, whole)), digest(value), text, whole)


def encode(value: Any) -> tuple[str, list[Any]]:
    """``value`` as JSON text and blobs, see `rlm_dspy.environments.codec`."""
    encoder = Encoder()
    tree = encoder.tree(value, 0)
    return json.dumps(tree, separators=(",", ":")), encoder.blobs


def write(path: Path, text: str, blobs: Any) -> int:
    """Write what `encode` gave to ``path``, whole or not at all; gives the bytes."""
    return atomically(path, lambda file: dump(file.write, text, blobs))


def dump(write: Any, text: str, blobs: Any) -> None:
    """Have ``write`` write what `encode` gave, for `load`."""
    # The tree as text, so that it is not parsed and written once more.
    write_frame(write, {"tree": len(text)}, [text.encode("ascii"), *blobs])


def read(path: Path, *, records: bool = False) -> Any:
    """The value in a file of `write`.

    Raises:
        RecordingError: There is none, or it is not whole.
    """
    try:
        with path.open("rb") as file:
            return load(file, path.name, records=records)
    except OSError as error:
        raise RecordingError(f"the recorded value {path.name} cannot be read: {error.strerror}") from error


def load(file: Any, name: str, *, records: bool = False) -> Any:
    """The value that `dump` wrote to ``file``, which goes by ``name``.

    Raises:
        RecordingError: It is not whole.
    """
    text, blobs = parts(file, name)
    try:
        return Decoder(blobs, records=records).load(json.loads(text))
    except (EOFError, ValueError, ProtocolError) as error:
        raise RecordingError(f"the recorded value {name} cannot be read: {error}") from error


def parts(file: Any, name: str) -> tuple[str, list[Any]]:
    """What `encode` gave of the value that `dump` wrote to ``file``, which goes by ``name``.

    Raises:
        RecordingError: It is not whole.
    """
    try:
        head, blobs = Reader(file.read, None, None, file.readinto).frame()
        if "tree" not in head or not blobs:
            raise ValueError("it is not a value")
        return bytes(blobs[0]).decode("ascii"), list(blobs[1:])
    except (EOFError, ValueError, ProtocolError) as error:
        raise RecordingError(f"the recorded value {name} cannot be read: {error}") from error


def atomically(path: Path, content: Any, *, durable: bool = False) -> int:
    """Have ``content(file)`` write a file that stands at ``path`` whole or not at all; gives its bytes.

    Args:
        path: Replaced where it is there.
        content: Called with the open file.
        durable: Also where the machine fails, which takes the time of a disk.

    Raises:
        OSError: It cannot be written, or there is a folder or a device.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "there is something that is no file", str(path))
    handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            content(file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
            size = file.tell()
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return size


def oversized(value: Any, limit: int = IN_MEMORY) -> bool:
    """Whether ``value`` surely takes more than ``limit`` bytes, or so many items that it is not looked through."""
    size, todo, seen = 0, [value], 0
    while todo:
        item = todo.pop()
        seen += 1
        if isinstance(item, (str, bytes, bytearray)):
            size += len(item)
        elif isinstance(item, (list, tuple, set, frozenset, dict)):
            if len(item) > _MOST_ITEMS:
                return True
            todo.extend(item)
            if isinstance(item, dict):
                todo.extend(item.values())
        else:
            size += _bytes_of(item)
        if size > limit or seen > _MOST_ITEMS:
            return True
    return False


def _bytes_of(value: Any) -> int:
    try:
        if isinstance(count := getattr(value, "nbytes", None), int):
            return count
        rows, *columns = getattr(value, "shape", None) or (0,)
        return 16 + 16 * int(rows) * int(columns[0] if columns else 1)
    except Exception:
        return 16  # a class that we know nothing of answers as it likes


def digest(value: Any) -> str:
    """A short text that is equal for equal values, of long texts for such as begin and end alike; in bounded time."""
    total = hashlib.blake2b(digest_size=12)
    _digest(value, total, [_MOST_ITEMS], 0)
    return total.hexdigest()


def _digest(value: Any, total: Any, left: list[int], depth: int) -> None:
    left[0] -= 1
    if left[0] < 0 or depth > 200:
        return
    kind = type(value)
    if isinstance(value, str):
        name = "f" if kind is FailedCall else "s"
        total.update(f"{name}{len(value)}:".encode())
        part = value if len(value) <= 2 * _SAMPLE else value[:_SAMPLE] + value[-_SAMPLE:]
        total.update(part.encode("utf-8", "surrogatepass"))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        total.update(f"b{len(value)}:".encode())
        total.update(value if len(value) <= 2 * _SAMPLE else bytes(value[:_SAMPLE]) + bytes(value[-_SAMPLE:]))
    elif isinstance(value, dict):
        total.update(f"d{len(value)}:".encode())
        for key, item in value.items():
            _digest(key, total, left, depth + 1)
            _digest(item, total, left, depth + 1)
    elif kind in (list, tuple):
        total.update(f"{kind.__name__[0]}{len(value)}:".encode())
        for item in value:
            _digest(item, total, left, depth + 1)
    elif kind in (set, frozenset):
        # Their order differs from process to process.
        total.update(f"S{len(value)}:".encode())
        for part in sorted(digest(item) for item in list(value)[: max(0, left[0])]):
            total.update(part.encode())
        left[0] -= len(value)
    elif value is None or kind in (bool, int, float, complex):
        # In hexadecimal, because Python writes out no number of more than some thousand decimal digits.
        total.update(f"{kind.__name__}{value:x};".encode() if kind is int else f"{kind.__name__}{value!r};".encode())
    else:
        try:
            text, blobs = encode(value)
        except Exception:
            text, blobs = kind.__qualname__, []
        total.update(text[: 4 * _SAMPLE].encode())
        for blob in blobs:
            data = b"".join(blob.pieces()) if isinstance(blob, TextBlob) else bytes(blob)
            total.update(data[:_SAMPLE] + data[-_SAMPLE:])

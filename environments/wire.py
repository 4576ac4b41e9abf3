"""Frames on the byte stream between host and worker.

A frame is one line of ASCII JSON, an object, ending in a newline. If it holds ``"blobs": [n, ...]``, that many raw
bytes follow the line, one blob after the other. Big text and bytes travel as blobs, so that they are never escaped,
and everything else stays readable in a trace of the stream.

This module travels into the sandbox as source text: standard library only, Python 3.8 syntax.
"""

from __future__ import annotations

import json
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

CHUNK = 1 << 20
"""Bytes moved by one read or write of a blob: the size of the largest pipe buffer Linux grants to anyone."""
BLOB_MIN = 64 * 1024
"""Bytes from which on a text or a byte string leaves the JSON line and becomes a blob."""
MAX_LINE = 16 * 1024 * 1024
"""Bytes that the JSON line of a frame may have; larger trees travel as a blob themselves."""

SAFE_DEPTH = 5000
"""Levels of nested JSON that any thread's stack holds."""
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")


class ProtocolError(Exception):
    """What arrived is no frame, or one beyond the caps. The stream cannot be trusted any more."""


class TextBlob:
    """A long str that is encoded piece by piece while it is written, so that no second copy of it is ever held.

    Only for text whose code points are all below 256: there one character is one byte, and the size is known before.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __len__(self) -> int:
        return len(self._text)

    def pieces(self) -> Iterator[bytes]:
        """The encoded text, at most `CHUNK` bytes at a time."""
        for start in range(0, len(self._text), CHUNK):
            yield self._text[start : start + CHUNK].encode("latin-1")


def frame_line(head: dict[str, Any]) -> bytes:
    """A frame's line; for a frame without blobs it is the whole frame."""
    return json.dumps(head, separators=(",", ":")).encode("ascii") + b"\n"


def write_frame(
    write: Callable[[Any], Any], head: dict[str, Any], blobs: Sequence[bytes | bytearray | memoryview | TextBlob] = ()
) -> None:
    """Write one frame; ``write`` must send all it is given."""
    if blobs:
        head = dict(head, blobs=[len(blob) for blob in blobs])
    write(frame_line(head))
    for blob in blobs:
        if isinstance(blob, TextBlob):
            for piece in blob.pieces():
                write(piece)
        elif len(blob) <= CHUNK:
            write(blob)
        else:
            view = memoryview(blob)
            for start in range(0, len(view), CHUNK):
                write(view[start : start + CHUNK])


def json_cost(data: Any) -> int:
    """An upper bound, in bytes, of the memory that parsing ``data`` as JSON takes, told without parsing it.

    ``data`` is bytes, a bytearray or ASCII text.
    """
    comma, bracket, brace = (",", "[", "{") if isinstance(data, str) else (b",", b"[", b"{")
    return len(data) + 64 * (data.count(comma) + data.count(bracket)) + 240 * data.count(brace)


def cost_limit(max_blobs: int) -> int:
    """What parsing one message may take, in bytes, where its blobs may have ``max_blobs`` bytes."""
    return 4 * max(max_blobs, 16 * 1024 * 1024)


def too_deep(data: Any) -> bool:
    """Whether JSON in ``data`` (bytes, a bytearray or text) is nested so deep that parsing it could end the process.

    The parser recurses in C and is stopped by Python's recursion limit alone, which programs raise beyond what the
    stack of a thread holds. Linear in the size of the data.
    """
    if sys.getrecursionlimit() <= SAFE_DEPTH:
        return False
    if isinstance(data, str):
        data = data.encode("ascii", "replace")
    # The closing quote is optional, so that no start of a string is ever tried twice.
    rest = re.sub(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', b"", data, flags=re.DOTALL)
    from array import array
    from itertools import accumulate

    steps = array("b", rest.translate(_STEPS, _NO_BRACKETS))
    depth = 0
    for start in range(0, len(steps), CHUNK):
        # In pieces, so that other threads get their turn.
        depths = list(accumulate(steps[start : start + CHUNK], initial=depth))
        if max(depths) > SAFE_DEPTH:
            return True
        depth = depths[-1]
    return False


def parse_json(data: bytes | bytearray, max_cost: int | None = None) -> Any:
    """Parse JSON that may be hostile.

    Raises:
        ProtocolError: malformed, nested too deep for the parser, or larger in memory than ``max_cost`` bytes.
    """
    if max_cost is not None and json_cost(data) > max_cost:
        raise ProtocolError("a message of %d bytes would take too much memory" % len(data))
    if max_cost is not None and too_deep(data):
        raise ProtocolError("a message nested too deep")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("malformed message: %s" % error) from None


class Reader:
    """Cuts a byte stream into frames.

    Args:
        read: ``read(n)`` gives 1 to n bytes, ``b""`` at the end of the stream.
        max_line: Bytes that a frame's line may have; None for no cap.
        max_blobs: Bytes that all blobs of a frame together may have; None for no cap.
        readinto: ``readinto(view)`` fills a part of a memoryview and gives the number of bytes, 0 at the end; spares a
            copy of each blob.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        max_line: int | None = MAX_LINE,
        max_blobs: int | None = None,
        readinto: Callable[[memoryview], int] | None = None,
    ) -> None:
        self._read = read
        self._readinto = readinto
        self._max_line = max_line
        self._max_blobs = max_blobs
        self._max_count = None if max_blobs is None else max_blobs // BLOB_MIN + 64
        self.max_cost = None if max_blobs is None else cost_limit(max_blobs)
        self.cost = 0
        """About the bytes of memory that the last frame's line takes when parsed; 0 where nothing is capped."""
        self._rest = b""

    def frame(self) -> tuple[dict[str, Any], list[Any]]:
        """The next frame: its object and its blobs (bytearray or bytes).

        Raises:
            EOFError: the stream ended.
            ProtocolError: what came is no frame or breaks a cap.
        """
        line = self._line()
        if self.max_cost is not None:
            self.cost = json_cost(line)
        head = parse_json(line, self.max_cost)
        del line
        if not isinstance(head, dict):
            raise ProtocolError("a frame must be a JSON object")
        sizes = head.pop("blobs", None)
        if sizes is None:
            return head, []
        if not isinstance(sizes, list) or any(type(n) is not int or n < 0 for n in sizes):
            raise ProtocolError("blob sizes must be natural numbers")
        if self._max_count is not None and len(sizes) > self._max_count:
            raise ProtocolError("a frame with %d blobs" % len(sizes))
        if self._max_blobs is not None and sum(sizes) > self._max_blobs:
            raise ProtocolError("a frame of %d bytes, more than the %d allowed" % (sum(sizes), self._max_blobs))
        return head, [self._blob(n) for n in sizes]

    def _line(self) -> bytes:
        rest = self._rest
        pieces = []
        size = 0
        while True:
            end = rest.find(b"\n")
            if end >= 0:
                self._rest = rest[end + 1 :]
                pieces.append(rest[:end])
                size += end
            else:
                pieces.append(rest)
                size += len(rest)
            if self._max_line is not None and size > self._max_line:
                raise ProtocolError("a line longer than %d bytes" % self._max_line)
            if end >= 0:
                return b"".join(pieces)
            rest = self._read(64 * 1024)
            if not rest:
                raise EOFError("the stream ended")

    def _blob(self, size: int) -> bytes | bytearray:
        rest = self._rest
        if size <= len(rest):
            self._rest = rest[size:]
            return rest[:size]
        # Fresh pages stay untouched until data arrives, so an announced size costs nothing by itself.
        blob = bytearray(size)
        blob[: len(rest)] = rest
        got = len(rest)
        self._rest = b""
        if self._readinto is not None:
            with memoryview(blob) as view:
                while got < size:
                    count = self._readinto(view[got:])
                    if not count:
                        raise EOFError("the stream ended")
                    got += count
        while got < size:
            data = self._read(min(CHUNK, size - got))
            if not data:
                raise EOFError("the stream ended")
            blob[got : got + len(data)] = data
            got += len(data)
        return blob

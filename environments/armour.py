"""Frames on a stream that carries text only, as those of some providers' SDKs do.

Each write becomes whole lines of printable ASCII. The line of a frame is one already and crosses as it is; anything
else is armoured: ``~`` and its base64, or, where that is shorter, ``~~`` and the base64 of it compressed. What is
neither is what a shell or a login script printed round the worker; it is skipped. Nothing above this layer knows of it.

This module travels into the sandbox as source text: standard library only, Python 3.8 syntax.
"""

from __future__ import annotations

import binascii
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING or __name__.startswith("rlm_dspy."):
    from rlm_dspy.environments.wire import CHUNK, MAX_LINE, ProtocolError
else:
    from _rlm_wire import CHUNK, MAX_LINE, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FRAME, _MARK = b"{", b"~"
_WORTH_COMPRESSING = 256
_SAMPLE = 16 * 1024


def armour(data: bytes | bytearray | memoryview) -> Iterator[bytes]:
    """The lines that carry ``data``, which may be anything: pieces of at most `CHUNK` bytes, each a line or more."""
    if len(data) <= CHUNK:
        data = bytes(data)
        if _is_line(data):
            yield data
        elif data:
            yield _line(data)
        return
    view = memoryview(data)
    # A frame's line may be long. It is the reader's business that it is one, so here it may as well come in pieces.
    for start in range(0, len(view), CHUNK):
        yield _line(bytes(view[start : start + CHUNK]))


def _is_line(data: bytes) -> bool:
    return data[:1] == _FRAME and data[-1:] == b"\n" and data.isascii() and data[:-1].decode("ascii").isprintable()


def _line(data: bytes) -> bytes:
    # What a sample says of the rest is not always true; it costs some bytes then, no more.
    long = len(data) > 4 * _SAMPLE
    if len(data) >= _WORTH_COMPRESSING and not (long and len(zlib.compress(data[:_SAMPLE], 1)) > 0.95 * _SAMPLE):
        packed = zlib.compress(data, 1)
        if len(packed) < len(data):
            return b"~~" + binascii.b2a_base64(packed)
    return _MARK + binascii.b2a_base64(data)


class Unarmour:
    """Gives the bytes that were armoured at the other end.

    Args:
        read: ``read(n)`` gives 1 to n bytes of the text stream, ``b""`` at its end.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._lines: list[bytes] = []  # the lines that are whole, the last one first
        self._start: list[bytes] = []  # the pieces of the one that is not
        self._size = 0
        self._ready = b""

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, at least one; ``b""`` at the end of the stream.

        Raises:
            ProtocolError: an armoured line is malformed or longer than what `armour` makes, or any line is beyond
                `MAX_LINE`.
        """
        while not self._ready:
            while not self._lines:
                data = self._read(max(size, 64 * 1024))
                if not data:
                    return b""
                self._take(data)
            self._ready = self._decode(self._lines.pop())
        out, self._ready = self._ready[:size], self._ready[size:]
        return out

    def _take(self, data: bytes) -> None:
        first, *more = data.split(b"\n")
        self._start.append(first)
        self._size += len(first)
        if self._size > MAX_LINE:
            raise ProtocolError("a line longer than %d bytes" % MAX_LINE)
        if more:
            self._lines = [*more[-2::-1], b"".join(self._start)]
            self._start, self._size = [more[-1]], len(more[-1])

    @staticmethod
    def _decode(line: bytes) -> bytes:
        if line.startswith(_FRAME):
            return line.rstrip(b"\r") + b"\n"
        if not line.startswith(_MARK):
            return b""
        packed = line.startswith(b"~~")
        try:
            data = binascii.a2b_base64(line[2:] if packed else line[1:])
            if packed:
                # Bounded: a few bytes may stand for gigabytes.
                unpack = zlib.decompressobj()
                data = unpack.decompress(data, CHUNK + 1)
                if not unpack.eof:
                    raise ProtocolError("an armoured line that is cut off, or of more than %d bytes" % CHUNK)
        except (ValueError, zlib.error) as error:
            raise ProtocolError("malformed armour: %s" % error) from None
        if len(data) > CHUNK:
            raise ProtocolError("an armoured line of more than %d bytes" % CHUNK)
        return data

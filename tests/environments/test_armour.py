"""The text-only form of the stream: whatever bytes go in come out, and what travels is printable lines."""

from __future__ import annotations

import base64
import random
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlm_dspy.environments import conformance
from rlm_dspy.environments.armour import Unarmour, armour
from rlm_dspy.environments.base import Transport
from rlm_dspy.environments.program import BOOTSTRAP, worker_program
from rlm_dspy.environments.spawn import spawn
from rlm_dspy.environments.subprocess_env import Subprocess
from rlm_dspy.environments.wire import CHUNK, MAX_LINE, ProtocolError, Reader, frame_line, write_frame
from rlm_dspy.errors import SandboxUnavailableError


def reading(data: bytes, sizes: Sequence[int] = (7,)) -> Callable[[int], bytes]:
    """``data`` in pieces of these sizes, over and over, however much is asked for."""
    position = turn = 0

    def read(n: int) -> bytes:
        nonlocal position, turn
        piece = data[position : position + min(n, sizes[turn % len(sizes)])]
        position, turn = position + len(piece), turn + 1
        return piece

    return read


def all_of(data: bytes, sizes: Sequence[int] = (7,), step: int = 5) -> bytes:
    reader, out = Unarmour(reading(data, sizes)), []
    while piece := reader.read(step):
        assert len(piece) <= step
        out.append(piece)
    return b"".join(out)


frames = st.dictionaries(st.text(), st.text() | st.integers(), max_size=3).map(frame_line)
odd = st.sampled_from([b"", b"\n", b"{", b"{\n", b"{}\n\n", b"{\r\n", b"~\n", b"{\x7f}\n"])
writes = st.lists(st.binary() | frames | odd)


@given(writes, st.lists(st.integers(1, 50), min_size=1), st.integers(1, 40))
@example([b"x" * 5000, b"{" + bytes(range(256)) + b"\n"], [1], 1)
def test_what_is_written_is_read(pieces: list[bytes], sizes: list[int], step: int) -> None:
    lines = [line for piece in pieces for line in armour(piece)]
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert all(line[:-1].decode("ascii").isprintable() for line in lines)
    assert all_of(b"".join(lines), sizes, step) == b"".join(pieces)


@given(writes, st.lists(st.sampled_from([b"", b"motd: welcome\n", b"bash: no job control\r\n", b"\x1b[0m\n", b"  \n"])))
def test_what_a_shell_prints_between_the_lines_is_skipped(pieces: list[bytes], noise: list[bytes]) -> None:
    lines = [line for piece in pieces for line in armour(piece)]
    noisy = b"".join(
        noise[i % len(noise)] + line.replace(b"\n", b"\r\n") if noise else line for i, line in enumerate(lines)
    )
    assert all_of(noisy) == b"".join(pieces)


@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_long_writes_cross_in_bounded_lines(size: int) -> None:
    data = random.Random(size).randbytes(size)
    for kind in (bytes, bytearray, memoryview):
        lines = list(armour(kind(data)))
        assert max(map(len, lines)) < 1.4 * CHUNK
        assert all_of(b"".join(lines), [65536], CHUNK) == data


def test_frames_cross_as_they_are_and_prose_gets_shorter() -> None:
    line = frame_line({"op": "call", "text": "ä\n\u2028"})
    assert list(armour(line)) == [line]
    prose = b"The quick brown fox jumps over the lazy dog.\n" * 2000
    assert sum(map(len, armour(prose))) < len(prose) / 10


def test_frames_with_blobs_and_long_heads() -> None:
    stream = bytearray()
    blobs = [b"", b"\n", bytes(range(256)) * 300, random.Random(1).randbytes(2 * CHUNK)]
    write_frame(lambda data: stream.extend(b"".join(armour(data))), {"op": "x" * (2 * CHUNK)}, blobs)
    assert stream.isascii()
    head, got = Reader(Unarmour(reading(bytes(stream), [100_003])).read).frame()
    assert head == {"op": "x" * (2 * CHUNK)} and [bytes(blob) for blob in got] == blobs


@pytest.mark.parametrize(
    "stream",
    [
        b"~~" + base64.b64encode(zlib.compress(bytes(CHUNK + 1))) + b"\n",
        b"~~" + base64.b64encode(zlib.compress(bytes(1 << 28))) + b"\n",
        b"~~" + base64.b64encode(zlib.compress(b"cut off" * 100)[:-9]) + b"\n",
        b"~~" + base64.b64encode(b"no zlib") + b"\n",
        b"~" + base64.b64encode(bytes(CHUNK + 1)) + b"\n",
        b"~a\n",
        b"x" * (MAX_LINE + 1),
        b"{" * (MAX_LINE + 1),
    ],
    ids=["long", "bomb", "cut", "no zlib", "long plain", "no base64", "long noise", "long frame"],
)
def test_hostile_lines_are_refused(stream: bytes) -> None:
    with pytest.raises(ProtocolError):
        all_of(stream, [1 << 20], 1 << 20)


@given(st.binary(max_size=300))
def test_any_bytes_end_in_bytes_or_a_protocol_error(stream: bytes) -> None:
    try:
        all_of(stream)
    except ProtocolError:
        pass


def test_the_program_is_a_line_of_text() -> None:
    program = worker_program(True, True)
    assert program == worker_program(False, True) and program[:1] == b"z"
    assert int(program[1:13]) == len(program) - 14 and program.endswith(b"\n") and program[:-1].decode().isprintable()
    assert len(program) < len(worker_program(False)) / 2 and len(BOOTSTRAP) < 1000


class TextOnly:
    """A transport that only lets text through: it decodes what it reads, and refuses writes of anything else."""

    text = True
    same_python = False

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.kill, self.close, self.reason = inner.kill, inner.close, inner.reason

    def read(self, size: int, /) -> bytes:
        return self._inner.read(size).decode("utf-8", "replace").encode()

    def write(self, data: bytes | memoryview, /) -> None:
        text = bytes(data).decode("ascii")
        assert text.endswith("\n") and text.count("\n") == 1 and text[:-1].isprintable()
        self._inner.write(data)


class TextSubprocess(Subprocess):
    """The subprocess environment over a stream that carries text only."""

    name = "text-subprocess"

    def open(self) -> Transport:
        return TextOnly(super().open())


@pytest.mark.parametrize("check", conformance.checks(), ids=lambda check: check.__name__)
def test_a_session_over_text(check: Any, no_leaks: None) -> None:
    check(TextSubprocess(timeout=60.0))


def test_a_shell_that_talks_first_does_not_disturb() -> None:
    class Noisy(Subprocess):
        name = "noisy"
        then = f"exec({BOOTSTRAP!r})"

        def open(self) -> Transport:
            noise = "print('Welcome to the machine\\nlast login: never', end='', flush=True)\n"
            return TextOnly(spawn([sys.executable, "-I", "-u", "-c", noise + self.then], env={}))

    class Dies(Noisy):
        then = "raise SystemExit(1)"

    with Noisy()() as session:
        assert session.execute("print('é' * 3)") == "ééé\n"
        assert session.execute("len(data)", {"data": bytes(range(256)) * 1000}) == 256_000
    with pytest.raises(SandboxUnavailableError, match="noisy"):
        Dies()().start()

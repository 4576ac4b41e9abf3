"""The host's end of the stream to a worker: requests, answers, host calls.

A `Channel` belongs to no event loop. A reader thread decodes what arrives and completes ``concurrent.futures`` futures;
a writer thread encodes and writes, so that neither a value of 100 MB nor a worker that stops reading can hold up an
event loop. Small frames are written where they are posted, if the stream takes them without waiting. Whatever the
worker sends, the host's memory stays bounded: frames have caps, and beyond a number of unanswered calls the reader
stops reading. A breach of the protocol or the end of the stream ends the channel and fails all that is pending.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

import dspy

from rlm_dspy.environments.armour import Unarmour, armour
from rlm_dspy.environments.base import Environment, Transport
from rlm_dspy.environments.cells import cap_text
from rlm_dspy.environments.codec import Decoder, Encoder
from rlm_dspy.environments.program import worker_program
from rlm_dspy.environments.wire import ProtocolError, Reader, frame_line, write_frame
from rlm_dspy.errors import RLMError, SandboxUnavailableError

START_SECONDS = 60.0
"""Seconds that a worker may take from its first byte to ``ready``."""
_SMALL = 2000
"""Characters of a text that may be written at once; what that makes is mostly within what a pipe takes whole."""
MAX_CALLS = 1024
"""Host calls that may be unanswered before the channel stops reading."""


class ChannelClosed(Exception):
    """The worker is gone; the message says why."""


class RequestFailed(Exception):
    """The worker could not do what a request asked; ``.kind`` is the name of the exception's class there."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class Call:
    """A call of a host function by sandboxed code; ``size`` is about the bytes of memory that it takes."""

    number: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    size: int = 0


class Channel:
    """A started worker. Thread-safe; make one with `connect`.

    Attributes:
        pid: The process that opened it. In a fork of that process the channel must not be used.
        python: Version of the worker's Python, such as ``"3.11.7"``.
        functions: What the session last installed as host functions: names to doc texts.
        sent: Bytes written so far.
        made: Names of the variables that the environment's set-up code has made.
    """

    def __init__(self, transport: Transport, *, max_output: int, max_value: int) -> None:
        self.pid = os.getpid()
        self.python = ""
        self.functions: dict[str, str | None] | None = None
        self.sent = 0
        self.made: frozenset[str] = frozenset()
        self._transport = transport
        self._max_value = max_value
        self._max_output = max_output
        # Twice, because one frame may hold a value and the text around it.
        self._text: bool = getattr(transport, "text", False)
        self._reader = Reader(Unarmour(transport.read).read if self._text else transport.read, max_blobs=2 * max_value)
        self._ids = itertools.count(1)
        self._lock = threading.Condition()
        self._pending: dict[int, Future[Any]] = {}
        self._on_call: Callable[[Call], None] | None = None
        self._on_submit: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None
        self._active: int | None = None
        self.printed = ""
        """What the cell of the last `activate` has printed so far; late by a fraction of a second."""
        self._queued: deque[Call] = deque()
        self._calls = 0
        self._call_bytes = 0
        self._closed: str | None = None
        self._writable = True
        self._outbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._write_now: Callable[[bytes], bool] | None = getattr(transport, "write_now", None)
        # Frames keep their order: nothing is written at once while the writer thread has anything left to do.
        # Reentrant, because a signal handler may interrupt a cell while its thread is in here.
        self._order = threading.RLock()
        self._unwritten = 0
        self._ready: Future[None] = Future()

    # ------------------------------------------------------------------------------------------------- life

    def start(self) -> None:
        """Send the program and wait for the worker. Blocking."""
        for target, name in ((self._read_loop, "reader"), (self._write_loop, "writer")):
            threading.Thread(target=target, name=f"rlm-dspy-{name}", daemon=True).start()
        program = worker_program(self._transport.same_python, self._text)
        with self._order:
            self._enqueue(lambda: self._transport.write(program))
        self._post({"op": "hello", "max_output": self._max_output, "max_value": self._max_value})
        try:
            self._ready.result(timeout=START_SECONDS)
        except FutureTimeout:
            self.close(f"no answer within {START_SECONDS:g} seconds")
            raise ChannelClosed(f"the worker did not start: {self._closed}") from None

    @property
    def alive(self) -> bool:
        """False once the worker is gone, as far as is known."""
        return self._closed is None

    def close(self, reason: str = "closed") -> None:
        """Kill the worker and everything it started, fail what is pending. Idempotent; blocks until it is gone."""
        self._fail(reason)
        if self.pid == os.getpid():
            self._transport.close()

    def _fail(self, reason: str) -> None:
        with self._lock:
            if self._closed is not None:
                return
            self._closed = reason
            pending = list(self._pending.values())
            self._pending.clear()
            self._queued.clear()
            self._lock.notify_all()
        self._outbox.put(None)
        error = ChannelClosed(reason)
        for future in [self._ready, *pending]:
            if not future.done():
                future.set_exception(error)

    # ------------------------------------------------------------------------------------------------- requests

    def new_id(self) -> int:
        """A fresh id for `request`, for those who must know it before they ask."""
        return next(self._ids)

    def request(self, op: str, body: Any = None, number: int | None = None) -> Future[Any]:
        """Send a request; gives the future of its answer, `ChannelClosed` if the worker goes first.

        An encoding error (``TypeError``, ``ValueError``) becomes the future's exception; nothing was sent then.
        """
        number = next(self._ids) if number is None else number
        future: Future[Any] = Future()
        # A future that runs cannot be cancelled, so completing it never fails.
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed is not None:
                future.set_exception(ChannelClosed(self._closed))
                return future
            self._pending[number] = future
        self._post({"op": op, "id": number}, body, lambda error: self._settle(number, error=error))
        return future

    def interrupt(self, number: int) -> None:
        """Raise KeyboardInterrupt in the cell of request ``number``, if it is running."""
        self._post({"op": "interrupt", "id": number})

    def _settle(self, number: int, result: Any = None, error: BaseException | None = None) -> None:
        with self._lock:
            future = self._pending.pop(number, None)
        if future is None:
            raise ProtocolError("an answer to nothing")
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    # ------------------------------------------------------------------------------------------------- host calls

    def activate(
        self,
        number: int,
        on_call: Callable[[Call], None],
        on_submit: Callable[[tuple[Any, ...], dict[str, Any]], None],
    ) -> None:
        """Hand over calls, those that waited included, and submissions of request ``number``; call it before asking.

        The callbacks run in the reader thread and must neither block nor raise.
        """
        with self._lock:
            self._active, self._on_call, self._on_submit = number, on_call, on_submit
            self.printed = ""
            waiting, self._queued = self._queued, deque()
        for call in waiting:
            on_call(call)

    def deactivate(self) -> None:
        """Let calls wait again until the next `activate`."""
        with self._lock:
            self._active = self._on_call = self._on_submit = None

    def postpone(self, call: Call) -> None:
        """Let an accepted call wait for the next `activate`; it begins at once where that has been."""
        with self._lock:
            if not self._answers():
                return
            on_call = self._on_call
            if on_call is None:
                self._queued.append(call)
                return
        on_call(call)

    def reply(self, call: Call, value: Any = None) -> None:
        """Answer a call with a value. One that cannot cross is answered with the error that says so."""

        def failed(error: BaseException) -> None:
            head = {"op": "reply", "id": call.number, "failed": "TypeError"}
            self._post(head, f"{call.name}() returned: {error}")

        self._post({"op": "reply", "id": call.number}, value, failed, lambda: self._answered(call))

    def reply_error(self, call: Call, kind: str, message: str) -> None:
        """Answer a call with an exception: ``kind`` is ``ValueError``, ``TypeError`` or ``RuntimeError``."""
        self._post({"op": "reply", "id": call.number, "failed": kind}, message, None, lambda: self._answered(call))

    def _answered(self, call: Call) -> None:
        with self._lock:
            self._calls -= 1
            self._call_bytes -= call.size
            self._lock.notify_all()

    # ------------------------------------------------------------------------------------------------- writing

    def _post(
        self,
        head: dict[str, Any],
        body: Any = None,
        failed: Callable[[BaseException], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        def job() -> None:
            encoder = Encoder()
            try:
                try:
                    head["body"] = encoder.dump(body)
                except Exception as error:
                    # A value's own class may raise anything.
                    if failed is not None:
                        failed(error if isinstance(error, (TypeError, ValueError)) else _unsendable(error))
                else:
                    write_frame(self._send, head, encoder.blobs)
            finally:
                if after is not None:
                    after()

        if self._closed is not None:
            return
        line = _small_frame(head, body) if self._write_now is not None else None
        with self._order:
            written = line is not None and self._unwritten == 0 and self._write_at_once(line)
            if not written:
                self._enqueue(job)
        if written and after is not None:
            after()

    def _write_at_once(self, line: bytes) -> bool:
        assert self._write_now is not None
        if not self._write_now(line):
            return False
        self.sent += len(line)
        return True

    def _enqueue(self, job: Callable[[], None]) -> None:
        self._unwritten += 1
        self._outbox.put(job)

    def _send(self, data: bytes | memoryview) -> None:
        if self._text:
            for line in armour(data):
                self._transport.write(line)
        else:
            self._transport.write(data)
        self.sent += len(data)

    def _write_loop(self) -> None:
        try:
            while (job := self._outbox.get()) is not None:
                job()
                # Held over the next wait, this would keep a value of any size alive.
                del job
                with self._order:
                    self._unwritten -= 1
        except OSError:
            # The reader sees the end of the stream too, and knows more about its reason. It may be waiting for answers
            # that nobody can send any more.
            self._transport.kill()
            with self._lock:
                self._writable = False
                self._lock.notify_all()
        except BaseException as error:
            self.close(f"writing failed: {type(error).__name__}: {error}")

    # ------------------------------------------------------------------------------------------------- reader thread

    def _read_loop(self) -> None:
        try:
            while self._closed is None:
                self._receive()
        except EOFError:
            # Asked before the kill, which would hide how the worker ended by itself.
            self._end("the worker is gone", self._transport.reason())
        except ProtocolError as error:
            self._end("the worker broke the protocol", str(error))
        except OSError as error:
            self._end("reading from the worker failed", str(error))
        except BaseException as error:
            self._end("the channel failed", f"{type(error).__name__}: {error}")

    def _end(self, what: str, why: str) -> None:
        if self._closed is None:
            self.close(f"{what}: {why}" if why else what)

    def _receive(self) -> None:
        head, blobs = self._reader.frame()
        op, number = head.get("op"), head.get("id")
        decoder = Decoder(blobs, records=False, max_cost=self._reader.max_cost)
        body = decoder.load(head.get("body"))
        # Blobs as well as what JSON becomes: a line of empty lists takes twenty times its length.
        size = self._reader.cost + decoder.cost
        del decoder, blobs
        if op == "ready":
            if self._ready.done() or type(head.get("python")) is not str:
                raise ProtocolError("a second ready")
            self.python = head["python"][:20]
            self._ready.set_result(None)
            return
        if type(number) is not int:
            raise ProtocolError("a frame without an id")
        if op == "done":
            failed = head.get("failed")
            if failed is not None:
                self._settle(number, error=RequestFailed(_text(failed)[:200], _text(body)))
            else:
                self._settle(number, body)
        elif op == "output":
            with self._lock:
                if number == self._active:
                    self.printed = cap_text(_text(body), self._max_output)
        elif op == "call" or op == "submit":
            args, kwargs = _arguments(body)
            if op == "submit":
                with self._lock:
                    on_submit = self._on_submit if number == self._active else None
                if on_submit is not None:
                    on_submit(args, kwargs)
                return
            name = head.get("name")
            if type(name) is not str or len(name) > 1000:
                raise ProtocolError("a call without a name")
            self._accept(Call(number, name, args, kwargs, size))
        else:
            raise ProtocolError("an unknown kind of frame")

    def _accept(self, call: Call) -> None:
        with self._lock:
            while self._answers() and (
                self._calls >= MAX_CALLS or (self._calls and self._call_bytes + call.size > 2 * self._max_value)
            ):
                self._lock.wait()
            if not self._answers():
                return
            self._calls += 1
            self._call_bytes += call.size
            on_call = self._on_call
            if on_call is None:
                self._queued.append(call)
                return
        on_call(call)

    def _answers(self) -> bool:
        return self._closed is None and self._writable


def _small_frame(head: dict[str, Any], body: Any) -> bytes | None:
    """The whole frame, where ``body`` is encoded in microseconds, by no code of its own; None where it is not."""
    if type(body) is dict:
        small = len(body) <= 4 and all(type(name) is str and _is_atom(item) for name, item in body.items())
    else:
        small = _is_atom(body)
    if not small:
        return None
    encoder = Encoder()
    tree = encoder.dump(body)
    # Text with lone surrogates is one long before it is large.
    return None if encoder.blobs else frame_line({**head, "body": tree})


def _is_atom(value: Any) -> bool:
    kind = type(value)
    return value is None or kind is bool or kind is float or (kind is str and len(value) <= _SMALL)


def _unsendable(error: Exception) -> TypeError:
    return TypeError(f"the value cannot be read: {type(error).__name__}: {error}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _arguments(body: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if type(body) is not list or len(body) != 2 or type(body[0]) is not list or type(body[1]) is not dict:
        raise ProtocolError("malformed arguments")
    if any(type(name) is not str for name in body[1]):
        raise ProtocolError("malformed arguments")
    return tuple(body[0]), body[1]


def connect(environment: Environment) -> Channel:
    """Open the environment, start the worker in it, and wait until it is ready. Blocking.

    Raises:
        SandboxUnavailableError: the environment cannot be opened, or no Python starts in it.
    """
    try:
        transport = environment.open()
    except (RLMError, dspy.CodeInterpreterError):
        raise
    except OSError as error:
        raise SandboxUnavailableError(f"the {environment.name!r} environment cannot be opened: {error}") from error
    channel = Channel(transport, max_output=environment.max_output, max_value=environment.max_value)
    try:
        channel.start()
    except ChannelClosed as error:
        # The reader thread is at it; whoever is told of the failure finds nothing left.
        channel.close()
        raise SandboxUnavailableError(f"the {environment.name!r} environment did not start: {error}") from None
    except BaseException:
        channel.close()
        raise
    return channel


def doc_of(functions: Mapping[str, Any]) -> dict[str, str | None]:
    """Names and doc texts of host functions, as the worker installs them."""
    return {name: _doc(function) for name, function in functions.items()}


def _doc(function: Any) -> str | None:
    doc = getattr(function, "__doc__", None)
    return doc[:10_000] if isinstance(doc, str) else None

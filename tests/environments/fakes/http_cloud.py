"""Loopback clouds that speak HTTP: requests, faults, streams of a program's output.

A provider is a subclass of `HttpCloud` whose ``answer`` serves one request. Faults (`Cloud.fail`) are a status,
``"drop"`` (the connection breaks before anything is done), ``"lost"`` (all is done, the answer is lost), a number of
seconds as a float, or a `Reply`. While a program's output is streamed, ``cut_streams`` breaks all connections.
"""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.environments.fakes.boxes import STREAMS, Box, Cloud, Program

PIECE = 1 << 20


@dataclass
class Reply:
    """An HTTP answer; ``body`` is bytes, or what becomes JSON."""

    status: int = 200
    body: Any = None
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


class Drop(Exception):
    """Close the connection without an answer."""


class Request:
    """A request under way."""

    def __init__(self, handler: _Handler) -> None:
        parts = urlsplit(handler.path)
        self.method = handler.command
        self.path = parts.path
        self.query = dict(parse_qsl(parts.query))
        self.headers = handler.headers
        self.body = _body(handler)
        self._handler = handler

    def json(self) -> Any:
        """The body."""
        return json.loads(self.body) if self.body else {}

    def stream(self, kind: str) -> Callable[[bytes], None]:
        """Begin a streamed answer; gives the function that sends a piece of it."""
        handler = self._handler
        handler.send_response(200)
        handler.send_header("Content-Type", kind)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()

        def send(piece: bytes) -> None:
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            handler.wfile.flush()

        return send

    def end_stream(self) -> None:
        """End it as it should end."""
        self._handler.wfile.write(b"0\r\n\r\n")
        self._handler.wfile.flush()


class HttpCloud(Cloud):
    """The server, on the loopback interface, in threads.

    Attributes:
        url: Where it listens.
        seen: Times at which a sandbox's lifetime was set: (operation, seconds).
    """

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self._connections: set[socket.socket] = set()
        self._streams: set[socket.socket] = set()
        self._timers: dict[str, threading.Timer] = {}
        self._closed = threading.Event()

    def __enter__(self) -> Any:
        cloud = self

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128
            owner = cloud

            def handle_error(self, request: Any, client_address: Any) -> None:
                return None

        self._server = Server(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fake-http", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._closed.set()
        for timer in self._timers.values():
            timer.cancel()
        self.clear()
        self._server.shutdown()
        self._cut(self._connections)
        self._server.server_close()
        self._thread.join(10)

    # ------------------------------------------------------------------------------------------------- for providers

    def answer(self, request: Request) -> Reply | None:
        """Serve a request; None where the answer was streamed."""
        raise NotImplementedError

    def operation(self, request: Request) -> str:
        """The provider's word for what is asked."""
        raise NotImplementedError

    def refuse(self, status: int) -> Reply:
        """An error as the provider puts it."""
        raise NotImplementedError

    def lives(self, box: Box, seconds: float) -> None:
        """End ``box`` after so many seconds, counted from now."""
        with self._lock:
            if old := self._timers.pop(box.name, None):
                old.cancel()
            timer = self._timers[box.name] = threading.Timer(seconds, lambda: self.end("expired", box.name))
            timer.daemon = True
        timer.start()

    # ------------------------------------------------------------------------------------------------- for tests

    def cut_streams(self) -> None:
        """Break the connections over which output is streamed now."""
        self._cut(self._streams)

    # ------------------------------------------------------------------------------------------------- serving

    def _cut(self, connections: set[socket.socket]) -> None:
        with self._lock:
            found = list(connections)
        for connection in found:
            try:
                # A reset, not an orderly end.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def serve(self, request: Request) -> Reply | None:
        """`answer`, or the fault that was asked for."""
        fault = self.fault(self.operation(request))
        if isinstance(fault, float):
            self._closed.wait(fault)
        elif isinstance(fault, int):
            return self.refuse(fault)
        elif isinstance(fault, Reply):
            return fault
        elif fault == "drop":
            raise Drop
        reply = self.answer(request)
        if fault == "lost":
            raise Drop
        return reply

    def follow(self, request: Request, box: Box, program: Program, late: bool = False) -> Iterator[tuple[str, bytes]]:
        """What a program prints, as ``(stream, bytes)``, until it has ended; from now on if ``late``.

        The connection breaks where the sandbox ends.
        """
        connection = request._handler.connection
        places = {name: len(program.output[name]) if late else 0 for name in STREAMS}
        with self._lock:
            self._streams.add(connection)

        def new(name: str) -> bytes:
            return bytes(program.output[name][places[name] : places[name] + PIECE])

        try:
            while True:
                with program.changed:
                    program.changed.wait_for(lambda: program.done or box.ended or any(map(new, STREAMS)), 1.0)
                    pieces = [(name, new(name)) for name in STREAMS]
                    done = program.done and not any(piece for _, piece in pieces)
                if box.ended:
                    raise Drop
                for name, piece in pieces:
                    if piece:
                        places[name] += len(piece)
                        yield name, piece
                if done:
                    return
        finally:
            with self._lock:
                self._streams.discard(connection)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = wbufsize = 1 << 16

    def log_message(self, *_: Any) -> None:
        return None

    def setup(self) -> None:
        super().setup()
        cloud = self.server.owner  # type: ignore[attr-defined]
        with cloud._lock:
            cloud._connections.add(self.connection)

    def finish(self) -> None:
        cloud = self.server.owner  # type: ignore[attr-defined]
        with cloud._lock:
            cloud._connections.discard(self.connection)
        try:
            super().finish()
        except OSError:
            pass

    def _serve(self) -> None:
        cloud: HttpCloud = self.server.owner  # type: ignore[attr-defined]
        try:
            reply = cloud.serve(Request(self))
            if reply is None:
                return
            body = reply.body if isinstance(reply.body, bytes) else b"" if reply.body is None else _dump(reply.body)
            self.send_response(reply.status)
            for name, value in {"Content-Type": reply.kind, "Content-Length": str(len(body)), **reply.headers}.items():
                if reply.status != 204 or name != "Content-Type":
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()
        except Drop:
            self.close_connection = True
            try:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self.connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        except OSError:
            self.close_connection = True

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _serve  # noqa: N815


def _body(handler: _Handler) -> bytes:
    if "chunked" not in handler.headers.get("Transfer-Encoding", "").lower():
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    pieces = []
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        pieces.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(pieces)


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def stamp(seconds: float = 0.0) -> str:
    """A time so many seconds from now, as APIs write it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))

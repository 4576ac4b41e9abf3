"""HTTP/1.1 and WebSockets for the loopback clouds: a threaded server of the standard library, and what it lacks."""

from __future__ import annotations

import base64
import email.parser
import email.policy
import hashlib
import http.server
import json
import socket
import struct
import threading
import time
import urllib.parse
from typing import Any

_WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Dropped(Exception):
    """The connection is to be broken without an answer."""


class Request(http.server.BaseHTTPRequestHandler):
    """One request; a cloud's own subclass answers it in `serve`.

    Attributes:
        query: The parameters of the address; ``path`` is without them.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = wbufsize = 1 << 16
    query: dict[str, str]

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""

    def serve(self) -> None:
        """Answer the request: `reply`, `upgrade`, or raise `Dropped`."""
        raise NotImplementedError

    def _route(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        self.path, self.query = parts.path, dict(urllib.parse.parse_qsl(parts.query))
        try:
            self.serve()
        except Dropped:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _route  # noqa: N815

    def body(self) -> bytes:
        """What was sent, in one piece or in chunks."""
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def json(self) -> Any:
        """What was sent, read as JSON; ``{}`` for nothing."""
        return json.loads(self.body() or b"{}")

    def parts(self) -> dict[str, tuple[str | None, bytes]]:
        """The parts of a form that was sent: each name to its file's name and its bytes."""
        head = b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n"
        form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + self.body())
        return {
            str(part.get_param("name", header="content-disposition")): (
                part.get_filename(), part.get_payload(decode=True),  # type: ignore[dict-item]
            )
            for part in form.iter_parts()  # type: ignore[attr-defined]
        }  # fmt: skip

    def reply(self, status: int, value: Any = None, *, data: bytes | None = None, kind: str = "application/json") -> None:
        """Answer with JSON, or with ``data`` of another kind."""
        out = data if data is not None else b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)
        self.wfile.flush()

    def chunk(self, data: bytes) -> None:
        """One chunk of a streamed answer, which ends with an empty one."""
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def stream(self, kind: str) -> None:
        """Begin a streamed answer."""
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    # ------------------------------------------------------------------------------------------------- WebSockets

    @property
    def wants_websocket(self) -> bool:
        """Whether the client asks for a WebSocket (RFC 6455)."""
        return self.headers.get("Upgrade", "").lower() == "websocket"

    def upgrade(self) -> WebSocket:
        """Make this connection a WebSocket."""
        digest = hashlib.sha1((self.headers["Sec-WebSocket-Key"] + _WEBSOCKET).encode()).digest()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(digest).decode())
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        return WebSocket(self)


class WebSocket:
    """The server's side of a WebSocket that only sends; a thread answers pings and notices the client's end.

    Attributes:
        closed: True once the client is gone.
    """

    def __init__(self, request: Request) -> None:
        self.closed = False
        self._request = request
        self._sending = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, data: bytes, kind: int = 2) -> None:
        """Send a message: 2 is bytes, 1 is text, 8 closes."""
        size = len(data)
        if size < 126:
            head = bytes([0x80 | kind, size])
        else:
            head = bytes([0x80 | kind]) + (struct.pack(">BH", 126, size) if size < 65536 else struct.pack(">BQ", 127, size))
        with self._sending:
            self._request.connection.sendall(head + data)

    def close(self, code: int = 1000) -> None:
        """Say that this is the end, and why."""
        self.send(struct.pack(">H", code), 8)

    def _listen(self) -> None:
        try:
            while not self.closed:
                kind, data = self._message()
                if kind == 9:
                    self.send(data, 10)
                elif kind == 8:
                    break
        except (OSError, ValueError):
            pass
        self.closed = True

    def _message(self) -> tuple[int, bytes]:
        take = self._request.rfile.read
        head = take(2)
        if len(head) < 2:
            raise OSError("the client is gone")
        size = head[1] & 127
        if size > 125:
            size = int.from_bytes(take(2 if size == 126 else 8), "big")
        mask = take(4) if head[1] & 128 else b"\0\0\0\0"
        return head[0] & 15, bytes(byte ^ mask[at % 4] for at, byte in enumerate(take(size)))


class Server:
    """A server on the loopback interface whose requests are made of ``kind``; ``cloud`` is theirs to use."""

    def __init__(self, kind: type[Request], cloud: Any) -> None:
        bound = type(kind.__name__, (kind,), {"cloud": cloud})

        class Threaded(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *_: Any) -> None:
                """Clients go when they like."""

        self._server = Threaded(("127.0.0.1", 0), bound)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more requests."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def stamp(seconds: float = 0.0) -> str:
    """The time in so many seconds, as APIs write it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))

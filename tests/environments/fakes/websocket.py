"""The server's side of a WebSocket (RFC 6455), for a handler of the standard library's HTTP server."""

from __future__ import annotations

import base64
import hashlib
import http.server
import struct
import threading

_SALT = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocket:
    """One that only sends; a thread answers pings and notices that the client is gone.

    Attributes:
        closed: True once it is.
    """

    def __init__(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        digest = hashlib.sha1((handler.headers["Sec-WebSocket-Key"] + _SALT).encode()).digest()
        handler.send_response(101)
        handler.send_header("Upgrade", "websocket")
        handler.send_header("Connection", "Upgrade")
        handler.send_header("Sec-WebSocket-Accept", base64.b64encode(digest).decode())
        handler.end_headers()
        handler.wfile.flush()
        handler.close_connection = True
        self.closed = False
        self._handler = handler
        self._sending = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, data: bytes, kind: int = 2) -> None:
        """Send a message: 2 is bytes, 8 closes, 10 answers a ping."""
        size = len(data)
        head = bytes([0x80 | kind])
        if size < 126:
            head += bytes([size])
        else:
            head += struct.pack(">BH", 126, size) if size < 65536 else struct.pack(">BQ", 127, size)
        with self._sending:
            self._handler.connection.sendall(head + data)

    def close(self, code: int = 1000) -> None:
        """Say that this is the end, and why."""
        self.send(struct.pack(">H", code), 8)

    def _listen(self) -> None:
        try:
            while True:
                kind, data = self._message()
                if kind == 9:
                    self.send(data, 10)
                elif kind == 8:
                    break
        except (OSError, ValueError):
            pass
        self.closed = True

    def _message(self) -> tuple[int, bytes]:
        take = self._handler.rfile.read
        head = take(2)
        if len(head) < 2:
            raise OSError("the client is gone")
        size = head[1] & 127
        if size > 125:
            size = int.from_bytes(take(2 if size == 126 else 8), "big")
        mask = take(4) if head[1] & 128 else b"\0\0\0\0"
        return head[0] & 15, bytes(byte ^ mask[at % 4] for at, byte in enumerate(take(size)))

"""A loopback server for each wire dialect: real HTTP, strict about requests, scripted replies and failures."""

from __future__ import annotations

import http.server
import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from rlm_dspy_test_native_wires import WIRES
from rlm_dspy_test_wires import Refused, Reply, Seen, Wire


@dataclass(frozen=True)
class Fault:
    """A failure in place of a reply: its kind as `Wire.error` has it, and headers to go with it."""

    kind: str
    headers: dict[str, str] = field(default_factory=dict)


class Server:
    """Answers one dialect.

    Args:
        dialect: A name of `WIRES`.
        model: The only model it has.
        key: The only key it takes; any, or none, where this is None.
        policy: From the last user message to what the model says.

    Attributes:
        seen: Every request that was answered with a reply.
        refusals: What it refused, and why, in order.
        faults: Failures that the next requests get, before anything else is looked at.
        always: A kind of failure that every request gets.
    """

    def __init__(self, dialect: str, model: str, key: str | None, policy: Callable[[str], Reply | None]) -> None:
        self.wire: Wire = WIRES[dialect](model, key)
        self.seen: list[Seen] = []
        self.listed: list[Seen] = []
        self.refusals: list[Refused] = []
        self.faults: deque[Fault] = deque()
        self.always: str | None = None
        self.lock = threading.Lock()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def _seen(self) -> Seen:
                split = urlsplit(self.path)
                data = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = json.loads(data) if data else {}
                return Seen(self.command, split.path, dict(parse_qsl(split.query)), headers, body)

            def do_GET(self) -> None:
                seen = self._seen()
                server.listed.append(seen)
                if seen.path == f"{server.wire.base}/models":
                    self._send(200, server.wire.models())
                else:
                    self._send(404, {"detail": "Not Found"})

            def do_POST(self) -> None:
                try:
                    seen = self._seen()
                    if (aside := server.wire.aside(seen)) is not None:
                        self._send(200, aside)
                        return
                    with server.lock:
                        fault = server.faults.popleft() if server.faults else None
                    if fault is None and server.always:
                        fault = Fault(server.always)
                    if fault is not None:
                        self._send(*server.wire.error(fault.kind, seen), fault.headers)
                        return
                    server.wire.check(seen)
                    reply = policy(server.wire.turns(seen)[-1][1])
                except Refused as refused:
                    server.refusals.append(refused)
                    self._send(refused.status, refused.body)
                    return
                server.seen.append(seen)
                if reply is None:
                    # Hung up on, whether the client is still there or not.
                    self.close_connection = True
                    return
                if seen.streams:
                    self._send(200, server.wire.stream(reply), {"content-type": server.wire.stream_type})
                else:
                    self._send(200, server.wire.reply(reply))

            def _send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"content-type": "application/json", **(headers or {})}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.origin = f"http://127.0.0.1:{self._server.server_port}"
        self.url = f"{self.origin}{self.wire.base}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

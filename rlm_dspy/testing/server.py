"""A scripted language model as an OpenAI-compatible endpoint, for what takes an address and no ``dspy.LM``: seats of a
training environment, ``vf-eval``, a command line, a provider's own client.

    with ScriptedServer(oracle("SUBMIT(answer=len(context))")) as server:
        lm = dspy.LM("hosted_vllm/scripted", api_base=server.url, api_key="none")

It listens on this machine alone.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dspy.lm15 import AuthError, InvalidRequestError, Message, RateLimitError, Request

from rlm_dspy.testing.scripted import Call, Policy, Reply, _Engine, tokens

__all__ = ["ScriptedServer"]

STATUS = {AuthError: 401, RateLimitError: 429, InvalidRequestError: 400}
"""Of the errors of a `Reply`; others are 500, which clients take for something that passes."""


class ScriptedServer:
    """Answers chat requests from a policy, many at once, until it is closed. A context manager.

    Args:
        policy: As for `ScriptedLM`. What a function raises, and a list that is used up, is a refused request (400),
            whose message says so; the error of a `Reply` has the status that a provider would give it.
        name: The model's. Requests by any name are answered.
        port: 0 for any that is free.

    Attributes:
        url: With ``/v1``.
    """

    def __init__(self, policy: Policy, name: str = "scripted", *, port: int = 0) -> None:
        self.name = name
        self._engine = _Engine(policy)
        self._closed = threading.Event()
        self._http = _Http(("127.0.0.1", port), self)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name=name, daemon=True)
        self._thread.start()

    @property
    def calls(self) -> list[Call]:
        """All requests so far. Of their settings ``call.request`` has the model's name alone."""
        return list(self._engine.calls)

    def close(self) -> None:
        """Stop serving; idempotent. Replies that wait for their ``delay`` are given at once."""
        if not self._closed.is_set():
            self._closed.set()
            self._http.shutdown()
            self._http.server_close()
            self._thread.join()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        try:
            if body.get("stream"):
                return _refusal("this server does not stream: leave stream out")
            call, reply = self._engine.reply(_request(body))
        except Exception as error:  # whatever a policy does; not to be asked again
            return _refusal(f"{type(error).__name__}: {error}")
        self._closed.wait(reply.delay)
        if reply.error is not None:
            status = next((code for kind, code in STATUS.items() if isinstance(reply.error, kind)), 500)
            return _refusal(f"{type(reply.error).__name__}: {reply.error}", status)
        return 200, self._completion(call, reply)

    def _completion(self, call: Call, reply: Reply) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        read, said = tokens(call, reply)
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": call.request.model,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said},
        }


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    # A hundred rollouts connect at once.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], scripted: ScriptedServer) -> None:
        self.scripted = scripted
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Http

    def do_POST(self) -> None:
        if not self.path.endswith("/chat/completions"):
            return self._send(404, _refusal(f"there is no {self.path} here")[1])
        try:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        except (TypeError, ValueError) as error:
            return self._send(400, _refusal(f"the request cannot be read: {error}")[1])
        return self._send(*self.server.scripted._answer(body))

    def do_GET(self) -> None:
        one = {"id": self.server.scripted.name, "object": "model", "owned_by": "rlm_dspy.testing"}
        self._send(200, {"object": "list", "data": [one]})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


def _request(body: dict[str, Any]) -> Request:
    messages = [(str(one["role"]), _text(one.get("content"))) for one in body["messages"]]
    system = "\n\n".join(text for role, text in messages if role == "system")
    made = {"user": Message.user, "assistant": Message.assistant, "developer": Message.developer}
    asked = tuple(made[role](text) for role, text in messages if role != "system")
    return Request(str(body.get("model") or ""), asked, system or None)


def _text(content: Any) -> str:
    return "".join(str(part.get("text", "")) for part in content) if isinstance(content, list) else content or ""


def _refusal(said: str, status: int = 400) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"message": said, "type": "server_error" if status >= 500 else "invalid_request_error"}}

"""``rlm-dspy ask`` against a local server that speaks the OpenAI protocol, over real HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy.cli import exits


class Server(ThreadingHTTPServer):
    """Answers the root with code, everything else with ``sub``; keeps what was asked, and with which key."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.keys: list[str | None] = []
        self.models: list[str] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        request: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.keys.append(self.headers.get("Authorization"))
        server.models.append(request["model"])
        text = "sub says hi"
        if request["model"] == "root":
            text = "Ask, then submit.\n\n```python\nSUBMIT(llm_query('say hi') + ', ' + context.split()[0])\n```"
        reply: dict[str, Any] = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}},
            ],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        }
        if server.status != 200:
            reply = {"error": {"message": "this server is out of order", "type": "invalid_request_error"}}
        body = json.dumps(reply).encode()
        self.send_response(server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the test's output is not the server's log."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(server: Server, document: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process with a cache of its own, so that no earlier answer is found in it."""
    env = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    env |= {"DSPY_CACHEDIR": str(tmp_path / "cache"), **environment}
    argv = [sys.executable, "-m", "rlm_dspy.cli", "ask", "q", document, "--json", "--api-base", server.url]
    argv += ["--model", "openai/root", "--sub-model", "openai/sub", "--interpreter", "subprocess"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, env=env)


def test_a_local_server(server: Server, document: str, tmp_path: Path) -> None:
    done = ask(server, document, tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["outputs"] == {"answer": "sub says hi, one"}
    assert server.models == ["root", "sub"]
    assert server.keys == ["Bearer none", "Bearer none"]
    assert (report["usage"]["input_tokens"], report["usage"]["output_tokens"]) == (14, 6)


def test_the_key_comes_from_the_environment(server: Server, document: str, tmp_path: Path) -> None:
    done = ask(server, document, tmp_path, OPENAI_API_KEY="sk-of-the-environment-0123456789")
    assert done.returncode == 0, done.stderr
    assert set(server.keys) == {"Bearer sk-of-the-environment-0123456789"}
    assert "sk-of" not in done.stdout + done.stderr


def test_an_error_of_the_server(server: Server, document: str, tmp_path: Path) -> None:
    server.status = 400
    done = ask(server, document, tmp_path)
    assert done.returncode == exits.ERROR
    assert "out of order" in done.stderr and "Traceback" not in done.stderr
    assert "out of order" in json.loads(done.stdout)["error"]

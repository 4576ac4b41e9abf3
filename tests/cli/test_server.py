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

SUBMITS = "Ask, then submit.\n\n```python\nSUBMIT(llm_query('say hi') + ', ' + context.split()[0])\n```"
LOOKS = "I look [bold]first[/bold].\n\n```python\nprint(len(context))\n```"


class Server(ThreadingHTTPServer):
    """Answers the root from a list, the last again and again, and everything else with ``sub``.

    It keeps what was asked, and with which key.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.keys: list[str | None] = []
        self.models: list[str] = []
        self.status = 200
        self.error = "this server is out of order"
        self.root = [SUBMITS]

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
            text = server.root[min(server.models.count("root"), len(server.root)) - 1]
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
            reply = {"error": {"message": server.error, "type": "invalid_request_error"}}
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


def ask(
    server: Server, document: str, tmp_path: Path, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command in a process with a cache of its own, so that no earlier answer is found in it."""
    env = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    env |= {"DSPY_CACHEDIR": str(tmp_path / "cache"), **environment}
    argv = [sys.executable, "-m", "rlm_dspy.cli", "ask", "q", document, "--json", "--api-base", server.url]
    argv += ["--model", "openai/root", "--sub-model", "openai/sub", "--interpreter", "subprocess", *options]
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


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a person reads on standard error, a message a line; nothing else may stand there."""
    lines = [line for line in done.stderr.splitlines() if "NOT CONFINED" not in line]
    assert all(line.startswith("rlm-dspy: ") for line in lines), done.stderr
    return [line.removeprefix("rlm-dspy: ") for line in lines]


def test_our_own_sentence_comes_before_the_error_which_is_one_line(
    server: Server, document: str, tmp_path: Path
) -> None:
    server.status, server.error = 401, "Incorrect API key provided"
    done = ask(server, document, tmp_path)
    fix, error = said(done)
    assert fix.startswith("The server at http://127.0.0.1:") and "refused the key" in fix
    assert error.startswith("the error was: LMAuthError: ") and "Incorrect API key provided" in error
    # What a program reads is whole.
    assert "To fix:" in json.loads(done.stdout)["error"]


def test_a_reply_that_cannot_be_read_is_told_in_a_sentence(server: Server, document: str, tmp_path: Path) -> None:
    server.root = [LOOKS, "I do not know what to say. " * 50]
    options = ("--max-iters", "1", "--signature", "context, query -> a: int, b: list[str]")
    done = ask(server, document, tmp_path, *options)
    assert done.returncode == exits.FAILED
    turn, stopped, fix, error = said(done)
    assert turn.startswith("turn 1/1, ") and turn.endswith(" s: I look [bold]first[/bold].")
    assert stopped.startswith("stopped: max_iters, and no answer could be made of what was done")
    assert "--max-iters" in fix and "--signature" in fix
    assert error.startswith("the error was: a reply of the model was not in the form that it was asked for: 'I do not")
    assert len(error) < 250


def test_an_error_after_the_first_turn_is_told_in_three_sentences(
    server: Server, document: str, tmp_path: Path
) -> None:
    # The sub-model's reply takes the place of the extracted answer's, which fails as well.
    server.root = [LOOKS, ""]
    done = ask(server, document, tmp_path, "--max-errors", "1")
    assert done.returncode in (exits.EXTRACTED, exits.FAILED)
    first, second, stopped, *_ = said(done)
    assert first.startswith("turn 1/20, ") and second.startswith("turn 2/20, ")
    assert second.endswith("(it ended in an error)") and stopped.startswith("stopped: max_errors")


def test_there_is_a_line_a_turn_and_nothing_of_the_libraries(server: Server, document: str, tmp_path: Path) -> None:
    server.root = [LOOKS, LOOKS.replace("first", "again").replace("(len", "(2 * len"), SUBMITS]
    done = ask(server, document, tmp_path)
    turns = said(done)
    assert done.returncode == 0 and len(turns) == 3
    assert [turn.partition(",")[0] for turn in turns] == ["turn 1/20", "turn 2/20", "turn 3/20"]
    assert turns[2].endswith(": Ask, then submit.")
    assert ask(server, document, tmp_path, "--quiet").stderr == ""


def test_an_unknown_provider_is_told_at_once_and_without_warnings(
    server: Server, document: str, tmp_path: Path
) -> None:
    done = ask(server, document, tmp_path, "--model", "nosuch/model")
    fix, error = said(done)
    assert '"nosuch" in dspy.LM("nosuch/model") is no provider' in fix and len(error) < 350

"""Fixtures that more than one room's tests use.

    sandbox     the factory that runs code in tests: `Subprocess()`, or the environment named by RLM_TEST_ENV
    no_leaks    fails a test that leaves a process or a busy thread behind
    endpoint    an OpenAI-compatible server on the loopback interface that records what it is sent, byte for byte
    in_python   runs a script in a Python of its own, for what a test process must not do to itself: fork, signals
"""

from __future__ import annotations

import gc
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import environments
from rlm_dspy.environments import pool
from rlm_dspy.environments.base import Environment

# LiteLLM fetches its price list from the network unless told not to.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

DEADLINE = 20.0
# Threads that wait for work as long as the process lives.
IDLE = ("rlm-dspy-spawner", "rlm-dspy-pool", "rlm-dspy-clouds", "rlm-dspy-tracking")


def eventually(true: Callable[[], Any], seconds: float = DEADLINE) -> bool:
    """Whether ``true()`` becomes true within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def children(pid: int | None = None) -> set[int]:
    """Process ids of the direct children of a process, this one by default; zombies are not counted."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if int(parent) == (pid or os.getpid()) and state != "Z":
                found.add(int(entry.name))
    return found


def busy_threads(but: Collection[threading.Thread] = ()) -> list[str]:
    """The project's threads that are doing something, and where: sessions, calls; not those that wait for work.

    Args:
        but: Threads to leave out.
    """
    # Before 3.11.8 a collection inside of this call may wait for ever for a thread that ends (CPython #106883).
    collecting = gc.isenabled()
    gc.disable()
    try:
        frames = sys._current_frames()
    finally:
        if collecting:
            gc.enable()
    busy = []
    for thread in set(threading.enumerate()).difference(but):
        frame = frames.get(thread.ident or 0)
        if not thread.name.startswith("rlm-dspy") or frame is None:
            continue
        waits = frame.f_code.co_name in ("_loop", "get") or thread.name in IDLE
        if not waits:
            stack = reversed(traceback.extract_stack(frame))
            busy.append(f"{thread.name}: " + " < ".join(f"{Path(at.filename).name}:{at.lineno}" for at in stack))
    return busy


@pytest.fixture(scope="session", autouse=True)
def no_disk_cache() -> None:
    """DSPy's cache in memory alone: no test reads what an earlier run left on disk, or leaves something there."""
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., bool]:
    """``eventually(true, seconds=20)``: waits for a condition with a deadline."""
    return eventually


@pytest.fixture(name="children")
def children_fixture() -> Callable[..., set[int]]:
    """``children(pid=None)``: process ids of a process' direct children."""
    return children


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Nothing of a run is left once the test is over; warm spare workers are the pool's and closed first."""
    pool.close()
    before = children()
    # One that an earlier test left at work is not this test's doing.
    earlier = [thread for thread in threading.enumerate() if busy_threads(set(threading.enumerate()) - {thread})]
    yield
    pool.close()
    assert eventually(lambda: not (children() - before)), f"processes left: {children() - before}"
    assert eventually(lambda: not busy_threads(earlier)), f"threads left: {busy_threads(earlier)}"


@pytest.fixture
def sandbox(no_leaks: None) -> Environment:
    """Where the code of a test's runs is executed."""
    return environments.get(os.environ.get("RLM_TEST_ENV", "subprocess"))


_ENVELOPE = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
}


def _streamed(message: dict[str, Any]) -> bytes:
    """A reply as server-sent events, a word each."""
    words = re.findall(r"\S+\s*|\s+", message["content"])
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": word} for word in words), {}]
    events = []
    for number, delta in enumerate(deltas):
        finish = "stop" if number == len(deltas) - 1 else None
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        events.append({**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    events.append({**chunk, "choices": [], "usage": _ENVELOPE["usage"]})
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n"


class Endpoint:
    """An OpenAI-compatible chat server that answers from a list, streamed where asked to, and keeps every request.

    Attributes:
        bodies: The requests, byte for byte.
        url: For ``api_base``.
    """

    def __init__(self, replies: Iterable[str | dict[str, Any]]) -> None:
        self.bodies: list[bytes] = []
        self._replies = iter(replies)
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                endpoint.bodies.append(self.rfile.read(int(self.headers["content-length"])))
                reply = next(endpoint._replies)
                message = {"role": "assistant", **(reply if isinstance(reply, dict) else {"content": reply})}
                if json.loads(endpoint.bodies[-1]).get("stream"):
                    self._send("text/event-stream", _streamed(message))
                else:
                    choice = {"index": 0, "message": message, "finish_reason": "stop"}
                    self._send("application/json", json.dumps({**_ENVELOPE, "choices": [choice]}).encode())

            def _send(self, kind: str, data: bytes) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    @property
    def messages(self) -> list[list[dict[str, Any]]]:
        """The messages of each request."""
        return [json.loads(body)["messages"] for body in self.bodies]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def endpoint() -> Iterator[Callable[[Iterable[str | dict[str, Any]]], Endpoint]]:
    """``endpoint(replies)`` starts a server; a reply is its text or a whole message."""
    started: list[Endpoint] = []

    def start(replies: Iterable[str | dict[str, Any]]) -> Endpoint:
        started.append(Endpoint(replies))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def in_python(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``in_python(script)`` starts the script in a fresh Python, its output a pipe; what still runs is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *arguments: str) -> subprocess.Popen[str]:
        path = tmp_path / f"script{len(started)}.py"
        path.write_text(script)
        process = subprocess.Popen(
            [sys.executable, str(path), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()

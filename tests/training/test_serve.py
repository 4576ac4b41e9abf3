"""The server of a small model, asked wrongly, left in the middle, and stopped while it answers."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

for module in ("torch", "peft", "aiohttp"):
    pytest.importorskip(module, reason="needs pip install 'rlm-dspy[trl]'")
pytestmark = pytest.mark.heavy

GENERATE = "/inference/v1/generate"
ENDLESS = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 90_000}}
"""It has no token that ends it, and would take many minutes."""
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import torch

    from rlm_dspy.training.local_model import load
    from rlm_dspy.training.tiny import make_tiny_model

    torch.set_num_threads(1)
    found = load(make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", hidden=16, window=100_000), device="cpu")
    return found


@pytest.fixture
def server(local: Any) -> Iterator[Any]:
    from rlm_dspy.training.serve import Server

    with Server(local, "tiny", max_tokens=8) as started:
        yield started


def post(server: Any, body: Any, path: str = "/v1/chat/completions") -> tuple[int, dict[str, Any]]:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = server.url.removesuffix("/v1") + path
    try:
        with urllib.request.urlopen(urllib.request.Request(url, sent), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def connect(server: Any) -> socket.socket:
    host, port = server.url.removeprefix("http://").removesuffix("/v1").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def request(body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    sent = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(sent)}\r\n\r\n"
    return head.encode() + sent


def until(true: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    tick = threading.Event()
    while not true():
        assert time.monotonic() < end, "it did not happen"
        tick.wait(0.01)


class Steps:
    """How often a model was run."""

    def __init__(self, model: Any) -> None:
        self.count = 0
        self._hook = model.register_forward_pre_hook(self._one)

    def _one(self, *_: Any) -> None:
        self.count += 1

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "cannot be read"),
        ([1], "a JSON object"),
        ({}, "messages"),
        ({"messages": "Hello"}, "messages are objects"),
        ({"messages": [7]}, "messages are objects"),
        ({"messages": [{"role": "user", "content": 7}]}, "is a text"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "text alone"),
        ({"messages": HELLO, "temperature": float("nan")}, "temperature"),
        ({"messages": HELLO, "temperature": float("inf")}, "temperature"),
        ({"messages": HELLO, "top_p": 0}, "top_p"),
        ({"messages": HELLO, "max_tokens": float("inf")}, "max_tokens"),
        ({"messages": HELLO, "max_tokens": -1}, "max_tokens"),
        ({"messages": HELLO, "max_tokens": "many"}, "max_tokens"),
        ({"messages": HELLO, "stream": True}, "stream"),
        ({"messages": [{"role": "user", "content": "a" * 200_000}]}, "maximum context length"),
    ],
)
def test_a_request_that_cannot_be_answered_is_the_asker_s_error_and_says_why(server: Any, body: Any, said: str) -> None:
    status, answer = post(server, body)
    assert status == 400 and said in answer["error"]["message"]


@pytest.mark.parametrize("ids", [[], [1, -1], [10**9], ["a"], [True], None, {"a": 1}])
def test_tokens_that_the_model_does_not_know_are_refused(server: Any, ids: Any) -> None:
    status, answer = post(server, {"token_ids": ids}, "/inference/v1/generate")
    assert status == 400 and "token" in answer["error"]["message"]


def test_fields_that_it_does_not_know_change_nothing(server: Any) -> None:
    asked = {"messages": HELLO, "temperature": 0}
    plain = post(server, asked)[1]
    more = {"user": "me", "logit_bias": {"1": 2}, "metadata": {"a": [None]}, "tools": [], "n": None, "stop": None}
    assert text(post(server, {**asked, **more})[1]) == text(plain)


def test_requests_at_once_are_answered_as_each_is_alone(server: Any) -> None:
    bodies = [
        {"messages": [{"role": "user", "content": letter * 10 * (n + 1)}], "temperature": 0, "max_tokens": 3 + n}
        for n, letter in enumerate("abcdefgh")
    ]
    alone = [post(server, body)[1] for body in bodies]
    wrong = [{"messages": HELLO, "temperature": float("nan")}, {"messages": 1}] * 4
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda body: post(server, body), [*bodies, *wrong]))
    assert [text(answer) for _, answer in together[:8]] == [text(answer) for answer in alone]
    assert [status for status, _ in together] == [200] * 8 + [400] * 8


def test_what_is_drawn_does_not_depend_on_what_is_asked_meanwhile(local: Any) -> None:
    """Nor on the order: by the seed, the prompt, and how often it was asked."""
    from rlm_dspy.training.serve import Server

    def ask(server: Any, letter: str) -> str:
        return text(post(server, {"messages": [{"role": "user", "content": letter}], "max_tokens": 12})[1])

    with Server(local, seed=1) as server:
        serial = [ask(server, letter) for letter in "aaaabbbb"]
    with Server(local, seed=1) as server, ThreadPoolExecutor(8) as pool:
        parallel = list(pool.map(lambda letter: ask(server, letter), "babababa"))
        with server.sampler.paused():
            pass
        later = [ask(server, letter) for letter in "aaaabbbb"]
    assert sorted(serial) == sorted(parallel)
    assert len(set(serial)) == 8 and not set(serial) & set(later), "no random number serves twice"
    with Server(local, seed=2) as server:
        assert not set(serial) & {ask(server, letter) for letter in "aaaabbbb"}


def test_a_client_that_goes_away_in_mid_body_is_nobody_else_s_trouble(server: Any) -> None:
    with connect(server) as leaving:
        leaving.sendall(request({"messages": HELLO})[:-10])
    with connect(server) as leaving:
        leaving.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab")
    assert post(server, {"messages": HELLO})[0] == 200
    assert server.sampler.calls == 1


def test_nothing_more_is_sampled_for_a_client_that_has_gone(server: Any, local: Any) -> None:
    with Steps(local.model) as steps:
        with connect(server) as leaving:
            leaving.sendall(request(ENDLESS, GENERATE))
            until(lambda: steps.count > 3)
        # All others would wait for it.
        assert post(server, {"messages": HELLO, "max_tokens": 2})[0] == 200
    assert server.sampler.calls == 1


def test_stopping_ends_the_requests_that_run(local: Any) -> None:
    from rlm_dspy.training.serve import Server

    before = threading.active_count()
    server = Server(local, "tiny")
    with Steps(local.model) as steps, connect(server) as waiting:
        waiting.sendall(request(ENDLESS, GENERATE))
        until(lambda: steps.count > 3)
        server.close()
        assert steps.count < 50_000
        waiting.settimeout(60)
        assert b"200 OK" not in waiting.recv(1_000), "no half answer is sold as one"
    server.close()
    assert threading.active_count() <= before

"""The quickstart: its document, its choice of a model, and whole runs of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlm_dspy.quickstart import journal, models, script
from rlm_dspy.testing import Call, Reply

SECRET = "sk-quickstart-secret-0123456789"


class TestJournal:
    def test_is_the_same_each_time_and_of_several_megabytes(self) -> None:
        first, second = journal.make(), journal.make()
        assert first == second
        assert 4_000_000 < len(first.text) < 8_000_000

    def test_another_seed_gives_another(self) -> None:
        assert journal.make(seed=1, requests_per_minute=5).text != journal.make(seed=2, requests_per_minute=5).text

    @pytest.mark.parametrize("seed", [7, 1, 2, 3])
    def test_truth_follows_from_the_text(self, seed: int) -> None:
        """Counted here anew, from the text alone but for the reasons of the changes."""
        made = journal.make(seed)
        failed = Counter()
        for line in made.text.splitlines():
            stamp, level, service, *_ = line.split()
            if level == "ERROR":
                failed[int(stamp[11:13]) * 60 + int(stamp[14:16]) - 6 * 60, service] += 1

        def after(change: journal.Change) -> int:
            return sum(failed[minute, change.service] for minute in range(change.minute, change.minute + 60))

        counts = sorted(((after(change), change) for change in made.changes if change.money), key=lambda c: -c[0])
        assert counts[0][0] == made.errors > counts[1][0]
        assert (counts[0][1].service, counts[0][1].person) == (made.service, made.person)

    def test_counting_without_reading_gives_a_wrong_answer(self) -> None:
        made = journal.make()
        lines = [line.split() for line in made.text.splitlines()]
        worst = Counter(line[2] for line in lines if line[1] == "ERROR").most_common(1)[0][0]
        other = [c for c in made.changes if not c.money]
        assert worst != made.service or any(c.service == worst for c in other)
        assert len(other) > 10

    def test_every_reason_is_told_apart_by_the_scripted_reader(self) -> None:
        for change in journal.make(requests_per_minute=1).changes:
            reply = script.sub(SimpleNamespace(prompt=f"Why?\n\n{change.text}"))  # type: ignore[arg-type]
            assert reply.text == ("yes" if change.money else "no")


class TestChoice:
    @pytest.fixture(autouse=True)
    def no_local_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever runs on this machine is not asked."""
        monkeypatch.setattr(models, "LOCAL_SERVERS", ())
        monkeypatch.setattr(models, "_local", lambda: None)

    def test_nothing_at_hand_is_the_script_and_says_what_is_missing(self) -> None:
        choice = models.choose({})
        assert choice.model is None
        assert "RLM_DSPY_MODEL" in choice.why and "OPENAI_API_KEY" in choice.why

    def test_scripted_wins_over_everything(self) -> None:
        assert models.choose({"SCRIPTED": "1", "RLM_DSPY_MODEL": "openai/x", "OPENAI_API_KEY": SECRET}).model is None

    @pytest.mark.parametrize("off", ["", "0", "no", "false"])
    def test_scripted_can_be_switched_off(self, off: str) -> None:
        assert models.choose({"SCRIPTED": off, "RLM_DSPY_MODEL": "openai/x"}).model == "openai/x"

    def test_a_named_model_wins_over_keys(self) -> None:
        given = {"RLM_DSPY_MODEL": "openai/x", "RLM_DSPY_API_BASE": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": SECRET}
        choice = models.choose(given)
        assert (choice.model, choice.api_base) == ("openai/x", "http://127.0.0.1:9/v1")

    @pytest.mark.parametrize(("key", "model"), models.PROVIDERS)
    def test_each_key_chooses_its_provider(self, key: str, model: str) -> None:
        choice = models.choose({key: SECRET})
        assert choice.model == model
        assert key in choice.why and SECRET not in choice.why


def test_local_server_is_found_and_its_first_language_model_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with server() as port:
        monkeypatch.setattr(models, "LOCAL_SERVERS", ((1, "nobody"), (port, "test")))
        choice = models.choose({})
    assert choice.model == "openai/played"
    assert choice.api_base == f"http://127.0.0.1:{port}/v1"


def test_a_port_that_does_not_answer_is_no_server() -> None:
    assert models.first_model("http://127.0.0.1:1/v1") is None


@pytest.fixture
def cache(tmp_path: Path) -> str:
    """A folder for DSPy's cache in place of the user's own."""
    return str(tmp_path / "cache")


def test_scripted_run_is_right_and_says_first_that_it_is_scripted(cache: str) -> None:
    done = quickstart(cache, SCRIPTED="1", OPENAI_API_KEY=SECRET)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("SCRIPTED RUN")
    assert "Verdict: the answer is right" in lines
    assert any(line.startswith("Outcome: submitted; 5 turns, 24 sub-calls") for line in lines)
    assert any(line.startswith("Sandbox: local") for line in lines)
    assert any("turn 3/15" in line for line in lines), "progress is shown"
    assert "\x1b" not in done.stdout
    assert SECRET not in done.stdout + done.stderr


def test_another_environment_can_be_chosen_and_is_said_to_be_unconfined(cache: str) -> None:
    done = quickstart(cache, SCRIPTED="1", RLM_DSPY_INTERPRETER="subprocess")
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(line.startswith("Sandbox: subprocess") and "NOT confined" in line for line in done.stdout.splitlines())


def test_an_environment_that_cannot_be_used_ends_in_a_message_with_the_way_out(cache: str) -> None:
    done = quickstart(cache, SCRIPTED="1", RLM_DSPY_INTERPRETER="nowhere")
    assert done.returncode == 1
    assert "nowhere" in done.stderr and "RLM_DSPY_INTERPRETER=subprocess make quickstart" in done.stderr
    assert "Traceback" not in done.stderr


def test_run_against_a_local_server(cache: str) -> None:
    """The real client, over HTTP, against a server that plays the script's two roles."""
    with server() as port:
        done = quickstart(cache, RLM_DSPY_MODEL="openai/played", RLM_DSPY_API_BASE=f"http://127.0.0.1:{port}/v1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Model: openai/played at http://127.0.0.1:")
    assert "Verdict: the answer is right" in done.stdout


def test_a_model_that_fails_ends_in_one_line_without_the_key(cache: str) -> None:
    with server(status=401) as port:
        address = f"http://127.0.0.1:{port}/v1"
        done = quickstart(cache, RLM_DSPY_MODEL="openai/played", RLM_DSPY_API_BASE=address, OPENAI_API_KEY=SECRET)
    assert done.returncode == 1
    assert "The run failed:" in done.stderr and "SCRIPTED=1 make quickstart" in done.stderr
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stdout + done.stderr


def quickstart(cache: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One run, in an environment that names no model but those given."""
    keys = {"SCRIPTED", "RLM_DSPY_INTERPRETER", "RLM_DSPY_MODEL", "RLM_DSPY_API_BASE"}
    keys.update(key for key, _ in models.PROVIDERS)
    clean = {name: value for name, value in os.environ.items() if name not in keys}
    return subprocess.run(
        [sys.executable, "-m", "rlm_dspy.quickstart"],
        env={**clean, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DSPY_CACHEDIR": cache, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@contextlib.contextmanager
def server(status: int = 200) -> Iterator[int]:
    """An OpenAI-compatible server on loopback that answers with the quickstart's script; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send({"data": [{"id": "nomic-embed-text"}, {"id": "played"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if status != 200:
                self._send({"error": {"message": f"Incorrect API key provided: {SECRET}", "type": "auth"}}, status)
                return
            messages = [{"role": message["role"], "content": text(message)} for message in body["messages"]]
            call = Call(0, messages, None)  # type: ignore[arg-type]
            reply = script.root(call) if any("```python" in m["content"] for m in messages) else script.sub(call)
            content = reply.text if isinstance(reply, Reply) else reply
            choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            about = {"id": "x", "object": "chat.completion", "created": 0, "model": "played"}
            self._send({**about, "choices": [choice], "usage": usage})

        def _send(self, value: Any, code: int = 200) -> None:
            data = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    def text(message: dict[str, Any]) -> str:
        content = message["content"]
        return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield listening.server_address[1]
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()

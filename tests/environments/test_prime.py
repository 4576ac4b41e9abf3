"""What is Prime Intellect's own: options, waiting for a sandbox, one request one sandbox, lifetimes that end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import environments
from rlm_dspy._aio import run_sync
from rlm_dspy.environments.prime import Prime
from rlm_dspy.errors import ConfigurationError, SandboxUnavailableError
from tests.environments.clouds import PRIME, lead

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(PRIME.missing is not None, reason=str(PRIME.missing)),
]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_leaks: None) -> Iterator[Any]:
    yield from lead(PRIME, monkeypatch, tmp_path)


def test_options_go_to_the_provider(cloud: Any) -> None:
    environment = Prime(
        docker_image="python:3.12-slim", cpu_cores=2, memory_gb=4, timeout_minutes=5, idle_timeout_minutes=4,
        environment_vars={"COLOUR": "blue"}, labels=["a", "b"], region="eu", team_id="t",
    )  # fmt: skip
    with environment() as session:
        assert session.execute("import os; os.environ['COLOUR']") == "blue"
        # Nothing of this host's environment, and no key.
        assert session.execute("sorted(k for k in os.environ if 'PRIME' in k or 'KEY' in k)") == []
    asked = cloud.made[0].asked
    wanted = {
        "docker_image": "python:3.12-slim", "cpu_cores": 2.0, "memory_gb": 4.0, "timeout_minutes": 5,
        "idle_timeout_minutes": 4, "labels": ["a", "b"], "region": "eu", "team_id": "t", "network_allowlist": [],
    }  # fmt: skip
    assert {name: asked.get(name) for name in wanted} == wanted
    assert environment.describe().memory.limit == 4 << 30 and environment.describe().disk.limit is None


@pytest.mark.parametrize(
    ("options", "sent", "level"),
    [
        ({}, {"network_allowlist": []}, "bounded"),
        ({"network_allowlist": ["example.com"]}, {"network_allowlist": ["example.com"]}, "not bounded"),
        ({"network_allowlist": None}, {}, "not bounded"),
        ({"network_denylist": ["example.com"]}, {"network_denylist": ["example.com"]}, "not bounded"),
    ],
    ids=["closed", "some", "open", "all but some"],
)
def test_the_network_is_closed_unless_asked_for(cloud: Any, options: Any, sent: Any, level: str) -> None:
    environment = Prime(**options)
    environment.open().close()
    asked = cloud.made[0].asked
    assert {name: value for name, value in asked.items() if name.startswith("network")} == sent
    assert environment.describe().network.level == level


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_minutes": 0},
        {"cpu_cores": -1},
        {"labels": "a"},
        {"environment_vars": ["A"]},
        {"network_allowlist": ["a"], "network_denylist": ["b"]},
    ],
    ids=str,
)
def test_wrong_options_are_told(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Prime(**options)


@pytest.mark.parametrize(
    "options", [{"network_allowlist": ["*"]}, {"gpu_type": "H100"}, {"idle_timeout_minutes": 90}], ids=str
)
def test_what_the_sdk_does_not_take_is_told_before_anything_is_asked(cloud: Any, options: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Prime(**options)().start()
    assert cloud.calls == []


def test_options_from_the_command_line() -> None:
    text = {"timeout_minutes": "90", "memory_gb": "2.5", "network_allowlist": "a.com,b.com"}
    made: Any = environments.from_options("prime", text)
    assert (
        made.timeout_minutes == 90 and made.sizes == {"memory_gb": 2.5} and made.network_allowlist == ["a.com", "b.com"]
    )


def test_a_sandbox_that_takes_its_time_is_waited_for(cloud: Any) -> None:
    cloud.preparing = 2
    with Prime()() as session:
        assert session.execute("1 + 1") == 2
    assert cloud.count("status") >= 3


@pytest.mark.parametrize("why", ["memory", "killed"])
def test_a_sandbox_that_fails_to_start_is_deleted_and_told(
    cloud: Any, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    made = Prime.create

    def create(self: Any, token: str) -> Any:
        remote = made(self, token)
        cloud.end(why)
        return remote

    monkeypatch.setattr(Prime, "create", create)
    with pytest.raises(SandboxUnavailableError, match=r"(?i)sandbox .*(failed|not running)"):
        Prime()().start()
    assert cloud.alive == []


def test_a_lifetime_that_ends_is_told_and_the_session_goes_on(cloud: Any) -> None:
    cloud.seconds_per_minute = 1.0
    with Prime(timeout_minutes=1)() as session:
        session.execute("x = 1")
        result = run_sync(session.run("while True: pass"))
        assert result.error is not None and result.lost == ("x",) and "timeout (expired)" in result.error.message
        assert run_sync(session.run("print(2)")).stdout == "2\n"
    assert len(cloud.made) == 2


def test_input_whose_answer_is_lost_is_not_given_twice(cloud: Any) -> None:
    with Prime()() as session:
        session.execute("x = 0")
        cloud.fail("SendInput", "lost")
        assert session.execute("x += 1; x") == 1 and session.execute("x") == 1

"""What is Daytona's own: options, activity that is told, a stream of text lines by way of a log."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import environments
from rlm_dspy._aio import run_sync
from rlm_dspy.environments import loops, remote
from rlm_dspy.errors import ConfigurationError, SandboxUnavailableError
from tests.environments import clouds

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(clouds.DAYTONA.missing is not None, reason=str(clouds.DAYTONA.missing)),
]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_leaks: None) -> Iterator[Any]:
    yield from clouds.lead(clouds.DAYTONA, monkeypatch, tmp_path)


def test_options_go_to_the_provider(cloud: Any) -> None:
    environment = environments.daytona(
        image="python:3.12-slim", resources={"cpu": 2, "memory": 4}, os_user="somebody", env_vars={"COLOUR": "blue"},
        labels={"team": "red"}, auto_stop_interval=7, ttl_minutes=60, target="eu",
    )  # fmt: skip
    with environment() as session:
        assert session.execute("import os; os.environ['COLOUR']") == "blue"
        # Nothing of this host's environment, and no key.
        assert session.execute("sorted(k for k in os.environ if 'DAYTONA' in k or 'KEY' in k)") == []
    asked = cloud.made[0].asked
    assert asked["buildInfo"]["dockerfileContent"].strip() == "FROM python:3.12-slim"
    assert (asked["cpu"], asked["memory"], asked["user"], asked["target"]) == (2, 4, "somebody", "eu")
    assert asked["env"] == {"COLOUR": "blue"} and asked["labels"]["team"] == "red"
    # What a lost host costs: some minutes, then the sandbox is stopped, and deleted with that.
    assert (asked["autoStopInterval"], asked["autoDeleteInterval"], asked["ttlMinutes"]) == (7, 0, 60)


def test_a_snapshot(cloud: Any) -> None:
    environments.daytona(snapshot="mine").open().close()
    environments.daytona().open().close()
    assert [box.asked.get("snapshot") for box in cloud.made] == ["mine", None]


@pytest.mark.parametrize(
    ("options", "sent", "level"),
    [
        ({}, {"networkBlockAll": True}, "bounded"),
        ({"network_block_all": False}, {"networkBlockAll": False}, "not bounded"),
        (
            {"network_allow_list": "10.0.0.0/8"},
            {"networkAllowList": "10.0.0.0/8", "networkBlockAll": False},
            "not bounded",
        ),
        (
            {"domain_allow_list": "data.example.com"},
            {"domainAllowList": "data.example.com", "networkBlockAll": False},
            "not bounded",
        ),
    ],
    ids=["closed", "open", "networks", "domains"],
)
def test_the_network_is_closed_unless_asked_for(cloud: Any, options: Any, sent: Any, level: str) -> None:
    environment = environments.daytona(**options)
    environment.open().close()
    assert {name: cloud.made[0].asked.get(name) for name in sent} == sent
    assert environment.describe().network.level == level and environment.describe().confined == (level == "bounded")


@pytest.mark.parametrize(
    "options",
    [
        {"snapshot": "a", "image": "b"}, {"resources": {"cpu": 1}}, {"resources": {"cpus": 1}, "image": "a"},
        {"auto_stop_interval": 0}, {"auto_delete_interval": -1}, {"ttl_minutes": 1.5}, {"env_vars": {"A": 1}},
        {"network_block_all": "no"}, {"create_timeout": 0}, {"labels": ["x"]},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_options_are_told(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        environments.daytona(**options)


def test_options_from_the_command_line(cloud: Any) -> None:
    text = {"image": "python:3.12", "resources": "cpu=2,memory=4", "auto_stop_interval": "9", "network_block_all": "no"}
    made: Any = environments.from_options("daytona", text)
    assert (made.image, made.resources) == ("python:3.12", {"cpu": 2, "memory": 4})
    assert (made.auto_stop_interval, made.network_block_all) == (9, False)
    made.open().close()
    assert cloud.made[0].asked["cpu"] == 2


def test_a_sandbox_that_takes_its_time_to_start(cloud: Any) -> None:
    cloud.starting = 3
    with environments.daytona()() as session:
        assert session.execute("1 + 1") == 2 and cloud.count("get") >= 2


def test_a_sandbox_that_does_not_start_in_time_is_deleted(cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlm_dspy.environments import cloud as shared

    monkeypatch.setattr(shared, "OPEN_SECONDS", 0.0)
    cloud.starting = 10_000
    with pytest.raises(SandboxUnavailableError, match=r"Daytona gave no sandbox.*time"):
        environments.daytona(create_timeout=1)().start()
    assert len(cloud.made) == 1 and cloud.alive == []


def test_a_sandbox_is_kept_while_its_session_lives(
    cloud: Any, eventually: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.minute = 1.0
    monkeypatch.setattr(inspect.getmodule(environments.Daytona), "_MINUTE", cloud.minute)
    with environments.daytona(auto_stop_interval=1)() as session:
        session.execute("x = 41")
        assert eventually(lambda: cloud.count("last-activity") >= 6)
        assert session.execute("x + 1") == 42 and len(cloud.made) == 1


def test_a_sandbox_that_was_stopped_is_told(cloud: Any) -> None:
    async def stop() -> None:
        cloud.end("expired")

    with environments.daytona()() as session:
        result = run_sync(session.run("stop()\nwhile True: pass", {"stop": stop}))
        assert result.error is not None and "is gone: it was deleted, or stopped" in result.error.message


def test_early_daemons_pad_their_pieces(cloud: Any) -> None:
    cloud.padded = True
    with environments.daytona()() as session:
        assert session.execute("print('é' * 5_000)") == "é" * 5_000 + "\n"
        assert session.execute("bytes(range(256)) * 1000") == bytes(range(256)) * 1000


def test_what_goes_in_does_not_come_back_out(cloud: Any) -> None:
    with environments.daytona()() as session:
        assert session.execute("len(text)", {"text": "x\n" * 200_000}) == 400_000
        program = next(iter(cloud.made[0].programs.values()))
        assert len(program.output["stdout"]) < 10_000


def test_output_that_nobody_reads_is_let_go_of(
    cloud: Any, eventually: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As much as a busy machine has brought line by line before anybody stops to wait.
    monkeypatch.setattr(remote, "BUFFER_BYTES", 1 << 16)

    async def tasks() -> int:
        return len(asyncio.all_tasks())

    environments.daytona().open().close()
    assert eventually(lambda: loops.call(tasks()) == 1)
    transport: Any = environments.daytona(python="sh -c 'while :; do echo aaaaaaaaaaaaaaaaaaaaaaa; done' #").open()
    try:
        assert transport.read(3) == b"aaa"
        assert eventually(lambda: transport._state.feed._held >= 1 << 16)
    finally:
        transport.close()
    assert eventually(lambda: loops.call(tasks()) == 1)


@pytest.mark.parametrize(("code", "how"), [("os._exit(3)", "status 3"), ("os.kill(os.getpid(), 9)", "signal 9")])
def test_how_python_ended_is_told(cloud: Any, code: str, how: str) -> None:
    with environments.daytona()() as session:
        result = run_sync(session.run(f"import os, sys\nos.write(2, b'last words')\n{code}"))
        assert result.error is not None and how in result.error.message and result.error.type == "SandboxDied"


def test_a_name_that_an_earlier_attempt_took_is_freed(cloud: Any) -> None:
    cloud.fail("create", "lost", 500)
    with environments.daytona()() as session:
        assert session.execute("1 + 1") == 2 and len(cloud.alive) == 1


def test_a_key_that_may_not_make_sandboxes_is_told(cloud: Any) -> None:
    cloud.fail("create", 403)
    with pytest.raises(ConfigurationError, match="DAYTONA_API_KEY"):
        environments.daytona()().start()


def test_a_server_of_ones_own(cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAYTONA_API_URL")
    with environments.daytona(api_url=f"{cloud.url}/api", api_key=cloud.key)() as session:
        assert session.execute("1 + 1") == 2

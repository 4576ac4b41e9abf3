"""What is Modal's own: options, the watch that ends a sandbox whose host is lost, streams that go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import environments
from rlm_dspy._aio import run_sync
from rlm_dspy.environments import remote
from rlm_dspy.errors import ConfigurationError, SandboxUnavailableError
from tests.environments import clouds

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(clouds.MODAL.missing is not None, reason=str(clouds.MODAL.missing)),
]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_leaks: None) -> Iterator[Any]:
    yield from clouds.lead(clouds.MODAL, monkeypatch, tmp_path)


def test_options_go_to_the_provider(cloud: Any) -> None:
    environment = environments.modal(
        app_name="an-app", max_lifetime=600, env={"COLOUR": "blue"}, cpu=2.0, memory=(512, 1024), region="us-east",
        tags={"team": "red"}, workdir="/tmp",
    )  # fmt: skip
    with environment() as session:
        # Nothing of this host's environment, and no key.
        assert session.execute("import os; sorted(k for k in os.environ if 'MODAL' in k or 'TOKEN' in k)") == []
    asked = cloud.made[0].asked
    definition = asked.definition
    assert cloud.apps == ["an-app"] and definition.timeout_secs == 600 and definition.workdir == "/tmp"
    assert (definition.resources.milli_cpu, definition.resources.memory_mb) == (2000, 512)
    assert definition.resources.memory_mb_max == 1024 and list(definition.scheduler_placement.regions) == ["us-east"]
    assert [(tag.tag_name, tag.tag_value) for tag in asked.tags] == [("team", "red")]
    assert "COLOUR" in str(asked) and "blue" in str(asked)


@pytest.mark.parametrize(
    ("options", "access", "level"),
    [
        ({}, "BLOCKED", "bounded"),
        ({"block_network": False}, "OPEN", "not bounded"),
        ({"outbound_cidr_allowlist": ["10.0.0.0/8"]}, "ALLOWLIST", "not bounded"),
        ({"outbound_domain_allowlist": ["data.example.com"]}, "ALLOWLIST", "not bounded"),
    ],
    ids=["closed", "open", "networks", "domains"],
)
def test_the_network_is_closed_unless_asked_for(cloud: Any, options: Any, access: str, level: str) -> None:
    environment = environments.modal(**options)
    environment.open().close()
    network = cloud.made[0].asked.definition.network_access
    assert access in network.NetworkAccessType.Name(network.network_access_type)
    assert environment.describe().network.level == level and environment.describe().confined == (level == "bounded")


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": 0}, {"max_lifetime": 90_000}, {"env": {"A": 1}}, {"block_network": "no"}, {"tags": ["x"]},
        {"outbound_domain_allowlist": "data.example.com"}, {"token_id": "ak-1"}, {"add_python": "3.12"},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_options_are_told(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        environments.modal(**options)


def test_options_from_the_command_line() -> None:
    text = {"ttl": "90", "cpu": "0.5", "memory": "512", "block_network": "false", "env": "A=1", "image": "python:3.12"}
    made: Any = environments.from_options("modal", text)
    assert (made.ttl, made.cpu, made.memory, made.block_network) == (90, 0.5, 512, False)
    assert made.env == {"A": "1"} and made.image == "python:3.12"


def test_images(cloud: Any) -> None:
    import modal

    for image in (None, "python:3.12-slim", modal.Image.debian_slim("3.12")):
        environments.modal(image=image).open().close()
    first = [commands[0] for commands in cloud.images]
    assert all(text.startswith("FROM python:3.") for text in first) and "FROM python:3.12-slim" in first[1]


def test_a_gpu_is_had_in_the_other_kind_of_sandbox(cloud: Any, eventually: Callable[..., bool]) -> None:
    with environments.modal(gpu="T4", ttl=1)() as session:
        session.execute("x = 41")
        assert eventually(lambda: cloud.count("SandboxStdinWrite") >= 6)
        assert session.execute("x + 1") == 42 and len(cloud.made) == 1
    assert cloud.made[0].asked.definition.resources.gpu_config.gpu_type == "T4"


def test_a_sandbox_is_kept_while_its_host_is_heard(cloud: Any, eventually: Callable[..., bool]) -> None:
    with environments.modal(ttl=1)() as session:
        session.execute("x = 41")
        assert eventually(lambda: cloud.count("SandboxStdinWriteV2") >= 6)
        assert session.execute("x + 1") == 42 and len(cloud.made) == 1


def test_a_sandbox_ends_itself_when_its_host_is_lost(
    cloud: Any, eventually: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = environments.Modal.create

    def create(self: Any, token: str) -> Any:
        sandbox = made(self, token)
        # As if this host were gone: nothing is heard of it any more.
        sandbox.renew_every = None
        return sandbox

    monkeypatch.setattr(environments.Modal, "create", create)
    with environments.modal(ttl=1)() as session:
        result = run_sync(session.run("x = 1\nwhile True: pass"))
        assert cloud.made[0].ended == "exited"
        assert result.error is not None and "had not heard from this host" in result.error.message


def test_a_lifetime_that_is_over_is_told(cloud: Any) -> None:
    async def expire() -> None:
        cloud.end("expired")

    with environments.modal(max_lifetime=300)() as session:
        result = run_sync(session.run("expire()\nwhile True: pass", {"expire": expire}))
        assert result.error is not None and "its max_lifetime is over" in result.error.message


def test_an_image_without_python_says_so_while_it_lives(cloud: Any) -> None:
    with pytest.raises(SandboxUnavailableError, match=r"exited with status 127.*no-such-python.*not found"):
        environments.modal(python="no-such-python")().start()
    assert cloud.alive == []


def test_a_broken_stream_goes_on_where_it_was(cloud: Any) -> None:
    async def cut() -> None:
        cloud.cut_streams()

    with environments.modal()() as session:
        code = "for i in range(5):\n    print('x' * 100_000)\n    cut()\nSUBMIT('y' * 3_000_000)"
        result = run_sync(session.run(code, {"cut": cut}))
        assert result.error is None and result.stdout == ("x" * 100_000 + "\n") * 5
        assert result.submission is not None and result.submission.args == ("y" * 3_000_000,)
    assert cloud.count("read") >= 5 and len(cloud.made) == 1


def test_a_name_that_an_earlier_attempt_took_is_freed(cloud: Any) -> None:
    cloud.fail("create", "lost", "lost", "lost", "lost")
    with environments.modal()() as session:
        assert session.execute("1 + 1") == 2 and len(cloud.alive) == 1


def test_the_key_is_that_of_the_options(cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "another")
    environment = environments.modal(token_id="ak-1", token_secret=cloud.key)
    with environment() as session:
        assert session.execute("1 + 1") == 2
    assert cloud.key not in repr(vars(environment))


def test_deleting_a_sandbox_that_is_gone_is_fine(cloud: Any) -> None:
    transport: Any = environments.modal().open()
    cloud.end("killed")
    assert remote.delete(transport.remote, 5.0)
    transport.close()

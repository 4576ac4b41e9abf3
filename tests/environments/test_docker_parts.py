"""The parts of the docker environment that need no engine: the stream, who is an orphan, options, errors."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy import environments
from rlm_dspy.environments import docker_reaper, docker_stream
from rlm_dspy.environments.docker_stream import ContainerTransport, Demultiplexer
from rlm_dspy.errors import ConfigurationError, MissingExtraError, SandboxUnavailableError

pieces = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=20)


def multiplexed(stream: list[tuple[int, bytes]]) -> bytes:
    return b"".join(struct.pack(">B3xI", kind, len(data)) + data for kind, data in stream)


@given(pieces, st.lists(st.integers(1, 30), min_size=1))
def test_the_stream_is_taken_apart_however_it_arrives(stream: list[tuple[int, bytes]], cuts: list[int]) -> None:
    whole = multiplexed(stream)
    demultiplexer, found, at = Demultiplexer(), b"", 0
    while at < len(whole):
        size = cuts[at % len(cuts)]
        found += demultiplexer.feed(whole[at : at + size])
        at += size
    assert found == b"".join(data for kind, data in stream if kind == 1)
    assert demultiplexer.errors == b"".join(data for kind, data in stream if kind == 2)


def test_only_the_end_of_stderr_is_kept() -> None:
    demultiplexer = Demultiplexer()
    for number in range(1000):
        assert demultiplexer.feed(multiplexed([(2, b"%05d" % number * 100)])) == b""
    assert len(demultiplexer.errors) == docker_stream.STDERR_TAIL and demultiplexer.errors.endswith(b"00999")


class Container:
    """The engine's side of a transport."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.calls = calls = []  # type: list[str]
        self.transport = ContainerTransport(
            ours,
            kill=lambda: calls.append("kill"),
            remove=lambda: calls.append("remove"),
            explain=lambda errors: f"because {errors}",
            same_python=True,
        )


def test_a_transport_reads_writes_and_tells_why_it_ended() -> None:
    container = Container()
    transport, theirs = container.transport, container.theirs
    transport.write(b"in")
    assert transport.write_now(b"!")
    assert theirs.recv(10) == b"in!"
    theirs.sendall(multiplexed([(2, b"oh "), (1, b"abc"), (2, b"no")]))
    assert transport.read(2) == b"ab" and transport.read(10) == b"c"
    theirs.close()
    assert transport.read(10) == b"" and transport.reason() == "because oh no"
    with pytest.raises(OSError):
        for _ in range(100):
            transport.write(b"x" * 100_000)
    transport.kill()
    transport.kill()
    transport.close()
    transport.close()
    assert container.calls == ["kill", "remove"]


def test_a_transport_that_is_closed_wakes_its_reader_and_its_writer() -> None:
    container = Container()
    ended: list[str] = []

    def write() -> None:
        try:
            while True:
                container.transport.write(b"x" * 1_000_000)
        except OSError:
            ended.append("write")

    def read() -> None:
        ended.append(f"read {container.transport.read(10)!r}")

    threads = [threading.Thread(target=target) for target in (read, write)]
    for thread in threads:
        thread.start()
    container.transport.close()
    for thread in threads:
        thread.join(20)
    assert sorted(ended) == ["read b''", "write"] and container.calls == ["remove"]
    assert container.transport.reason() == "ended by the host"
    assert not container.transport.write_now(b"x")
    container.theirs.close()


def test_write_now_sends_all_or_nothing() -> None:
    container = Container()
    sent = 0
    while container.transport.write_now(b"x" * 1000):
        sent += 1000
    container.theirs.settimeout(20)
    got = 0
    while got < sent:
        got += len(container.theirs.recv(1 << 20))
    assert got == sent
    assert not container.transport.write_now(b"x" * 100_000)
    container.transport.close()
    container.theirs.close()


def test_a_dropped_transport_removes_its_container() -> None:
    container = Container()
    calls = container.calls
    container.theirs.close()
    del container
    assert calls == ["remove"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_the_parents_container_alone() -> None:
    container = Container()

    def child() -> None:
        container.transport.kill()
        container.transport.close()
        sys.exit(0 if not container.calls and "forked" in container.transport.reason() else 1)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    container.theirs.sendall(multiplexed([(1, b"still here")]))
    assert container.transport.read(20) == b"still here"
    container.transport.close()
    container.theirs.close()


# ------------------------------------------------------------------------------------------------- orphans


def is_orphan(changed: dict[str, str], state: str = "running", age: float = 5.0) -> bool:
    return docker_reaper.is_orphan({**docker_reaper.labels(), **changed}, state=state, age=age)


def test_who_is_an_orphan() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    pid, started = docker_reaper.PID, docker_reaper.STARTED
    assert not is_orphan({}) and not is_orphan({}, "exited", 1e6)
    assert is_orphan({pid: str(done.pid)}) and is_orphan({pid: str(done.pid)}, "created")
    # The number belongs to another process by now.
    assert is_orphan({started: "12345"})
    # A process of another user, or one that /proc does not show, is there.
    assert not is_orphan({pid: "1", started: ""})


@pytest.mark.parametrize("label", [docker_reaper.BOOT, docker_reaper.HOST])
def test_what_another_machine_made_is_left_alone_while_it_may_be_in_use(label: str) -> None:
    elsewhere = {label: "elsewhere", docker_reaper.PID: "999999999"}
    assert not is_orphan(elsewhere, "running", 1e6)
    assert not is_orphan(elsewhere, "exited", 5.0)
    assert is_orphan(elsewhere, "exited", 1e6) and is_orphan(elsewhere, "created", 1e6)


@given(st.dictionaries(st.sampled_from([docker_reaper.PID, docker_reaper.STARTED, docker_reaper.BOOT]), st.text()))
def test_labels_of_any_text_are_no_error(labels: dict[str, str]) -> None:
    assert docker_reaper.is_orphan({**docker_reaper.labels(), **labels}, state="running", age=1.0) in (True, False)


# ------------------------------------------------------------------------------------------------- options, errors


@pytest.fixture
def sdk() -> None:
    pytest.importorskip("docker", reason="needs the extra rlm-dspy[docker]")


def test_options_come_as_text(sdk: None) -> None:
    options = {
        "memory": "1GiB",
        "cpus": "2",
        "mounts": "/data=/srv",
        "network": "bridge",
        "runtime": "none",
        "pull": "no",
    }
    place = environments.from_options("docker", options)
    expected = environments.docker(memory=1 << 30, cpus=2, mounts={"/data": "/srv"}, network="bridge", pull=False)
    assert place == expected and hash(place) == hash(expected)
    assert pickle.loads(pickle.dumps(place)) == place


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": "1MiB"}, "at least 64 MiB"),
        ({"cpus": 0}, "from 0.01 up"),
        ({"processes": 2}, "from 8 up"),
        ({"scratch": "big"}, "512MiB"),
        ({"image": ""}, "image must be text"),
        ({"image": "mine", "dockerfile": "Dockerfile"}, "not both"),
        ({"context": "."}, "go with dockerfile"),
        ({"mounts": {"data": "/srv"}}, "absolute"),
        ({"mounts": {"/": "/host"}}, "hand the engine itself"),
        ({"mounts": {"/var/run/docker.sock": "/srv/sock"}}, "hand the engine itself"),
        ({"mounts": {"/data": "/tmp"}}, "taken in the container"),
        ({"extra": {"privileged": True}}, "would undo its confinement"),
        ({"extra": {"security_opt": ["seccomp=unconfined"]}}, "would undo the confinement"),
        ({"imag": "x"}, "Did you mean 'image'"),
        ({"dockerfile": "/nowhere/Dockerfile"}, "/nowhere/Dockerfile does not exist"),
    ],
)
def test_options_that_make_no_sense_are_explained(sdk: None, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        environments.get("docker", **options)
    assert words in str(caught.value)


def test_a_changed_dockerfile_makes_warm_containers_stale(sdk: None, tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text("FROM one\n")
    place = environments.docker(dockerfile=path)
    within = environments.ipython(within=place)
    before = place.stamp(), within.stamp()
    assert before == (place.stamp(), within.stamp())
    path.write_text("FROM another\n")
    (tmp_path / "more").write_text("in the context")
    assert place.stamp() != before[0] and within.stamp() != before[1]


@pytest.mark.parametrize("address", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1"])
def test_without_an_engine_the_error_says_what_to_do(sdk: None, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)
    with pytest.raises(SandboxUnavailableError) as caught:
        environments.docker()().start()
    assert address in str(caught.value) and "systemctl start docker" in str(caught.value)
    assert 'interpreter="local"' in str(caught.value)
    with pytest.raises(SandboxUnavailableError, match="no Docker engine answers"):
        environments.docker().describe()


def test_reaping_without_an_engine_says_what_to_do(sdk: None) -> None:
    command = [sys.executable, "-m", "rlm_dspy.cli", "doctor", "--reap"]
    environ = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("rlm-dspy doctor: no Docker engine answers at unix:///nowhere/docker.sock")


@pytest.mark.root_only
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root")
def test_a_user_who_may_not_talk_to_the_engine_is_told_how(sdk: None) -> None:
    folder = tempfile.mkdtemp(dir="/var/tmp")
    os.chmod(folder, 0o755)
    address = f"{folder}/docker.sock"
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    os.chmod(address, 0o600)
    code = f"""
import os
from rlm_dspy import environments
def error_of(address):
    try:
        environments.docker(base_url=address).open()
    except Exception as error:
        return type(error).__name__, str(error)
error_of("unix:///nowhere/docker.sock")  # loads all that the other user could not read
os.setgroups([]); os.setgid(54321); os.setuid(54321)
print(*error_of("unix://{address}"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    server.close()
    shutil.rmtree(folder)
    assert "SandboxUnavailableError" in done.stdout, done.stderr
    assert "usermod -aG docker" in done.stdout


def test_without_the_sdk_the_error_names_the_extra(tmp_path: Path) -> None:
    # A folder of that name is not the SDK either.
    (tmp_path / "docker").mkdir()
    for module in ("None", "type(sys)('docker')"):
        code = f"""
import sys
sys.modules['docker'] = {module}
from rlm_dspy import environments
assert 'docker' in environments.names()
try:
    environments.get('docker')
except Exception as error:
    print(type(error).__name__, error)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert MissingExtraError.__name__ in done.stdout and "pip install 'rlm-dspy[docker]'" in done.stdout, (
            done.stderr
        )


STOPPED = """
import asyncio, os, signal, sys
from pathlib import Path
from rlm_dspy import environments
from tests.environments.docker_host import make_image

daemon = int(Path(os.environ["DOCKER_HOST"].removeprefix("unix://")).with_name("dockerd.pid").read_text())

async def main():
    async with environments.docker(image=make_image(), timeout=None)() as session:
        await session.set({"kept": 1})

        async def stop():
            os.kill(daemon, signal.SIGTERM)

        try:
            print(await session.run("stop()\\nimport time\\nwhile True: time.sleep(1)", {"stop": stop}))
        except Exception as error:
            print(type(error).__name__, error)

asyncio.run(main())
"""


@pytest.mark.heavy
@pytest.mark.root_only
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("dockerd") is None, reason="needs root and dockerd for an engine")
def test_an_engine_that_is_stopped_in_a_run_is_told(sdk: None) -> None:
    """With an engine of its own, because it is really stopped: the containers end, and no other can be started."""
    root = Path(__file__).resolve().parents[2]
    command = [str(root / ".ci" / "docker-engine"), sys.executable, "-c", STOPPED]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=180)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    assert last.startswith("SandboxUnavailableError no Docker engine answers at unix://"), done.stdout + done.stderr
    assert "systemctl start docker" in last

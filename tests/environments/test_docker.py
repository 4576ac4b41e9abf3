"""The docker environment against a real engine: an image made from this Python, no registry, no network."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, environments
from rlm_dspy.environments import conformance, docker_engine, docker_images, docker_reaper, pool
from rlm_dspy.errors import SandboxUnavailableError
from rlm_dspy.testing import ScriptedLM, code
from tests.environments.docker_host import client, docker_image, mine, needs_engine

__all__ = ["docker_image"]

pytestmark = [pytest.mark.heavy, needs_engine]
LIMIT = 60.0
Place = Callable[..., environments.Docker]


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    """A client of the tests' own."""
    made = client()
    yield made.api
    made.close()


@pytest.fixture(autouse=True)
def nothing_stays(api: Any, no_leaks: None, eventually: Any) -> Iterator[None]:
    """No test leaves a container or a volume; a spare that is being started when the pool is closed is closed then."""
    pool.close()
    volumes = {volume["Name"] for volume in api.volumes()["Volumes"] or []}
    yield
    pool.close()
    assert eventually(lambda: mine(api) == []), mine(api)
    assert {volume["Name"] for volume in api.volumes()["Volumes"] or []} == volumes


@pytest.fixture
def place(docker_image: str) -> Place:
    """``place(**options)``: the environment with the tests' image."""

    def make(**options: Any) -> environments.Docker:
        image = {} if "dockerfile" in options else {"image": docker_image}
        return environments.docker(**{"timeout": LIMIT, **image, **options})

    return make


@pytest.mark.parametrize("check", conformance.checks(), ids=lambda check: check.__name__)
def test_conformance(check: Any, place: Place) -> None:
    check(place())


# ------------------------------------------------------------------------------------------------- the same everywhere

CELLS = (
    "import os, re, sys\nprint(len(context), os.getcwd() == os.environ['HOME'], os.listdir())",
    "lines = [line for line in context.splitlines() if 'ERROR' in line]\nlines[:2], len(lines)",
    "answers = llm_query_batched([f'What is wrong in {line}?' for line in lines[:3]])\nprint(answers)",
    "1 / 0",
    "open('notes.txt', 'w').write('a')\nprint(os.listdir(), double(21), double(n=4))",
    "import socket\nsocket.socket()",
    "bytearray(10 << 40)",
    "from concurrent.futures import ThreadPoolExecutor as P\nwith P(4) as p: print(list(p.map(double, range(8))))",
    "SHOW_VARS()",
    "SUBMIT(count=len(lines), first=lines[0])",
)


def test_a_program_has_the_same_trajectory_as_on_local(place: Place) -> None:
    text = "".join(f"{i:05d} {'ERROR' if i % 7 == 0 else 'INFO'} request {i}\n" for i in range(20_000))

    def double(n: int) -> int:
        """Twice ``n``."""
        return 2 * n

    def turns(interpreter: Any) -> list[Any]:
        sub = ScriptedLM(lambda call: f"heard {len(call.prompt)}")
        rlm = RLM("context -> count: int, first: str", interpreter=interpreter, tools=[double], sub_lm=sub)
        with dspy.context(lm=ScriptedLM([code(cell) for cell in CELLS])):
            pred = rlm(context=text)
        assert pred.outcome == "submitted" and (pred.count, pred.first) == (2858, "00000 ERROR request 0")
        return [(turn.code, turn.output) for turn in pred.trajectory]

    found = turns(place())
    assert len(found) == len(CELLS)
    assert found == turns(environments.local(timeout=LIMIT, memory="2GiB"))


def test_compiled_code_and_source_text_start_the_same(
    place: Place, docker_image: str, tmp_path: Path, api: Any
) -> None:
    """An image that does not say which Python it has is sent source; its entry point and volumes do not matter."""
    (tmp_path / "Dockerfile").write_text(
        f'FROM {docker_image}\nENV PYTHON_VERSION=\nENTRYPOINT ["/bin/false"]\nVOLUME /srv\n'
        'HEALTHCHECK --interval=1s CMD ["/bin/false"]\nUSER 1234\n'
    )
    other = place(dockerfile=tmp_path / "Dockerfile")
    try:
        with contextlib.closing(other.open()) as transport:
            assert not transport.same_python
        with contextlib.closing(place().open()) as transport:
            assert transport.same_python
        with other() as session:
            assert session.execute("import os\nprint(os.getuid(), sum(range(10)))") == "65534 45\n"
    finally:
        remove_built(api)


# ------------------------------------------------------------------------------------------------- confinement


def test_the_container_is_what_was_asked_for(
    place: Place, api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"proxies": {"default": {"httpProxy": "http://user:secret@proxy:1"}}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    extra = {
        "ulimits": [{"Name": "msgqueue", "Soft": 0, "Hard": 0}],
        "dns": ["192.0.2.1"],
        "security_opt": ["label=role:r"],
    }
    with place(memory="256MiB", cpus=0.5, processes=32, env={"WORD": "x y"}, extra=extra)() as session:
        (container,) = mine(api)
        found = api.inspect_container(container["Id"])
        environ = session.execute("import os\nprint(dict(os.environ))")
    host = found["HostConfig"]
    assert host["NetworkMode"] == "none" and host["ReadonlyRootfs"] and host["IpcMode"] == "private"
    assert host["CapDrop"] == ["ALL"] and not host["CapAdd"] and not host["Privileged"] and not host["Binds"]
    assert host["SecurityOpt"] == ["no-new-privileges", "label=role:r"] and found["Config"]["User"] == "65534:65534"
    assert host["Memory"] == host["MemorySwap"] == 256 << 20
    assert host["PidsLimit"] == 32 and host["NanoCpus"] == 500_000_000
    assert host["LogConfig"]["Type"] == "none" and not host["AutoRemove"]
    assert host["Dns"] == ["192.0.2.1"]
    ulimits = {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]}
    assert ulimits == {"core": 0, "nofile": 1024, "data": 240 << 20, "msgqueue": 0}
    assert host["RestartPolicy"]["Name"] in ("", "no")
    assert "x y" in environ and "secret" not in environ and "PROXY" not in environ.upper()


def test_the_description_says_what_holds(place: Place) -> None:
    about = place().describe()
    assert about.confined and about.layers[:2] == ("docker", "namespaces")
    levels = {about.memory.level, about.processes.level, about.disk.level, about.time.level}
    assert levels == {"bounded"} or about.missing
    open_one = place(network="bridge").describe()
    assert not open_one.confined and open_one.network.level == "not bounded" and "bridge" in open_one.network.how
    assert any("filter" in text for text in place(filter=False).describe().missing)


def test_every_process_is_under_the_filter(place: Place) -> None:
    source = """
    import socket, re
    def filters(pid): return re.findall(r'^Seccomp.*$', open(f'/proc/{pid}/status').read(), re.M)
    print(filters(1) == filters('self'), 'Seccomp:\\t2' in filters(1))
    for family in (socket.AF_INET, 40):
        try: socket.socket(family, socket.SOCK_STREAM)
        except OSError as error: print(type(error).__name__)
    """
    with place()() as session:
        lines = session.execute("\n".join(line[4:] for line in source.splitlines())).split("\n")
    assert lines[:3] == ["True True", "PermissionError", "PermissionError"]
    with place(filter=False)() as session:
        out = session.execute(
            "import socket\ns = socket.socket()\ntry: s.connect(('192.0.2.1', 9))\nexcept OSError as e: print(e)"
        )
    assert "unreachable" in out


def test_orphans_do_not_count_as_processes_for_ever(place: Place) -> None:
    with place(processes=16)() as session:
        out = session.execute(
            "import os\nfor i in range(80):\n"
            " pid = os.fork()\n"
            " if pid == 0:\n"
            "  os.fork()\n"
            "  os._exit(0)\n"
            " os.waitpid(pid, 0)\n"
            "print('all')"
        )
    assert out == "all\n"


def test_memory_is_bounded_and_the_session_says_so(place: Place) -> None:
    async def main() -> None:
        async with place(memory="128MiB")() as session:
            await session.set({"kept": 1})
            result = await session.run("x = bytearray(1 << 30)")
            assert result.error is not None and result.error.type == "MemoryError" and not result.lost
            # Shared memory is not the process's own; the container's limit holds for it, too.
            result = await session.run(
                "import mmap\nm = mmap.mmap(-1, 1 << 30)\nfor i in range(0, len(m), 4096): m[i] = 1"
            )
            assert result.error is not None and result.lost == ("kept",)
            assert "out of memory: the container may use 128 MiB" in result.error.message, result.error.message
            assert (await session.run("print(2 + 2)")).stdout == "4\n"

    asyncio.run(main())


def test_processes_and_disk_are_bounded_and_the_session_goes_on(place: Place) -> None:
    with place(processes=24, scratch="16MiB")() as session:
        out = session.execute(
            "import threading\nstop = threading.Event()\nstarted = 0\n"
            "try:\n for _ in range(100): threading.Thread(target=stop.wait).start(); started += 1\n"
            "except RuntimeError as error: print(error)\nstop.set()\nprint(started < 24)"
        )
        assert "can't start new thread" in out and "True" in out
        with pytest.raises(dspy.CodeExecutionError, match="No space left on device"):
            session.execute("open('big', 'wb').write(bytes(64 << 20))")
        assert session.execute("import os\nos.remove('big')\nopen('small', 'w').write('fits')\nprint('on')") == "on\n"
        with pytest.raises(dspy.CodeExecutionError, match=r"Read-only file system|Permission denied"):
            session.execute("open('/usr/x', 'w')")


def test_mounts_can_be_read_and_not_written(place: Place, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("shown")
    for path in (tmp_path / "data", tmp_path / "data" / "a.txt"):
        path.chmod(0o777)
    with place(mounts={str(tmp_path / "data"): "/srv/data"}, user="0:0")() as session:
        assert session.execute("print(open('/srv/data/a.txt').read())") == "shown\n"
        for source in ("open('/srv/data/a.txt', 'w')", "open('/srv/data/b.txt', 'w')"):
            with pytest.raises(dspy.CodeExecutionError, match="Read-only file system"):
                session.execute(source)
    with pytest.raises(SandboxUnavailableError, match="nowhere"):
        place(mounts={"/nowhere": "/srv"})().start()


# ------------------------------------------------------------------------------------------------- death


def test_what_the_engine_does_not_remove_at_once_is_removed_later(place: Place, api: Any) -> None:
    environment = place()
    engine = docker_engine.engine()
    transport = environment.open()
    (container,) = mine(api)
    remove, busy = engine.api.remove_container, []

    def refuse(name: str, **options: Any) -> None:
        busy.append(name)
        raise docker_engine.sdk().errors.APIError("driver failed to remove root filesystem: device or resource busy")

    engine.api.remove_container = refuse
    try:
        transport.close()
    finally:
        engine.api.remove_container = remove
    assert [f"/{name}" for name in busy] == container["Names"] and len(mine(api)) == 1
    environment.open().close()
    assert mine(api) == []


@pytest.mark.parametrize("how", ["kill", "remove"])
def test_a_container_that_is_ended_from_outside_costs_its_variables_only(place: Place, api: Any, how: str) -> None:
    async def main() -> None:
        async with place()() as session:
            await session.set({"kept": 1})

            async def end() -> None:
                (container,) = mine(api)
                await asyncio.to_thread(
                    lambda: (
                        api.kill(container["Id"])
                        if how == "kill"
                        else api.remove_container(container["Id"], force=True)
                    )
                )

            result = await session.run(
                "import time\nmade = 2\nprint('before', flush=True)\nend()\ntime.sleep(1000)", {"end": end}
            )
            assert result.error is not None and result.error.type == "SandboxDied"
            assert re.search("`docker (kill|rm)`", result.error.message) and "restarted" in result.error.message
            assert result.lost == ("kept",)
            assert (await session.run("print('kept' in globals())")).stdout == "False\n"

    asyncio.run(main())


def test_a_cell_that_resists_is_killed(place: Place) -> None:
    async def main() -> None:
        async with place()() as session:
            result = await session.run("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", timeout=0.3)
            assert result.error is not None and result.error.kind == "timeout" and "killed" in result.error.message
            assert (await session.run("print(1)")).stdout == "1\n"

    asyncio.run(main())


HOST = """
import os, sys
from rlm_dspy import environments
place = environments.docker(image={image!r}, timeout=None)
first, second = place(), place()
first.start()
second.tools = {{"up": lambda: print(os.getpid(), flush=True)}}
{then}
"""


def test_a_killed_host_leaves_nothing_after_the_reaper(
    docker_image: str, api: Any, in_python: Any, eventually: Any
) -> None:
    then = (
        'second.execute("up()\\nimport signal\\nfor s in (1, 2): signal.signal(s, signal.SIG_IGN)\\nwhile True: pass")'
    )
    host = in_python(HOST.format(image=docker_image, then=then))
    pid = int(host.stdout.readline())
    containers = [container for container in mine(api, pid) if container["State"] == "running"]
    assert len(containers) >= 2
    assert docker_reaper.reap(api) == [], "the host lives"
    host.kill()
    host.wait()
    # The workers end with their host, even before anybody looks.
    assert eventually(lambda: all(container["State"] != "running" for container in mine(api, pid)))
    command = [sys.executable, "-m", "rlm_dspy.cli", "doctor", "--reap", "--json"]
    reaped = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert {orphan["id"] for orphan in reaped["removed"]} >= {container["Id"] for container in containers}
    assert all(orphan["owner"] == f"process {pid} on {socket.gethostname()}" for orphan in reaped["removed"])
    assert mine(api, pid) == []


def test_the_next_start_removes_what_a_dead_host_left(docker_image: str, api: Any, in_python: Any) -> None:
    host = in_python(HOST.format(image=docker_image, then="print(os.getpid(), flush=True)\nos.kill(os.getpid(), 9)"))
    pid = int(host.communicate()[0])
    assert len(mine(api, pid)) >= 1
    host = in_python(HOST.format(image=docker_image, then='print(second.execute("1 + 1"), flush=True)'))
    out, errors = host.communicate()
    assert out == "2\n", errors
    assert mine(api, pid) == [] and mine(api, host.pid) == [], "at its own end it removes its own"


def test_a_forked_host_has_containers_of_its_own(docker_image: str, api: Any, in_python: Any) -> None:
    then = """
second.execute("x = 1")
if (child := os.fork()) == 0:
    with place() as third:
        print(third.execute("2 + 2"), second.execute("'x' in globals()"), flush=True)
    second.shutdown()
    os._exit(0)
os.waitpid(child, 0)
print(second.execute("x"), flush=True)
first.shutdown(); second.shutdown()
"""
    host = in_python(HOST.format(image=docker_image, then=then))
    out, errors = host.communicate()
    assert out == "4 False\n1\n", errors
    docker_reaper.reap(api)
    assert api.containers(all=True, filters={"label": f"{docker_reaper.MARK}=session"}) == []


def test_sixteen_sessions_at_once(place: Place, api: Any) -> None:
    async def one(number: int) -> str:
        async with place(memory="128MiB")() as session:
            await session.set({"number": number})
            return (await session.run("import os\nopen('own', 'w').write('x')\nprint(number, os.listdir())")).stdout

    async def main() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(16)))

    assert asyncio.run(main()) == [f"{number} ['own']\n" for number in range(16)]


def test_values_of_100_mb_cross_both_ways(place: Place) -> None:
    text, data = "änd " * 25_000_000, os.urandom(1 << 20) * 100

    async def main() -> None:
        async with place()() as session:
            await session.set({"text": text, "data": data})
            result = await session.run("print(len(text), len(data), text[-2:], data[:4].hex())")
            assert result.stdout == f"{len(text)} {len(data)} {text[-2:]} {data[:4].hex()}\n"
            assert (await session.get(["data"]))["data"] == data

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------- engines


class Relay:
    """A way to the engine that can be cut: what a stopped or unreachable engine looks like from here.

    Args:
        folder: For the socket; None to listen on the loopback interface.
        tls: Wrap what comes in.
    """

    def __init__(self, folder: Path | None, tls: ssl.SSLContext | None = None) -> None:
        self._target = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
        self._tls = tls
        self._open: list[socket.socket] = []
        if folder is None:
            self._server = socket.create_server(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        else:
            self._server = socket.socket(socket.AF_UNIX)
            self._server.bind(str(folder / "relay.sock"))
            self._server.listen()
            self.address = f"unix://{folder}/relay.sock"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._server.accept()[0]
                if self._tls is not None:
                    near = self._tls.wrap_socket(near, server_side=True)
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._target)
                self._open += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Close it and everything that goes through it."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Callable[..., Relay]]:
    if not os.environ.get("DOCKER_HOST", "unix://").startswith("unix://"):
        pytest.skip("the engine is not on a UNIX socket of this machine")
    made: list[Relay] = []

    def make(folder: Path | None = None, **options: Any) -> Relay:
        made.append(Relay(folder, **options))
        return made[-1]

    yield make
    for one in made:
        one.cut()


def test_an_engine_that_goes_away_in_a_run_is_told(
    place: Place, api: Any, relay: Any, tmp_path: Path, eventually: Any
) -> None:
    way = relay(tmp_path)

    async def main() -> None:
        async with place(base_url=way.address)() as session:
            await session.set({"kept": 1})

            async def cut() -> None:
                way.cut()

            with pytest.raises(SandboxUnavailableError) as caught:
                await session.run("cut()\nimport time\ntime.sleep(1000)", {"cut": cut})
            assert f"no Docker engine answers at {way.address}" in str(caught.value)

    asyncio.run(main())
    # Out of reach for its host, the container has stopped with its connection; the reaper takes it in the end.
    assert eventually(lambda: [container["State"] for container in mine(api)] == ["exited"])
    for container in mine(api):
        api.remove_container(container["Id"], v=True)


def test_an_engine_over_tcp(place: Place, relay: Any) -> None:
    with place(base_url=relay().address)() as session:
        assert session.execute("len(text)", {"text": "x" * 3_000_000}) == 3_000_000


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
def test_an_engine_over_tls(place: Place, relay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    shutil.copy(tmp_path / "cert.pem", tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    monkeypatch.setenv("DOCKER_HOST", relay(tls=context).address)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # They come before the certificate of the engine.
        monkeypatch.delenv(name, raising=False)
    with place()() as session:
        assert session.execute("len(text)", {"text": "x" * 3_000_000}) == 3_000_000
        assert session.execute("print('y' * 300_000)") == "y" * 300_000 + "\n"


@pytest.mark.skipif(shutil.which("docker") is None, reason="needs the docker command to make a context")
def test_the_current_docker_context_is_honoured(
    place: Place, relay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = relay(tmp_path)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    for words in (["create", "mine", "--docker", f"host={way.address}"], ["use", "mine"]):
        subprocess.run(["docker", "context", *words], check=True, capture_output=True)
    with place()() as session:
        assert session.execute("1 + 1") == 2
    way.cut()
    with pytest.raises(SandboxUnavailableError, match="no Docker engine answers"):
        place()().start()


def test_what_the_engine_refuses_is_explained(place: Place) -> None:
    for options, words in (
        ({"runtime": "runnothing"}, "daemon.json"),
        ({"python": "python9"}, "say which it is with python="),
        ({"image": "rlm-dspy-test:not-there", "pull": False}, "docker pull rlm-dspy-test:not-there"),
        ({"image": "localhost:1/rlm-dspy-test:not-there"}, "docker pull localhost:1/rlm-dspy-test:not-there"),
        ({"image": "No Such Name"}, "No Such Name"),
        ({"network": "no-such-network"}, "no-such-network"),
        ({"cpus": 10_000}, "CPUs"),
        ({"python": "true"}, "exited with status 0"),
    ):
        with pytest.raises(SandboxUnavailableError) as caught:
            place(**options)().start()
        assert words in str(caught.value), str(caught.value)


# ------------------------------------------------------------------------------------------------- images


def remove_built(api: Any) -> None:
    for image in docker_reaper.images(api):
        api.remove_image(image, force=True)


def test_a_dockerfile_is_built_once_for_each_content(place: Place, docker_image: str, api: Any, tmp_path: Path) -> None:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text(f"ARG WHICH\nFROM {docker_image}\nCOPY data /srv/data\n")
    (folder / "data").mkdir()
    (folder / "data" / "a.txt").write_text("first")
    (folder / ".dockerignore").write_text("# not these\n*.log\n")
    try:
        for content, log in (("first", "1"), ("first", "2"), ("second", "2")):
            (folder / "data" / "a.txt").write_text(content)
            (folder / "run.log").write_text(log)
            with place(dockerfile=folder / "Dockerfile")() as session:
                assert session.execute("print(open('/srv/data/a.txt').read())") == f"{content}\n"
        assert len(docker_reaper.images(api)) == 2
        with place(dockerfile=folder / "Dockerfile", build_args={"WHICH": "other"})() as session:
            session.execute("1")
        assert len([tag for image in api.images(docker_images.REPOSITORY) for tag in image["RepoTags"]]) == 3
        (folder / "Dockerfile").write_text(f"FROM {docker_image}\nCOPY missing /srv\n")
        with pytest.raises(SandboxUnavailableError, match=r"cannot be built.*missing"):
            place(dockerfile=folder / "Dockerfile")().start()
        other = place(dockerfile=folder / "Dockerfile", context=tmp_path)
        (tmp_path / "missing").write_text("found in another context")
        with other() as session:
            assert "another" in session.execute("print(open('/srv').read())")
    finally:
        remove_built(api)
    assert docker_reaper.images(api) == []


def test_packages_files_and_setup_code_reach_the_container(place: Place, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    given = place(
        files={"data/table.csv": tmp_path / "table.csv", "raw": b"\0\1"}, setup_code="import csv\nready = 41 + 1"
    )
    with given() as session:
        assert session.execute(
            "print(ready, list(csv.reader(open('data/table.csv')))[1], open('raw', 'rb').read())"
        ) == ("42 ['1', '2'] b'\\x00\\x01'\n")


def test_one_client_serves_a_process(place: Place) -> None:
    with place()() as first, place(memory="1GiB")() as second:
        assert first.execute("1") == second.execute("1") == 1
    assert docker_engine.engine() is docker_engine.engine()
    assert sys.modules["docker"] is docker_engine.sdk()

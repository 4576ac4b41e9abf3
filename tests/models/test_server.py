"""The server of a model: a real one, with a very small model."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy.errors import ConfigurationError, LocalModelError, MissingExtraError
from rlm_dspy.models import machine
from rlm_dspy.models import server as serving
from rlm_dspy.models.server import Address, ModelServer, ServerOptions, shared

pytestmark = pytest.mark.usefixtures("servers")
OPTIONS = ServerOptions(context=512, threads=1)


def ask(address: Address, prompt: str = "hello", **changes: Any) -> dict[str, Any]:
    """One request, with the address' key."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 4, "temperature": 0, **changes}
    headers = {"content-type": "application/json", "authorization": f"Bearer {address.key}"}
    request = urllib.request.Request(f"{address.url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=180) as answer:
        return dict(json.loads(answer.read()))


def test_it_answers_on_the_loopback_interface_to_those_who_know_the_key(tiny: Path) -> None:
    server = ModelServer(tiny, "tiny-model", OPTIONS)
    address = server.ensure()
    assert address.url.startswith("http://127.0.0.1:") and server.alive
    answer = ask(address)
    assert answer["model"] == "tiny-model" and answer["usage"]["completion_tokens"] == 4
    assert server.ensure() == address
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(Address(address.url, "guess"))
    assert refused.value.code == 401
    # The key is on no command line.
    assert address.key not in Path(f"/proc/{server.pid}/cmdline").read_text()
    pid = server.pid
    server.stop()
    assert not server.alive and not os.path.exists(f"/proc/{pid}")


def test_one_that_was_killed_is_started_again(tiny: Path, eventually: Callable[..., bool]) -> None:
    server = ModelServer(tiny, "tiny", OPTIONS)
    first = server.ensure()
    os.kill(server.pid or 0, signal.SIGKILL)
    assert eventually(lambda: not server.alive)
    assert "SIGKILL" in str(server.why_dead()) and "context=" in str(server.why_dead())
    second = server.ensure()
    assert second != first and ask(second)["usage"]


def test_one_that_keeps_dying_is_not_started_for_ever(tiny: Path, eventually: Callable[..., bool]) -> None:
    server = ModelServer(tiny, "tiny", OPTIONS)
    for _ in range(3):
        server.ensure()
        os.kill(server.pid or 0, signal.SIGSEGV)
        assert eventually(lambda: not server.alive)
    with pytest.raises(LocalModelError, match="keeps dying: it was killed by SIGSEGV"):
        server.ensure()
    # Who tries once more is not refused.
    assert ask(server.ensure())["usage"]


def test_a_file_that_is_no_model_says_what_llama_says(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"nothing of the kind" * 100)
    # Its own last words; on a busy machine those of llama.cpp's thread may come too late.
    said = "(expected 'GGUF'|Failed to init)"
    with pytest.raises(LocalModelError, match=rf"did not start: it ended with status 1; .*{said}"):
        ModelServer(path, "bad", OPTIONS).ensure()
    path.unlink()
    with pytest.raises(LocalModelError, match="is gone"):
        ModelServer(path, "bad", OPTIONS).ensure()


def test_a_port_that_is_taken_is_named(tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(LocalModelError, match=f"port {port} is taken"):
            ModelServer(tiny, "tiny", ServerOptions(512, 1, port=port)).ensure()
    server = ModelServer(tiny, "tiny", ServerOptions(512, 1, port=port, key=False))
    assert server.ensure() == Address(f"http://127.0.0.1:{port}", "none")


def test_no_page_of_a_browser_gets_in(tiny: Path) -> None:
    address = ModelServer(tiny, "tiny", ServerOptions(512, 1, key=False)).ensure()
    request = urllib.request.Request(f"{address.url}/v1/models", headers={"origin": "http://somewhere.example"})
    with urllib.request.urlopen(request, timeout=180) as answer:
        assert answer.headers.get("access-control-allow-origin") not in ("*", "http://somewhere.example")


def test_who_wants_the_same_shares_it(tiny: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(tiny)
    assert shared(tiny, "tiny", OPTIONS) is shared(link, "tiny", ServerOptions(context=512, threads=1))
    assert shared(tiny, "tiny", OPTIONS) is not shared(tiny, "tiny", ServerOptions(context=1024, threads=1))


def test_each_of_several_requests_has_the_whole_context(tiny: Path) -> None:
    address = ModelServer(tiny, "tiny", ServerOptions(512, 1, parallel=2)).ensure()
    assert ask(address, "x" * 400)["usage"]["prompt_tokens"] > 400
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(address, "x" * 600)
    assert "exceeds the available context size (512 tokens)" in refused.value.read().decode()


@pytest.mark.parametrize(
    "options", [{"context": 0}, {"context": "much"}, {"threads": 0}, {"parallel": 0}, {"port": -1}, {"serve": "thread"}]
)
def test_options_that_cannot_be_meant(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        ServerOptions(**options)


def test_too_little_memory_is_told_before_the_machine_swaps(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: 1_000_000)
    with pytest.raises(LocalModelError, match=r"needs about .* GB of memory, and 0.0 GB are free.*check_memory=False"):
        ModelServer(tiny, "tiny", OPTIONS).ensure()
    assert ModelServer(tiny, "tiny", ServerOptions(512, 1, check_memory=False)).ensure().url


def test_without_the_extra_the_line_to_install_it_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setattr(serving.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rlm-dspy\[local\]'"):
        ModelServer(tiny, "tiny", OPTIONS).ensure()


_HOST = """
import os, sys, time
from rlm_dspy.models.server import ModelServer, ServerOptions
server = ModelServer(sys.argv[1], "tiny", ServerOptions(512, 1, serve=sys.argv[3]))
server.ensure()
print(server.pid, flush=True)
if sys.argv[2] == "exit": sys.exit()
if sys.argv[2] == "leave": os._exit(0)
time.sleep(600)
"""


@pytest.fixture
def host(tiny: Path, in_python: Callable[..., subprocess.Popen[str]]) -> Iterator[Callable[[str], Any]]:
    """``host(end)``: a process that serves, and how it ends; its handle and its server's process id."""

    def start(end: str) -> Any:
        process = in_python(_HOST, str(tiny), end, "process")
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    yield start


@pytest.mark.parametrize("end", ["exit", "leave", "SIGKILL", "SIGTERM", "SIGINT"])
def test_it_never_outlives_its_host(host: Callable[[str], Any], end: str, eventually: Callable[..., bool]) -> None:
    process, pid = host(end)
    if end.startswith("SIG"):
        process.send_signal(getattr(signal, end))
    process.wait(120)
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}") or "Z" in _state(pid))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_in_threads_of_this_process(tiny: Path, in_python: Callable[..., subprocess.Popen[str]]) -> None:
    process = in_python(_HOST, str(tiny), "exit", "inprocess")
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert int(out) == process.pid


_FORK = """
import os, sys
from rlm_dspy.models.server import ModelServer, ServerOptions
from tests.models.test_server import ask
server = ModelServer(sys.argv[1], "tiny", ServerOptions(512, 1))
first = server.ensure()
def child(then):
    pid = os.fork()
    if pid: return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        then()
    except BaseException as error:
        print(repr(error)); os._exit(1)
    os._exit(0)
def uses_the_parents():
    assert server.ensure() == first and server.pid is None
    assert ask(server.ensure())["usage"]
    server.stop()
def starts_its_own():
    second = server.ensure()
    assert second != first and ask(second)["usage"] and server.pid
    server.stop()
print(child(uses_the_parents), server.alive)
pid = server.pid
server._address = first
os.kill(pid, 9)
while server.alive: pass
print(child(starts_its_own))
"""


def test_a_fork_uses_the_parents_while_it_is_there(tiny: Path, in_python: Callable[..., subprocess.Popen[str]]) -> None:
    process = in_python(f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n{_FORK}", str(tiny))
    out, err = process.communicate(timeout=300)
    assert out.split() == ["0", "True", "0"], (out, err)


def test_the_machine_is_known() -> None:
    assert 1 <= machine.usable_cores() <= (os.cpu_count() or 1)
    free = machine.available_memory()
    assert free is None or free > 1_000_000


def test_quotas_of_a_container_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group, proc = tmp_path / "cgroup", tmp_path / "proc"
    (group / "box" / "inner").mkdir(parents=True)
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/box/inner\n")
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   8000000 kB\n")
    monkeypatch.setattr(machine, "_CGROUP", group)
    monkeypatch.setattr(machine, "_PROC", proc)
    assert machine.available_memory() == 8_000_000 * 1024
    (group / "box" / "cpu.max").write_text("100000 100000")
    (group / "box" / "memory.max").write_text("3000000000")
    (group / "box" / "memory.current").write_text("2500000000")
    (group / "box" / "memory.stat").write_text("anon 5\ninactive_file 1000000000\n")
    assert machine.usable_cores() == 1
    assert machine.available_memory() == 1_500_000_000
    (proc / "cpuinfo").write_text("processor: 0\nflags\t: fpu sse2 avx\n")
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    assert machine.lacks_avx2()
    (proc / "cpuinfo").write_text("flags\t: fpu sse2 avx avx2\n")
    assert not machine.lacks_avx2()

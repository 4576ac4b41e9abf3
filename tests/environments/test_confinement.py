"""Every way out that we know of, tried from inside, under every layer and identity, against what `describe` claims.

The host of each scenario is a process of its own: this file, run as a program, by root or by an ordinary user, with
namespaces allowed or refused. It opens a real session, runs the attempts, and prints what came of them as JSON.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import json
import os
import platform
import runpy
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

if __name__ != "__main__":
    from tests.environments.docker_host import make_image, no_engine, remove_image

MARKER = "rlm-dspy-confinement-marker"
PROCESSES = 24
SCRATCH = 48 << 20

_ESCAPES = runpy.run_path(str(Path(__file__).with_name("escapes.py")))
ATTEMPTS: dict[str, tuple[str | None, str]] = _ESCAPES["ATTEMPTS"]
HARSH: dict[str, tuple[str, str]] = _ESCAPES["HARSH"]
ABUSE: dict[str, str] = _ESCAPES["ABUSE"]
SHORT: tuple[str, ...] = _ESCAPES["SHORT"]


# --------------------------------------------------------------------------------------------- the host of a scenario


async def _host(layer: str) -> dict[str, Any]:
    from rlm_dspy.environments import bubblewrap, get, layers
    from rlm_dspy.environments.layout import python_layout

    bounds = {"timeout": 20, "memory": "2GiB", "processes": PROCESSES, "scratch": SCRATCH, "max_output": 100_000}
    if layer == "container":
        environment = get("docker", image=os.environ["RLM_TEST_IMAGE"], **bounds)
    else:
        environment = get("local", layer=layer, **bounds)
    description = await asyncio.to_thread(environment.describe)
    folder = tempfile.mkdtemp(dir="/var/tmp")
    os.chmod(folder, 0o777)
    secret = os.path.join(folder, "secret")
    Path(secret).write_text(MARKER)
    os.chmod(secret, 0o666)
    inet = socket.create_server(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    unix.bind(os.path.join(folder, "socket"))
    os.chmod(os.path.join(folder, "socket"), 0o777)
    shown = {Path(p).relative_to(top).parts[0] for p in python_layout(True, ()).read
             for top in (Path.home(), Path("/root")) if Path(p).is_relative_to(top) and p != str(top)}  # fmt: skip
    shared_user = description.layers[0] == "landlock" and os.geteuid() != 0
    facts = {
        "home": str(Path.home()),
        "shown": sorted(shown),
        "secret": secret,
        "pid": os.getpid(),
        "marker": MARKER,
        "port": inet.getsockname()[1],
        "unix": unix.getsockname(),
        "processes": PROCESSES,
        "scratch": SCRATCH,
        "note": "shared user" if shared_user else "container" if layer == "container" else "",
        # In a pid namespace the host's number means another process, so reaching "it" proves nothing.
        "alone": description.layers[0] == "landlock",
    }
    arrived: list[int] = []
    signal.signal(signal.SIGCONT, lambda number, _: arrived.append(number))
    results: dict[str, str] = {}
    session = environment()
    await session.open()
    await session.set({"HOST": facts})
    assert (await session.run(_ESCAPES["SETUP"])).error is None
    harsh = {n: a for n, a in HARSH.items() if getattr(description, a[0]).level == "bounded" and not shared_user}
    for name, (_, code) in {**ATTEMPTS, **harsh}.items():
        result = await session.run(f"{textwrap.dedent(code).strip()}\nprint(verdict(attempt))")
        results[name] = result.stdout.strip() or f"{result.error} {result.lost}"
        if result.error is not None and "out of memory: the container" in result.error.message:
            results[name] = f"held: {result.error.message}"
        if result.lost:
            await session.set({"HOST": facts})
            await session.run(_ESCAPES["SETUP"])
    abuse: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for name, code in ABUSE.items():
        start = time.perf_counter()
        await session.set({"keep": 1})
        result = await session.run(code, timeout=0.5 if name in SHORT else 15)
        after = await session.run("print(2 + 2)")
        seconds[name] = round(time.perf_counter() - start, 2)
        alive = after.stdout.strip() == "4"
        abuse[name] = f"{'alive' if alive else 'DEAD'} lost={bool(result.lost)} {result.error and result.error.type}"
    await session.close()
    intact = Path(secret).read_text() == MARKER and sorted(os.listdir(folder)) == ["secret", "socket"]
    mode = os.stat(secret).st_mode & 0o777
    inet.close()
    unix.close()
    shutil.rmtree(folder)
    return {
        "describe": dataclasses.asdict(description),
        "results": results,
        "abuse": abuse,
        "seconds": seconds,
        "signalled": bool(arrived),
        "intact": intact and mode == 0o666,
        "user_namespace_count": layers.counts_user_namespace(),
        "as_root": bubblewrap.as_root(),
        "peak_kib": int(next(r for r in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in r).split()[1]),
    }


def _refuse_namespaces() -> None:
    """As a container's default profile does: neither new namespaces nor mounts, from here on."""
    from rlm_dspy.environments import landlock

    x86 = platform.machine() == "x86_64"
    unshare, clone, mount = (272, 56, 165) if x86 else (97, 220, 40)
    load, equal, mask, give, refusal, fine = 0x20, 0x15, 0x54, 0x06, 0x50001, 0x7FFF0000
    code = [(load, 0, 0, 0)]
    for number, errno in ((unshare, 1), (mount, 1), (435, 38)):
        code += [(equal, 0, 1, number), (give, 0, 0, 0x50000 | errno)]
    code += [(equal, 0, 4, clone), (load, 0, 0, 16), (mask, 0, 0, 0x7E020000), (equal, 1, 0, 0), (give, 0, 0, refusal)]
    code += [(give, 0, 0, fine)]
    landlock.no_new_privs()
    landlock.install_filter(b"".join(struct.pack("=HBBI", op, t, f, k) for op, t, f, k in code))


def _main() -> None:
    layer, *options = sys.argv[1:]
    os.environ["RLM_DSPY_TEST_SECRET"] = MARKER
    if "refused" in options:
        _refuse_namespaces()
    if "old" in options:
        from rlm_dspy.environments import landlock

        # The host takes the kernel for one whose Landlock knows neither signals nor truncation.
        landlock.abi = lambda: 2
    print("\n" + json.dumps(asyncio.run(_host(layer))))


# ------------------------------------------------------------------------------------------------- the scenarios

_USER = 54_321
SCENARIOS = {
    # name: (who, layer, further options)
    "root-bubblewrap": ("root", "bubblewrap", ()),
    "root-landlock": ("root", "landlock", ()),
    "root-landlock-python-for-all": ("root-reachable", "landlock", ()),
    "root-landlock-stays-root": ("root-bound", "landlock", ()),
    "root-namespaces-refused": ("root", "auto", ("refused",)),
    "user-bubblewrap": ("user", "bubblewrap", ()),
    "user-landlock": ("user", "landlock", ()),
    "user-namespaces-refused": ("user", "auto", ("refused",)),
    "user-landlock-of-old": ("user", "landlock", ("old",)),
    "docker-default-profile": ("docker", "auto", ()),
    "docker-environment": ("engine", "container", ()),
    "docker-ordinary-user": ("docker", "auto", ("--user", f"{_USER}:{_USER}")),
}


def _with_reachable_python(command: list[str], stash: Path) -> list[str]:
    """``command`` in a mount namespace in which everybody can reach this Python, even one in root's own home."""
    from rlm_dspy.environments.layout import python_layout

    def closed(path: Path) -> Path | None:
        above = [parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001]
        return above[0] if above else None

    needed = [Path(p) for p in (*python_layout(True, ()).read, str(Path(__file__).resolve().parent))]
    moved = [(path, cover) for path in needed if (cover := closed(path)) is not None]
    lines = ["set -e"]
    for number, (path, _) in enumerate(moved):
        lines += [f"mkdir {stash}/{number}", f"mount --bind {shlex.quote(str(path))} {stash}/{number}"]
    for cover in sorted({cover for _, cover in moved}):
        lines += [f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(cover))}"]
    for number, (path, _) in enumerate(moved):
        place = shlex.quote(str(path))
        lines += [f"mkdir -p {place}", f"mount --bind {stash}/{number} {place}"]
    return ["unshare", "--mount", "sh", "-c", "\n".join([*lines, f"exec {shlex.join(command)}"])]


def _in_docker(options: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """A scenario in a container under Docker's default profile: an image of nothing but links, this system mounted."""
    from rlm_dspy.environments.layout import SYSTEM, python_layout

    if shutil.which("docker") is None or subprocess.run(["docker", "version"], capture_output=True).returncode != 0:
        pytest.skip("no Docker engine here")
    image = f"rlm-dspy-test:{os.getpid()}"
    with tarfile.open(folder / "image.tar", "w") as archive:
        for name in ("tmp", "proc", "dev", "var", "var/tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            archive.addfile(entry)
        for path in filter(os.path.islink, SYSTEM):
            archive.add(path, path.lstrip("/"))
    shown = [path for path in SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
    shown += [*python_layout(True, ()).read, str(Path(__file__).resolve().parent)]
    mounts = [part for path in shown for part in ("--volume", f"{path}:{path}:ro")]
    environ = ["--env", "HOME=/tmp", "--env", "DSPY_CACHEDIR=/tmp/cache"]
    subprocess.run(["docker", "import", str(folder / "image.tar"), image], check=True, capture_output=True)
    try:
        done = subprocess.run(
            ["docker", "run", "--rm", "--network=none", *mounts, *environ, *options, image,
             sys.executable, "-B", str(Path(__file__).resolve()), "auto"],
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
    finally:
        subprocess.run(["docker", "rmi", "--force", image], capture_output=True)
    if done.returncode != 0:
        pytest.fail(f"the container ended with {done.returncode}:\n{done.stderr[-3000:]}", pytrace=False)
    return json.loads(done.stdout.splitlines()[-1])


def _run(name: str, stash: Path) -> dict[str, Any]:
    from rlm_dspy.environments import bubblewrap, landlock

    who, layer, options = SCENARIOS[name]
    if who == "docker":
        return _in_docker(options, stash)
    if layer == "bubblewrap" and bubblewrap.find() is None:
        pytest.skip("bubblewrap is not installed")
    if who == "engine" and (reason := no_engine()) is not None:
        pytest.skip(reason)
    if layer not in ("bubblewrap", "container") and landlock.abi() < 1:
        pytest.skip("this kernel has no Landlock")
    command = [sys.executable, "-B", str(Path(__file__).resolve()), layer, *options]
    environ = {**os.environ, "HOME": str(Path.home()), "DSPY_CACHEDIR": str(stash / "cache")}
    if who == "engine":
        environ["RLM_TEST_IMAGE"] = make_image()
    elif os.geteuid() != 0:
        if who != "user":
            pytest.skip("needs to run as root")
    elif who != "root":
        if shutil.which("unshare") is None or shutil.which("setpriv") is None:
            pytest.skip("needs unshare and setpriv (util-linux)")
        if who == "root-bound":
            command = ["setpriv", "--bounding-set", "-setuid,-setgid", *command]
        elif who == "root-reachable":
            command = _with_reachable_python(command, stash)
        else:
            home = tempfile.mkdtemp(dir="/var/tmp")
            os.chown(home, _USER, _USER)
            environ |= {"HOME": home, "DSPY_CACHEDIR": f"{home}/cache"}
            identity = ["setpriv", "--reuid", str(_USER), "--regid", str(_USER), "--clear-groups"]
            command = _with_reachable_python([*identity, *command], stash)
    try:
        done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, timeout=240)
    finally:
        if environ["HOME"].startswith("/var/tmp"):
            shutil.rmtree(environ["HOME"], ignore_errors=True)
        if who == "engine":
            remove_image(environ["RLM_TEST_IMAGE"])
    if done.returncode != 0:
        pytest.fail(f"the host of {name} ended with {done.returncode}:\n{done.stderr[-3000:]}", pytrace=False)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.heavy] if who in ("docker", "engine") else [])
        for name, (who, _, _) in SCENARIOS.items()
    ],
)
def scenario(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a whole scenario found; run once, also where several workers of pytest-xdist share the tests out."""
    name, stash = request.param, tmp_path_factory.mktemp("stash")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    found = shared / f"confinement-{name}.json"
    with open(shared / f"confinement-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            found.write_text(json.dumps({"name": name, **_run(name, stash)}))
    return dict(json.loads(found.read_text()))


def test_nothing_escapes(scenario: dict[str, Any]) -> None:
    """An attempt succeeds only where `describe` does not claim that its resource is bounded."""
    described, wrong = scenario["describe"], []
    for name, verdict in scenario["results"].items():
        resource = {**ATTEMPTS, **HARSH}[name][0]
        claimed = resource is None or described[resource]["level"] != "not bounded"
        if claimed and not verdict.startswith("held"):
            wrong.append(f"{name}: {verdict}")
    assert not wrong, "\n".join(wrong)
    assert len(scenario["results"]) >= len(ATTEMPTS)


def test_the_host_and_its_files_are_as_before(scenario: dict[str, Any]) -> None:
    assert scenario["intact"]
    assert not scenario["signalled"]
    assert scenario["peak_kib"] < 600_000


@pytest.mark.parametrize("abuse", ABUSE)
def test_the_session_goes_on_after(scenario: dict[str, Any], abuse: str) -> None:
    assert scenario["abuse"][abuse].startswith("alive"), scenario["abuse"][abuse]


def test_the_description_is_what_was_found(scenario: dict[str, Any]) -> None:
    described, name = scenario["describe"], scenario["name"]
    levels = {key: value["level"] for key, value in described.items() if isinstance(value, dict)}
    assert levels["files"] == levels["network"] == levels["secrets"] == levels["time"] == "bounded"
    assert levels["memory"] == ("bounded" if name == "docker-environment" else "per process only")
    if name == "docker-environment":
        assert described["layers"][:4] == ["docker", "namespaces", "seccomp", "cgroups"]
        assert levels["processes"] == levels["disk"] == "bounded" and not described["missing"]
    elif "bubblewrap" in name:
        assert described["layers"] == ["bubblewrap", "seccomp", "rlimits"]
        assert levels["disk"] == "bounded"
        # A checkout or a Python that only root may read costs one capability, and that is said.
        assert not [text for text in described["missing"] if "CAP_DAC_READ_SEARCH" not in text]
        assert levels["processes"] == (
            "bounded" if scenario["as_root"] or scenario["user_namespace_count"] else "not bounded"
        )
    else:
        assert described["layers"] == ["landlock", "seccomp", "rlimits"]
        assert levels["disk"] == "per process only"
        assert levels["processes"] == ("not bounded" if "stays-root" in name else "bounded")
    if "refused" in name or name in ("docker-default-profile", "docker-ordinary-user"):
        assert any(text.startswith("bubblewrap: ") for text in described["missing"])


if __name__ == "__main__":
    _main()

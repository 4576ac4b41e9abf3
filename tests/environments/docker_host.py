"""What the tests of the docker environment share: whether there is an engine, and an image that needs no registry.

The image is made from the Python that runs the tests: the program, its standard library, the shared libraries of both,
a shell and a few small programs, and nothing else.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("sh", "sleep", "cat", "yes", "head", "true", "ls")
_LEFT_OUT = {"test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "dist-packages"}


@functools.cache
def no_engine() -> str | None:
    """Why there is no engine to test with, or None."""
    try:
        import docker
        import docker.errors
    except ImportError:
        return "no Docker SDK: pip install 'rlm-dspy[docker]'"
    try:
        client = docker.from_env(timeout=20)
        client.close()
    except Exception as error:
        return f"no Docker engine (`.ci/docker-engine make test-heavy` starts one): {error}"
    return None


needs_engine = pytest.mark.skipif(no_engine() is not None, reason=str(no_engine()))


def client() -> Any:
    """A client of the tests' own, apart from that of the environment."""
    import docker

    return docker.from_env(timeout=120)


def _libraries(program: Path) -> Iterator[str]:
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
    yield from re.findall(r"(/\S+) \(0x", listed)


def pack(path: Path) -> None:
    """Write the image's files into a tar archive."""
    python = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    base = {"base": sys.base_prefix, "installed_base": sys.base_prefix}
    libraries = dict.fromkeys([Path(sysconfig.get_path(name, vars=base)) for name in ("stdlib", "platstdlib")])
    wanted: set[str] = set(_libraries(python))
    added: set[str] = set()
    with tarfile.open(path, "w", dereference=True) as archive:

        def add(source: str | Path, name: str | Path) -> None:
            inside = str(name).lstrip("/")
            if inside not in added:
                added.add(inside)
                archive.add(source, inside, recursive=False)

        for name in ("tmp", "proc", "sys", "dev", "var/tmp", "root", "usr/local/bin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            archive.addfile(entry)
        add(python, python)
        for name in ("python3", "python"):
            entry = tarfile.TarInfo(f"usr/local/bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, str(python)
            archive.addfile(entry)
        for library in libraries:
            for folder, folders, files in os.walk(library):
                # The compiled files stay: without them every start would compile the standard library.
                folders[:] = [f for f in folders if f not in _LEFT_OUT and not f.startswith("config-")]
                for file in files:
                    found = Path(folder, file)
                    add(found, found)
                    if ".so" in file:
                        wanted.update(_libraries(found))
        for program in PROGRAMS:
            found = next((Path(f, program) for f in ("/bin", "/usr/bin") if Path(f, program).exists()), None)
            if found is not None:
                add(found, f"/bin/{program}")
                wanted.update(_libraries(found))
        for name in sorted(wanted):
            add(name, name)


def make_image() -> str:
    """Import the image under a name of its own; gives the name."""
    name = f"rlm-dspy-test:{uuid.uuid4().hex[:12]}"
    version = ".".join(map(str, sys.version_info[:3]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "image.tar")
        pack(path)
        variables = ["ENV PATH=/usr/local/bin:/usr/bin:/bin", f"ENV PYTHON_VERSION={version}"]
        repository, _, tag = name.partition(":")
        api = client().api
        api.import_image(src=str(path), repository=repository, tag=tag, changes=variables)
        api.close()
    return name


def remove_image(name: str) -> None:
    """Remove an image that `make_image` made."""
    api = client().api
    api.remove_image(name, force=True)
    api.close()


@pytest.fixture(scope="session")
def docker_image() -> Iterator[str]:
    """The name of the image; it goes with the test session."""
    if (reason := no_engine()) is not None:
        pytest.skip(reason)
    name = make_image()
    yield name
    remove_image(name)


def mine(api: Any, pid: int | None = None) -> list[dict[str, Any]]:
    """The containers that a process made, this one by default, stopped ones included."""
    return list(api.containers(all=True, filters={"label": f"rlm-dspy.pid={pid or os.getpid()}"}))

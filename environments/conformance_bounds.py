"""Conformance checks: what `describe()` claims is tried out from inside, one resource at a time.

What is not claimed is not tried; where a claim has no number (`Bound.limit`) or one too large to reach, the check says
so and is skipped. A check that passes does not prove a claim, one that fails disproves it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlm_dspy.environments.base import Bound, Description
from rlm_dspy.environments.conformance_base import Factory, Skip, check, factory_check, ok, opened
from rlm_dspy.environments.sizes import format_size

_LEVELS = ("bounded", "per process only", "not bounded")
_RESOURCES = ("files", "network", "memory", "processes", "disk", "time", "secrets")
TOUCHED_MAX = 2 << 30
"""Bytes of memory or disk that a check really fills to reach a limit."""
PROCESSES_MAX = 1024
"""Processes that a check starts to reach a limit."""
_PUBLIC = ("1.1.1.1", "8.8.8.8")
"""Addresses that answer on port 53 where there is a network."""


@check()
async def the_description_is_whole(session: Any) -> None:
    """Every resource has a level, what is bounded says how, ``confined`` follows from them; asking changes nothing."""
    about = session.describe()
    assert isinstance(about, Description) and about.environment and isinstance(about.layers, tuple)
    for name in _RESOURCES:
        bound = getattr(about, name)
        assert isinstance(bound, Bound) and bound.level in _LEVELS, (name, bound)
        assert bound.how or bound.level == "not bounded", f"{name} is {bound.level}, but how is not said"
        assert bound.limit is None or bound.limit > 0, (name, bound)
    held = all(getattr(about, name).level == "bounded" for name in ("files", "network", "secrets"))
    assert about.confined is held and session.describe() == about
    assert all(isinstance(text, str) and text for text in about.missing)


def claimed(session: Any, name: str, *levels: str) -> Bound:
    """The bound of a resource.

    Raises:
        Skip: It is not claimed to be bounded.
    """
    bound: Bound = getattr(session.describe(), name)
    if bound.level not in (levels or ("bounded",)):
        raise Skip(f"{name}: {bound.level}, and nothing else is claimed")
    return bound


def limit_of(bound: Bound, name: str, most: int, words: str) -> int:
    """The number of a bound.

    Raises:
        Skip: There is none, or it is too large to try out.
    """
    if bound.limit is None:
        raise Skip(f"{name}: no number is claimed ({bound.how})")
    if bound.limit > most:
        raise Skip(f"{name}: {words}, too much to try out")
    return bound.limit


@check("bounds")
async def the_network_is_out_of_reach(session: Any) -> None:
    """No connection to this host, by any of its addresses, nor to public ones; no names are resolved."""
    claimed(session, "network")
    with _listening() as (addresses, port, knocks):
        code = f"""
            import socket, threading
            reached = []
            def attempt(what, function):
                try:
                    function()
                except Exception:
                    return
                reached.append(what)
            tries = [("host " + a, lambda a=a: socket.create_connection((a, {port}), 3).close()) for a in {addresses!r}]
            tries += [(a, lambda a=a: socket.create_connection((a, 53), 3).close()) for a in {list(_PUBLIC)!r}]
            tries.append(("names", lambda: socket.getaddrinfo("example.com", 80)))
            threads = [threading.Thread(target=attempt, args=t, daemon=True) for t in tries]
            for t in threads: t.start()
            for t in threads: t.join(10)
            SUBMIT(reached)
        """
        result = await ok(session, code, timeout=60)
        assert result.submission is not None and result.submission.args[0] == [], result.submission
        assert not knocks(), "this host was reached"


@check("bounds")
async def files_of_the_host_are_out_of_reach(session: Any) -> None:
    """A file of this host is neither read, nor found, nor changed, nor removed by its path."""
    claimed(session, "files")
    mark = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="rlm-dspy-check-") as folder:
        path = Path(folder, "private")
        path.write_text(mark)
        code = f"""
            import os
            path, did = {str(path)!r}, []
            def attempt(what, function):
                try:
                    if function() is not False: did.append(what)
                except Exception: pass
            attempt("read it", lambda: {mark!r}[:8] in open(path).read())
            attempt("read it by a link", lambda: (os.symlink(path, "l"), {mark!r}[:8] in open("l").read())[1])
            attempt("linked it", lambda: os.link(path, "hard"))
            attempt("wrote it", lambda: open(path, "r+").write("x"))
            attempt("removed it", lambda: os.unlink(path))
            attempt("wrote beside it", lambda: open(path + "2", "w").close())
            attempt("listed its folder", lambda: bool(os.listdir(os.path.dirname(path))))
            SUBMIT(did)
        """
        result = await ok(session, code)
        assert result.submission is not None
        assert result.submission.args[0] == [], result.submission.args[0]
        assert path.read_text() == mark and os.listdir(folder) == ["private"]


@factory_check("bounds")
async def secrets_of_the_host_are_out_of_reach(factory: Factory) -> None:
    """A variable of this host's environment is neither in the sandbox's nor in that of a process it can see."""
    mark = secrets.token_hex(16)
    os.environ["RLM_DSPY_CHECK_KEY"] = mark
    # A variable that is set while a process runs is not in what the kernel shows of it, so there is another process.
    waiting = subprocess.Popen([sys.executable, "-I", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        async with opened(factory) as session:
            claimed(session, "secrets")
            # The mark in two halves: the code itself is in the memory that it looks at.
            code = f"""
                import os
                mark, found = {mark[:16]!r} + {mark[16:]!r}, []
                if mark in "".join(os.environ.values()): found.append("environment")
                try: pids = [name for name in os.listdir("/proc") if name.isdigit()]
                except OSError: pids = ["self", "1", str(os.getppid()), "{waiting.pid}"]
                for pid in pids:
                    for name in ("environ", "cmdline"):
                        try:
                            with open("/proc/%s/%s" % (pid, name), "rb") as file:
                                if mark.encode() in file.read(): found.append(pid)
                        except OSError: pass
                SUBMIT(found)
            """
            result = await ok(session, code)
            assert result.submission is not None and result.submission.args[0] == [], result.submission
    finally:
        del os.environ["RLM_DSPY_CHECK_KEY"]
        waiting.communicate(b"\n")


@check("bounds", "process")
async def memory_is_bounded(session: Any) -> None:
    """More memory than the limit cannot be had: a MemoryError, or the end of the worker; the session works on."""
    bound = claimed(session, "memory", "bounded", "per process only")
    if bound.limit is None:
        raise Skip(f"memory: no number is claimed ({bound.how})")
    result = await session.run(f"x = bytearray({bound.limit + (64 << 20)})\ndel x", timeout=60)
    if result.error is None:
        # It was promised; whether it is there shows when it is used.
        limit_of(bound, "memory", TOUCHED_MAX, f"the limit of {format_size(bound.limit)} holds when it is filled")
        code = (
            f"kept = []\nfor _ in range({bound.limit // (16 << 20) + 8}): kept.append(b'x' * (16 << 20))\nprint('all')"
        )
        result = await session.run(code, timeout=120)
        assert "all" not in result.stdout, f"{format_size(bound.limit)} and more could be filled"
        assert result.error is not None and result.error.kind != "timeout", result
    await ok(session, "kept = None\nprint('on')")


@check("bounds", "process")
async def processes_are_bounded(session: Any) -> None:
    """More processes than the limit cannot be started; once they are gone the session works on."""
    bound = claimed(session, "processes", "bounded", "per process only")
    most = limit_of(bound, "processes", PROCESSES_MAX, f"a limit of {bound.limit}")
    code = f"""
        import os, signal
        children = []
        try:
            for _ in range({most + 8}):
                pid = os.fork()
                if pid == 0:
                    try: signal.pause()
                    finally: os._exit(0)
                children.append(pid)
        except OSError:
            pass
        for pid in children: os.kill(pid, 9)
        for pid in children: os.waitpid(pid, 0)
        print(len(children))
    """
    result = await ok(session, code, timeout=120)
    assert int(result.stdout) <= most, f"{result.stdout.strip()} processes beside the first, of {most} in all"


@check("bounds", "process")
async def disk_is_bounded(session: Any) -> None:
    """More than the limit cannot be written: in all, or in one file where that is what is claimed."""
    bound = claimed(session, "disk", "bounded", "per process only")
    most = limit_of(bound, "disk", TOUCHED_MAX, f"a limit of {format_size(bound.limit or 0)}")
    files = 2 if bound.level == "bounded" else 1
    code = f"""
        import os, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        written, piece = 0, bytes(1 << 20)
        for i in range({files}):
            try:
                with open("fill%d" % i, "wb", buffering=0) as file:
                    while written <= {most + (16 << 20)}:
                        written += file.write(piece)
                        if written > {most} // {files} * (i + 1) and i + 1 < {files}: break
            except OSError:
                pass
        for i in range({files}): os.unlink("fill%d" % i)
        print(written)
    """
    result = await ok(session, code, timeout=300)
    assert int(result.stdout) <= most + (8 << 20), f"{result.stdout.strip()} bytes were written, of {most}"


@check("process")
async def time_is_bounded(session: Any) -> None:
    """Code that ignores its interrupt, in a thread-starting, signal-blocking loop, is ended all the same, and soon."""
    claimed(session, "time")
    code = """
        import signal, threading
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
        while True:
            try:
                threading.Event().wait(0.01)
            except BaseException:
                pass
    """
    start = time.monotonic()
    result = await asyncio.wait_for(session.run(textwrap.dedent(code), timeout=0.5), 120)
    assert result.error is not None and result.error.kind == "timeout", result
    assert time.monotonic() - start < 60
    await ok(session, "print('on')")


@contextlib.contextmanager
def _listening() -> Iterator[tuple[list[str], int, Any]]:
    """A port of this host that counts who connects: its addresses, the port, and the count."""
    addresses = {"127.0.0.1"}
    with contextlib.suppress(OSError):
        addresses |= {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Sends nothing: the kernel only picks the address that would be used.
        probe.connect((_PUBLIC[0], 53))
        addresses.add(probe.getsockname()[0])
    with socket.socket() as server:
        server.bind(("0.0.0.0", 0))
        server.listen()
        server.setblocking(False)

        def knocks() -> bool:
            try:
                server.accept()[0].close()
            except BlockingIOError:
                return False
            return True

        yield sorted(addresses), server.getsockname()[1], knocks

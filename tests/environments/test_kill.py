"""However a run or its host ends, no process of it stays."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import environments
from rlm_dspy.environments import bubblewrap, landlock, pool, sessions

LAYERS = [
    pytest.param("bubblewrap", marks=pytest.mark.skipif(bubblewrap.find() is None, reason="no bubblewrap here")),
    pytest.param("landlock", marks=pytest.mark.skipif(landlock.abi() < 1, reason="no Landlock in this kernel")),
]
# Children that outlive a careless clean-up: plain, in the background of a shell, ignoring signals, in a session of
# their own where that is allowed.
BROOD = """
import os, subprocess, sys
MARK = {mark!r}
subprocess.Popen(['sh', '-c', 'sleep 1000; : ' + MARK])
subprocess.Popen(['sh', '-c', '(sleep 1001; : ' + MARK + ') & exit'])
stubborn = 'import signal,time\\nfor s in range(1, 32):\\n try: signal.signal(s, signal.SIG_IGN)\\n'
stubborn += ' except (OSError, ValueError): pass\\ntime.sleep(1002)'
subprocess.Popen([sys.executable, '-I', '-S', '-c', stubborn, MARK])
try: subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(1003)', MARK], start_new_session=True)
except PermissionError: pass
"""


def processes(mark: str) -> list[str]:
    """The command lines that contain ``mark``, of processes other than the tests' own."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = Path(entry.path, "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line:
                found.append(f"{entry.name}: {line[:200]!r}")
    return found


def until(condition: Callable[[], Any], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def mark(tmp_path: Path) -> str:
    """Text found in the command line of every process of an environment made by `place`."""
    return f"mark-{uuid.uuid4().hex}"


@pytest.fixture
def place(mark: str, tmp_path: Path) -> Callable[[str], environments.Environment]:
    marked = tmp_path / mark
    marked.mkdir()
    return lambda layer: environments.local(layer=layer, readable=(marked,), timeout=30, site_packages=False)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_killed_host_leaves_no_process(layer: str, how: signal.Signals, mark: str, tmp_path: Path) -> None:
    (tmp_path / mark).mkdir()
    code = f"""
import os
from rlm_dspy import environments
from rlm_dspy.environments import pool
place = environments.local(layer={layer!r}, readable=({str(tmp_path / mark)!r},), site_packages=False)
pool.warm(place, 1)
with place() as first, place() as second:
    first.execute({BROOD.format(mark=mark)!r})
    second.execute("x = 1")
    second.tools = {{"up": lambda: os.write(1, b"up\\n")}}
    second.execute("up()\\nimport time\\nwhile True: time.sleep(1)")
"""
    # A killed host cannot remove its scratch folders (the next one does, after a while): they go with this test's.
    host = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert host.stdout is not None
    try:
        assert host.stdout.readline() == b"up\n"
        until(lambda: len(processes(mark)) >= 6)
        host.send_signal(how)
        host.wait(30)
        until(lambda: not processes(mark))
    finally:
        host.kill()
        host.wait()
        host.stdout.close()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("end", ["close", "exception in a tool", "cancelled", "worker killed", "dropped"])
def test_every_end_of_a_session_takes_all_of_it(
    layer: str, end: str, mark: str, place: Callable[[str], environments.Environment]
) -> None:
    async def broken() -> None:
        raise RuntimeError("tool")

    async def main() -> None:
        session = place(layer)()
        await session.open()
        assert (await session.run(BROOD.format(mark=mark))).error is None
        # A child shows its own command line once it has got as far as exec.
        until(lambda: len([line for line in processes(mark) if "sleep" in line and "_load" not in line]) >= 3)
        if end == "exception in a tool":
            result = await session.run("broken()", {"broken": broken})
            assert result.error is not None and "tool" in result.error.message
        elif end == "cancelled":
            running = asyncio.ensure_future(session.run("import time\ntime.sleep(1000)"))
            done, _ = await asyncio.wait([running], timeout=0.3)
            assert not done
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        elif end == "worker killed":
            result = await session.run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
            assert result.error is not None
            # The session goes on in a new worker; the old one's children are gone already.
            until(lambda: not [line for line in processes(mark) if "sleep" in line and "_load" not in line])
        if end != "dropped":
            await session.close()

    asyncio.run(main())
    gc.collect()
    pool.close()
    until(lambda: not processes(mark))


@pytest.mark.parametrize("layer", LAYERS)
def test_the_scratch_folder_goes_with_the_session(layer: str, place: Callable[[str], environments.Environment]) -> None:
    async def main() -> str:
        session = place(layer)()
        await session.open()
        result = await session.run("import os\nopen('file', 'w').write('x')\nprint(os.path.abspath('file'))")
        await session.close()
        return result.stdout.strip()

    assert not os.path.exists(asyncio.run(main()))


def test_256_sessions_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch, mark: str, tmp_path: Path) -> None:
    monkeypatch.setenv(sessions.VARIABLE, "12")
    (tmp_path / mark).mkdir()
    place = environments.local(readable=(tmp_path / mark,), site_packages=False)
    most = 0

    async def one(number: int) -> str:
        nonlocal most
        session = place()
        await session.open()
        try:
            most = max(most, sessions.slots.taken)
            return (await session.run(f"print({number} * 2)")).stdout
        finally:
            await session.close()

    async def main() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(256)))

    try:
        assert asyncio.run(main()) == [f"{2 * number}\n" for number in range(256)]
    finally:
        pool.close()
    assert most <= 12
    assert sessions.slots.taken == sessions.slots.waiting == 0
    until(lambda: not processes(mark))

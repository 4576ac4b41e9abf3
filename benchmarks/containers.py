"""What a session in a container costs beside the bare container: ``python -m benchmarks.containers [IMAGE]``.

Needs the extra ``docker`` and an engine that has the image. Bare and ours take turns, each start in an environment that
was never used, so that there is no warm spare. *Bare* is the same hardened container, made, attached to and started,
whose Python writes one byte; *ours* is a session that is ready. The *transport* is one line to a container that sends
it back, over the very stream that a session uses; *a cell* is one `Session.run` of ``x = 1; print(x)``, all of it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable

from rlm_dspy import environments
from rlm_dspy.environments import docker_container, pool
from rlm_dspy.environments.docker_engine import engine
from rlm_dspy.environments.docker_env import DEFAULT_IMAGE, HOME, Docker

_HELLO = "import os;os.write(1,b'x');os.read(0,1)"
_ECHO = "import os\nwhile 1:\n d=os.read(0,65536)\n if not d:break\n os.write(1,d)"
_LINE = b"x" * 100 + b"\n"


def bare(place: Docker, program: str) -> environments.Transport:
    """The container of ``place`` without a worker: its Python runs ``program``."""
    config = {
        "entrypoint": [place.python],
        "command": ["-I", "-u", "-c", program],
        "user": place.user,
        "working_dir": HOME,
        "environment": {"HOME": HOME},
    }
    return docker_container.start(engine(place.base_url), place.image, config, place.host_config(), True)


def start_bare(place: Docker) -> float:
    """Seconds until the first byte of a bare container."""
    begin = time.perf_counter()
    transport = bare(place, _HELLO)
    assert transport.read(1) == b"x", transport.reason()
    seconds = time.perf_counter() - begin
    transport.close()
    return seconds


def start_session(place: Docker) -> float:
    """Seconds until a session is ready."""
    begin = time.perf_counter()
    with place():
        seconds = time.perf_counter() - begin
    pool.close()
    return seconds


def round_trips(place: Docker, times: int) -> list[float]:
    """Seconds of lines sent to a container and back."""
    transport = bare(place, _ECHO)
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        if not transport.write_now(_LINE):  # type: ignore[attr-defined]
            transport.write(_LINE)
        got = 0
        while got < len(_LINE):
            piece = transport.read(len(_LINE))
            assert piece, transport.reason()
            got += len(piece)
        found.append(time.perf_counter() - begin)
    transport.close()
    return found


def cells(place: Docker, times: int) -> list[float]:
    """Seconds of cells in a session."""

    async def main() -> list[float]:
        found = []
        async with place() as session:
            for _ in range(times):
                begin = time.perf_counter()
                result = await session.run("x = 1; print(x)")
                found.append(time.perf_counter() - begin)
                assert result.stdout == "1\n", result
        return found

    return asyncio.run(main())


def _row(name: str, seconds: list[float]) -> None:
    print(f"{name:32}{min(seconds) * 1000:9.2f}{statistics.median(seconds) * 1000:9.2f}")


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.containers", description=__doc__)
    parser.add_argument("image", nargs="?", default=DEFAULT_IMAGE)
    parser.add_argument("--starts", type=int, default=10, help="starts of each kind (10)")
    parser.add_argument("--cells", type=int, default=1000, help="cells and round trips (1000)")
    options = parser.parse_args(arguments)
    starts: dict[Callable[[Docker], float], list[float]] = {start_bare: [], start_session: []}
    for number in range(-1, options.starts):
        for measure, found in starts.items():
            seconds = measure(environments.docker(image=options.image, timeout=1000 + number))
            if number >= 0:
                found.append(seconds)
    place = environments.docker(image=options.image)
    trips, runs = round_trips(place, options.cells), cells(place, options.cells)
    print(f"{'milliseconds':32}{'least':>9}{'median':>9}")
    _row("bare container, first byte", starts[start_bare])
    _row("session, ready", starts[start_session])
    _row("transport, there and back", trips)
    _row("a cell", runs)
    start = statistics.median(starts[start_session]) / statistics.median(starts[start_bare])
    cell = (statistics.median(runs) - statistics.median(trips)) * 1000
    print(f"session / bare: {start:.2f} (bar: 1.30)   cell - transport: {cell:.2f} ms (bar: 1.00)")
    pool.close()
    return 0 if start <= 1.3 and cell <= 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())

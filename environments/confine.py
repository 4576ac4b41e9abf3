"""What the Python inside the local environment does to itself before it takes the worker program.

This module travels: its code runs in ``python -I -u -c`` in front of the worker's bootstrap (see
`rlm_dspy.environments.prelude`), so it needs the standard library only and imports little.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # Importing typing would cost milliseconds in every sandbox.
    from typing import Any


def limit(limits: dict[str, int]) -> None:
    """Set resource limits, soft and hard, never above what the hard limit already is; names without ``RLIMIT_``."""
    import resource

    for name, value in limits.items():
        kind = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def become(user: int) -> None:
    """Be an ordinary user without supplementary groups, for good. The kernel drops all capabilities with it."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def inside_bubblewrap(
    landlock: Any, *, limits: dict[str, int], user: int | None, keep: int | None, paths: list[str], ready: int
) -> None:
    """The bubblewrap layer: namespaces, mounts and the seccomp filter are in force already.

    Args:
        landlock: The module `rlm_dspy.environments.landlock`, or None if ``keep`` is.
        limits: See `limit`.
        user: User to become; None to stay who we are.
        keep: The one capability to keep over the change of user.
        paths: Additions to ``sys.path``.
        ready: Descriptor that is told when all is in force.
    """
    limit(limits)
    if keep is not None:
        landlock.keep_capabilities()
    if user is not None:
        become(user)
    if keep is not None:
        landlock.set_capabilities(keep)
    sys.path.extend(paths)
    _tell(ready)


def inside_landlock(
    landlock: Any,
    *,
    limits: dict[str, int],
    user: int | None,
    keep: int | None,
    paths: list[str],
    ready: int,
    read: list[str],
    write: list[str],
    names: list[str],
    hidden: list[str],
    program: bytes,
    own_pid: bytes,
    host: int,
) -> None:
    """The Landlock layer: fork into a supervisor that ends everything with the host, and a confined child.

    Args:
        landlock, limits, user, keep, paths, ready: As for `inside_bubblewrap`.
        read, write, names, hidden: See ``landlock.Ruleset``.
        program: The seccomp filter.
        own_pid: Bytes in it that stand for the confined process's id.
        host: Process id of the host.
    """
    rules = landlock.Ruleset(read, write, names, hidden)
    _supervise(landlock, host)
    limit(limits)
    landlock.drop_bounding_set(keep)
    if keep is not None:
        landlock.keep_capabilities()
    if user is not None:
        become(user)
    landlock.set_capabilities(keep)
    landlock.die_with_parent(9)
    landlock.no_new_privs()
    rules.enforce()
    sys.path.extend(paths)
    # Last, because it refuses what the steps above use.
    landlock.install_filter(program.replace(own_pid, os.getpid().to_bytes(4, sys.byteorder)))
    _tell(ready)


def _tell(ready: int) -> None:
    os.write(ready, b"1")
    os.close(ready)


def _supervise(landlock: Any, host: int) -> None:
    """Fork. The child returns; the parent waits outside the confinement and kills the group when either side ends.

    Without a pid namespace, descendants of the confined process would survive it. They cannot leave the process group
    (the filter refuses that), and the parent, the group's leader, is told by the kernel when the host ends.
    """
    import signal

    watched = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    landlock.die_with_parent(signal.SIGTERM)
    landlock.adopt_orphans()
    if os.getppid() != host:
        os._exit(1)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        return
    # The child alone holds the channel, so that its end is seen at both sides.
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    running = True
    while running and signal.sigwait(watched) == signal.SIGCHLD:
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                running = False
                code = os.waitstatus_to_exitcode(status)
                how = f"exited with status {code}" if code >= 0 else f"killed by signal {-code}"
                try:
                    os.write(2, f"the confined process {how}\n".encode())
                except OSError:
                    pass  # Full of its messages already.
    os.killpg(0, signal.SIGKILL)

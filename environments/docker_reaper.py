"""Containers that a dead host has left behind: found by their labels, and removed.

Every container carries who made it: the process, when that process started, which boot of which machine it was, and
in which namespace of process numbers. A container of this very machine, boot and namespace is an orphan once no process
has that number and that start any more. Of a container made elsewhere (another machine, an earlier boot, another
container that shares the engine) the maker cannot be looked at: it counts as an orphan only once it has stopped and
is some minutes old. A worker ends with its host, so those of dead hosts do stop.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "rlm-dspy"
"""The label that every container has, with the value ``session``, and every image that was built, with ``image``."""
PID, STARTED, BOOT, HOST = f"{MARK}.pid", f"{MARK}.started", f"{MARK}.boot", f"{MARK}.host"
FOREIGN_SECONDS = 600.0
"""Age from which on a stopped container of another machine is an orphan."""
_STOPPED = ("exited", "dead", "created")


@dataclass(frozen=True)
class Orphan:
    """A container without a host.

    Attributes:
        id: The container's id.
        owner: Who made it, for a reader.
    """

    id: str
    owner: str


def labels() -> dict[str, str]:
    """The labels of a container that this process makes."""
    pid = os.getpid()
    return {
        MARK: "session",
        PID: str(pid),
        STARTED: started(pid) or "",
        BOOT: boot(),
        HOST: socket.gethostname(),
    }


def boot() -> str:
    """This boot of this machine, and the namespace that process numbers are counted in; "" where nothing tells."""
    try:
        identity = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{identity}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def started(pid: int) -> str | None:
    """When a process started, in ticks since the boot; "" if it exists and does not tell, None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""


def is_orphan(labels: Mapping[str, str], *, state: str, age: float) -> bool:
    """Whether a container has lost its host.

    Args:
        labels: Of the container.
        state: ``"running"``, ``"exited"``, ... as the engine says.
        age: Seconds since it was made.
    """
    pid = labels.get(PID, "")
    here = labels.get(HOST) == socket.gethostname() and labels.get(BOOT) == boot()
    if here and pid.isdecimal():
        now = started(int(pid))
        told = labels.get(STARTED, "")
        return now is None or bool(now and told and now != told)
    return state in _STOPPED and age > FOREIGN_SECONDS


def orphans(api: Any) -> list[Orphan]:
    """The containers of dead hosts, by an engine's ``docker.APIClient``."""
    found = []
    for container in api.containers(all=True, filters={"label": f"{MARK}=session"}):
        marks = container.get("Labels") or {}
        age = time.time() - float(container.get("Created") or 0)
        if is_orphan(marks, state=str(container.get("State", "")).lower(), age=age):
            found.append(Orphan(container["Id"], f"process {marks.get(PID, '?')} on {marks.get(HOST, '?')}"))
    return found


def reap(api: Any) -> list[Orphan]:
    """Remove the containers of dead hosts, with their anonymous volumes; gives those that were removed."""
    import docker.errors

    removed = []
    for orphan in orphans(api):
        try:
            api.remove_container(orphan.id, v=True, force=True)
        except docker.errors.APIError as error:
            # Another host may be at the same work.
            if error.status_code not in (404, 409):
                raise
        else:
            removed.append(orphan)
    return removed


def images(api: Any) -> list[str]:
    """The ids of the images that were built from Dockerfiles."""
    return [image["Id"] for image in api.images(filters={"label": f"{MARK}=image"})]

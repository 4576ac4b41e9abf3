"""What a container of the docker environment confines, from what its engine says that it can do (``docker info``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlm_dspy.environments.base import Bound, Description
from rlm_dspy.environments.sizes import format_size

if TYPE_CHECKING:
    from rlm_dspy.environments.docker_env import Docker

SHARED_MEMORY_MAX = 64 << 20
"""The most bytes that /dev/shm may hold."""


def description(docker: Docker, info: Mapping[str, Any], filtered: bool) -> Description:
    """The description of ``docker``.

    Args:
        docker: The environment.
        info: What its engine says of itself.
        filtered: Whether the project's own filter is put in force.
    """
    security = " ".join(info.get("SecurityOptions") or [])
    missing = []

    def limited(flag: str, how: str, limit: int, what: str) -> Bound:
        if info.get(flag):
            return Bound("bounded", how, limit)
        missing.append(f"{what}: this engine's kernel or cgroups lack it (docker info)")
        return Bound("not bounded", how)

    runtime = docker.runtime or str(info.get("DefaultRuntime") or "")
    memory = limited(
        "MemoryLimit", f"cgroup, {format_size(docker.memory)} for all of it", docker.memory, "a memory limit"
    )
    if not info.get("SwapLimit") and str(info.get("CgroupVersion", "1")) == "1":
        missing.append("a limit of swap: this kernel does not account for it")
    tasks = f"cgroup, {docker.processes} tasks; a pid namespace"
    processes = limited("PidsLimit", tasks, docker.processes, "a limit of processes")
    if "runsc" in runtime and processes.level == "bounded":
        # gVisor's own threads count, and it does not survive a refusal.
        processes = Bound("bounded", f"{tasks}; under gVisor the container ends there")
    if not info.get("CpuCfsQuota", True):
        missing.append("a limit of processor time: this engine's kernel or cgroups lack it")
    seccomps = "seccomp" in security
    if not seccomps:
        missing.append("the engine's seccomp profile: it is off")
    if docker.network != "none":
        network = Bound("not bounded", f"the engine's network {docker.network!r}")
    else:
        refuses = "; seccomp refuses sockets" if filtered else ""
        network = Bound("bounded", f"network namespace with nothing in it{refuses}")
        if not filtered:
            missing.append("the system-call filter of local: it is off, or unknown for this machine")
    if docker.extra.get("device_requests"):
        missing.append("freedom from devices: the code reaches those of device_requests, and their drivers")
    layers = ["docker", "namespaces", *(["seccomp"] if seccomps or filtered else []), "cgroups"]
    sizes = f"{format_size(docker.scratch)} and {format_size(min(docker.scratch, SHARED_MEMORY_MAX))} of /dev/shm"
    return Description(
        environment=docker.name,
        layers=(*layers, runtime) if runtime else tuple(layers),
        files=Bound("bounded", "the image, read-only" + ("; mounts, read-only" if docker.mounts else "")),
        network=network,
        memory=memory,
        processes=processes,
        disk=Bound("bounded", f"tmpfs in memory, {sizes}", docker.scratch),
        time=Bound("bounded", "interrupted, then killed by the host"),
        secrets=Bound("bounded", "an environment of its own, pid namespace, no capabilities"),
        missing=tuple(missing),
    )

"""The ``docker`` environment: Python in a hardened container of a Docker engine, one container a session.

The worker speaks over the connection that attaching to the container leaves open, so the sandbox needs no network, no
port and no shared folder. Any image with a Python 3.8 or newer will do; nothing has to be installed in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Unpack

from rlm_dspy.environments import docker_container, docker_images, docker_program, given, seccomp
from rlm_dspy.environments.base import BaseOptions, Description, Environment, Transport
from rlm_dspy.environments.docker_describe import SHARED_MEMORY_MAX, description
from rlm_dspy.environments.docker_engine import Engine, engine, sdk
from rlm_dspy.environments.sizes import format_size, parse_size
from rlm_dspy.errors import ConfigurationError

DEFAULT_IMAGE = "python:3.11-slim"
HOME = "/tmp"
"""The writable folder: the working directory, HOME and TMPDIR."""
DESCRIPTORS = 1024
EXTRA = (
    *("blkio_weight", "cgroup_parent", "cpu_shares", "cpuset_cpus", "cpuset_mems", "device_requests", "dns", "dns_opt"),
    *("dns_search", "extra_hosts", "group_add", "oom_score_adj", "security_opt", "storage_opt", "sysctls", "ulimits"),
)
"""What the option ``extra`` may hold."""
_MIN_MEMORY = 64 << 20
_MIN_PROCESSES = 8


class Docker(Environment):
    """Python in a container: no network, a read-only system, one writable folder in memory, bounded, without rights.

    Args:
        image: Its image; one that is not on the engine is pulled.
        dockerfile: A Dockerfile to build the image from instead; built once for each content.
        context: The folder that its COPY lines are relative to; by default the one it lies in.
        build_args: Values of its ARG lines.
        pull: Whether an image that is missing may be pulled.
        python: The program in the image that is its Python, 3.8 or newer.
        memory: Memory that all processes together may have, the writable folder included; there is no swap. Bytes or
            text such as ``"2GiB"``.
        cpus: Processors' worth of time.
        processes: Processes and threads that may exist at once.
        scratch: What the writable folder may hold.
        network: The engine's network that the container joins, such as ``"bridge"``; ``"none"`` for none.
        mounts: Files and folders of the engine's machine that the code may read: their absolute path to the one in the
            container. A filesystem that is mounted somewhere in such a folder stays writable under engines before 25.
        env: Environment variables, on top of the image's own.
        user: User and group by number. Root in the container is still without capabilities.
        runtime: The engine's runtime, such as ``"runsc"`` for gVisor; None for its default.
        extra: Further arguments of the SDK's ``create_host_config``, in its words, such as ``ulimits``,
            ``device_requests`` (GPUs) or ``dns``; see `EXTRA`. ``security_opt`` is added to the environment's own.
        filter: Also put the system-call filter of ``local`` in force, where there is no network.
        base_url: Address of the engine, such as ``"unix:///run/podman/podman.sock"``; None for the one that the
            ``docker`` command talks to (``DOCKER_HOST``, the current context).
        **base: As for every environment, see `Environment`: ``timeout``, ``setup_code``, ``packages``, ``files``, ...

    Raises:
        ConfigurationError: An option makes no sense; the message says which.
        MissingExtraError: The Docker SDK is not installed.
    """

    name = "docker"

    def __init__(
        self,
        *,
        image: str = DEFAULT_IMAGE,
        dockerfile: str | os.PathLike[str] | None = None,
        context: str | os.PathLike[str] | None = None,
        build_args: Mapping[str, str] | None = None,
        pull: bool = True,
        python: str = "python3",
        memory: int | str = "2GiB",
        cpus: float = 1.0,
        processes: int = 128,
        scratch: int | str = "256MiB",
        network: str = "none",
        mounts: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        user: str = "65534:65534",
        runtime: str | None = None,
        extra: Mapping[str, Any] | None = None,
        filter: bool = True,
        base_url: str | None = None,
        **base: Unpack[BaseOptions],
    ) -> None:
        super().__init__(**base)
        sdk()
        if dockerfile is None and (context is not None or build_args):
            raise ConfigurationError("context and build_args go with dockerfile")
        if dockerfile is not None and image != DEFAULT_IMAGE:
            raise ConfigurationError("give image or dockerfile, not both")
        for option, text in (("image", image), ("python", python), ("network", network), ("user", user)):
            if not isinstance(text, str) or not text:
                raise ConfigurationError(f"{option} must be text, not {text!r}")
        self.memory = parse_size(memory, "memory")
        self.scratch = parse_size(scratch, "scratch")
        if self.memory < _MIN_MEMORY:
            raise ConfigurationError(f"memory must be at least {format_size(_MIN_MEMORY)}: Python itself needs that")
        if isinstance(cpus, bool) or not isinstance(cpus, (int, float)) or not cpus >= 0.01:
            raise ConfigurationError(f"cpus must be a number from 0.01 up, not {cpus!r}")
        if isinstance(processes, bool) or not isinstance(processes, int) or processes < _MIN_PROCESSES:
            raise ConfigurationError(f"processes must be a whole number from {_MIN_PROCESSES} up, not {processes!r}")
        self.image, self.pull, self.python = image, pull, python
        self.dockerfile = None if dockerfile is None else os.path.abspath(os.path.expanduser(os.fspath(dockerfile)))
        self.context = None if context is None else os.path.abspath(os.path.expanduser(os.fspath(context)))
        for option, path in (("dockerfile", self.dockerfile), ("context", self.context)):
            if path is not None and not os.path.exists(path):
                raise ConfigurationError(f"{option}: {path} does not exist")
        self.build_args = dict(build_args or {})
        self.cpus, self.processes = float(cpus), processes
        self.network, self.user, self.runtime, self.filter = network, user, runtime, filter
        self.mounts = _checked_mounts(mounts or {})
        self.env = dict(env or {})
        self.extra = _checked_extra(extra or {})
        self.base_url = base_url

    @property
    def execution_instructions(self) -> str:  # type: ignore[override]
        """What the code's author should know of this place."""
        return (
            f"The code runs in a container {'without network and ' if self.network == 'none' else ''}without the "
            "host's files. The working directory is writable and temporary. "
            f"At most {format_size(self.memory)} of memory."
        )

    def open(self) -> Transport:
        """See `Environment.open`.

        Raises:
            SandboxUnavailableError: There is no engine, no image, or the container does not start.
        """
        where = engine(self.base_url)
        where.reap_once()
        image = self._image(where)
        program = docker_program.program(image.machine if self._filtered(image.machine) else None)
        config = {
            "entrypoint": [self.python],
            "command": ["-I", "-u", "-c", program],
            "user": self.user,
            "working_dir": HOME,
            "environment": {**_ENVIRON, **self.env},
        }
        return docker_container.start(where, image.id, config, self.host_config(), image.same_python)

    def stamp(self) -> tuple[Any, ...]:
        """See `Environment.stamp`: the files that the image is built from count, too."""
        if self.dockerfile is None:
            return super().stamp()
        context = self.context or os.path.dirname(self.dockerfile)
        return super().stamp() + given.stamp({"dockerfile": self.dockerfile, "context": context})

    def _image(self, where: Engine) -> docker_images.Image:
        if self.dockerfile is None:
            return docker_images.obtain(where, self.image, pull=self.pull)
        context = self.context or os.path.dirname(self.dockerfile)
        return docker_images.build(where, self.dockerfile, context, self.build_args)

    def _filtered(self, machine: str) -> bool:
        return self.filter and self.network == "none" and seccomp.supported(machine)

    def host_config(self) -> dict[str, Any]:
        """What confines the container: arguments of the SDK's ``create_host_config``."""
        from docker.types import LogConfig, Mount, Ulimit

        extra = dict(self.extra)
        ulimits, security = list(extra.pop("ulimits", [])), list(extra.pop("security_opt", []))
        limits = {"core": 0, "nofile": DESCRIPTORS, "data": self.memory - self.memory // 16}
        return {
            "network_mode": self.network,
            "read_only": True,
            # Without `exec`, compiled packages in it could not be imported.
            "tmpfs": {HOME: f"rw,exec,nosuid,nodev,mode=1777,size={self.scratch}"},
            "mem_limit": self.memory,
            "memswap_limit": self.memory,
            "shm_size": min(self.scratch, SHARED_MEMORY_MAX),
            "pids_limit": self.processes,
            "nano_cpus": round(self.cpus * 1e9),
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges", *security],
            # Its own, not none: multiprocessing needs /dev/shm.
            "ipc_mode": "private",
            "runtime": self.runtime,
            # The worker's stream is no log, and the engine would keep all of it on disk.
            "log_config": LogConfig(type="none"),
            # Memory beyond it is a MemoryError for the process that asks, and not yet the end of the container.
            "ulimits": [*(Ulimit(name=name, soft=value, hard=value) for name, value in limits.items()), *ulimits],
            "mounts": [Mount(inside, path, type="bind", read_only=True) for path, inside in self.mounts.items()],
            **extra,
        }

    def describe(self) -> Description:
        """See `Environment.describe`. Asks the engine what it can bound; raises what `open` raises."""
        where = engine(self.base_url)
        return description(self, where.info, self._filtered(self._image(where).machine))


_ENVIRON = {
    "HOME": HOME,
    "TMPDIR": HOME,
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Math libraries start a thread a core, each of which counts as a process.
    "OMP_NUM_THREADS": "2",
    "OPENBLAS_NUM_THREADS": "2",
    "MKL_NUM_THREADS": "2",
    "MPLBACKEND": "Agg",
}


def _checked_mounts(mounts: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(mounts, Mapping):
        raise ConfigurationError("mounts takes a mapping of paths of the engine's machine to paths in the container")
    found = {}
    for path, inside in mounts.items():
        path = os.path.expanduser(os.fspath(path))
        inside = os.fspath(inside)
        if not inside.startswith("/") or not os.path.isabs(path):
            raise ConfigurationError(f"mounts: {path!r} and {inside!r} must be absolute paths")
        if (
            path == "/"
            or path.rstrip("/").endswith(".sock")
            or path.rstrip("/") in ("/run", "/var/run", "/proc", "/sys")
        ):
            raise ConfigurationError(f"mounts: {path} would hand the engine itself to the code; name the folders in it")
        if inside.rstrip("/") in ("", HOME, "/proc", "/sys", "/dev"):
            raise ConfigurationError(f"mounts: {inside} is taken in the container; mount below it or elsewhere")
        found[path] = inside
    return found


def _checked_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in extra.items():
        if name not in EXTRA:
            raise ConfigurationError(
                f"extra: {name!r} is an option of the environment itself, would undo its confinement, or is unknown; "
                f"possible are {', '.join(EXTRA)}"
            )
        if name == "security_opt" and any("unconfined" in str(item) or "disable" in str(item) for item in value):
            raise ConfigurationError(f"extra: security_opt {value!r} would undo the confinement")
    return dict(extra)

"""The Docker engine: one client a process, errors that name the fix, nothing left at the process's end.

The engine is the one that the ``docker`` command would talk to: ``DOCKER_HOST`` (with ``DOCKER_TLS_VERIFY`` and
``DOCKER_CERT_PATH``), else the current context (``docker context``), else the usual socket. The SDK is imported when
an environment is made, not before.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import threading
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from rlm_dspy.environments import docker_reaper, docker_stream
from rlm_dspy.errors import MissingExtraError, SandboxUnavailableError

REQUEST_SECONDS = 120.0
"""Seconds that the engine may take to answer one request."""
_END_SECONDS = 20.0
_CONNECTIONS = 64
_ADDRESS = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_CONTEXT", "DOCKER_CONFIG")
_INSTEAD = 'Without Docker, interpreter="local" confines code on Linux'


def sdk() -> Any:
    """The module ``docker``.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import docker
        import docker.errors
    except ImportError as error:
        raise MissingExtraError("the docker environment", "docker") from error
    if not hasattr(docker, "APIClient"):  # A folder of that name, where Python happens to look.
        raise MissingExtraError("the docker environment", "docker")
    return docker


class Engine:
    """One engine, as seen by this process. Thread-safe; get it from `engine`.

    Attributes:
        client: The SDK's ``DockerClient``.
        api: Its low-level ``APIClient``.
        address: Where the engine is, for messages.
    """

    def __init__(self, base_url: str | None) -> None:
        docker = sdk()
        options: dict[str, Any] = {"timeout": REQUEST_SECONDS, "max_pool_size": _CONNECTIONS, "version": "auto"}
        self.address = base_url or os.environ.get("DOCKER_HOST") or "the address of the current docker context"
        with self.explained():
            if base_url is None:
                self.client = docker.from_env(**options)
            else:
                self.client = docker.DockerClient(base_url=base_url, **options)
        self.api = self.client.api
        self.lock = threading.Lock()
        """Held while an image is pulled or built, so that one session does it for all."""
        self.attach_first = True
        """False once it was found to attach to running containers only, as Podman does."""
        self._starting = 0
        self._ending = False
        self._changed = threading.Condition()
        self._reaped = False
        self._left: set[str] = set()

    @cached_property
    def info(self) -> dict[str, Any]:
        """What the engine says of itself (``docker info``)."""
        with self.explained():
            return dict(self.api.info())

    def reap_once(self) -> None:
        """Remove what dead hosts have left, at the first call; what cannot be removed is not this session's trouble."""
        with self._changed:
            if self._reaped:
                return
            self._reaped = True
        with contextlib.suppress(Exception):
            docker_reaper.reap(self.api)

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """One container more that is being made, unless this process is ending."""
        with self._changed:
            if self._ending:
                raise SandboxUnavailableError("this process is ending: no container is started any more")
            self._starting += 1
        try:
            yield
        finally:
            with self._changed:
                self._starting -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Make no more containers, and wait for those that are being made."""
        with self._changed:
            self._ending = True
            self._changed.wait_for(lambda: not self._starting, timeout=_END_SECONDS)

    def remove(self, *containers: str) -> None:
        """Remove containers with their anonymous volumes.

        An engine refuses that now and then, while it is busy with the container, or cannot be reached: then it is
        tried again with the next one, and at the end of this process; what is left after that is left to the reaper.
        """
        import docker.errors

        with self._changed:
            wanted = list(dict.fromkeys([*containers, *self._left]))
            self._left.update(containers)
        for container in wanted:
            try:
                self.api.remove_container(container, v=True, force=True)
            except docker.errors.NotFound:
                pass
            except docker.errors.APIError:
                continue
            except Exception:
                return
            with self._changed:
                self._left.discard(container)

    @contextlib.contextmanager
    def explained(self, doing: str = "") -> Iterator[None]:
        """Turn the SDK's errors into a `SandboxUnavailableError` that says what to do."""
        import docker.errors
        import requests

        try:
            yield
        except docker.errors.APIError as error:
            text = str(error.explanation or error).strip()
            raise SandboxUnavailableError(f"{doing or 'the Docker engine refused'}: {text}{_hint(text)}") from error
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
            raise SandboxUnavailableError(self._unreachable(error)) from error

    def _unreachable(self, error: BaseException) -> str:
        text = str(error)
        if "Permission denied" in text or "PermissionError" in text:
            fix = "This user may not use it: add the user to the group `docker` (`sudo usermod -aG docker $USER`, then "
            fix += "log in again), or run a rootless engine"
        else:
            fix = "Start it (`sudo systemctl start docker`, Docker Desktop), install one (`apt install docker.io`), or "
            fix += "name another with DOCKER_HOST or `docker context use`"
        return f"no Docker engine answers at {self.address}: {text}. {fix}. {_INSTEAD}"


def _hint(text: str) -> str:
    lower = text.lower()
    if re.search(r"(unknown|invalid) runtime", lower):
        return (
            ". Install that runtime and name it in the engine's daemon.json "
            "(gVisor: https://gvisor.dev/docs/user_guide/install)"
        )
    if "executable file not found" in lower or "no such file or directory" in lower:
        return ". The image needs a Python 3.8 or newer: take one that has it, or say which it is with python="
    return ""


_engines: dict[tuple[Any, ...], Engine] = {}
_lock = threading.Lock()


def engine(base_url: str | None = None) -> Engine:
    """The client of this process for the engine at ``base_url``, or for the one that ``docker`` would talk to.

    Raises:
        MissingExtraError: The SDK is not installed.
        SandboxUnavailableError: No engine answers there; the message says what to do.
    """
    key = (base_url, *(os.environ.get(name) for name in _ADDRESS))
    with _lock:
        found = _engines.get(key)
        if found is None:
            found = _engines[key] = Engine(base_url)
        return found


def _after_fork() -> None:
    # The parent's connections are not this process's to use.
    global _lock
    _lock = threading.Lock()
    _engines.clear()


def _end() -> None:
    for found in list(_engines.values()):
        found.end()
    docker_stream.close_all()
    for found in list(_engines.values()):
        found.remove()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

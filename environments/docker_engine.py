"""The Docker engine: one client a process, errors that name the fix, the life of one container.

The engine is the one that the ``docker`` command would talk to: ``DOCKER_HOST`` (with ``DOCKER_TLS_VERIFY`` and
``DOCKER_CERT_PATH``), else the current context (``docker context``), else the usual socket. The SDK is imported when
an environment is made, not before.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from rlm_dspy.environments import docker_reaper
from rlm_dspy.environments.docker_stream import ContainerTransport
from rlm_dspy.errors import MissingExtraError, SandboxUnavailableError

REQUEST_SECONDS = 120.0
"""Seconds that the engine may take to answer one request."""
_EXIT_SECONDS = 5.0
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
        self._attach_first = True
        self._reaped = False

    @cached_property
    def info(self) -> dict[str, Any]:
        """What the engine says of itself (``docker info``)."""
        with self.explained():
            return dict(self.api.info())

    def reap_once(self) -> None:
        """Remove what dead hosts have left, at the first call; what cannot be removed is not this session's trouble."""
        with self.lock:
            if self._reaped:
                return
            self._reaped = True
        with contextlib.suppress(Exception):
            docker_reaper.reap(self.api)

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

    # ------------------------------------------------------------------------------------------------- containers

    def start(self, image: str, config: Mapping[str, Any], host: Mapping[str, Any], same_python: bool) -> ContainerTransport:
        """A container that runs, attached to, as a `ContainerTransport`. Nothing is left of one that does not start.

        Args:
            image: Name or id of an image that is there.
            config: Arguments of the SDK's ``create_container``.
            host: Arguments of its ``create_host_config``.
            same_python: See `Transport.same_python`.

        Raises:
            SandboxUnavailableError: The engine refuses.
        """
        name = f"{docker_reaper.MARK}-{secrets.token_hex(6)}"
        with self.explained(f"the container cannot be started from the image {image!r}"):
            try:
                self.api.create_container(
                    image,
                    name=name,
                    stdin_open=True,
                    detach=False,  # So that stdin ends with the connection (StdinOnce).
                    host_config=self.api.create_host_config(**host),
                    labels=docker_reaper.labels(),
                    healthcheck={"test": ["NONE"]},
                    use_config_proxy=False,  # Proxy addresses hold passwords now and then.
                    **config,
                )
                connection = self._attach_and_start(name)
            except BaseException:
                self.remove(name)
                raise
        return ContainerTransport(
            connection,
            kill=lambda: self.kill(name),
            remove=lambda: self.remove(name),
            explain=lambda errors: self.explain(name, errors),
            same_python=same_python,
        )

    def _attach_and_start(self, container: str) -> Any:
        import docker.errors

        if self._attach_first:
            try:
                connection = self._attach(container)
            except docker.errors.APIError as error:
                # Podman attaches to running containers only. The worker says nothing before it is spoken to.
                if error.status_code != 409:
                    raise
                self._attach_first = False
        if not self._attach_first:
            self.api.start(container)
            return self._attach(container)
        try:
            self.api.start(container)
        except BaseException:
            connection.close()
            raise
        return connection

    def _attach(self, container: str) -> Any:
        params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        if self.api.base_url.startswith(("http+docker://localhost", "http://")):
            # The SDK's own way leaves its end of a plain socket open; a copy of the descriptor needs no private parts.
            url = f"{self.api.base_url}/v{self.api.api_version}/containers/{container}/attach"
            upgrade = {"Connection": "Upgrade", "Upgrade": "tcp"}
            response = self.api.post(url, params=params, headers=upgrade, stream=True, timeout=self.api.timeout)
            try:
                _raise_for_status(response)
                connection = socket.socket(fileno=os.dup(response.raw.fileno()))
            finally:
                response.close()
            connection.setblocking(True)
            return connection
        attached = self.api.attach_socket(container, params)
        with contextlib.suppress(AttributeError):
            attached.settimeout(None)
        return attached

    def kill(self, container: str) -> None:
        """End the processes of a container; one that is gone already is no error."""
        with contextlib.suppress(Exception):
            self.api.kill(container)

    def remove(self, container: str) -> None:
        """Remove a container with its anonymous volumes; what fails is left to the reaper."""
        with contextlib.suppress(Exception):
            self.api.remove_container(container, v=True, force=True)

    def explain(self, container: str, errors: str) -> str:
        """Why a container's process is gone."""
        import docker.errors
        import requests

        try:
            self.api.wait(container, timeout=_EXIT_SECONDS)
            what = _told(self.api.inspect_container(container))
        except docker.errors.NotFound:
            what = "the container was removed by somebody else (`docker rm`)"
        except docker.errors.APIError as error:
            what = f"the Docker engine cannot say why: {error.explanation or error}"
        except requests.exceptions.ReadTimeout:
            what = "the connection to the container was cut, or its process closed its output but still runs"
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError):
            what = f"the Docker engine at {self.address} does not answer any more: it was stopped, or is out of reach"
        return f"{what}; its last messages: {errors}" if errors else what


def _told(inspected: Mapping[str, Any]) -> str:
    state = inspected["State"]
    limit = (inspected.get("HostConfig") or {}).get("Memory") or 0
    code = state.get("ExitCode")
    if state.get("OOMKilled") and code == 137:
        return f"out of memory: the container may use {limit >> 20} MiB, the scratch folder included (option memory)"
    if state.get("Error"):
        return str(state["Error"])
    if isinstance(code, int) and code > 128:
        what = f"killed by signal {code - 128}"
        return f"{what} (`docker kill`, or the machine is out of memory)" if code == 137 else what
    return f"exited with status {code}"


def _raise_for_status(response: Any) -> None:
    import docker.errors
    import requests

    try:
        response.raise_for_status()
    except requests.exceptions.HTTPError as error:
        docker.errors.create_api_error_from_http_exception(error)


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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""One container: made, attached to, started; and, once its process is gone, the reason why."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from rlm_dspy.environments import docker_reaper
from rlm_dspy.environments.docker_engine import Engine
from rlm_dspy.environments.docker_stream import ContainerTransport

_EXIT_SECONDS = 2.0


def start(
    engine: Engine, image: str, config: Mapping[str, Any], host: Mapping[str, Any], same_python: bool
) -> ContainerTransport:
    """A container that runs, attached to, as a `ContainerTransport`. Nothing is left of one that does not start.

    Args:
        engine: Where.
        image: Name or id of an image that is there.
        config: Arguments of the SDK's ``create_container``.
        host: Arguments of its ``create_host_config``.
        same_python: See `Transport.same_python`.

    Raises:
        SandboxUnavailableError: The engine refuses.
    """
    name = f"{docker_reaper.MARK}-{secrets.token_hex(6)}"
    with engine.making(), engine.explained(f"the container cannot be started from the image {image!r}"):
        try:
            engine.api.create_container(
                image,
                name=name,
                stdin_open=True,
                detach=False,  # So that stdin ends with the connection (StdinOnce).
                host_config=engine.api.create_host_config(**host),
                labels=docker_reaper.labels(),
                healthcheck={"test": ["NONE"]},
                use_config_proxy=False,  # Proxy addresses hold passwords now and then.
                **config,
            )
            connection = _attach_and_start(engine, name)
        except BaseException:
            engine.remove(name)
            raise
        return _transport(engine, name, connection, same_python)


def _transport(engine: Engine, name: str, connection: Any, same_python: bool) -> ContainerTransport:
    return ContainerTransport(
        connection,
        kill=lambda: _kill(engine, name),
        remove=lambda: engine.remove(name),
        explain=lambda errors: _explain(engine, name, errors),
        same_python=same_python,
    )


def _attach_and_start(engine: Engine, container: str) -> Any:
    import docker.errors

    if engine.attach_first:
        try:
            connection = _attach(engine, container)
        except docker.errors.APIError as error:
            # Podman attaches to running containers only. The worker says nothing before it is spoken to.
            if error.status_code != 409:
                raise
            engine.attach_first = False
    if not engine.attach_first:
        engine.api.start(container)
        return _attach(engine, container)
    try:
        engine.api.start(container)
    except BaseException:
        connection.close()
        raise
    return connection


def _attach(engine: Engine, container: str) -> Any:
    params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    if engine.api.base_url.startswith(("http+docker://localhost", "http://")):
        # The SDK's own way leaves its end of a plain socket open; a copy of the descriptor needs no private parts.
        url = f"{engine.api.base_url}/v{engine.api.api_version}/containers/{container}/attach"
        upgrade = {"Connection": "Upgrade", "Upgrade": "tcp"}
        response = engine.api.post(url, params=params, headers=upgrade, stream=True, timeout=engine.api.timeout)
        try:
            _raise_for_status(response)
            connection = socket.socket(fileno=os.dup(response.raw.fileno()))
        finally:
            response.close()
        connection.setblocking(True)
        return connection
    attached = engine.api.attach_socket(container, params)
    with contextlib.suppress(AttributeError):
        attached.settimeout(None)
    return attached


def _kill(engine: Engine, container: str) -> None:
    """End the processes of a container; one that is gone already is no error."""
    with contextlib.suppress(Exception):
        engine.api.kill(container)


def _explain(engine: Engine, container: str, errors: str) -> str:
    """Why a container's process is gone."""
    import docker.errors
    import requests

    try:
        engine.api.wait(container, timeout=_EXIT_SECONDS)
        what = _told(engine.api.inspect_container(container))
    except docker.errors.NotFound:
        what = "the container was removed by somebody else (`docker rm`)"
    except docker.errors.APIError as error:
        what = f"the Docker engine cannot say why: {error.explanation or error}"
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError):
        if _answers(engine):
            what = "the connection to the container was cut, or its process closed its output but still runs"
        else:
            what = f"the Docker engine at {engine.address} does not answer any more: it was stopped, or is out of reach"
    return f"{what}; its last messages: {errors}" if errors else what


def _answers(engine: Engine) -> bool:
    try:
        return bool(engine.api.ping())
    except Exception:
        return False


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
        return f"{what} from outside: `docker kill`, `docker rm`, or a machine out of memory" if code == 137 else what
    return f"exited with status {code}"


def _raise_for_status(response: Any) -> None:
    import docker.errors
    import requests

    try:
        response.raise_for_status()
    except requests.exceptions.HTTPError as error:
        docker.errors.create_api_error_from_http_exception(error)

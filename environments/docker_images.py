"""The image that a container is made from: there already, pulled, or built from a Dockerfile, once for each content."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlm_dspy.environments.docker_engine import Engine
from rlm_dspy.environments.docker_reaper import MARK
from rlm_dspy.errors import ConfigurationError, SandboxUnavailableError

REPOSITORY = "rlm-dspy/built"
"""Images that were built are called so, tagged with a hash of what they were built from."""
_MACHINES = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Image:
    """An image that the engine has.

    Attributes:
        id: Its id.
        machine: Of its programs, as ``platform.machine()`` calls it.
        same_python: Its Python is of this process's version, as far as the image says: the official ones do, by the
            variable ``PYTHON_VERSION``.
    """

    id: str
    machine: str
    same_python: bool


def obtain(engine: Engine, name: str, *, pull: bool) -> Image:
    """The image called ``name``.

    Args:
        engine: Where.
        name: As the ``docker`` command takes it.
        pull: Pull it if it is not there.

    Raises:
        SandboxUnavailableError: It is not there and cannot be pulled.
    """
    found = _find(engine, name)
    if found is not None:
        return found
    if not pull:
        raise SandboxUnavailableError(f"the image {name!r} is not on this engine: docker pull {name}")
    import docker.errors

    with engine.lock:
        found = _find(engine, name)
        if found is None:
            _logger.info("pulling the image %s", name)
            try:
                with engine.explained():
                    engine.client.images.pull(name)
            except SandboxUnavailableError as error:
                if not isinstance(error.__cause__, docker.errors.APIError):
                    raise
                raise SandboxUnavailableError(
                    f"the image {name!r} is not on this engine and cannot be pulled: {error.__cause__.explanation}. "
                    f"Pull it where that is possible (docker pull {name}; docker save and docker load carry it over), "
                    "or name another with image="
                ) from error.__cause__
            found = _find(engine, name)
    if found is None:
        raise SandboxUnavailableError(f"the image {name!r} was pulled and is not there: docker pull {name}")
    return found


def _find(engine: Engine, name: str) -> Image | None:
    import docker.errors

    with engine.explained():
        try:
            about = engine.api.inspect_image(name)
        except docker.errors.NotFound:
            return None
    variables = dict(item.partition("=")[::2] for item in (about.get("Config") or {}).get("Env") or [])
    version = variables.get("PYTHON_VERSION", "").split(".")[:2]
    return Image(
        about["Id"],
        _MACHINES.get(about.get("Architecture", ""), ""),
        version == [str(part) for part in sys.version_info[:2]],
    )


def build(engine: Engine, dockerfile: str, context: str, build_args: Mapping[str, str]) -> Image:
    """The image of a Dockerfile, built unless one of the same content is there.

    Args:
        engine: Where.
        dockerfile: Path of the file.
        context: Path of the folder that its COPY lines are relative to; ``.dockerignore`` counts.
        build_args: Values of its ARG lines.

    Raises:
        ConfigurationError: The files cannot be read.
        SandboxUnavailableError: The build fails; the message has the end of its output.
    """
    try:
        tag = f"{REPOSITORY}:{content_hash(dockerfile, context, build_args)}"
    except OSError as error:
        raise ConfigurationError(f"dockerfile, context: {error}") from error
    with engine.lock:
        found = _find(engine, tag)
        if found is None:
            _logger.info("building an image from %s", dockerfile)
            _build(engine, dockerfile, context, build_args, tag)
            found = _find(engine, tag)
    if found is None:
        raise SandboxUnavailableError(f"the image of {dockerfile} was built and is not there")
    return found


def _build(engine: Engine, dockerfile: str, context: str, build_args: Mapping[str, str], tag: str) -> None:
    output: list[str] = []
    with engine.explained(f"the image of {dockerfile} cannot be built"):
        for line in engine.api.build(
            path=context,
            dockerfile=os.path.abspath(dockerfile),
            tag=tag,
            buildargs=dict(build_args),
            labels={MARK: "image"},
            rm=True,
            forcerm=True,
            decode=True,
        ):
            output.append(str(line.get("stream") or ""))
            if "error" in line:
                said = "".join(output)[-2000:].strip()
                raise SandboxUnavailableError(f"the image of {dockerfile} cannot be built: {line['error']}\n{said}")


def content_hash(dockerfile: str, context: str, build_args: Mapping[str, str]) -> str:
    """16 hexadecimal digits for what an image is built from: names, modes and contents, not times or owners."""
    digest = hashlib.sha256()

    def add(*parts: str | bytes) -> None:
        for part in parts:
            data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
            digest.update(b"%d:" % len(data) + data)

    add("dockerfile", Path(dockerfile).read_bytes())
    for name, value in sorted(build_args.items()):
        add("argument", name, value)
    for name in _context_files(context):
        path = os.path.join(context, name)
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            add("link", name, os.readlink(path))
        elif stat.S_ISREG(mode):
            add("file", name, oct(mode & 0o777), _file_hash(path))
        else:
            add("folder", name, oct(mode & 0o777))
    return digest.hexdigest()[:16]


def _context_files(context: str) -> Iterator[str]:
    from docker.utils import exclude_paths

    ignore = Path(context, ".dockerignore")
    lines = ignore.read_text().splitlines() if ignore.exists() else []
    patterns = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    yield from sorted(exclude_paths(context, patterns))


def _file_hash(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()

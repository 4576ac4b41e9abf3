"""Sandboxes at Modal (https://modal.com/docs/guide/sandbox), by Modal's own SDK: ``pip install 'rlm-dspy[modal]'``.

The stream is the stdin and stdout of a program that the SDK executes in the sandbox; both carry bytes, and Modal keeps
both by offset, so that a connection that breaks goes on where it was. Modal bounds a sandbox's life but cannot extend
it. So the sandbox's own first program is a watch that ends it once nothing was heard from this host for `Modal.ttl`
seconds.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

from rlm_dspy.environments.base import BaseOptions, Bound
from rlm_dspy.environments.cloud import CloudEnvironment, Key, positive, texts
from rlm_dspy.environments.loops import call
from rlm_dspy.environments.remote import Remote, Verdict
from rlm_dspy.errors import ConfigurationError

MAX_LIFETIME = 24 * 3600
"""Seconds that Modal lets a sandbox live at most."""
_STATE_SECONDS = 5.0
_UNHEARD = 86
# Where stdin does not stay open nobody could be heard: then the sandbox's whole lifetime is the bound.
_WATCH = (
    "import os,select,sys,time\n"
    "while select.select([0],[],[],%d)[0]:\n"
    " if not os.read(0,4096): time.sleep(%d)\n"
    "sys.exit(%d)"
)
_STATES = {
    124: "was ended, because its max_lifetime is over",
    137: "was terminated",
    _UNHEARD: "ended itself, because it had not heard from this host for as long as ttl allows",
}


class Modal(CloudEnvironment):
    """A sandbox at Modal for every session. Options in the SDK's words go to its ``Sandbox.create``.

    Args:
        app_name: The app that sandboxes belong to; it is made if there is none.
        environment_name: Modal's environment of that app; None for the SDK's default.
        image: A tag in a container registry, or a ``modal.Image``; it must have Python 3.8 or later. None for
            ``modal.Image.debian_slim()``, which has the version of Python that runs here.
        add_python: A version of Python to add to an ``image`` that has none.
        ttl: Seconds that a sandbox lives on when this host is lost.
        max_lifetime: Seconds that a sandbox may live in all, at most a day (the SDK's ``timeout``, which here is the
            time of a cell).
        env: Environment variables of the sandbox. Code reads them: put no secret there.
        workdir: The folder that code starts in; None for the image's.
        cpu: Cores, or a pair of request and limit.
        memory: MiB, or a pair of request and limit.
        gpu: A GPU, such as ``"T4"``.
        cloud: The cloud provider below.
        region: Where, or a list of such places.
        block_network: Keep code from the network altogether. An allowlist takes its place.
        outbound_cidr_allowlist: Networks that code may reach.
        outbound_domain_allowlist: Domains that code may reach.
        tags: Tags of the sandbox at Modal.
        token_id: The key's id; None for ``MODAL_TOKEN_ID`` or Modal's configuration file.
        token_secret: The key, likewise ``MODAL_TOKEN_SECRET``.
        python: The Python of the sandbox: a command found there.
        base: The options of every environment.
    """

    name = "modal"
    provider = "Modal"
    extra = "modal"
    module = "modal"
    variables = ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")
    machine = "a sandboxed container of Modal"

    def __init__(
        self,
        *,
        app_name: str = "rlm-dspy",
        environment_name: str | None = None,
        image: Any = None,
        add_python: str | None = None,
        ttl: int = 300,
        max_lifetime: int = MAX_LIFETIME,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        cpu: float | tuple[float, float] | None = None,
        memory: int | tuple[int, int] | None = None,
        gpu: str | None = None,
        cloud: str | None = None,
        region: str | Sequence[str] | None = None,
        block_network: bool = True,
        outbound_cidr_allowlist: Sequence[str] | None = None,
        outbound_domain_allowlist: Sequence[str] | None = None,
        tags: Mapping[str, str] | None = None,
        token_id: str | None = None,
        token_secret: str | None = None,
        python: str = "python3",
        **base: Unpack[BaseOptions],
    ) -> None:
        super().__init__(python=python, **base)
        if not isinstance(block_network, bool):
            raise ConfigurationError(f"block_network must be True or False, not {block_network!r}")
        if (token_id is None) != (token_secret is None):
            raise ConfigurationError("token_id and token_secret belong together: give both, or neither")
        if add_python is not None and not isinstance(image, str):
            raise ConfigurationError("add_python goes with an image named by its tag")
        if positive("max_lifetime", max_lifetime) > MAX_LIFETIME:
            raise ConfigurationError(f"max_lifetime must be at most a day, {MAX_LIFETIME} seconds, not {max_lifetime}")
        self.app_name = app_name
        self.environment_name = environment_name
        self.image = image
        self.add_python = add_python
        self.max_lifetime = max(1, int(max_lifetime))
        self.ttl = min(max(1, int(positive("ttl", ttl))), self.max_lifetime)
        self.env = texts("env", env)
        self.workdir = workdir
        self.cpu = cpu
        self.memory = memory
        self.gpu = gpu
        self.cloud = cloud
        self.region = region if region is None or isinstance(region, str) else list(region)
        self.block_network = block_network
        self.outbound_cidr_allowlist = _items("outbound_cidr_allowlist", outbound_cidr_allowlist)
        self.outbound_domain_allowlist = _items("outbound_domain_allowlist", outbound_domain_allowlist)
        self.tags = texts("tags", tags)
        self.token_id = token_id
        self.token_secret = Key(token_secret) if token_secret is not None else None

    @property
    def network(self) -> Bound:
        """See `CloudEnvironment.network`."""
        allowed = [*(self.outbound_cidr_allowlist or ()), *(self.outbound_domain_allowlist or ())]
        if allowed:
            return Bound("not bounded", f"open to {', '.join(allowed)}")
        if self._blocked or self.outbound_cidr_allowlist is not None or self.outbound_domain_allowlist is not None:
            return Bound("bounded", "block_network=True, at Modal" if self._blocked else "an empty allowlist, at Modal")
        return Bound("not bounded", "block_network=False")

    @property
    def _blocked(self) -> bool:
        # The SDK takes the one or the other.
        return self.block_network and self.outbound_cidr_allowlist is None and self.outbound_domain_allowlist is None

    def create(self, token: str) -> Remote:
        """See `CloudEnvironment.create`."""
        modal = self.sdk()
        client = self._client()
        try:
            watch = shlex.quote(_WATCH % (self.ttl, self.max_lifetime, _UNHEARD))
            # An image without this Python has no watch, and lives until somebody was told that it has none.
            watched = (
                f"{self.python} -I -c {watch}; [ $? = {_UNHEARD} ] && exit {_UNHEARD}; exec sleep {self.max_lifetime}"
            )
            app = modal.App.lookup(
                self.app_name, environment_name=self.environment_name, create_if_missing=True, client=client
            )
            sandbox = modal.Sandbox.create(
                "sh", "-c", watched,
                app=app, name=token, image=self._image(), timeout=self.max_lifetime, block_network=self._blocked,
                client=client, **self._chosen(),
            )  # fmt: skip
        except BaseException:
            _close(client)
            raise
        return _Sandbox(self, sandbox, client)

    def _client(self) -> Any:
        """A connection with the key that was given; None for the SDK's own one."""
        if self.token_id is None:
            return None
        return self.sdk().Client.from_credentials(self.token_id, str(self.token_secret))

    def _image(self) -> Any:
        image = self.sdk().Image
        if self.image is None:
            return image.debian_slim()
        return (
            image.from_registry(self.image, add_python=self.add_python) if isinstance(self.image, str) else self.image
        )

    def _chosen(self) -> dict[str, Any]:
        """Those of the SDK's options that were chosen: one that an older SDK lacks is in nobody's way."""
        names = (
            "env", "workdir", "cpu", "memory", "gpu", "cloud", "region", "tags", "outbound_cidr_allowlist",
            "outbound_domain_allowlist",
        )  # fmt: skip
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def sweep(self, token: str) -> None:
        """See `CloudEnvironment.sweep`."""
        client = self._client()
        modal = self.sdk()
        try:
            with contextlib.suppress(modal.exception.NotFoundError):
                modal.Sandbox.from_name(
                    self.app_name, token, environment_name=self.environment_name, client=client
                ).terminate()
        finally:
            _close(client)

    def judge(self, error: BaseException) -> Verdict:
        """See `CloudEnvironment.judge`."""
        kinds = self.sdk().exception
        if isinstance(error, kinds.AuthError):
            return "credentials"
        if isinstance(error, kinds.ResourceExhaustedError):
            return "quota"
        gone = (
            kinds.NotFoundError, kinds.SandboxTerminatedError, kinds.SandboxTimeoutError, kinds.ConflictError,
            kinds.ClientClosed,
        )  # fmt: skip
        if isinstance(error, gone):
            return "gone"
        passing = (kinds.ServiceError, kinds.InternalError, kinds.ConnectionError, kinds.TimeoutError, OSError)
        # An attempt whose answer was lost has taken the name; it is swept away before the next one.
        if isinstance(error, (*passing, kinds.AlreadyExistsError)) or type(error).__name__ == "StreamTerminatedError":
            return "again"
        return "other"


class _Sandbox(Remote):
    """A sandbox, the watch in it, and the one program."""

    provider = Modal.provider

    def __init__(self, environment: Modal, sandbox: Any, client: Any) -> None:
        self._environment = environment
        self._sandbox = sandbox
        self._client = client
        self._process: Any = None
        self.name = sandbox.object_id
        self.lifetime = float(environment.ttl)
        self.renew_every = self.lifetime / 3

    def start(self, command: str) -> None:
        self._process = self._sandbox.exec("sh", "-c", command, text=False)

    def output(self) -> Iterator[bytes]:
        yield from self._process.stdout
        with contextlib.suppress(Exception):
            self.keep_stderr(call(self._process.stderr.read.aio(), _STATE_SECONDS).decode("utf-8", "replace"))
            code = call(self._process.wait.aio(), _STATE_SECONDS)
            # As a shell tells it.
            self.status = f"killed by signal {code - 128}" if code > 128 else f"exited with status {code}"

    def send(self, data: bytes) -> None:
        self._process.stdin.write(data)
        self._process.stdin.drain()

    def state(self) -> str:
        code = call(self._sandbox.poll.aio(), _STATE_SECONDS)
        return "is running" if code is None else _STATES.get(code, f"has ended with status {code}")

    def renew(self) -> None:
        self._sandbox.stdin.write(b"\n")
        self._sandbox.stdin.drain()

    def delete(self, seconds: float) -> None:
        call(self._sandbox.terminate.aio(), seconds)

    def release(self) -> None:
        self._sandbox.detach()
        _close(self._client)

    def judge(self, error: BaseException) -> Verdict:
        return self._environment.judge(error)


def _close(client: Any) -> None:
    if client is not None:
        with contextlib.suppress(Exception):
            client.close()


def _items(option: str, value: Any) -> list[str] | None:
    """A list of texts, checked; None stays None."""
    if value is None:
        return None
    if isinstance(value, str) or not all(isinstance(item, str) for item in value):
        raise ConfigurationError(f"{option} must be a list of texts, not {value!r}")
    return list(value)

"""Sandboxes at Daytona (https://www.daytona.io/docs), by Daytona's own SDK: ``pip install 'rlm-dspy[daytona]'``.

The stream is a command of a shell session: the SDK sends text to its stdin and follows its log. Daytona's daemon
copies what is printed, line by line, through a shell into that log on the sandbox's own disk: large values come out
slower than they go in, and take room there.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Unpack

from rlm_dspy.environments.base import BaseOptions, Bound
from rlm_dspy.environments.cloud import CloudEnvironment, Key, positive, texts
from rlm_dspy.environments.loops import call, iterate
from rlm_dspy.environments.remote import Remote, Verdict
from rlm_dspy.errors import ConfigurationError

_MINUTE = 60.0
_STATE_SECONDS = 5.0
_RENEW_SECONDS = 10.0
_RESOURCES = ("cpu", "memory", "disk", "gpu", "gpu_type")
_QUOTA = ("quota", "limit", "suspended", "exceeded", "billing", "credit")
_SESSION = "rlm-dspy"


class Daytona(CloudEnvironment):
    """A sandbox at Daytona for every session. Options in the SDK's words go to its ``create``.

    Args:
        image: The image that sandboxes are made of, by its tag or as a ``daytona.Image``; it must have Python 3.8 or
            later. The first sandbox of an image waits until Daytona has built it.
        snapshot: A snapshot, in place of ``image``; with neither, Daytona's default one.
        resources: ``cpu`` (cores), ``memory``, ``disk`` (GiB), ``gpu``, ``gpu_type``, of a sandbox made of an image.
        language: The SDK's ``language`` of the sandbox.
        os_user: The user that code runs as; None for the image's.
        env_vars: Environment variables of the sandbox. Code reads them: put no secret there.
        labels: Text that Daytona keeps with the sandbox.
        network_block_all: Keep code from the network altogether. An allowlist takes its place.
        network_allow_list: Networks that code may reach (CIDR), separated by commas.
        domain_allow_list: Domains that code may reach, separated by commas.
        auto_stop_interval: Minutes after which Daytona stops, and so deletes, a sandbox when this host is lost. While
            the session lives, Daytona is told so again and again.
        auto_delete_interval: Minutes that a stopped sandbox is kept; 0 for not at all.
        ttl_minutes: Minutes that a sandbox may live in all; None for no bound.
        create_timeout: Seconds that making a sandbox may take.
        target: The region; None for ``DAYTONA_TARGET`` or the organization's.
        api_key: The key; None for ``DAYTONA_API_KEY``.
        api_url: Another Daytona; None for ``DAYTONA_API_URL``.
        python: The Python of the sandbox: a command found there.
        base: The options of every environment.
    """

    name = "daytona"
    provider = "Daytona"
    extra = "daytona"
    module = "daytona"
    variables = ("DAYTONA_API_KEY",)
    machine = "a sandboxed container of Daytona"

    def __init__(
        self,
        *,
        image: Any = None,
        snapshot: str | None = None,
        resources: Mapping[str, Any] | None = None,
        language: str = "python",
        os_user: str | None = None,
        env_vars: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        network_block_all: bool = True,
        network_allow_list: str | None = None,
        domain_allow_list: str | None = None,
        auto_stop_interval: int = 5,
        auto_delete_interval: int = 0,
        ttl_minutes: int | None = None,
        create_timeout: float = 300.0,
        target: str | None = None,
        api_key: str | None = None,
        api_url: str | None = None,
        python: str = "python3",
        **base: Unpack[BaseOptions],
    ) -> None:
        super().__init__(python=python, **base)
        if not isinstance(network_block_all, bool):
            raise ConfigurationError(f"network_block_all must be True or False, not {network_block_all!r}")
        if image is not None and snapshot is not None:
            raise ConfigurationError("a sandbox is made of an image or of a snapshot: give one of the two")
        if resources is not None and image is None:
            raise ConfigurationError("resources go with an image; a snapshot has its own")
        if unknown := sorted(set(resources or ()) - set(_RESOURCES)):
            raise ConfigurationError(f"resources has no {', '.join(unknown)}; it takes {', '.join(_RESOURCES)}")
        self.image = image
        self.snapshot = snapshot
        # From a command line they come as text.
        self.resources = {k: int(v) if str(v).isdecimal() else v for k, v in resources.items()} if resources else None
        self.language = language
        self.os_user = os_user
        self.env_vars = texts("env_vars", env_vars)
        self.labels = texts("labels", labels)
        self.network_block_all = network_block_all
        self.network_allow_list = network_allow_list
        self.domain_allow_list = domain_allow_list
        self.auto_stop_interval = _minutes("auto_stop_interval", auto_stop_interval)
        self.auto_delete_interval = _minutes("auto_delete_interval", auto_delete_interval, least=0)
        self.ttl_minutes = ttl_minutes if ttl_minutes is None else _minutes("ttl_minutes", ttl_minutes)
        self.create_timeout = positive("create_timeout", create_timeout)
        self.target = target
        self.api_key = Key(api_key) if api_key is not None else None
        self.api_url = api_url

    @property
    def network(self) -> Bound:
        """See `CloudEnvironment.network`."""
        allowed = [text for text in (self.network_allow_list, self.domain_allow_list) if text]
        if allowed:
            return Bound("not bounded", f"open to {', '.join(allowed)}")
        if self.network_block_all:
            return Bound("bounded", "network_block_all=True, at Daytona")
        return Bound("not bounded", "network_block_all=False")

    def create(self, token: str) -> Remote:
        """See `CloudEnvironment.create`."""
        return call(self._create(token))

    async def _create(self, token: str) -> Remote:
        client = self._client()
        try:
            return _Sandbox(self, client, await client.create(self._parameters(token), timeout=self.create_timeout))
        except BaseException:
            await client.close()
            raise

    def _client(self) -> Any:
        """A connection; on the loop of the clouds only."""
        sdk = self.sdk()
        options = {"api_key": self.api_key, "api_url": self.api_url}
        given = {name: str(text) for name, text in options.items() if text is not None}
        # Given an empty one, the SDK warns of an option of its own that is about to go.
        return sdk.AsyncDaytona(sdk.DaytonaConfig(**given) if given else None)

    def _parameters(self, token: str) -> Any:
        sdk = self.sdk()
        names = (
            "language", "os_user", "env_vars", "labels", "network_allow_list", "domain_allow_list",
            "auto_stop_interval", "auto_delete_interval", "ttl_minutes", "target",
        )  # fmt: skip
        chosen = {name: value for name in names if (value := getattr(self, name)) is not None}
        # Where both are given, Daytona refuses the sandbox.
        chosen["network_block_all"] = self.network_block_all and not (self.network_allow_list or self.domain_allow_list)
        if self.image is None:
            return sdk.CreateSandboxFromSnapshotParams(name=token, snapshot=self.snapshot, **chosen)
        resources = sdk.Resources(**self.resources) if self.resources is not None else None
        return sdk.CreateSandboxFromImageParams(name=token, image=self.image, resources=resources, **chosen)

    def sweep(self, token: str) -> None:
        """See `CloudEnvironment.sweep`."""

        async def sweep() -> None:
            async with self._client() as client:
                with contextlib.suppress(self.sdk().DaytonaNotFoundError):
                    await (await client.get(token)).delete()

        call(sweep(), _RENEW_SECONDS)

    def judge(self, error: BaseException) -> Verdict:
        """See `CloudEnvironment.judge`."""
        sdk = self.sdk()
        text = str(error).lower()
        status = getattr(error, "status_code", None)
        if isinstance(error, sdk.DaytonaAuthenticationError):
            return "credentials"
        if status in (402, 403):
            return "quota" if any(word in text for word in _QUOTA) else "credentials"
        if isinstance(error, sdk.DaytonaRateLimitError):
            return "rejected"
        if status in (404, 410):
            return "gone"
        if isinstance(error, (sdk.DaytonaConnectionError, sdk.DaytonaTimeoutError, OSError)):
            return "again"
        # A name that is taken is that of an attempt whose answer was lost; it is swept away before the next one.
        if status == 409 or (isinstance(status, int) and status >= 500):
            return "again"
        return "other"


class _Sandbox(Remote):
    """A sandbox, the shell session in it, and the one command of that."""

    provider = Daytona.provider
    text = True

    def __init__(self, environment: Daytona, client: Any, sandbox: Any) -> None:
        self._environment = environment
        self._client = client
        self._sandbox = sandbox
        self._command = ""
        self.name = sandbox.id
        self.lifetime = _MINUTE * environment.auto_stop_interval
        self.renew_every = self.lifetime / 3

    def start(self, command: str) -> None:
        # In a shell of its own: the session's one has to see it end. Input would be echoed into the output.
        request = self._environment.sdk().SessionExecuteRequest(
            command=f"sh -c {shlex.quote(command)}", run_async=True, suppress_input_echo=True
        )

        async def start() -> str:
            await self._sandbox.process.create_session(_SESSION)
            return str((await self._sandbox.process.execute_session_command(_SESSION, request)).cmd_id)

        self._command = call(start())

    def output(self) -> Iterator[str]:
        yield from iterate(self._log())
        with contextlib.suppress(Exception):
            ended = call(self._sandbox.process.get_session_command(_SESSION, self._command), _STATE_SECONDS)
            if ended.exit_code is not None:
                # As a shell tells it.
                code = int(ended.exit_code)
                self.status = f"killed by signal {code - 128}" if code > 128 else f"exited with status {code}"

    async def _log(self) -> AsyncIterator[str]:
        """The log as an iterator; the SDK reads on when a piece was taken."""
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        room = asyncio.Semaphore(2)
        wanted = True

        async def stdout(text: str) -> None:
            # The SDK hands over what is left even when it is cancelled.
            if not wanted:
                return
            await room.acquire()
            # Early daemons fill their pieces up with NULs; text of ours has none.
            pieces.put_nowait(text.replace("\0", ""))

        async def stderr(text: str) -> None:
            self.keep_stderr(text)

        logs = self._sandbox.process.get_session_command_logs_async
        following = asyncio.create_task(logs(_SESSION, self._command, stdout, stderr))
        following.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                room.release()
                yield piece
            await following
        finally:
            wanted = False
            following.cancel()

    def send(self, data: bytes) -> None:
        call(self._sandbox.process.send_session_command_input(_SESSION, self._command, data.decode("ascii")))

    def state(self) -> str:
        try:
            call(self._sandbox.refresh_data(), _STATE_SECONDS)
        except Exception as error:
            if self.judge(error) == "gone":
                return "is gone: it was deleted, or stopped after minutes without a word from this host"
            raise
        return f"is {getattr(self._sandbox.state, 'value', self._sandbox.state)}"

    def renew(self) -> None:
        call(self._sandbox.refresh_activity(), _RENEW_SECONDS)

    def delete(self, seconds: float) -> None:
        call(self._sandbox.delete(timeout=seconds), seconds + 1)

    def release(self) -> None:
        call(self._client.close(), _RENEW_SECONDS)

    def judge(self, error: BaseException) -> Verdict:
        return self._environment.judge(error)


def _minutes(option: str, value: Any, least: int = 1) -> int:
    """A whole number of minutes, checked."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{option} must be a whole number of minutes, {least} or more, not {value!r}")
    return value

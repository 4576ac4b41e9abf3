"""Sandboxes at Prime Intellect (https://docs.primeintellect.ai), each a VM, by the provider's own SDK:
``pip install 'rlm-dspy[prime]'``.

The stream is a live process of the SDK, bytes both ways. Those exist in its asynchronous client only, which runs on the
event loop of `rlm_dspy.environments.loops`. What the SDK has received but nobody has read is in the host's memory.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

from rlm_dspy.environments import loops
from rlm_dspy.environments._compat import do_not_reconnect
from rlm_dspy.environments.base import BaseOptions, Bound, Description
from rlm_dspy.environments.cloud import CloudEnvironment, Key, positive, texts
from rlm_dspy.environments.remote import Remote, Verdict
from rlm_dspy.errors import ConfigurationError

_STATE_SECONDS = 5.0
_QUOTA = ("quota", "limit", "balance", "billing", "payment", "insufficient")


class Prime(CloudEnvironment):
    """A sandbox at Prime Intellect for every session. Options in the SDK's words go to its ``CreateSandboxRequest``.

    Args:
        docker_image: The image that sandboxes are made of; it must have Python 3.8 or later. The provider builds a VM
            of an image when it is first used, which takes minutes.
        cpu_cores, memory_gb, disk_size_gb: What a sandbox has; None for the SDK's own default.
        gpu_count, gpu_type: GPUs, if any.
        timeout_minutes: Minutes that a sandbox lives at most. It cannot be extended: a session that lasts longer loses
            its variables and goes on in another sandbox.
        idle_timeout_minutes: Minutes after which the provider ends one that it takes for idle; None for never.
        network_allowlist: Hosts and addresses that code may reach, as the SDK has them: none by default; None for all.
        network_denylist: Those that it may not reach, all others allowed; in place of ``network_allowlist``.
        environment_vars: Environment variables of the sandbox. Code reads them: put no secret there.
        labels: Words that the provider keeps with the sandbox.
        team_id: The team that pays; None for ``PRIME_TEAM_ID`` and what the provider's own command line has stored.
        region: Where it runs; None for anywhere.
        user: The user that code runs as; None for the image's.
        working_dir: The folder that code starts in; None for the image's.
        api_key: The key; None for ``PRIME_API_KEY`` and what the provider's own command line has stored.
        python: The Python of the sandbox: a command found there.
        base: The options of every environment.
    """

    name = "prime"
    provider = "Prime Intellect"
    extra = "prime"
    module = "prime_sandboxes"
    variables = ("PRIME_API_KEY",)
    machine = "a VM of Prime Intellect"
    repeatable = True

    def __init__(
        self,
        *,
        docker_image: str = "python:3.11-slim",
        cpu_cores: float | None = None,
        memory_gb: float | None = None,
        disk_size_gb: float | None = None,
        gpu_count: int | None = None,
        gpu_type: str | None = None,
        timeout_minutes: int = 60,
        idle_timeout_minutes: int | None = None,
        network_allowlist: Sequence[str] | None = (),
        network_denylist: Sequence[str] | None = None,
        environment_vars: Mapping[str, str] | None = None,
        labels: Sequence[str] = (),
        team_id: str | None = None,
        region: str | None = None,
        user: str | None = None,
        working_dir: str | None = None,
        api_key: str | None = None,
        python: str = "python3",
        **base: Unpack[BaseOptions],
    ) -> None:
        super().__init__(python=python, **base)
        sizes = {"cpu_cores": cpu_cores, "memory_gb": memory_gb, "disk_size_gb": disk_size_gb, "gpu_count": gpu_count}
        for option, value in {**sizes, "idle_timeout_minutes": idle_timeout_minutes}.items():
            if value is not None:
                positive(option, value)
        if network_denylist is not None and network_allowlist:
            raise ConfigurationError("network_allowlist and network_denylist exclude each other; give one of them")
        self.docker_image = docker_image
        self.sizes = {option: value for option, value in sizes.items() if value is not None}
        self.gpu_type = gpu_type
        self.timeout_minutes = max(1, int(positive("timeout_minutes", timeout_minutes)))
        self.idle_timeout_minutes = idle_timeout_minutes
        allowed = None if network_denylist is not None else network_allowlist
        self.network_allowlist = _words("network_allowlist", allowed)
        self.network_denylist = _words("network_denylist", network_denylist)
        self.environment_vars = texts("environment_vars", environment_vars)
        self.labels = _words("labels", labels)
        self.team_id = team_id
        self.region = region
        self.user = user
        self.working_dir = working_dir
        self.api_key = Key(api_key) if api_key is not None else None

    @property
    def network(self) -> Bound:
        """See `CloudEnvironment.network`."""
        if self.network_allowlist is None:
            what = "all but network_denylist" if self.network_denylist is not None else "network_allowlist=None"
            return Bound("not bounded", what)
        if self.network_allowlist:
            return Bound("not bounded", f"but for {', '.join(self.network_allowlist)}: closed, at Prime Intellect")
        return Bound("bounded", "network_allowlist=[], at Prime Intellect")

    def describe(self) -> Description:
        """See `CloudEnvironment.describe`; with the sizes that were asked for."""
        about = super().describe()
        known: Any = {
            resource: Bound("bounded", f"{option} of {self.machine}", int(self.sizes[option] * 2**30))
            for resource, option in (("memory", "memory_gb"), ("disk", "disk_size_gb"))
            if option in self.sizes
        }
        return dataclasses.replace(about, **known)

    def request(self, token: str) -> Any:
        """The SDK's request for a sandbox; ``token`` makes it the same one however often it is sent.

        Raises:
            ConfigurationError: The SDK does not take the options.
        """
        options = {
            **self.sizes,
            "gpu_type": self.gpu_type,
            "idle_timeout_minutes": self.idle_timeout_minutes,
            "network_allowlist": self.network_allowlist,
            "network_denylist": self.network_denylist,
            "environment_vars": self.environment_vars,
            "labels": self.labels,
            "team_id": self.team_id,
            "region": self.region,
        }
        try:
            return self.sdk().CreateSandboxRequest(
                name=token,
                docker_image=self.docker_image,
                timeout_minutes=self.timeout_minutes,
                idempotency_key=token,
                **{name: value for name, value in options.items() if value is not None},
            )
        except ValueError as error:
            reasons = "; ".join(str(each.get("msg", "")) for each in getattr(error, "errors", list)()) or str(error)
            raise ConfigurationError(f"the options of the 'prime' environment do not fit: {reasons}") from None

    def key(self) -> str | None:
        """The key as the SDK takes it."""
        return str(self.api_key) if self.api_key is not None else None

    def create(self, token: str) -> Remote:
        """See `CloudEnvironment.create`."""
        sdk, request = self.sdk(), self.request(token)

        async def make() -> tuple[Any, Any]:
            client = sdk.AsyncSandboxClient(api_key=self.key())
            try:
                return client, await client.create(request)
            except BaseException:
                await client.aclose()
                raise

        client, sandbox = loops.call(make())
        return _Sandbox(self, client, sandbox.id)

    def sweep(self, token: str) -> None:
        """See `CloudEnvironment.sweep`. Sent again, the same request tells which sandbox it made."""
        sdk = self.sdk()
        client = sdk.SandboxClient(sdk.APIClient(api_key=self.key()))
        client.delete(client.create(self.request(token)).id)

    def judge(self, error: BaseException) -> Verdict:
        """See `CloudEnvironment.judge`."""
        sdk = self.sdk()
        text = str(error)
        found = re.match(r"HTTP (\d+)", text)
        status = int(found[1]) if found else 0
        limited = any(word in text.lower() for word in _QUOTA)
        if isinstance(error, sdk.PaymentRequiredError):
            return "quota"
        if isinstance(error, sdk.UnauthorizedError) or text.startswith("No API key configured"):
            return "credentials"
        if status == 403:
            return "quota" if limited else "credentials"
        if status == 429:
            return "quota" if "quota" in text.lower() else "rejected"
        if status == 404 or isinstance(error, sdk.SandboxTimeoutError):
            return "gone"
        if status >= 500 or isinstance(error, (sdk.APITimeoutError, OSError)) or text.startswith("Request failed"):
            return "again"
        return "quota" if status and limited else "other"


class _Sandbox(Remote):
    """A sandbox and the one process in it."""

    provider = Prime.provider

    def __init__(self, environment: Prime, client: Any, name: str) -> None:
        self._environment = environment
        self._client = client
        self._process: Any = None
        self.name = name
        self.lifetime = 60.0 * environment.timeout_minutes

    def start(self, command: str) -> None:
        environment = self._environment

        async def begin() -> None:
            await self._client.wait_for_creation(self.name)
            self._process = await self._client.open_process(
                self.name, command, working_dir=environment.working_dir, user=environment.user
            )
            do_not_reconnect(self._process)

        loops.call(begin())
        loops.spawn(self._read_stderr())

    async def _read_stderr(self) -> None:
        async for data in self._process.stderr:
            self.keep_stderr(data.decode("utf-8", "replace"))

    def output(self) -> Iterator[bytes]:
        yield from loops.iterate(self._process.stdout)
        if (code := self._process.returncode) is not None:
            self.status = f"its Python exited with status {code}"

    def send(self, data: bytes) -> None:
        loops.call(self._process.write_stdin(data))

    def state(self) -> str:
        found = loops.call(self._client.get(self.name), _STATE_SECONDS)
        why = found.termination_reason or found.error_message or found.error_type
        return f"is {found.status.lower()}" + (f" ({why})" if why else "")

    def delete(self, seconds: float) -> None:
        if threading.main_thread().is_alive():
            loops.call(self._client.delete(self.name), seconds)
            return
        # The process exits, and asynchronous clients need threads that can no longer be started.
        sdk = self._environment.sdk()
        sdk.SandboxClient(sdk.APIClient(api_key=self._environment.key())).delete(self.name)

    def release(self) -> None:
        if threading.main_thread().is_alive():
            loops.spawn(self._client.aclose())

    def judge(self, error: BaseException) -> Verdict:
        return self._environment.judge(error)


def _words(option: str, value: Sequence[str] | None) -> list[str] | None:
    if value is None:
        return None
    if isinstance(value, str) or not all(isinstance(word, str) for word in value):
        raise ConfigurationError(f"{option} must be a list of texts, not {value!r}")
    return list(value)

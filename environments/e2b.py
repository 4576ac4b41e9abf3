"""Sandboxes at E2B (https://e2b.dev/docs), each a microVM, by E2B's own SDK: ``pip install 'rlm-dspy[e2b]'``.

The stream is a background command of the SDK: its stdout comes as text, its stdin takes bytes. Works with the SDK's
versions from 2.56 on.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Unpack

from rlm_dspy.environments._compat import forget_output
from rlm_dspy.environments.base import BaseOptions, Bound
from rlm_dspy.environments.cloud import CloudEnvironment, Key, positive, texts
from rlm_dspy.environments.remote import Remote, Verdict
from rlm_dspy.errors import ConfigurationError

_STATE_SECONDS = 5.0
_RENEW_SECONDS = 10.0
_TOKEN = "rlm-dspy"
_QUOTA = ("quota", "limit", "concurrent", "billing", "payment", "plan")


class E2B(CloudEnvironment):
    """A sandbox at E2B for every session. Options in the SDK's words go to its ``Sandbox.create``.

    Args:
        template: The template that sandboxes are made of, by name or id; it must have Python 3.8 or later, as the
            default one has.
        ttl: Seconds that a sandbox lives at E2B without this host (the SDK's ``timeout``, which here is the time of a
            cell). It is extended again and again while the session lives, up to the account's own limit.
        envs: Environment variables of the sandbox. Code reads them: put no secret there.
        metadata: Text that E2B keeps with the sandbox.
        allow_internet_access: Let code reach the network.
        network: The SDK's ``network``, for rules in between, such as ``{"allow_out": ["8.8.8.8"]}``: what it allows is
            open although ``allow_internet_access`` is False.
        user: The user that code runs as; None for the template's.
        cwd: The folder that code starts in; None for that user's home.
        api_key: The key; None for ``E2B_API_KEY``.
        domain: Another E2B than e2b.app; None for ``E2B_DOMAIN``.
        request_timeout: Seconds that one request to E2B may take.
        proxy: A proxy for the requests.
        python: The Python of the sandbox: a command found there.
        base: The options of every environment.
    """

    name = "e2b"
    provider = "E2B"
    extra = "e2b"
    module = "e2b"
    variables = ("E2B_API_KEY",)
    machine = "a microVM of E2B"

    def __init__(
        self,
        *,
        template: str | None = None,
        ttl: int = 300,
        envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        allow_internet_access: bool = False,
        network: Mapping[str, Any] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        api_key: str | None = None,
        domain: str | None = None,
        request_timeout: float = 60.0,
        proxy: str | None = None,
        python: str = "python3",
        **base: Unpack[BaseOptions],
    ) -> None:
        super().__init__(python=python, **base)
        if not isinstance(allow_internet_access, bool):
            raise ConfigurationError(f"allow_internet_access must be True or False, not {allow_internet_access!r}")
        self.template = template
        self.ttl = max(1, int(positive("ttl", ttl)))
        self.envs = texts("envs", envs)
        self.metadata = texts("metadata", metadata)
        self.allow_internet_access = allow_internet_access
        self.network_rules = dict(network) if network is not None else None
        self.user = user
        self.cwd = cwd
        self.api_key = Key(api_key) if api_key is not None else None
        self.domain = domain
        self.request_timeout = positive("request_timeout", request_timeout)
        self.proxy = proxy

    @property
    def network(self) -> Bound:
        """See `CloudEnvironment.network`."""
        if self.network_rules is not None:
            rest = "open" if self.allow_internet_access else "closed, at E2B"
            return Bound("not bounded", f"but by the rules given ({', '.join(self.network_rules)}); the rest is {rest}")
        if self.allow_internet_access:
            return Bound("not bounded", "allow_internet_access=True")
        return Bound("bounded", "allow_internet_access=False, at E2B")

    def parameters(self) -> dict[str, Any]:
        """What every request of the SDK takes."""
        given = {"api_key": self.api_key, "domain": self.domain, "proxy": self.proxy}
        return {
            "request_timeout": self.request_timeout,
            **{name: value if name == "proxy" else str(value) for name, value in given.items() if value is not None},
        }

    def create(self, token: str) -> Remote:
        """See `CloudEnvironment.create`."""
        rules = {} if self.network_rules is None else {"network": self.network_rules}
        sandbox = self.sdk().Sandbox.create(
            template=self.template,
            timeout=self.ttl,
            envs=self.envs,
            metadata={**(self.metadata or {}), _TOKEN: token},
            allow_internet_access=self.allow_internet_access,
            **rules,
            **self.parameters(),
        )
        return _Sandbox(self, sandbox)

    def sweep(self, token: str) -> None:
        """See `CloudEnvironment.sweep`."""
        sdk = self.sdk()
        found = sdk.Sandbox.list(query=sdk.SandboxQuery(metadata={_TOKEN: token}), **self.parameters())
        while found.has_next:
            for info in found.next_items():
                sdk.Sandbox.kill(info.sandbox_id, **self.parameters())

    def judge(self, error: BaseException) -> Verdict:
        """See `CloudEnvironment.judge`."""
        sdk = self.sdk()
        text = str(error).lower()
        status = getattr(error, "status_code", None)
        if isinstance(error, sdk.AuthenticationException):
            return "credentials"
        if isinstance(error, sdk.RateLimitException):
            # One status for too many requests, which pass, and for too many sandboxes, which do not.
            return "quota" if any(word in text for word in ("sandboxes", "quota", "plan")) else "rejected"
        if isinstance(error, (sdk.NotFoundException, sdk.SandboxNotRunningException)):
            return "gone"
        if status in (402, 403):
            return "quota" if any(word in text for word in _QUOTA) else "credentials"
        if isinstance(error, sdk.ServiceBusyException) or (isinstance(status, int) and status >= 500):
            return "again"
        if isinstance(error, (sdk.TimeoutException, OSError)) or _is_of_transport(error):
            return "again"
        return "other"


class _Sandbox(Remote):
    """A sandbox and the one command in it."""

    provider = E2B.provider
    text = True

    def __init__(self, environment: E2B, sandbox: Any) -> None:
        self._environment = environment
        self._sandbox = sandbox
        self._handle: Any = None
        self.name = sandbox.sandbox_id
        self.lifetime = float(environment.ttl)
        self.renew_every = self.lifetime / 3

    def start(self, command: str) -> None:
        run = self._sandbox.commands.run
        # Newer versions keep all output in memory unless told not to; older ones cannot be told.
        kept = {"retain_output": False} if "retain_output" in inspect.signature(run).parameters else {}
        self._handle = run(
            command,
            background=True,
            stdin=True,
            timeout=0,
            user=self._environment.user,
            cwd=self._environment.cwd,
            **kept,
        )

    def output(self) -> Iterator[str]:
        for stdout, stderr, _ in self._handle:
            forget_output(self._handle)
            if stderr:
                self.keep_stderr(stderr)
            if stdout:
                yield stdout
        # The stream has ended, so this does not wait.
        try:
            code = self._handle.wait().exit_code
        except Exception as error:
            code = getattr(error, "exit_code", None)
        if code is not None:
            self.status = f"its Python exited with status {code}"

    def send(self, data: bytes) -> None:
        self._handle.send_stdin(data)

    def renew(self) -> None:
        self._sandbox.set_timeout(self._environment.ttl, request_timeout=_RENEW_SECONDS)

    def state(self) -> str:
        sdk = self._environment.sdk()
        try:
            info = self._sandbox.get_info(request_timeout=_STATE_SECONDS)
        except sdk.NotFoundException:
            return "is gone: it was killed, or its lifetime is over"
        return f"is {getattr(info.state, 'value', info.state)}"

    def delete(self, seconds: float) -> None:
        self._sandbox.kill(request_timeout=seconds)

    def judge(self, error: BaseException) -> Verdict:
        return self._environment.judge(error)


def _is_of_transport(error: BaseException) -> bool:
    """Whether an error is a connection's, of whichever HTTP library this version of the SDK uses."""
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__module__.partition(".")[0] in ("httpx", "pyqwest") or isinstance(seen, ConnectionError):
            return True
        seen = seen.__cause__
    return False

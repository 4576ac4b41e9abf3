"""Sandboxes at a provider, as environments: what all of them share.

A backend is a subclass that makes a sandbox (`CloudEnvironment.create`) and a `Remote` that speaks to it in the calls
of the provider's SDK. Retrying, credentials, clean-up when a start fails half-way, and the description are here; the
stream is `rlm_dspy.environments.remote`. Every session has a sandbox of its own, and no spares are kept unless
`rlm_dspy.environments.warm` asks for them: they would cost money.
"""

from __future__ import annotations

import abc
import importlib
import shlex
import time
from typing import Any, ClassVar, Unpack

from rlm_dspy.environments.base import BaseOptions, Bound, Description, Environment, Transport
from rlm_dspy.environments.program import BOOTSTRAP
from rlm_dspy.environments.remote import DELETE_SECONDS, Remote, RemoteTransport, Verdict, delete, logger, pauses
from rlm_dspy.errors import ConfigurationError, MissingExtraError, RLMError, SandboxUnavailableError
from rlm_dspy.redact import error_text, hide

OPEN_SECONDS = 120.0
"""Seconds for which making a sandbox is tried again after passing failures."""


class Key(str):
    """A key as an option: it is itself everywhere but in a ``repr``, and is hidden in errors and traces."""

    def __new__(cls, value: str) -> Key:
        hide(value)
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return "'***'"


class CloudEnvironment(Environment):
    """Base class of the environments at a provider.

    Args:
        python: The Python of the sandbox, 3.8 or later: a command found there.
        base: The options of every environment.
    """

    provider: ClassVar[str]
    """The provider's name, for messages."""
    extra: ClassVar[str]
    """The extra that brings its SDK."""
    module: ClassVar[str]
    """The SDK's module."""
    variables: ClassVar[tuple[str, ...]]
    """Where the SDK looks for credentials: environment variables."""
    machine: ClassVar[str]
    """What a sandbox is there, such as ``"a Firecracker microVM of E2B"``."""
    repeatable: ClassVar[bool] = False
    """Whether `create` with the same token again gives the sandbox that an earlier attempt made, if it did."""
    keeps_spares = False
    execution_instructions = (
        "Code runs as CPython on a machine of its own, where nothing of the host is. State, imports and functions "
        "persist between cells; threads, child processes and top-level await work. input() does not."
    )

    def __init__(self, *, python: str = "python3", **base: Unpack[BaseOptions]) -> None:
        super().__init__(**base)
        if not (isinstance(python, str) and python.strip()):
            raise ConfigurationError(f"python must be a command of the sandbox, such as 'python3', not {python!r}")
        self.python = python

    # ------------------------------------------------------------------------------------------------- for backends

    @abc.abstractmethod
    def create(self, token: str) -> Remote:
        """Ask for a sandbox. Waiting until it is ready is up to `Remote.start`.

        Args:
            token: A word that no other sandbox has.
        """

    @abc.abstractmethod
    def judge(self, error: BaseException) -> Verdict:
        """What an error of the SDK means."""

    def sweep(self, token: str) -> None:
        """Delete the sandbox that `create` with this token may have made: no answer came, or nobody waited for it."""
        return None

    @property
    @abc.abstractmethod
    def network(self) -> Bound:
        """Whether code can reach the network, by the options."""

    def sdk(self) -> Any:
        """The SDK's module, imported when it is first needed."""
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name != self.module.partition(".")[0]:
                raise
            raise MissingExtraError(f"the {self.name!r} environment", self.extra) from error

    # ------------------------------------------------------------------------------------------------- the contract

    def open(self) -> Transport:
        """Make a sandbox and start Python in it.

        Raises:
            MissingExtraError: The SDK is not installed.
            ConfigurationError: There is no key, or the provider does not take it.
            SandboxUnavailableError: The provider has no sandbox for us.
        """
        self.sdk()
        command = f"exec {self.python} -I -u -c {shlex.quote(BOOTSTRAP)}"
        start = time.monotonic()
        attempts = 0
        token = ""
        unsure = False  # whether there may be a sandbox of this token that nobody knows of
        try:
            for pause in pauses():
                attempts += 1
                token, before, unsure = token or new_token(), unsure, True
                try:
                    remote = self.create(token)
                    token, before, unsure = "", False, False
                    return RemoteTransport(self._started(remote, command))
                except Exception as error:
                    verdict = self.judge(error)
                    if isinstance(error, RLMError) or verdict in ("rejected", "credentials", "quota"):
                        unsure = before
                    if isinstance(error, RLMError):
                        raise
                    if verdict not in ("again", "rejected") or time.monotonic() + pause - start > OPEN_SECONDS:
                        raise self._refusal(verdict, error, attempts, time.monotonic() - start) from None
                if unsure and not self.repeatable:
                    self._swept(token)
                    token, unsure = "", False
                time.sleep(pause)
            raise AssertionError
        finally:
            if unsure:
                self._swept(token)

    def _swept(self, token: str) -> None:
        try:
            self.sweep(token)
        except Exception:
            # For the same reason, most likely. What there may be ends by its lifetime.
            logger.warning("whether %s has made a sandbox in vain (%s) cannot be told", self.provider, token)

    def _started(self, remote: Remote, command: str) -> Remote:
        try:
            remote.start(command)
        except BaseException:
            if delete(remote, DELETE_SECONDS):
                remote.release()
            raise
        return remote

    def _refusal(self, verdict: Verdict, error: Exception, attempts: int, seconds: float) -> Exception:
        text = error_text(error, 1000)
        names = " and ".join(self.variables)
        if verdict == "credentials":
            return ConfigurationError(
                f"{self.provider} needs a key and did not accept the one it got, or got none. Set {names}, "
                f"or pass it as an option. It said: {text}"
            )
        if verdict == "quota":
            return SandboxUnavailableError(
                f"{self.provider} makes no more sandboxes for this account: a limit is reached, or it has to be paid "
                f"for. (RLM_DSPY_MAX_SESSIONS bounds how many this process has at once.) It said: {text}"
            )
        tried = f" after {attempts} attempts in {seconds:.0f} seconds" if attempts > 1 else ""
        return SandboxUnavailableError(f"{self.provider} gave no sandbox{tried}: {text}")

    def describe(self) -> Description:
        """What the provider confines; nothing of it is probed, since that would start a sandbox."""
        return Description(
            environment=self.name,
            layers=(self.machine,),
            files=Bound("bounded", "another machine: nothing of this one is there"),
            network=self.network,
            memory=Bound("bounded", f"that of {self.machine}"),
            processes=Bound("bounded", f"those of {self.machine}"),
            disk=Bound("bounded", f"that of {self.machine}"),
            time=Bound("bounded" if self.timeout else "not bounded", "interrupt, then kill" if self.timeout else ""),
            secrets=Bound("bounded", "nothing of this host's environment is there, and no key of the provider"),
            missing=(f"a probe: it is {self.provider} that confines, by its own word",),
        )


def new_token() -> str:
    """A word that no other sandbox has."""
    import secrets

    return f"rlm-dspy-{secrets.token_hex(8)}"


def texts(option: str, value: Any) -> dict[str, str] | None:
    """A mapping of text to text, checked; None stays None."""
    if value is None:
        return None
    try:
        pairs = dict(value)
    except (TypeError, ValueError):
        pairs = None
    if pairs is None or not all(isinstance(name, str) and isinstance(text, str) for name, text in pairs.items()):
        raise ConfigurationError(f"{option} must map names to texts, not be {value!r}")
    return pairs


def positive(option: str, value: Any) -> Any:
    """A positive number, checked."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigurationError(f"{option} must be a positive number, not {value!r}")
    return value

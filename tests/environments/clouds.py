"""The providers whose environments are tested against loopback clouds, and what differs between them.

Tests have a fixture ``cloud`` made of `lead`: the provider's loopback cloud, to which its SDK is led.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import environments
from rlm_dspy.environments import pool, remote
from rlm_dspy.environments.base import Environment


@dataclass(frozen=True)
class Provider:
    """One provider.

    Attributes:
        name: Of the environment and its extra.
        module: The SDK's.
        fake: The module and class of the loopback cloud.
        key: The variable that holds the key.
        start, send: The operations that start a program, and write to it.
        slow_429: The SDK itself waits for many seconds after "too many requests".
        renewed: Lifetimes are extended as long as a session lives.
        resumes: The SDK goes on where a broken connection ended, and sends again what was lost on the way.
        key_options: The options that hold a key, in which ``{}`` is the key.
    """

    name: str
    module: str
    fake: tuple[str, str]
    key: str
    start: str
    send: str
    slow_429: bool = False
    renewed: bool = False
    resumes: bool = False
    key_options: tuple[tuple[str, str], ...] = (("api_key", "{}"),)

    def with_key(self, key: str) -> dict[str, str]:
        """Options with a key."""
        return {name: text.format(key) for name, text in self.key_options}

    @property
    def missing(self) -> str | None:
        """Why it cannot be tested here."""
        if importlib.util.find_spec(self.module) is None:
            return f"the SDK {self.module} is not installed: pip install 'rlm-dspy[{self.name}]'"
        return None

    def cloud(self) -> Any:
        """The loopback cloud, to be entered."""
        module, name = self.fake
        return getattr(importlib.import_module(f"tests.environments.fakes.{module}"), name)()

    def environment(self, **options: Any) -> Environment:
        """The environment."""
        return environments.get(self.name, **{"timeout": 60.0, **options})


def lead(provider: Provider, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Any]:
    """Start the provider's loopback cloud and lead its SDK there; no sandbox may be left in it."""
    for name in list(os.environ):
        if name.startswith(("E2B_", "PRIME_", "MODAL_", "DAYTONA_")):
            monkeypatch.delenv(name)
    # SDKs keep things in the home folder.
    monkeypatch.setenv("HOME", str(home))
    with provider.cloud() as started:
        for name, value in started.environ.items():
            monkeypatch.setenv(name, value)
        yield started
        pool.close()
        assert started.alive == []
        assert not remote._live, "a sandbox is still thought to be there"


E2B = Provider("e2b", "e2b", ("e2b_cloud", "E2BCloud"), "E2B_API_KEY", "Start", "SendInput", renewed=True)
PRIME = Provider(
    "prime", "prime_sandboxes", ("prime_cloud", "PrimeCloud"), "PRIME_API_KEY", "Start", "SendInput", slow_429=True
)
MODAL = Provider(
    "modal", "modal", ("modal_cloud", "ModalCloud"), "MODAL_TOKEN_SECRET", "start", "write", renewed=True, resumes=True,
    key_options=(("token_id", "ak-1"), ("token_secret", "{}")),
)  # fmt: skip
DAYTONA = Provider(
    "daytona", "daytona", ("daytona_cloud", "DaytonaCloud"), "DAYTONA_API_KEY", "exec", "input", renewed=True
)
PROVIDERS = (E2B, PRIME, MODAL, DAYTONA)


def params(providers: tuple[Provider, ...] = PROVIDERS) -> list[Any]:
    """For ``pytest.mark.parametrize``: each provider, skipped with the reason where its SDK is missing."""
    return [
        pytest.param(each, id=each.name, marks=pytest.mark.skipif(each.missing is not None, reason=str(each.missing)))
        for each in providers
    ]

"""Fixtures of the providers' tests: ``serve`` starts a loopback server of a wire dialect."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load(name: str) -> ModuleType:
    """A module beside this file: pytest's importlib mode puts no folder of tests on the path."""
    full = f"rlm_dspy_test_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[full] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[full]


wires = _load("wires")
_load("native_wires")
servers = _load("servers")
_load("lines")

_VARIABLES = ("_API_KEY", "_API_BASE", "_BASE_URL", "_API_VERSION", "_ENDPOINT", "_RESOURCE")


@pytest.fixture(autouse=True)
def no_provider_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, address or proxy of the machine's own reaches a test."""
    for name in list(os.environ):
        if name.endswith(_VARIABLES) or name.lower() in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def serve() -> Iterator[Callable[..., Any]]:
    """``serve(dialect, model, key=None, policy=...)`` starts a server; see `servers.Server`."""
    started: list[Any] = []

    def start(dialect: str, model: str = "m", key: str | None = None, policy: Any = None) -> Any:
        started.append(servers.Server(dialect, model, key, policy or (lambda _: wires.Reply("hello"))))
        return started[-1]

    yield start
    for server in started:
        server.close()

"""Language models from what a command line says."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dspy

from rlm_dspy.errors import ConfigurationError

MODEL_VARIABLE = "RLM_DSPY_MODEL"
_SCRIPTED = "scripted:"
_LOCAL = "local"
_LOCAL_HOSTS = frozenset({"localhost", "::1", "0.0.0.0", "host.docker.internal"})


def models(
    root: str | None, sub: str | None, api_base: str | None, threads: int | None = None
) -> tuple[dspy.BaseLM, dspy.BaseLM | None]:
    """The root LM, and the sub-LM where it is another one.

    Args:
        root: The name of the root model; ``RLM_DSPY_MODEL`` if None. ``local`` and ``local/NAME`` are embedded models.
        sub: The name of the sub-model. A script brings its own.
        api_base: Base URL of the root's server, and of the sub-model's where both are of the same provider.
        threads: Threads that an embedded model computes with; all cores that this process may use if None.

    Raises:
        ConfigurationError: No model is named, a script cannot be used, there is no such embedded model, or ``threads``
            are given and neither model is embedded.
        MissingExtraError: It is an embedded model, and the extra ``local`` is not installed.
    """
    root = root or os.environ.get(MODEL_VARIABLE)
    if not root:
        raise ConfigurationError(
            f"no model: give --model or set {MODEL_VARIABLE}. For example --model openai/NAME with OPENAI_API_KEY set, "
            "--model anthropic/NAME with ANTHROPIC_API_KEY set, a local server: "
            "--model openai/NAME --api-base http://127.0.0.1:8000/v1, or without any of these the embedded model: "
            "--model local. What is there on this machine is told by: rlm-dspy doctor"
        )
    if threads is not None and not any(name and is_embedded(name) for name in (root, sub)):
        raise ConfigurationError(
            f"--threads is for the embedded model (--model local), and {root} computes elsewhere: leave it out"
        )
    root_lm = _model(root, api_base, ("root",), threads)
    if sub == root and is_embedded(root):
        # One copy of its weights is enough.
        return root_lm, root_lm
    if sub is None:
        if root.startswith(_SCRIPTED) and "sub" in _script(root):
            return root_lm, _model(root, None, ("sub",))
        return root_lm, None
    return root_lm, _model(sub, api_base if _provider(sub) == _provider(root) else None, ("sub", "root"), threads)


def named_or_own(
    root: str | None, sub: str | None, api_base: str | None, *, own: bool
) -> tuple[dspy.BaseLM | None, dspy.BaseLM | None]:
    """As `models`; ``(None, None)`` where nothing is named and the programs may have LMs of their own (``own``)."""
    if own and not (root or sub or os.environ.get(MODEL_VARIABLE)):
        return None, None
    return models(root, sub, api_base)


def _model(name: str, api_base: str | None, policies: tuple[str, ...], threads: int | None = None) -> dspy.BaseLM:
    if name.startswith(_SCRIPTED):
        return _scripted(name, policies)
    if is_embedded(name):
        return _embedded(name, threads)
    options: dict[str, Any] = {}
    if api_base:
        options["api_base"] = api_base
        if _is_local(api_base) and not os.environ.get(f"{_provider(name).upper()}_API_KEY"):
            # Local servers ask for no key, but the clients refuse to send a request without one.
            options["api_key"] = "none"
    return dspy.LM(name, **options)


def is_embedded(name: str) -> bool:
    """Whether this names an embedded model rather than a provider's: ``local`` or ``local/NAME``."""
    return name == _LOCAL or name.startswith(f"{_LOCAL}/")


def _embedded(name: str, threads: int | None) -> dspy.BaseLM:
    from rlm_dspy.models import local_lm

    which = name.partition("/")[2]
    return local_lm(which, threads=threads) if which else local_lm(threads=threads)


def _provider(name: str) -> str:
    provider, slash, _ = name.partition("/")
    return provider if slash else "openai"


def _is_local(url: str) -> bool:
    host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    return host in _LOCAL_HOSTS or host.startswith("127.") or host.endswith(".localhost")


def _script(name: str) -> dict[str, Any]:
    path = Path(name.removeprefix(_SCRIPTED))
    if not path.is_file():
        raise ConfigurationError(f"--model {name}: there is no file {path}")
    try:
        return runpy.run_path(str(path))
    except Exception as error:
        raise ConfigurationError(f"--model {name}: the script failed: {type(error).__name__}: {error}") from error


def _scripted(name: str, policies: tuple[str, ...]) -> dspy.BaseLM:
    from rlm_dspy.testing import ScriptedLM

    script = _script(name)
    for policy in policies:
        if policy in script:
            return ScriptedLM(script[policy], model=f"scripted/{policy}")
    raise ConfigurationError(f"--model {name}: the script defines no {policies[0]}(call)")

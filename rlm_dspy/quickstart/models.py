"""Which language model is at hand: one that was named, a provider's whose key is set, a local server's, our own.

The script, whose replies were written beforehand, is for whoever asks for it and where there is no other.

Only loopback addresses are asked, and only whether an OpenAI-compatible server answers there. No key is ever printed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

PROVIDERS = (
    ("OPENAI_API_KEY", "openai/gpt-5.4-mini"),
    ("ANTHROPIC_API_KEY", "anthropic/claude-haiku-4-5"),
    ("GEMINI_API_KEY", "gemini/gemini-flash-latest"),
    ("OPENROUTER_API_KEY", "openrouter/openai/gpt-5.4-mini"),
)
"""Environment variable of a key, and the small model of that provider that is used with it."""

LOCAL_SERVERS = ((11434, "Ollama"), (8000, "vLLM"), (1234, "LM Studio"), (8080, "llama.cpp"))
"""Usual loopback ports of OpenAI-compatible servers, and whose they usually are."""


@dataclass(frozen=True)
class Choice:
    """The model to use.

    Attributes:
        model: As ``dspy.LM`` takes it; None for the script and for the embedded model.
        why: One sentence on why it is this one.
        api_base: Base URL of a local server, or None.
        embedded: It is the model of the extra ``local``, which needs no key.
    """

    model: str | None
    why: str
    api_base: str | None = None
    embedded: bool = False

    def lm(self) -> Any:
        """The ``dspy.LM``, without DSPy's cache, so that what is shown took place; not to be called for the script.

        Raises:
            LocalModelError: The embedded model cannot be fetched, or there is too little memory for it.
        """
        if self.embedded:
            from rlm_dspy.models import local_lm

            lm = local_lm(cache=False, max_tokens=512)
            lm.start()
            return lm
        import dspy

        assert self.model is not None
        local = {"api_base": self.api_base, "api_key": "none"} if self.api_base else {}
        return dspy.LM(self.model, cache=False, **local)


def choose(environment: Mapping[str, str] | None = None) -> Choice:
    """Decide, by the environment variables given (the process's own if None) and what answers on loopback.

    In this order: ``SCRIPTED=1``; ``RLM_DSPY_MODEL`` (with ``RLM_DSPY_API_BASE`` for a server of one's own); a provider
    whose key is set; a local server; the embedded model, if its extra is installed; the script.
    """
    given = os.environ if environment is None else environment
    if given.get("SCRIPTED", "").lower() not in ("", "0", "no", "false"):
        return Choice(None, "SCRIPTED is set")
    named = given.get("RLM_DSPY_MODEL")
    if named:
        return Choice(named, "RLM_DSPY_MODEL names it", given.get("RLM_DSPY_API_BASE") or None)
    for key, model in PROVIDERS:
        if given.get(key):
            return Choice(model, f"{key} is set; RLM_DSPY_MODEL=... chooses another")
    local = _local()
    if local is not None:
        return local
    keys = ", ".join(key for key, _ in PROVIDERS)
    none = f"there is no RLM_DSPY_MODEL, no key ({keys}) and no local server"
    if importlib.util.find_spec("xllamacpp") is None:
        return Choice(None, f"{none}, and the extra 'local' is not installed")
    return Choice(None, none, embedded=True)


def _local() -> Choice | None:
    """The first model of the first local server that answers; all ports are asked at the same time."""
    with ThreadPoolExecutor(len(LOCAL_SERVERS)) as threads:
        found = list(threads.map(lambda server: first_model(f"http://127.0.0.1:{server[0]}/v1"), LOCAL_SERVERS))
    for (port, name), model in zip(LOCAL_SERVERS, found, strict=True):
        if model is not None:
            base = f"http://127.0.0.1:{port}/v1"
            why = f"a local server ({name}'s port, {port}) answers; RLM_DSPY_MODEL=... chooses another"
            return Choice(f"openai/{model}", why, base)
    return None


def first_model(api_base: str, timeout: float = 0.5) -> str | None:
    """The first language model that an OpenAI-compatible server lists, or None if there is no such server.

    Args:
        api_base: Such as ``"http://127.0.0.1:8000/v1"``.
        timeout: Seconds.
    """
    # A proxy set for the outside world must not be asked for loopback addresses.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{api_base}/models", timeout=timeout) as response:
            listed = json.loads(response.read(1 << 20))
        names = [str(item["id"]) for item in listed["data"]]
    except (OSError, ValueError, KeyError, TypeError, urllib.error.URLError):
        return None
    return next((name for name in names if "embed" not in name.lower()), None)

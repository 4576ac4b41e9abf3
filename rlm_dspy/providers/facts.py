"""What is known of the provider of a model, from the model's name, the LM's settings and the environment."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rlm_dspy.redact import redact


@dataclass(frozen=True)
class Provider:
    """A provider as ``dspy.LM`` knows it by the prefix of a model's name.

    Attributes:
        name: As people write it.
        keys: Environment variables that its key is read from; the first is the usual one. Empty where none is needed.
        address: Where it is reached unless told otherwise, for servers of one's own; or None.
    """

    name: str
    keys: tuple[str, ...] = ()
    address: str | None = None


# The variables are those that DSPy 3.4's native engine and LiteLLM 1.110 read.
PROVIDERS: dict[str, Provider] = {
    "openai": Provider("OpenAI", ("OPENAI_API_KEY",)),
    "anthropic": Provider("Anthropic", ("ANTHROPIC_API_KEY",)),
    "azure": Provider("Azure OpenAI", ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY")),
    "gemini": Provider("Gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
    "openrouter": Provider("OpenRouter", ("OPENROUTER_API_KEY",)),
    "portkey": Provider("Portkey", ("PORTKEY_API_KEY",)),
    "groq": Provider("Groq", ("GROQ_API_KEY",)),
    "deepseek": Provider("DeepSeek", ("DEEPSEEK_API_KEY",)),
    "xai": Provider("xAI", ("XAI_API_KEY",)),
    "mistral": Provider("Mistral", ("MISTRAL_API_KEY",)),
    "moonshot": Provider("Moonshot", ("MOONSHOT_API_KEY", "MOONSHOTAI_API_KEY")),
    "together_ai": Provider("Together", ("TOGETHERAI_API_KEY", "TOGETHER_API_KEY", "TOGETHER_AI_API_KEY")),
    "fireworks_ai": Provider("Fireworks", ("FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY")),
    "cohere": Provider("Cohere", ("COHERE_API_KEY", "CO_API_KEY")),
    "perplexity": Provider("Perplexity", ("PERPLEXITYAI_API_KEY",)),
    "huggingface": Provider("Hugging Face", ("HF_TOKEN", "HUGGINGFACE_API_KEY")),
    "bedrock": Provider("Amazon Bedrock", ("AWS_BEARER_TOKEN_BEDROCK",)),
    "vertex_ai": Provider("Vertex AI", ("GOOGLE_APPLICATION_CREDENTIALS",)),
    "ollama": Provider("Ollama", (), "http://localhost:11434"),
    "ollama_chat": Provider("Ollama", (), "http://localhost:11434"),
    "hosted_vllm": Provider("vLLM", (), "http://localhost:8000"),
    "lm_studio": Provider("LM Studio", (), "http://localhost:1234"),
    "llamafile": Provider("llamafile", (), "http://localhost:8080"),
}

# Names that DSPy routes without a prefix.
_BARE = (("claude-", "anthropic"), ("gemini-", "gemini"), ("gemma-", "gemini"), ("grok-", "xai"))
_BARE_OPENAI = re.compile(r"gpt-|o[134](-|$)|chat-latest|chatgpt-")

PORTKEY_HEADER = "x-portkey-api-key"
_URL_VARIABLES = ("{}_API_BASE", "{}_BASE_URL")
# Whole words: "x-portkey-trace-id" and "max_tokens" are none.
_SECRET = re.compile(r"(?<![a-z])(key|token|secret|password|authorization|credentials?)(?![a-z])", re.IGNORECASE)


def prefix_of(model: str) -> str:
    """The part of a model's name that chooses the provider; empty where the name chooses none."""
    prefix, slash, rest = model.partition("/")
    if slash and rest.startswith("@") and prefix == "openai":
        return "portkey"  # only there do the names of models begin with a provider's slug
    if slash and rest:
        return prefix
    found = next((provider for start, provider in _BARE if model.startswith(start)), None)
    return found or ("openai" if _BARE_OPENAI.match(model) else "")


def provider_of(model: str) -> Provider:
    """The provider of ``model``, also one that was registered with ``dspy.lm15.register_provider``."""
    prefix = prefix_of(model)
    if prefix in PROVIDERS:
        return PROVIDERS[prefix]
    from dspy.lm15 import registered_providers

    for registered in registered_providers():
        definition = registered.definition
        if prefix.replace("_", "-") in definition.spellings:
            return Provider(definition.id, tuple(definition.env_keys), definition.base_url)
    if not prefix:
        return Provider("the provider")
    return Provider(prefix, (f"{re.sub(r'[^A-Za-z0-9]', '_', prefix).upper()}_API_KEY",))


def key_variables(model: str) -> tuple[str, ...]:
    """Environment variables that the key for ``model`` is read from, the usual one first; empty if it needs none.

    Args:
        model: As ``dspy.LM`` takes it, such as ``"openai/gpt-5.4-mini"``. For a provider that is not known here, the
            name is the one that LiteLLM's providers have by convention.
    """
    return provider_of(model).keys


def settings_of(lm: Any) -> dict[str, Any]:
    """The keyword settings of an LM, empty for what is none."""
    kwargs = getattr(lm, "kwargs", None)
    return kwargs if isinstance(kwargs, dict) else {}


def key_source(model: str, lm: Any) -> str | None:
    """Where the key in force comes from: a setting of the LM, an environment variable, or None for no key."""
    headers = settings_of(lm).get("extra_headers")
    if prefix_of(model) == "portkey" and isinstance(headers, dict) and PORTKEY_HEADER in map(str.lower, headers):
        return PORTKEY_HEADER
    if settings_of(lm).get("api_key"):
        return "api_key"
    return next((name for name in key_variables(model) if os.environ.get(name)), None)


def address_of(model: str, lm: Any) -> str | None:
    """The base URL that requests go to, if it is one's own choice or a local server's; None for a public endpoint."""
    given = settings_of(lm).get("api_base") or settings_of(lm).get("base_url")
    if given:
        return str(given)
    prefix = prefix_of(model)
    names = [pattern.format(prefix.upper()) for pattern in _URL_VARIABLES]
    if prefix == "azure":
        names += ["AZURE_OPENAI_ENDPOINT"]
    found = next((os.environ[name] for name in names if os.environ.get(name)), None)
    return found or provider_of(model).address


def is_loopback(url: str) -> bool:
    """Whether ``url`` is of this machine."""
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def shown_url(url: str) -> str:
    """``url`` as a message may have it: without user, password, query, and parts of the path that may be secrets."""
    try:
        split = urlsplit(url if "//" in url else f"//{url}")
        host = split.hostname or ""
        port = f":{split.port}" if split.port else ""
    except ValueError:
        return "(an address that is no URL)"
    host = f"[{host}]" if ":" in host else host
    path = "/".join(part if len(part) <= 20 else "…" for part in split.path.split("/"))
    scheme = f"{split.scheme}://" if split.scheme else ""
    return redact(f"{scheme}{host}{port}{path}".rstrip("/"))


def secrets(lm: Any) -> Iterator[str]:
    """The values among the settings of ``lm`` that must not be seen: its key, and those in headers.

    For `rlm_dspy.redact.hide`. Gateways such as Portkey take their key in a header of its own.
    """
    settings = settings_of(lm)
    for name, value in settings.items():
        if isinstance(value, str) and _SECRET.search(name):
            yield value
    for headers in (settings.get("extra_headers"), settings.get("headers")):
        for name, value in headers.items() if isinstance(headers, dict) else ():
            if isinstance(value, str) and _SECRET.search(str(name)):
                yield value.removeprefix("Bearer ")

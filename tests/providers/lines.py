"""The lines of the README's table of providers: how ``dspy.LM`` is made, and what a server then sees of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dspy
import pytest

KEY = "key-for-tests-0123456789"
OTHER = "key-of-somebody-else-9876543210"


@dataclass(frozen=True)
class Line:
    """One way to reach a provider.

    Attributes:
        wire: The dialect of the server.
        model: As ``dspy.LM`` takes it.
        served: The name that the server has the model under.
        options: Of ``dspy.LM``. ``ORIGIN`` and ``BASE`` stand for the server's address, ``KEY`` for the key.
        variables: Environment variables, with the same stand-ins.
        path: Where the request arrives.
        keyless: The server asks for no key.
        native: DSPy's own engine serves it, not LiteLLM.
    """

    wire: str
    model: str
    served: str
    options: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    path: str = "/v1/chat/completions"
    keyless: bool = False
    native: bool = True


PORTKEY = {"x-portkey-api-key": "KEY"}
LINES = {
    "openai": Line(
        *("openai", "openai/gpt-5.4-mini", "gpt-5.4-mini"), {"api_base": "BASE"}, {"OPENAI_API_KEY": "KEY"},

    ),
    "openai-env": Line(
        *("openai", "openai/gpt-5.4-mini", "gpt-5.4-mini"), {}, {"OPENAI_API_KEY": "KEY", "OPENAI_API_BASE": "BASE"},
        native=False,
    ),
    "openai-responses": Line(
        *("responses", "openai/gpt-5.4-mini", "gpt-5.4-mini"), {"model_type": "responses", "api_base": "BASE"},
        {"OPENAI_API_KEY": "KEY"}, "/v1/responses",
    ),
    "anthropic": Line(
        *("anthropic", "anthropic/claude-haiku-4-5", "claude-haiku-4-5"), {"api_base": "ORIGIN/v1"},
        {"ANTHROPIC_API_KEY": "KEY"}, "/v1/messages",
    ),
    "anthropic-litellm": Line(
        *("anthropic", "anthropic/claude-haiku-4-5", "claude-haiku-4-5"), {"api_base": "ORIGIN", "engine": "litellm"},
        {"ANTHROPIC_API_KEY": "KEY"}, "/v1/messages", native=False,
    ),
    "gemini": Line(
        *("gemini", "gemini/gemini-flash-latest", "gemini-flash-latest"), {"api_base": "BASE"},
        {"GEMINI_API_KEY": "KEY"}, "/v1beta/models/gemini-flash-latest:generateContent",
    ),
    "azure": Line(
        *("azure", "azure/my-deployment", "my-deployment"), {},
        {"AZURE_OPENAI_API_KEY": "KEY", "AZURE_OPENAI_ENDPOINT": "ORIGIN"}, "/openai/v1/chat/completions",

    ),
    "azure-version": Line(
        *("azure", "azure/my-deployment", "my-deployment"), {},
        {"AZURE_API_KEY": "KEY", "AZURE_API_BASE": "ORIGIN", "AZURE_API_VERSION": "2024-10-21"},
        "/openai/deployments/my-deployment/chat/completions", native=False,
    ),
    "openrouter": Line(
        *("openrouter", "openrouter/openai/gpt-5.4-mini", "openai/gpt-5.4-mini"), {"api_base": "BASE"},
        {"OPENROUTER_API_KEY": "KEY"}, "/api/v1/chat/completions",
    ),
    "portkey": Line(
        *("portkey", "openai/@my-openai/gpt-5.4-mini", "@my-openai/gpt-5.4-mini"),
        {"api_base": "BASE", "api_key": "unused", "extra_headers": PORTKEY}, native=False,
    ),
    "vllm": Line("vllm", "hosted_vllm/Qwen/Qwen3-8B", "Qwen/Qwen3-8B", {"api_base": "BASE"}, keyless=True),
    "ollama": Line("ollama", "ollama_chat/qwen3:8b", "qwen3:8b", {"api_base": "BASE"}, keyless=True),
    "ollama-native": Line(
        *("ollama-native", "ollama_chat/qwen3:8b", "qwen3:8b"), {"api_base": "ORIGIN", "engine": "litellm"},
        path="/api/chat", keyless=True, native=False,
    ),
    "llama.cpp": Line(
        *("llamacpp", "openai/local", "local"), {"api_base": "BASE", "api_key": "none"}, keyless=True
    ),
}


def start(line: Line, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, policy: Any, **more: Any) -> Any:
    """The server, and the LM that the line makes."""
    server = serve(line.wire, line.served, None if line.keyless else KEY, policy)

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill(inner) for key, inner in value.items()}
        if not isinstance(value, str):
            return value
        return value.replace("ORIGIN", server.origin).replace("BASE", server.url).replace("KEY", KEY)

    for name, value in line.variables.items():
        monkeypatch.setenv(name, fill(value))
    return server, dspy.LM(line.model, cache=False, **fill(line.options), **more)

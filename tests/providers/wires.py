"""The wire dialects of providers, from the server's side: what each refuses, how it answers, how it fails.

Each dialect checks a request by the rules that its provider documents, so that a request that passes here has the
shape that the real one takes:

    OpenAI       Chat Completions and Responses, API reference
    Anthropic    Messages, API reference and error reference
    Gemini       generateContent and streamGenerateContent, API reference
    Azure        OpenAI in Azure, v1 and deployment paths
    Ollama       /api/chat, docs/api.md in its repository
    vLLM, llama.cpp, OpenRouter, Portkey: Chat Completions with what each adds

This file has the first and those that speak it too; `native_wires` has the rest.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

INPUT, CACHED, OUTPUT, REASONING = 11, 4, 7, 3
"""The usage that every reply reports: tokens in, of those from a cache; tokens out, of those reasoning."""


@dataclass(frozen=True)
class Reply:
    """What the model says; ``finish`` is ``"stop"`` or ``"length"``."""

    text: str
    reasoning: str = ""
    finish: str = "stop"


@dataclass(frozen=True)
class Seen:
    """One request as it arrived. Header names are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def streams(self) -> bool:
        """Whether the answer was asked for piece by piece."""
        return bool(self.body.get("stream")) or ":stream" in self.path


class Refused(Exception):
    """The request is not what the provider takes."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status} {json.dumps(body)}")
        self.status = status
        self.body = body


class Wire:
    """OpenAI's Chat Completions, and what the others have in common with it."""

    base = "/v1"
    key_header = "authorization"
    stream_type = "text/event-stream"
    reasoning_field = ""
    alternates = False
    """Whether two messages of one role in a row are refused, as the chat templates of Gemma and Mistral do."""
    known = frozenset(
        "model messages temperature top_p max_tokens max_completion_tokens stream stream_options n stop seed "
        "response_format reasoning_effort tools tool_choice user logprobs top_logprobs".split()
    )

    def __init__(self, model: str, key: str | None) -> None:
        self.model = model
        self.key = key

    # what comes in

    def aside(self, seen: Seen) -> Any:
        """The answer to a request about the server rather than to the model, or None."""
        return None

    def path_is_right(self, seen: Seen) -> bool:
        return seen.path == f"{self.base}/chat/completions"

    def key_of(self, seen: Seen) -> str:
        return seen.headers.get(self.key_header, "").removeprefix("Bearer ")

    def model_of(self, seen: Seen) -> str:
        return str(seen.body.get("model"))

    def check(self, seen: Seen) -> None:
        """Raise `Refused` for what the provider would refuse."""
        if not self.path_is_right(seen):
            raise Refused(404, {"error": {"message": f"Invalid URL ({seen.method} {seen.path})", "code": None}})
        if self.key is not None and self.key_of(seen) != self.key:
            raise Refused(*self.error("auth", seen))
        if self.model_of(seen) != self.model:
            raise Refused(*self.error("model", seen))
        self.check_body(seen)

    def check_body(self, seen: Seen) -> None:
        body = seen.body
        self._only(set(body), self.known)
        self._require(isinstance(body.get("messages"), list) and body["messages"], "messages must be a non-empty list")
        self._require("stream_options" not in body or body.get("stream") is True, "stream_options needs stream")
        allowed = {"role", "content", "name"} | ({self.reasoning_field} if self.reasoning_field else set())
        for number, message in enumerate(body["messages"]):
            where = f"messages[{number}]"
            self._require(message.get("role") in ("system", "developer", "user", "assistant"), f"{where}.role")
            self._require(self._text(message["content"]).strip() != "", f"{where}.content is empty")
            self._only(set(message), allowed)
            if message["role"] in ("system", "developer"):
                self._require(number == 0, f"{where}: chat templates take a system message in first place only")
        roles = [message["role"] for message in body["messages"] if message["role"] in ("user", "assistant")]
        if self.alternates:
            turns = all(one != other for one, other in itertools.pairwise(roles))
            self._require(turns, "Conversation roles must alternate user/assistant/user/assistant/...")
        self._require(roles[-1:] == ["user"], "the last message must be the user's")

    def turns(self, seen: Seen) -> list[tuple[str, str]]:
        """Role and text of every message, the system's included."""
        return [(message["role"], self._text(message["content"])) for message in seen.body["messages"]]

    def _text(self, content: Any) -> str:
        if isinstance(content, str):
            return content
        self._require(isinstance(content, list) and content, "content must be text or a non-empty list")
        self._require(all(part.get("type") == "text" for part in content), "content part of an unknown type")
        return "".join(part["text"] for part in content)

    def _only(self, given: set[str], known: frozenset[str] | set[str]) -> None:
        self._require(given <= known, f"Unrecognized request argument supplied: {sorted(given - known)}")

    def _require(self, true: Any, message: str) -> None:
        if not true:
            raise Refused(400, {"error": {"message": message, "type": "invalid_request_error", "code": None}})

    # what goes out

    def reply(self, reply: Reply) -> Any:
        message = {"role": "assistant", "content": reply.text}
        if reply.reasoning and self.reasoning_field:
            message[self.reasoning_field] = reply.reasoning
        choice = {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}
        return {**self._envelope("chat.completion"), "choices": [choice], "usage": self._usage()}

    def stream(self, reply: Reply) -> bytes:
        chunk = self._envelope("chat.completion.chunk")
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        if reply.reasoning and self.reasoning_field:
            deltas.append({self.reasoning_field: reply.reasoning})
        deltas += [{"content": word} for word in words(reply.text)]
        events = [{**chunk, "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
        events.append({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish}]})
        events.append({**chunk, "choices": [], "usage": self._usage()})
        return sse(*events) + b"data: [DONE]\n\n"

    def error(self, kind: str, seen: Seen) -> tuple[int, Any]:
        """Status and body of a failure: auth, denied, model, quota, rate, context, server."""
        presented, model = self.key_of(seen), self.model_of(seen)
        status, code, message = {
            "auth": (401, "invalid_api_key", f"Incorrect API key provided: {presented}."),
            "denied": (403, "unsupported_country", "Access denied."),
            "model": (404, "model_not_found", f"The model `{model}` does not exist or you do not have access to it."),
            "quota": (429, "insufficient_quota", "You exceeded your current quota, check your plan and billing."),
            "rate": (429, "rate_limit_exceeded", "Rate limit reached."),
            "context": (400, "context_length_exceeded", "This model's maximum context length is 8192 tokens."),
            "server": (500, "server_error", "The server had an error."),
        }[kind]
        return status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}

    def models(self) -> Any:
        return {"object": "list", "data": [{"id": self.model, "object": "model"}]}

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": "c1", "object": kind, "created": 1, "model": self.model}

    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": INPUT,
            "completion_tokens": OUTPUT,
            "total_tokens": INPUT + OUTPUT,
            "prompt_tokens_details": {"cached_tokens": CACHED},
            "completion_tokens_details": {"reasoning_tokens": REASONING},
        }


class OpenRouter(Wire):
    base = "/api/v1"
    reasoning_field = "reasoning"
    known = Wire.known | {"usage", "reasoning", "include_reasoning", "provider", "models", "transforms"}

    def error(self, kind: str, seen: Seen) -> tuple[int, Any]:
        status, message = {
            "auth": (401, "User not found."),
            "denied": (403, "Key limit exceeded."),
            "model": (400, f"{self.model_of(seen)} is not a valid model ID"),
            "quota": (402, "Insufficient credits. Add more to continue."),
            "rate": (429, "Rate limit exceeded: free-models-per-min."),
            "context": (400, "This endpoint's maximum context length is 8192 tokens. However, you requested 9000."),
            "server": (502, "Provider returned error"),
        }[kind]
        return status, {"error": {"message": message, "code": status}}


class Portkey(Wire):
    """Its own header carries the key; the model's name begins with the provider's slug."""

    key_header = "x-portkey-api-key"

    def check_body(self, seen: Seen) -> None:
        routed = self.model.startswith("@") or seen.headers.keys() & {"x-portkey-provider", "x-portkey-config"}
        if not routed:
            raise Refused(400, {"status": "failure", "message": "x-portkey-config or x-portkey-provider is required"})
        super().check_body(seen)

    def error(self, kind: str, seen: Seen) -> tuple[int, Any]:
        if kind == "auth":
            return 401, {"status": "failure", "message": "Invalid API Key. Error Code: 03"}
        return super().error(kind, seen)


class VLLM(Wire):
    reasoning_field = "reasoning_content"
    alternates = True

    def error(self, kind: str, seen: Seen) -> tuple[int, Any]:
        if kind == "model":
            message = f"The model `{self.model_of(seen)}` does not exist."
            return 404, {"error": {"message": message, "type": "NotFoundError", "param": "model", "code": 404}}
        if kind == "context":
            message = "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens."
            return 400, {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}
        return super().error(kind, seen)


class LlamaCpp(Wire):
    """``llama-server``: any model name is its one model; a system message is taken in first place only."""

    reasoning_field = "reasoning_content"
    alternates = True

    def model_of(self, seen: Seen) -> str:
        return self.model

    def error(self, kind: str, seen: Seen) -> tuple[int, Any]:
        if kind == "context":
            about = {"type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 4096}
            return 400, {"error": {"code": 400, "message": "request (9000 tokens) exceeds the context size", **about}}
        return super().error(kind, seen)


class OllamaChat(Wire):
    """Ollama's OpenAI-compatible paths."""

    def error(self, kind: str, seen: Seen) -> tuple[int, Any]:
        if kind == "model":
            message = f'model "{self.model_of(seen)}" not found, try pulling it first'
            return 404, {"error": {"message": message, "type": "not_found_error", "param": None, "code": None}}
        return super().error(kind, seen)


class Azure(Wire):
    """The v1 paths, whose model is the deployment, and the older ones, which name both it and the API's version."""

    base = "/openai/v1"
    key_header = "api-key"

    def path_is_right(self, seen: Seen) -> bool:
        if seen.path.startswith("/openai/deployments/"):
            return seen.path.endswith("/chat/completions") and "api-version" in seen.query
        return super().path_is_right(seen)

    def model_of(self, seen: Seen) -> str:
        named = re.match(r"/openai/deployments/([^/]+)/", seen.path)
        return named[1] if named else super().model_of(seen)

    def error(self, kind: str, seen: Seen) -> tuple[int, Any]:
        if kind == "model":
            return 404, {"error": {"code": "DeploymentNotFound", "message": "The deployment does not exist."}}
        if kind == "auth":
            return 401, {"error": {"code": "401", "message": "Access denied: invalid subscription key or endpoint."}}
        return super().error(kind, seen)


def words(text: str) -> list[str]:
    """``text`` in pieces that add up to it."""
    return re.findall(r"\S+\s*|\s+", text)


def sse(*events: dict[str, Any], named: bool = False) -> bytes:
    """Server-sent events; ``named`` ones carry their type in a line of its own."""
    name: Callable[[dict[str, Any]], str] = lambda event: f"event: {event['type']}\n" if named else ""  # noqa: E731
    return "".join(f"{name(event)}data: {json.dumps(event)}\n\n" for event in events).encode()

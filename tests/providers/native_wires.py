"""The wire dialects that are not OpenAI's Chat Completions; see `wires`."""

from __future__ import annotations

import json
import re
from typing import Any

from rlm_dspy_test_wires import (
    CACHED,
    INPUT,
    OUTPUT,
    REASONING,
    VLLM,
    Azure,
    LlamaCpp,
    OllamaChat,
    OpenRouter,
    Portkey,
    Refused,
    Reply,
    Seen,
    Wire,
    sse,
    words,
)


class OllamaNative(Wire):
    """Ollama's own ``/api/chat``; a reply may come as lines of JSON."""

    base = ""
    stream_type = "application/x-ndjson"
    reasoning_field = "thinking"
    known = frozenset("model messages stream options format keep_alive tools think template".split())

    def aside(self, seen: Seen) -> Any:
        if seen.path == "/api/show":
            return {"template": "", "model_info": {}, "capabilities": ["completion"]}
        return None

    def path_is_right(self, seen: Seen) -> bool:
        return seen.path == "/api/chat"

    def check_body(self, seen: Seen) -> None:
        options = seen.body.get("options") or {}
        self._only(set(options), {"temperature", "num_predict", "num_ctx", "top_p", "top_k", "seed", "stop"})
        beside = ("images", "tool_calls")
        messages = [{k: v for k, v in m.items() if k not in beside} for m in seen.body.get("messages") or []]
        body = {key: value for key, value in seen.body.items() if key in ("model", "stream")}
        self._only(set(seen.body), self.known)
        super().check_body(Seen(seen.method, seen.path, seen.query, seen.headers, {**body, "messages": messages}))

    def reply(self, reply: Reply) -> Any:
        thinking = {"thinking": reply.reasoning} if reply.reasoning else {}
        message = {"role": "assistant", "content": reply.text, **thinking}
        return {"message": message, **self._end(reply)}

    def stream(self, reply: Reply) -> bytes:
        start = {"model": self.model, "created_at": "2026-11-01T00:00:00Z"}
        parts = [{**start, "message": {"role": "assistant", "content": w}, "done": False} for w in words(reply.text)]
        parts.append({"message": {"role": "assistant", "content": ""}, **self._end(reply)})
        return "".join(json.dumps(part) + "\n" for part in parts).encode()

    def _end(self, reply: Reply) -> dict[str, Any]:
        counts = {"prompt_eval_count": INPUT, "eval_count": OUTPUT, "total_duration": 1}
        about = {"model": self.model, "created_at": "2026-11-01T00:00:00Z", "done": True}
        return {**about, "done_reason": reply.finish, **counts}

    def error(self, kind: str, seen: Seen) -> tuple[int, Any]:
        status, body = super().error(kind, seen)
        model = f'model "{self.model_of(seen)}" not found, try pulling it first'
        return status, {"error": model if kind == "model" else body["error"]["message"]}


class Responses(Wire):
    """OpenAI's Responses."""

    known = frozenset(
        "model input instructions max_output_tokens temperature top_p stream store include reasoning text".split()
    )

    def path_is_right(self, seen: Seen) -> bool:
        return seen.path == "/v1/responses"

    def check_body(self, seen: Seen) -> None:
        body = seen.body
        self._only(set(body), self.known)
        self._require(body.get("max_output_tokens", 16) >= 16, "max_output_tokens must be at least 16")
        self._require(isinstance(body.get("input"), list) and body["input"], "input must be a non-empty list")
        for item in body["input"]:
            if item.get("type") == "reasoning":
                continue
            self._require(item.get("role") in ("system", "developer", "user", "assistant"), "input[].role")
            self._require(self._parts(item).strip(), "input[].content is empty")
        self._require(body["input"][-1]["role"] == "user", "the last item must be the user's")

    def turns(self, seen: Seen) -> list[tuple[str, str]]:
        system = [("system", seen.body["instructions"])] if seen.body.get("instructions") else []
        return system + [(item["role"], self._parts(item)) for item in seen.body["input"] if "role" in item]

    def _parts(self, item: dict[str, Any]) -> str:
        if isinstance(item["content"], str):
            return str(item["content"])
        wanted = "output_text" if item["role"] == "assistant" else "input_text"
        self._require(all(part["type"] == wanted for part in item["content"]), f"{item['role']} takes {wanted} parts")
        return "".join(part["text"] for part in item["content"])

    def reply(self, reply: Reply) -> Any:
        output: list[dict[str, Any]] = []
        if reply.reasoning:
            summary = [{"type": "summary_text", "text": reply.reasoning}]
            output.append({"type": "reasoning", "id": "r1", "summary": summary})
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        output.append({"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": content})
        incomplete = reply.finish == "length"
        return {
            **{"id": "resp_1", "object": "response", "created_at": 1, "model": self.model, "output": output},
            "status": "incomplete" if incomplete else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if incomplete else None,
            **{"error": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True, "tools": []},
            **{"temperature": 1.0, "top_p": 1.0, "tool_choice": "auto", "max_output_tokens": None},
            "usage": {
                "input_tokens": INPUT,
                "input_tokens_details": {"cached_tokens": CACHED},
                "output_tokens": OUTPUT,
                "output_tokens_details": {"reasoning_tokens": REASONING},
                "total_tokens": INPUT + OUTPUT,
            },
        }

    def stream(self, reply: Reply) -> bytes:
        whole = self.reply(reply)
        began = {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}
        place = {"item_id": "m1", "output_index": 0, "content_index": 0}
        deltas = [{"type": "response.output_text.delta", **place, "delta": word} for word in words(reply.text)]
        return sse(began, *deltas, {"type": "response.completed", "response": whole}, named=True)


class Anthropic(Wire):
    key_header = "x-api-key"
    base = ""
    known = frozenset(
        "model messages max_tokens system temperature top_p top_k stream stop_sequences thinking metadata".split()
    )

    def path_is_right(self, seen: Seen) -> bool:
        return seen.path == "/v1/messages"

    def check_body(self, seen: Seen) -> None:
        body, messages = seen.body, seen.body.get("messages")
        self._require("anthropic-version" in seen.headers, "anthropic-version: header is required")
        self._only(set(body), self.known)
        self._require(isinstance(body.get("max_tokens"), int) and body["max_tokens"] > 0, "max_tokens: Field required")
        self._require(0 <= (body.get("temperature") or 0) <= 1, "temperature: range: 0..1")
        self._require(not body.get("system") or self._text(body["system"]).strip(), "system: text must be non-empty")
        self._require(isinstance(messages, list) and messages, "messages: at least one message is required")
        self._require(messages[0]["role"] == "user", "messages: first message must use the user role")
        for number, message in enumerate(messages):
            self._require(set(message) == {"role", "content"}, f"messages.{number}: Extra inputs are not permitted")
            self._require(message["role"] in ("user", "assistant"), f'messages: Unexpected role "{message["role"]}"')
            self._require(self._text(message["content"]).strip(), "messages: text content blocks must be non-empty")
            if number == len(messages) - 1 and message["role"] == "assistant":
                text = self._text(message["content"])
                self._require(text == text.rstrip(), "final assistant content cannot end with trailing whitespace")

    def turns(self, seen: Seen) -> list[tuple[str, str]]:
        system = [("system", self._text(seen.body["system"]))] if seen.body.get("system") else []
        return system + super().turns(seen)

    def _require(self, true: Any, message: str) -> None:
        if not true:
            about = {"type": "invalid_request_error", "message": message}
            raise Refused(400, {"type": "error", "error": about})

    def reply(self, reply: Reply) -> Any:
        thinking = {"type": "thinking", "thinking": reply.reasoning, "signature": "c2lnbmVk"}
        content = [*([thinking] if reply.reasoning else []), {"type": "text", "text": reply.text}]
        stop = "max_tokens" if reply.finish == "length" else "end_turn"
        about = {"id": "msg_1", "type": "message", "role": "assistant", "model": self.model, "stop_sequence": None}
        return {**about, "content": content, "stop_reason": stop, "usage": self._usage()}

    def stream(self, reply: Reply) -> bytes:
        whole = self.reply(reply)
        start = {**whole, "content": [], "stop_reason": None, "usage": {**self._usage(), "output_tokens": 1}}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
        events.append({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
        for word in words(reply.text):
            delta = {"type": "text_delta", "text": word}
            events.append({"type": "content_block_delta", "index": 0, "delta": delta})
        events.append({"type": "content_block_stop", "index": 0})
        ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        events.append({"type": "message_delta", "delta": ended, "usage": self._usage()})
        return sse(*events, {"type": "message_stop"}, named=True)

    def _usage(self) -> dict[str, Any]:
        """Anthropic counts what came from the cache beside the input, not in it."""
        cached = {"cache_read_input_tokens": CACHED, "cache_creation_input_tokens": 0}
        return {"input_tokens": INPUT - CACHED, "output_tokens": OUTPUT, **cached}

    def error(self, kind: str, seen: Seen) -> tuple[int, Any]:
        status, name, message = {
            "auth": (401, "authentication_error", f"invalid x-api-key {self.key_of(seen)}"),
            "denied": (403, "permission_error", "Your API key may not use the resource."),
            "model": (404, "not_found_error", f"model: {self.model_of(seen)}"),
            "quota": (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
            "rate": (429, "rate_limit_error", "This request would exceed your rate limit."),
            "context": (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
            "server": (529, "overloaded_error", "Overloaded"),
        }[kind]
        return status, {"type": "error", "error": {"type": name, "message": message}, "request_id": "req_1"}


class Gemini(Wire):
    base = "/v1beta"
    key_header = "x-goog-api-key"
    known = frozenset(
        "contents systemInstruction generationConfig safetySettings tools toolConfig cachedContent".split()
    )
    _path = re.compile(r"/v1beta/models/([^/:]+):(generateContent|streamGenerateContent)")

    def path_is_right(self, seen: Seen) -> bool:
        return self._path.fullmatch(seen.path) is not None

    def key_of(self, seen: Seen) -> str:
        return seen.headers.get(self.key_header) or seen.query.get("key", "")

    def model_of(self, seen: Seen) -> str:
        found = self._path.fullmatch(seen.path)
        return found[1] if found else ""

    def check_body(self, seen: Seen) -> None:
        # Protocol buffers take either spelling of a field.
        body = {re.sub("_([a-z])", lambda m: m[1].upper(), key): value for key, value in seen.body.items()}
        self._only(set(body), self.known)
        contents = body.get("contents")
        self._require(isinstance(contents, list) and contents, "contents is not specified")
        for content in contents:
            self._require(content.get("role") in ("user", "model"), "Please use a valid role: user, model.")
            self._require(content.get("parts"), "contents.parts must not be empty")
            for part in content["parts"]:
                self._require((part.get("text") or "").strip(), "a part must have a text parameter")
        self._require(contents[0]["role"] == "user" == contents[-1]["role"], "the first and last turn are the user's")

    def turns(self, seen: Seen) -> list[tuple[str, str]]:
        system = seen.body.get("systemInstruction") or seen.body.get("system_instruction")
        turns = [("system", system)] if system else []
        turns += [("assistant" if c["role"] == "model" else "user", c) for c in seen.body["contents"]]
        return [(role, "".join(part["text"] for part in content["parts"])) for role, content in turns]

    def _require(self, true: Any, message: str) -> None:
        if not true:
            raise Refused(400, {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}})

    def reply(self, reply: Reply) -> Any:
        thought = [{"text": reply.reasoning, "thought": True}] if reply.reasoning else []
        return self._chunk([*thought, {"text": reply.text}], "MAX_TOKENS" if reply.finish == "length" else "STOP")

    def stream(self, reply: Reply) -> bytes:
        pieces = words(reply.text)
        last = "MAX_TOKENS" if reply.finish == "length" else "STOP"
        return sse(*(self._chunk([{"text": w}], last if n == len(pieces) - 1 else None) for n, w in enumerate(pieces)))

    def _chunk(self, parts: list[dict[str, Any]], finish: str | None) -> dict[str, Any]:
        """Gemini counts its thoughts beside the candidates' tokens, not in them."""
        answer = {"candidatesTokenCount": OUTPUT - REASONING, "thoughtsTokenCount": REASONING}
        given = {"promptTokenCount": INPUT, "cachedContentTokenCount": CACHED}
        usage = {**given, **answer, "totalTokenCount": INPUT + OUTPUT}
        candidate = {"content": {"role": "model", "parts": parts}, "index": 0}
        candidates = [{**candidate, **({"finishReason": finish} if finish else {})}]
        return {"candidates": candidates, "usageMetadata": usage, "modelVersion": self.model, "responseId": "g1"}

    def error(self, kind: str, seen: Seen) -> tuple[int, Any]:
        named = f"models/{self.model_of(seen)} is not found for API version v1beta"
        status, name, message = {
            "auth": (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
            "denied": (403, "PERMISSION_DENIED", "Your API key was reported as leaked."),
            "model": (404, "NOT_FOUND", named),
            "quota": (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota, check your plan and billing."),
            "rate": (429, "RESOURCE_EXHAUSTED", "Resource has been exhausted."),
            "context": (400, "INVALID_ARGUMENT", "The input token count exceeds the maximum number of tokens allowed."),
            "server": (503, "UNAVAILABLE", "The model is overloaded."),
        }[kind]
        reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
        details = [reason] if kind == "auth" else []
        return status, {"error": {"code": status, "message": message, "status": name, "details": details}}


WIRES: dict[str, type[Wire]] = {
    "openai": Wire,
    "responses": Responses,
    "anthropic": Anthropic,
    "gemini": Gemini,
    "azure": Azure,
    "openrouter": OpenRouter,
    "portkey": Portkey,
    "vllm": VLLM,
    "llamacpp": LlamaCpp,
    "ollama": OllamaChat,
    "ollama-native": OllamaNative,
}

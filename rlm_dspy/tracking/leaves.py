"""What the span of one LM request says: messages, settings, tokens, money."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rlm_dspy.metering import Metered
from rlm_dspy.prices import PICO
from rlm_dspy.tracking.capped import Clip, mark, sha256
from rlm_dspy.tracking.spans import SpanAttributeKey
from rlm_dspy.usage import summed

_SHOWN = (
    *("temperature", "max_tokens", "max_completion_tokens", "top_p", "top_k", "n", "stop", "seed"),
    *("presence_penalty", "frequency_penalty", "reasoning_effort", "rollout_id"),
)
"""The settings of an LM that are stored. By name, because anything else may hold a key: headers, addresses, bodies."""
MESSAGES_WHOLE = 4
"""Caps that the messages of one request may have together; of older ones beyond that the size and hash are stored."""


def settings_of(lm: Any, model: str) -> dict[str, Any]:
    """Attributes known before the request: the model, its provider, plain settings."""
    given = getattr(lm, "kwargs", None) or {}
    provider, slash, _ = model.partition("/")
    found: dict[str, Any] = {
        **{name: given[name] for name in _SHOWN if _simple(given.get(name))},
        SpanAttributeKey.MODEL: model,
        SpanAttributeKey.MESSAGE_FORMAT: "dspy",
    }
    if slash:
        found[SpanAttributeKey.MODEL_PROVIDER] = provider
    return found


def _simple(value: Any) -> bool:
    return value is not None and isinstance(value, (str, int, float, list)) and len(str(value)) < 500


def asked(clip: Clip, inputs: Mapping[str, Any]) -> Callable[[], Any]:
    """The messages or the prompt of a request; settings of the call are not stored."""
    messages, prompt = inputs.get("messages"), inputs.get("prompt")
    if isinstance(messages, list):
        held = _fitting(clip, messages)
        return lambda: {"messages": [_shown(clip, role, content) for role, content in held]}
    if isinstance(prompt, str):
        text = prompt if clip.cap is None or len(prompt) <= clip.cap else clip.line(prompt)
        return lambda: {"prompt": clip.clean(text)}
    request = inputs.get("request")
    told = None if request is None else clip.clean(str(request)[: clip.cap])
    return lambda: {} if told is None else {"request": told}


def _fitting(clip: Clip, messages: list[Any]) -> list[tuple[str, Any]]:
    """Role and content of each; what is large is made small now, so that it is not kept alive."""
    left = math.inf if clip.cap is None else MESSAGES_WHOLE * clip.cap
    held: list[tuple[str, Any]] = []
    for number in range(len(messages) - 1, -1, -1):
        message = messages[number]
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, str):
            held.append(("", clip.value(message)))
            continue
        if len(content) > left and 0 < number < len(messages) - 1:
            content = mark(len(content), sha256(content))
        elif clip.cap is not None and len(content) > clip.cap:
            content = clip.line(content)
        left = max(0, left - len(content))
        held.append((str(message.get("role")), content))
    return held[::-1]


def _shown(clip: Clip, role: str, content: Any) -> Any:
    return {"role": role, "content": clip.clean(content)} if role else content


def measured(seen: list[Metered]) -> dict[str, Any]:
    """Attributes known after a request: tokens and money, as they were added to the account.

    No money is told where a price is unknown; MLflow then looks it up in a table of its own. Nothing was metered where
    DSPy's cache answered.
    """
    if not seen:
        return {}
    total = summed(one.tally for one in seen)
    usage = {
        "input_tokens": total.input_tokens,
        "output_tokens": total.output_tokens,
        "total_tokens": total.input_tokens + total.output_tokens,
    }
    if total.cached_tokens:
        usage["cache_read_input_tokens"] = total.cached_tokens
    found: dict[str, Any] = {SpanAttributeKey.CHAT_USAGE: usage}
    if total.unpriced:
        return found
    if all(one.output_picodollars is not None for one in seen):
        output = sum(one.output_picodollars or 0 for one in seen)
    else:
        # Only the sum is known, from the provider itself; it is shared out by tokens.
        output = round(total.picodollars * total.output_tokens / max(1, usage["total_tokens"]))
    cost = {"input_cost": total.picodollars - output, "output_cost": output, "total_cost": total.picodollars}
    return found | {SpanAttributeKey.LLM_COST: {name: value / PICO for name, value in cost.items()}}

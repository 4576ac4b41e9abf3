"""Which kind of failure an exception of a language model is, whatever library raised it.

DSPy's native engine and LiteLLM report the same failure in different ways: a server that does not answer is a
``LMTransportError`` of the one and a ``LMServerError`` of the other. Classes and statuses are asked first. Messages
are only matched where these say too little, are only those of LM libraries, and never become part of ours.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dspy.lm15 import LM15Error, UnknownModelError
from dspy.utils import exceptions as dspy_errors

# Libraries whose exceptions are an LM's, by the first part of their module.
_LIBRARIES = frozenset({"litellm", "openai", "anthropic"})
_DEPTH = 24

# Matched in this order, after the classes. Each pattern is on text in lower case.
_TEXTS: tuple[tuple[str, str], ...] = (
    ("prefix", r"llm provider not provided"),
    (
        "context",
        r"context[ _](length|size|window)|maximum context|prompt is too long|input token count|too many tokens"
        r"|exceeds the (maximum|available|model).{0,40}(token|context)|exceed_context_size",
    ),
    ("billing", r"insufficient_quota|insufficient credit|credit balance|check your plan and billing|billing_error"),
    ("key", r"api key not valid|api_key_invalid|incorrect api key|invalid api key|invalid x-api-key"),
    ("no_key", r"missing credentials|missing .{0,20}api key|no api key|api_key client option must be set"),
    (
        "model",
        r"model.{0,120}(not found|does not exist|not exist|not supported|is not a valid)|not a valid model"
        r"|deployment.{0,60}(not exist|not found)|deploymentnotfound|model_not_found|\"?message\"?: ?\"model: ",
    ),
)
# What HTTP libraries below say of a header that cannot be sent; the key is the only one that a user chooses.
_HEADER = re.compile(r"forbidden byte in http header|illegal header value|codec can't encode", re.IGNORECASE)
_FILTER_CODES = frozenset({"content_filter", "content_policy_violation", "responsibleaipolicyviolation"})
_FILTERED = re.compile(
    r"content[_ ]filter|content[_ ]policy|content management policy|responsibleaipolicy|prohibited_content"
    r"|(blocked|rejected|flagged) .{0,60}(safety|moderation|content)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Failure:
    """What went wrong.

    Attributes:
        kind: One of ``no_lm no_key key denied model address prefix context billing rate down tls timeout scheme
            characters package azure server``.
        status: Of HTTP, if there was a response.
        variables: Environment variables that the library itself asks for.
    """

    kind: str
    status: int | None = None
    variables: tuple[str, ...] = ()


def chain(error: BaseException) -> Iterator[BaseException]:
    """``error``, what caused it, and so on; of a group, its first member."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < _DEPTH:
        seen.add(id(current))
        yield current
        inner = current.exceptions[0] if isinstance(current, BaseExceptionGroup) else None
        current = inner or current.__cause__ or current.__context__


def is_of_an_lm(error: BaseException) -> bool:
    """Whether ``error`` was raised by DSPy's LMs or one of the libraries below them."""
    return isinstance(error, (dspy_errors.LMError, LM15Error)) or type(error).__module__.split(".")[0] in _LIBRARIES


def failure_of(error: BaseException) -> Failure | None:
    """The failure that ``error`` reports, or None if it is none of a language model's, or one of an unknown kind."""
    errors = list(chain(error))
    start = next((number for number, one in enumerate(errors) if is_of_an_lm(one)), None)
    if start is None:
        return _without_an_lm(errors)
    errors = errors[start:]
    status = next((status for one in errors if (status := _status(one)) is not None), None)
    variables = next((found for one in errors if (found := tuple(getattr(one, "env_keys", None) or ()))), ())
    kind = _kind(errors, status)
    return Failure(kind, status, variables) if kind else None


def was_filtered(error: BaseException) -> bool:
    """Whether a content filter of the provider refused the request or held the reply back."""
    errors = list(chain(error))
    if any(type(one).__name__ == "ContentPolicyViolationError" for one in errors):
        return True
    of_lm = [one for one in errors if is_of_an_lm(one)]
    if any(str(getattr(one, "provider_code", "")).lower() in _FILTER_CODES for one in of_lm):
        return True
    status = next((status for one in of_lm if (status := _status(one)) is not None), None)
    refused = status is None or (400 <= status < 500 and status not in (401, 403, 404, 429))
    return refused and any(_FILTERED.search(_message(one).lower()) for one in of_lm)


def _without_an_lm(errors: list[BaseException]) -> Failure | None:
    for one in errors:
        if isinstance(one, ImportError) and "litellm" in str(one):
            return Failure("package")
        if isinstance(one, ValueError) and "No LM is loaded" in str(one):
            return Failure("no_lm")
    return None


def _kind(errors: list[BaseException], status: int | None) -> str | None:
    def has(*classes: type[BaseException]) -> bool:
        return any(isinstance(one, classes) for one in errors)

    text = "\n".join(_message(one) for one in errors if is_of_an_lm(one)).lower()
    codes = {str(code).lower() for one in errors if (code := getattr(one, "provider_code", None))}
    said = [kind for kind, pattern in _TEXTS if re.search(pattern, text, re.DOTALL)]
    if has(UnicodeEncodeError) or any(_HEADER.search(_message(one)) for one in errors):
        return "characters"
    if has(dspy_errors.LMNotConfiguredError):
        return "azure" if "'resource'" in text else "no_key"
    if "url missing scheme" in text or "missing an 'http://' or 'https://' protocol" in text:
        return "scheme"
    if has(UnknownModelError) or "prefix" in said:
        return "prefix"
    refused = status is not None and 400 <= status < 500
    if has(dspy_errors.ContextWindowExceededError) or (refused and status != 429 and "context" in said):
        return "context"
    if has(dspy_errors.LMBillingError) or status == 402 or (refused and ("billing" in said or "402" in codes)):
        return "billing"
    if has(dspy_errors.LMRateLimitError) or status == 429:
        return "rate"
    if "no_key" in said:
        return "no_key"
    if status == 403:
        return "denied"
    if has(dspy_errors.LMAuthError) or status == 401 or (refused and "key" in said):
        return "key"
    if has(ssl.SSLError):
        return "tls"
    if has(ConnectionError, socket.gaierror):
        return "down"
    if has(dspy_errors.LMTimeoutError) or has(TimeoutError):
        return "timeout"
    if has(dspy_errors.LMTransportError):
        return "down"
    if refused and "model" in said:
        return "model"
    if has(dspy_errors.LMInvalidRequestError) and status == 404:
        return "model" if "not_found_error" in codes and "model:" in text else "address"
    if has(dspy_errors.LMServerError) or (status or 0) >= 500:
        return "server"
    return "model" if has(dspy_errors.LMUnsupportedModelError) else None


def _status(error: BaseException) -> int | None:
    for name in ("status", "status_code"):
        value: Any = getattr(error, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
            return value
    return None


def _message(error: BaseException) -> str:
    """The provider's words. DSPy puts the model's name before them in ``str(error)``, where it could be matched."""
    message = getattr(error, "message", None)
    try:
        return message if isinstance(message, str) else str(error)
    except Exception:
        return ""

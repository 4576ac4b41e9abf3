"""Keeping secrets out of errors, events and prompts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

_NAMES = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)", re.IGNORECASE)
# Only what no identifier of a program looks like: the text goes back to models, as the errors of their code.
_SHAPES = re.compile(
    r"\bsk-(?=[-_A-Za-z0-9]*\d)[-_A-Za-z0-9]{12,}|\b[spr]k_(?:live|test)_[A-Za-z0-9]{8,}"
    r"|\b(?:gh[pousr]|hf)_[A-Za-z0-9]{16,}|\bgithub_pat_[_A-Za-z0-9]{16,}|\bxox[abeprs]-[-A-Za-z0-9]{10,}"
    r"|\bAKIA[A-Z0-9]{12,}|\bAIza[-_A-Za-z0-9]{20,}|(?<=Bearer )[-._~+/A-Za-z0-9]{8,}=*"
)
# A word of plain text must not vanish from the code and texts of runs because somebody's server takes any key.
_NO_SECRETS = frozenset(
    "anything api-key api_key dummy-key fake-key lm-studio no-api-key no-key-required none-needed not-needed "
    "not-required not_needed placeholder sk-no-key-required test-key undefined whatever your-api-key".split()
)
HIDDEN = "[hidden]"
_known: set[str] = set()


def hide(secret: object) -> None:
    """Hide ``secret`` from now on wherever it turns up; no effect unless it is text of at least 8 characters, and none
    of the words that stand for a key where a server wants none."""
    if isinstance(secret, str) and len(secret) >= 8 and secret.lower() not in _NO_SECRETS:
        _known.add(secret)


def redact(text: str) -> str:
    """``text`` without secrets: values of environment variables named like one, strings shaped like an API key, and
    what `hide` was told of (the keys that LMs were given)."""
    return redactor()(text)


def redactor() -> Callable[[str], str]:
    """`redact` as of now, for many texts."""
    secrets = _known | {value for name, value in os.environ.items() if len(value) >= 8 and _NAMES.search(name)}
    # The longest first: one may be the beginning of another.
    ordered = sorted(secrets, key=len, reverse=True)

    def hidden(text: str) -> str:
        for value in ordered:
            text = text.replace(value, HIDDEN)
        return _SHAPES.sub(HIDDEN, text)

    return hidden


def redacted(value: Any, hidden: Callable[[str], str] | None = None) -> Any:
    """Plain data with no secret in its texts. To be written as JSON it is hidden here, not in what was written: there a
    quote or backslash of a secret is escaped, and what is hidden could be the data's own syntax.

    Args:
        value: Of texts, lists, tuples, dicts and other plain values; keys stay as they are.
        hidden: A `redactor`; None for one of now.
    """
    hidden = hidden or redactor()
    if isinstance(value, str):
        return hidden(value)
    if isinstance(value, dict):
        return {name: redacted(item, hidden) for name, item in value.items()}
    return [redacted(item, hidden) for item in value] if isinstance(value, (list, tuple)) else value


def secret_in(data: bytes) -> bool:
    """Whether ``data``, such as a pickle, holds a secret: those that `hide` was told of, and those of the environment
    that no word is likely to be."""
    known = {value for name, value in os.environ.items() if len(value) >= 12 and _NAMES.search(name)}
    known = {value for value in known if any(c.isdigit() for c in value) and not value.startswith(("/", "http"))}
    return any(value.encode("utf-8", "surrogatepass") in data for value in known | _known)


def error_text(error: BaseException, limit: int = 2_000) -> str:
    """An exception as one text, ``Type: message``, redacted and at most ``limit`` characters."""
    try:
        message = str(error).strip()
    except Exception:
        message = "(an error without text)"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    text = redact(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"

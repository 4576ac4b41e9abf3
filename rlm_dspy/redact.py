"""Keeping secrets out of errors, events and prompts."""

from __future__ import annotations

import os
import re

_NAMES = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)", re.IGNORECASE)
_SHAPES = re.compile(
    r"\b(?:sk|pk|rk|ghp|gho|hf|xox[abprs]|AKIA|AIza)[-_A-Za-z0-9]{12,}|(?<=Bearer )[-._~+/A-Za-z0-9]{8,}=*"
)
HIDDEN = "[hidden]"


def redact(text: str) -> str:
    """``text`` without secrets: values of environment variables named like one, and strings shaped like an API key."""
    for name, value in os.environ.items():
        if len(value) >= 8 and _NAMES.search(name) and value in text:
            text = text.replace(value, HIDDEN)
    return _SHAPES.sub(HIDDEN, text)


def error_text(error: BaseException, limit: int = 2_000) -> str:
    """An exception as one text, ``Type: message``, redacted and at most ``limit`` characters."""
    message = str(error).strip()
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    text = redact(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"

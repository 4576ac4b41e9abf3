"""The models that an OpenAI-compatible server on this machine offers."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

LIST_SECONDS = 1.0
"""How long the server has to answer."""
_NAME_LENGTH = 200
_MOST = 1 << 20


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A server on this machine must not send us, and the key with us, to another."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def models_at(base: str, key: object = None) -> list[str]:
    """What ``GET /models`` lists, in the server's order; nothing where it does not answer that in time.

    Args:
        base: The base URL, with or without ``/v1``. Never ask another machine: this is a courtesy to a reader of an
            error message, and nobody expects a request of it.
        key: The key of that server, if it was given one.
    """
    headers = {"Authorization": f"Bearer {key}"} if isinstance(key, str) and key.isascii() and key.isprintable() else {}
    root = base.rstrip("/").removesuffix("/v1")
    # A proxy set for the outside world must not be asked for loopback addresses.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    for url in dict.fromkeys((f"{base.rstrip('/')}/models", f"{root}/v1/models")):
        try:
            with opener.open(urllib.request.Request(url, headers=headers), timeout=LIST_SECONDS) as response:
                listed = json.loads(_read(response))
            return [name for item in listed["data"] if _is_name(name := item["id"])]
        except TimeoutError:
            return []
        except (OSError, ValueError, KeyError, TypeError, HTTPException, urllib.error.URLError):
            continue
    return []


def _read(response: Any) -> bytes:
    """The body, as far as it came within `LIST_SECONDS`: the time limit of the socket is one of each piece only."""
    deadline = time.monotonic() + LIST_SECONDS
    data = b""
    while len(data) < _MOST and time.monotonic() < deadline and (piece := response.read1(1 << 16)):
        data += piece
    return data


def _is_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= _NAME_LENGTH and name.isprintable()

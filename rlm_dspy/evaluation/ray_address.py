"""Whether a Ray cluster is there at an address, before Ray itself is asked, which waits for minutes where none is.

What leads a cluster, and its client server, speak gRPC: HTTP/2, whose server sends its settings first of all (RFC 9113,
3.4). So a port that nobody listens at, one that never answers, and one of something else are told apart in seconds.
"""

from __future__ import annotations

import os
import socket
import time

from rlm_dspy.errors import ConfigurationError

__all__ = ["WAIT", "check"]

WAIT = 20.0
"""Seconds that a cluster has to answer."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""An HTTP/2 client's first words: the preface, and settings that set nothing."""
_SETTINGS = 4


def check(address: str, wait: float = WAIT) -> None:
    """Nothing, where a cluster answers, or where the address does not say where that would be.

    Args:
        address: ``HOST:PORT``, ``ray://HOST:PORT``, or another that Ray knows, such as ``auto``: that of the
            environment variable ``RAY_ADDRESS``, if there is one, else Ray looks on this machine itself.
        wait: Seconds.

    Raises:
        ConfigurationError: Nobody answers there, or something else does.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        return
    deadline = time.monotonic() + wait
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=wait) as connection:
            if os.environ.get("RAY_USE_TLS", "0") not in ("0", ""):
                return
            connection.sendall(_HELLO)
            said = _first(connection, deadline)
    except TimeoutError:
        raise _absent(address, f"nobody answered within {wait:g} seconds") from None
    except (OSError, OverflowError) as error:
        raise _absent(address, str(error)) from error
    if len(said) < 9 or said[3] != _SETTINGS:
        raise _absent(address, "something else answers there")


def _first(connection: socket.socket, deadline: float) -> bytes:
    """The head of the first frame, or less where the other side ends before."""
    said = b""
    while len(said) < 9:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(9 - len(said))
        if not part:
            break
        said += part
    return said


def _absent(address: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"no Ray cluster at {address!r}: {why}. Start one with `ray start --head`, which prints its address, "
        "or name that of one that runs"
    )

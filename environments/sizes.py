"""Sizes such as ``"4GiB"``."""

from __future__ import annotations

import re

from rlm_dspy.errors import ConfigurationError

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}


def parse_size(value: int | str, what: str = "a size") -> int:
    """Bytes of ``value``: a number of bytes, or text such as ``"512MiB"``, ``"4G"``, ``"1.5 GB"``.

    Units with an ``i`` are powers of 1024, those without powers of 1000.

    Raises:
        ConfigurationError: It is not a positive size; ``what`` names it in the message.
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", value.lower())
        size = int(float(match.group(1)) * _UNITS[match.group(2) or ""]) if match else 0
    else:
        size = value if isinstance(value, int) and not isinstance(value, bool) else 0
    if size <= 0:
        raise ConfigurationError(f'{what} must be a positive number of bytes or text such as "512MiB", not {value!r}')
    return size


def format_size(size: int) -> str:
    """``size`` in bytes for a reader, such as ``"4 GiB"``."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} bytes"

"""Dates and numbers for the codec.

This module travels into the sandbox as source text: standard library only, Python 3.8 syntax.
"""

# ruff: noqa: UP031
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING or __name__.startswith("rlm_dspy."):
    from rlm_dspy.environments.wire import ProtocolError
else:
    from _rlm_wire import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_RANGE = 10_000_000
"""Numbers that the ranges of one value may have: they cross in a few bytes, but whoever lists them needs memory."""
MAX_EXPONENT = 10_000
"""Power of ten that a ``Decimal`` from a sandbox may reach: an int of it takes time that grows with the square."""


def _date(encoder: Any, value: Any, depth: int) -> Any:
    return {"$": "date", "v": value.isoformat()}


def _clock(tag: str) -> Callable[[Any, Any, int], Any]:
    def encode(encoder: Any, value: Any, depth: int) -> Any:
        out = {"$": tag, "v": value.isoformat()}
        if value.fold:
            out["f"] = 1
        key = getattr(value.tzinfo, "key", None)
        if isinstance(key, str):
            # A named zone: the wall time and the name say more than the offset.
            out["v"] = value.replace(tzinfo=None).isoformat()
            out["z"] = key
        return out

    return encode


def _delta(encoder: Any, value: Any, depth: int) -> Any:
    return {"$": "timedelta", "v": [value.days, value.seconds, value.microseconds]}


def _fraction(encoder: Any, value: Any, depth: int) -> Any:
    return {"$": "fraction", "v": [hex(value.numerator), hex(value.denominator)]}


def spread_limit(size: int) -> int:
    """Numbers that ranges may have in a message with ``size`` bytes of blobs: a long table has a long index."""
    return MAX_RANGE + size // 8


def range_length(value: range) -> int:
    """``len`` of any range, also where it exceeds what ``len`` can tell."""
    return (value[-1] - value[0]) // value.step + 1 if value else 0


def _range(encoder: Any, value: range, depth: int) -> Any:
    if range_length(value) > MAX_RANGE:
        raise ValueError("a range of more than %d numbers cannot cross" % MAX_RANGE)
    encoder.spread(range_length(value))
    return {"$": "range", "v": [encoder.tree(n, depth) for n in (value.start, value.stop, value.step)]}


def _complex(encoder: Any, value: complex, depth: int) -> Any:
    return {"$": "complex", "v": [repr(value.real), repr(value.imag)]}


def _decimal(encoder: Any, value: Any, depth: int) -> Any:
    if encoder.capped and value.adjusted() > MAX_EXPONENT:
        raise ValueError("a Decimal of more than %d digits cannot leave the sandbox; pass str() of it" % MAX_EXPONENT)
    return {"$": "decimal", "v": str(value)}


def _load_clock(name: str) -> Any:
    def load(decoder: Any, node: dict[str, Any], depth: int) -> Any:
        import datetime

        value = getattr(datetime, name).fromisoformat(node["v"])
        if "z" in node:
            zone = node["z"]
            if len(zone) > 100 or zone.startswith(("/", ".")) or ".." in zone:
                raise ProtocolError("a malformed time zone")
            try:
                from zoneinfo import ZoneInfo

                value = value.replace(tzinfo=ZoneInfo(zone))
            except Exception:
                # No zone database here: the wall time alone is still right.
                pass
        return value.replace(fold=1) if node.get("f") else value

    return load


def _load_delta(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    import datetime

    days, seconds, microseconds = node["v"]
    return datetime.timedelta(days, seconds, microseconds)


def _load_fraction(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    import fractions

    numerator, denominator = node["v"]
    if len(numerator) + len(denominator) > 100_000:
        raise ProtocolError("a fraction too long")
    return fractions.Fraction(int(numerator, 16), int(denominator, 16))


def _load_range(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    value = range(*decoder.items(node, depth))
    if range_length(value) > MAX_RANGE:
        raise ProtocolError("a range too long")
    decoder.spread(range_length(value))
    return value


def _load_decimal(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    import decimal

    value = decimal.Decimal(node["v"])
    if decoder.capped and value.adjusted() > MAX_EXPONENT:
        raise ProtocolError("a Decimal out of range")
    return value


ENCODERS = {complex: _complex, range: _range}
"""Encoding functions by type."""
BY_NAME: dict[tuple[str, str], Any] = {
    ("datetime", "date"): _date,
    ("datetime", "datetime"): _clock("datetime"),
    ("datetime", "time"): _clock("time"),
    ("datetime", "timedelta"): _delta,
    ("decimal", "Decimal"): _decimal,
    ("fractions", "Fraction"): _fraction,
    ("uuid", "UUID"): lambda e, v, d: {"$": "uuid", "v": v.hex},
}
"""Encoding functions by the module and name of a type, which need not be imported."""
DECODERS: dict[str, Any] = {
    "complex": lambda d, n, depth: complex(*[float(x) for x in n["v"]]),
    "range": _load_range,
    "datetime": _load_clock("datetime"),
    "time": _load_clock("time"),
    "date": lambda d, n, depth: __import__("datetime").date.fromisoformat(n["v"]),
    "timedelta": _load_delta,
    "decimal": _load_decimal,
    "fraction": _load_fraction,
    "uuid": lambda d, n, depth: __import__("uuid").UUID(hex=n["v"]),
}
"""Decoding functions by tag."""

"""The three ways in which a log is written. Each renders a `Record` as its line, or lines where it has a stack trace.

    plain       2025-03-04 12:33:09.123 ERROR cart-api fra-17 [r-5f3a9c21d0] u4821 GET /v1/carts status=503 took=8ms - x
    keyvalue    ts=2025-03-04T12:33:09.123Z level=ERROR service=cart-api host=fra-17 ... msg="upstream timed out"
    json        {"ts": "2025-03-04T12:33:09.123Z", "level": "ERROR", "service": "cart-api", ...}

In the first two a stack trace follows on indented lines of its own; in JSON it is the field ``stack``.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from rlm_dspy.tasks.log_world import Record

__all__ = ["FORMATS", "LENGTHS"]


def _trace(record: Record) -> str:
    if not record.error:
        return ""
    lines = "".join(f"\n    {frame}" for frame in record.frames)
    return f"\n  com.shop.{record.error}: {record.message}{lines}"


def plain(record: Record) -> str:
    """Columns apart by spaces, the message after a dash."""
    head = f"{record.day} {record.clock} {record.level} {record.service} {record.host}"
    if not record.request:
        return f"{head} [-] - {record.message}"
    return (
        f"{head} [{record.request}] {record.user} {record.method} {record.path} status={record.status} "
        f"took={record.latency}ms - {record.message}{_trace(record)}"
    )


def keyvalue(record: Record) -> str:
    """A key, ``=`` and a value each; only the message is quoted."""
    head = f"ts={record.day}T{record.clock}Z level={record.level} service={record.service} host={record.host}"
    if not record.request:
        return f'{head} msg="{record.message}"'
    return (
        f"{head} request={record.request} user={record.user} method={record.method} path={record.path} "
        f'status={record.status} latency_ms={record.latency} msg="{record.message}"{_trace(record)}'
    )


def as_json(record: Record) -> str:
    """One JSON object a line."""
    fields: dict[str, str | int] = {
        "ts": f"{record.day}T{record.clock}Z",
        "level": record.level,
        "service": record.service,
        "host": record.host,
    }
    if record.request:
        fields |= {"request": record.request, "user": record.user, "method": record.method, "path": record.path}
        fields |= {"status": record.status, "latency_ms": record.latency}
    fields["msg"] = record.message
    if record.error:
        fields["stack"] = "\n".join((f"com.shop.{record.error}: {record.message}", *record.frames))
    return json.dumps(fields)


FORMATS: dict[str, Callable[[Record], str]] = {"plain": plain, "keyvalue": keyvalue, "json": as_json}
#: About how long an entry is, new line included, stack traces shared out.
LENGTHS = {"plain": 136, "keyvalue": 176, "json": 237}

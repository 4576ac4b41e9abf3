"""Questions about a log that ask how many: entries, or requests, under one or two conditions.

Ordinary entries count too; some more are planted, so that no count is 0 and counts differ.
"""

from __future__ import annotations

from typing import Any

from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.log_plans import Builder, Plan
from rlm_dspy.tasks.log_world import LEVELS, RARE, USUAL, World

_BAD = LEVELS[2:]
_STATUSES = (*USUAL["WARN"], *USUAL["ERROR"], *RARE)
_TRACE = "A stack trace is part of its entry."


def _some(world: World, draw: Draw, **fields: Any) -> list[dict[str, Any]]:
    """A drawn number of entries with these fields: at least 2, at most a twelfth of a short log, 400 in a long one."""
    return [dict(fields) for _ in range(draw.between(2, max(3, min(world.lines // 12, 400))))]


def by_level(world: World, draw: Draw) -> Plan:
    """Entries of a level."""
    level = draw.choice(_BAD)
    query = draw.choice(
        (
            f"How many log entries have the level {level}? {_TRACE}",
            f"Please count the entries that were logged at level {level}. {_TRACE}",
            f"What is the total number of {level} entries in this log, going by their level? {_TRACE}",
        )
    )
    return Plan(query, _some(world, draw, level=level), lambda r: r.level == level, exclusive=False)


def by_level_and_service(world: World, draw: Draw) -> Plan:
    """Entries of a level, from a service."""
    level, service = draw.choice(_BAD), draw.choice(world.services)
    query = draw.choice(
        (
            f"How many entries of level {level} did the service {service} write? {_TRACE}",
            f"Count the {level} entries that come from {service} itself (entry's level and service). {_TRACE}",
        )
    )
    return Plan(
        query,
        _some(world, draw, level=level, service=service),
        lambda r: r.level == level and r.service == service,
        exclusive=False,
    )


def by_level_and_day(world: World, draw: Draw) -> Plan:
    """Entries of a level, on a day."""
    level, on = draw.choice(_BAD), draw.below(len(world.days))
    day = world.days[on]
    query = draw.choice(
        (
            f"How many entries of level {level} are dated {day} (YYYY-MM-DD)? {_TRACE}",
            f"On {day} (year-month-day), how many entries were logged at level {level}? {_TRACE}",
        )
    )
    return Plan(
        query, _some(world, draw, level=level, on=on), lambda r: r.level == level and r.day == day, exclusive=False
    )


def by_status(world: World, draw: Draw) -> Plan:
    """Requests with a status."""
    status = draw.choice(_STATUSES)
    query = draw.choice(
        (
            f"How many requests were answered with status {status}?",
            f"Status {status}: how many requests in this log ended with it?",
        )
    )
    return Plan(
        query,
        _some(world, draw, status=status),
        lambda r: bool(r.request) and r.status == status,
        exclusive=False,
    )


def by_status_and_service(world: World, draw: Draw) -> Plan:
    """Requests with a status, to a service."""
    status, service = draw.choice(_STATUSES), draw.choice(world.services)
    query = draw.choice(
        (
            f"How often did {service} answer a request with status {status}?",
            f"I need the number of requests to {service} that ended with status {status}.",
        )
    )
    return Plan(
        query,
        _some(world, draw, status=status, service=service),
        lambda r: bool(r.request) and r.status == status and r.service == service,
        exclusive=False,
    )


def by_service_and_day(world: World, draw: Draw) -> Plan:
    """Entries of a service, on a day."""
    service, on = draw.choice(world.services), draw.below(len(world.days))
    day = world.days[on]
    query = draw.choice(
        (
            f"How many entries of any level did {service} write on {day} (YYYY-MM-DD)? {_TRACE}",
            f"Count everything that {service} logged on {day} (year-month-day), whatever its level. {_TRACE}",
        )
    )
    return Plan(
        query,
        _some(world, draw, service=service, on=on),
        lambda r: r.service == service and r.day == day,
        exclusive=False,
    )


def by_level_and_hour(world: World, draw: Draw) -> Plan:
    """Entries of a level, in an hour of the day."""
    level, hour = draw.choice(_BAD), draw.below(24)
    span = f"{hour:02d}:00:00 and {hour:02d}:59:59"
    query = draw.choice(
        (
            f"How many {level} entries were logged between {span}, all days taken together? {_TRACE}",
            f"Over all days, how many entries of level {level} carry a time of day between {span}? {_TRACE}",
        )
    )
    return Plan(
        query, _some(world, draw, level=level, at=hour), lambda r: r.level == level and r.hour == hour, exclusive=False
    )


def by_host_and_status(world: World, draw: Draw) -> Plan:
    """Requests with a status, to a host."""
    status, host = draw.choice(_STATUSES), draw.choice(world.hosts)
    query = draw.choice(
        (
            f"How many requests that the host {host} handled ended with status {status}?",
            f"Count the status {status} responses given by host {host}.",
        )
    )
    return Plan(
        query,
        _some(world, draw, status=status, host=host),
        lambda r: bool(r.request) and r.status == status and r.host == host,
        exclusive=False,
    )


def by_latency_and_service(world: World, draw: Draw) -> Plan:
    """Slow requests to a service."""
    service, limit = draw.choice(world.services), draw.between(4, 30) * 500
    query = draw.choice(
        (
            f"How many requests to {service} took longer than {limit} ms?",
            f"Count the requests handled by {service} whose duration is above {limit} milliseconds.",
        )
    )
    plants = [
        {"service": service, "level": "ERROR", "latency": limit + draw.between(1, 6000)}
        for _ in _some(world, draw)
    ]
    return Plan(
        query,
        plants,
        lambda r: bool(r.request) and r.service == service and r.latency > limit,
        exclusive=False,
    )


TEMPLATES: dict[str, Builder] = {
    "count_level": by_level,
    "count_level_service": by_level_and_service,
    "count_level_day": by_level_and_day,
    "count_status": by_status,
    "count_status_service": by_status_and_service,
    "count_service_day": by_service_and_day,
    "count_level_hour": by_level_and_hour,
    "count_host_status": by_host_and_status,
    "count_latency_service": by_latency_and_service,
}

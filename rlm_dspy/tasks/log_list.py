"""Questions about a log that ask for all distinct values of something: 3 to 8 of them, each planted once or more.

What matches is planted and nothing else; near misses (the same status from another service, another level from the same
one) are planted beside.
"""

from __future__ import annotations

from typing import Any

from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.log_plans import Builder, Plan
from rlm_dspy.tasks.log_world import EXCEPTIONS, PATHS, RARE, SLOW, World


def _some(world: World, draw: Draw, most: int = 8) -> int:
    """How many items a list shall have: 3 to 8, fewer where a log has few entries."""
    return draw.between(3, max(3, min(most, world.lines // 4)))


def _repeated(world: World, draw: Draw, plants: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each entry once, some of them two or three times where there is room."""
    return [dict(plant) for plant in plants for _ in range(draw.choice((1, 1, 1, 2, 3)) if world.lines > 60 else 1)]


def _near(world: World, draw: Draw, **fields: Any) -> list[dict[str, Any]]:
    """Some entries that are almost what is asked for."""
    return [dict(fields) for _ in range(draw.between(1, max(2, min(world.lines // 20, 60))))]


def users_with_status(world: World, draw: Draw) -> Plan:
    """Users to whom a service answered with a status."""
    status, service, other = draw.choice(RARE), *draw.sample(world.services, 2)
    users = draw.sample(world.users, _some(world, draw))
    plants = _repeated(world, draw, [{"user": user, "status": status, "service": service} for user in users])
    query = draw.choice(
        (
            f"Which users got status {status} from {service}? List each user (such as u1234) once.",
            f"List all distinct users whose requests {service} answered with status {status}.",
        )
    )
    return Plan(
        query,
        plants + _near(world, draw, status=status, service=other),
        lambda r: bool(r.request) and r.status == status and r.service == service,
        lambda r: r.user,
    )


def hosts_with_critical(world: World, draw: Draw) -> Plan:
    """Hosts that logged at level CRITICAL."""
    hosts = draw.sample(world.hosts, _some(world, draw))
    query = draw.choice(
        (
            "On which hosts was anything logged at level CRITICAL? Name every host once.",
            "Give me the names of all hosts that have at least one entry of level CRITICAL.",
        )
    )
    plants = _repeated(world, draw, [{"host": host, "level": "CRITICAL"} for host in hosts])
    return Plan(
        query,
        plants + _near(world, draw, level="ERROR"),
        lambda r: r.level == "CRITICAL",
        lambda r: r.host,
    )


def services_with_status(world: World, draw: Draw) -> Plan:
    """Services that answered with a status."""
    status, other = draw.sample(RARE, 2)
    services = draw.sample(world.services, _some(world, draw, 5))
    query = draw.choice(
        (
            f"Which services answered any request with status {status}? List each of them once.",
            f"Name all services from which at least one response had the status {status}.",
        )
    )
    plants = _repeated(world, draw, [{"service": service, "status": status} for service in services])
    return Plan(
        query,
        plants + _near(world, draw, status=other),
        lambda r: bool(r.request) and r.status == status,
        lambda r: r.service,
    )


def slow_requests(world: World, draw: Draw) -> Plan:
    """Requests that took very long."""
    limit = SLOW + draw.between(5, 30) * 1000
    ids = [world.request_id() for _ in range(_some(world, draw))]
    plants: list[dict[str, Any]] = [
        {"request": one, "level": draw.choice(("WARN", "ERROR")), "latency": limit + draw.between(1, 20_000)}
        for one in ids
    ]
    query = draw.choice(
        (
            f"List the ids of all requests that took longer than {limit} ms.",
            f"Which requests (ids, such as r-0123456789) needed more than {limit} milliseconds?",
        )
    )
    return Plan(
        query,
        plants + _near(world, draw, level="ERROR", latency=limit - draw.between(0, 900)),
        lambda r: bool(r.request) and r.latency > limit,
        lambda r: r.request,
    )


def paths_with_status(world: World, draw: Draw) -> Plan:
    """Paths of requests with a status."""
    status, other = draw.sample(RARE, 2)
    paths = draw.sample(PATHS, _some(world, draw))
    query = draw.choice(
        (
            f"For which paths did some request end with status {status}? List every path once.",
            f"List the distinct request paths (such as /v1/items) that were answered with status {status}.",
        )
    )
    plants = _repeated(world, draw, [{"path": path, "status": status} for path in paths])
    return Plan(
        query,
        plants + _near(world, draw, status=other),
        lambda r: bool(r.request) and r.status == status,
        lambda r: r.path,
    )


def exceptions_of_service(world: World, draw: Draw) -> Plan:
    """Exception classes in the stack traces of a service."""
    service, other = draw.sample(world.services, 2)
    names = draw.sample(EXCEPTIONS, _some(world, draw))
    query = draw.choice(
        (
            f"Which exception classes appear in the stack traces of {service}? Name each once, without its package.",
            f"List the distinct exceptions that {service} logged a stack trace for: class names only, no package.",
        )
    )
    plants = _repeated(world, draw, [{"service": service, "error": name} for name in names])
    return Plan(
        query,
        plants + _near(world, draw, service=other, error=draw.choice(EXCEPTIONS)),
        lambda r: bool(r.error) and r.service == service,
        lambda r: r.error,
    )


def days_of_critical(world: World, draw: Draw) -> Plan:
    """Days on which a service logged at level CRITICAL."""
    service, other = draw.sample(world.services, 2)
    days = draw.sample(range(len(world.days)), _some(world, draw, 6))
    query = draw.choice(
        (
            f"On which days did {service} write an entry of level CRITICAL? List the dates as YYYY-MM-DD.",
            f"Give all dates (YYYY-MM-DD) with at least one CRITICAL entry from {service}.",
        )
    )
    plants = _repeated(world, draw, [{"service": service, "level": "CRITICAL", "on": day} for day in days])
    return Plan(
        query,
        plants + _near(world, draw, service=other, level="CRITICAL"),
        lambda r: r.level == "CRITICAL" and r.service == service,
        lambda r: r.day,
    )


TEMPLATES: dict[str, Builder] = {
    "list_users_status": users_with_status,
    "list_hosts_critical": hosts_with_critical,
    "list_services_status": services_with_status,
    "list_slow_requests": slow_requests,
    "list_paths_status": paths_with_status,
    "list_exceptions": exceptions_of_service,
    "list_days_critical": days_of_critical,
}

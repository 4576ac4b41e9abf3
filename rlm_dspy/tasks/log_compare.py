"""Questions about a log that ask which has the most, the fewest, or the longest: one answer, by a margin.

The entries that count are planted in decided numbers and ordinary ones of their sort are kept out, so that the first is
ahead of the second by at least 2 and about a tenth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.log_plans import Builder, Plan, shares
from rlm_dspy.tasks.log_world import EXCEPTIONS, SLOW, USUAL, Record, World


def _planted(numbers: dict[Any, int], make: Callable[[Any], dict[str, Any]]) -> list[dict[str, Any]]:
    return [make(key) for key, number in numbers.items() for _ in range(number)]


def service_most_errors(world: World, draw: Draw) -> Plan:
    """The service with the most ERROR entries."""
    numbers = shares(world, draw, draw.shuffled(world.services))
    query = draw.choice(
        (
            "Which service wrote the most entries of level ERROR?",
            "Going by the number of entries at level ERROR, which service is the worst?",
        )
    )
    plants = _planted(numbers, lambda service: {"service": service, "level": "ERROR"})
    return Plan(query, plants, lambda r: r.level == "ERROR", lambda r: r.service)


def host_most_failures(world: World, draw: Draw) -> Plan:
    """The host with the most 5xx answers."""
    numbers = shares(world, draw, draw.shuffled(world.hosts))
    query = draw.choice(
        (
            "Which host answered the most requests with a status from 500 to 599?",
            "Name the host with the largest number of requests whose status is between 500 and 599.",
        )
    )
    plants = _planted(numbers, lambda host: {"host": host, "status": draw.choice(USUAL["ERROR"])})
    return Plan(query, plants, lambda r: bool(r.request) and r.status >= 500, lambda r: r.host)


def day_most_warnings(world: World, draw: Draw) -> Plan:
    """The day with the most WARN entries."""
    numbers = shares(world, draw, draw.shuffled(range(len(world.days))))
    query = draw.choice(
        (
            "Which day has the most entries of level WARN? Answer with the date as YYYY-MM-DD.",
            "On what date (YYYY-MM-DD) were more WARN entries logged than on any other?",
        )
    )
    plants = _planted(numbers, lambda day: {"on": day, "level": "WARN"})
    return Plan(query, plants, lambda r: r.level == "WARN", lambda r: r.day)


def service_slowest_request(world: World, draw: Draw) -> Plan:
    """The service with the longest single request."""
    services = draw.shuffled(world.services)[: max(2, world.lines // 8)]
    longest = SLOW + draw.between(30, 90) * 1000
    plants: list[dict[str, Any]] = [{"service": services[0], "level": "ERROR", "latency": longest}]
    for service in services[1:]:
        latency = SLOW + 1 + draw.below(longest * 9 // 10 - SLOW)
        plants.append({"service": service, "level": draw.choice(("WARN", "ERROR")), "latency": latency})
    query = draw.choice(
        (
            "Which service handled the single slowest request, the one that took the most milliseconds?",
            "The request with the longest duration of all: which service handled it?",
        )
    )
    match = lambda r: bool(r.request) and r.latency > SLOW  # noqa: E731
    return Plan(query, plants, match, lambda r: r.service, weigh=lambda r: r.latency)


def user_most_throttled(world: World, draw: Draw) -> Plan:
    """The user with the most 429 answers."""
    numbers = shares(world, draw, draw.sample(world.users, draw.between(6, 40)))
    query = draw.choice(
        (
            "Which user had the most requests answered with status 429?",
            "Who was throttled (status 429) more often than any other user? Give the user's id, such as u1234.",
        )
    )
    plants = _planted(numbers, lambda user: {"user": user, "status": 429})
    return Plan(query, plants, lambda r: bool(r.request) and r.status == 429, lambda r: r.user)


def fewest_of_three(world: World, draw: Draw) -> Plan:
    """Of three services, the one with the fewest WARN entries."""
    named = draw.sample(world.services, 3)
    numbers = shares(world, draw, named, least=True)
    first, second, third = draw.shuffled(named)
    query = draw.choice(
        (
            f"Of the services {first}, {second} and {third}, which one wrote the fewest entries of level WARN?",
            f"Compare {first}, {second} and {third}: which of them has the smallest number of WARN entries?",
        )
    )
    plants = _planted(numbers, lambda service: {"service": service, "level": "WARN"})
    return Plan(
        query, plants, lambda r: r.level == "WARN" and r.service in numbers, lambda r: r.service, least=True
    )


def service_most_traces(world: World, draw: Draw) -> Plan:
    """The service with the most stack traces."""
    numbers = shares(world, draw, draw.shuffled(world.services))
    query = draw.choice(
        (
            "Which service logged the most entries with a stack trace?",
            "Counting entries that have a stack trace, which service is ahead of all others?",
        )
    )
    plants = _planted(numbers, lambda service: {"service": service, "error": draw.choice(EXCEPTIONS)})
    return Plan(query, plants, lambda r: bool(r.error), lambda r: r.service)


def more_of_two(world: World, draw: Draw) -> Plan:
    """Of two services, the one with more answers of a status."""
    named = draw.sample(world.services, 2)
    status = draw.choice((404, 409, 502, 503))
    numbers = shares(world, draw, named)
    first, second = draw.shuffled(named)
    query = draw.choice(
        (
            f"Which of the two answered more requests with status {status}: {first} or {second}?",
            f"{first} or {second}: which service has the larger number of status {status} responses?",
        )
    )
    plants = _planted(numbers, lambda service: {"service": service, "status": status})

    def match(r: Record) -> bool:
        return bool(r.request) and r.status == status and r.service in numbers

    return Plan(query, plants, match, lambda r: r.service)


TEMPLATES: dict[str, Builder] = {
    "compare_service_errors": service_most_errors,
    "compare_host_failures": host_most_failures,
    "compare_day_warnings": day_most_warnings,
    "compare_slowest": service_slowest_request,
    "compare_user_throttled": user_most_throttled,
    "compare_fewest_of_three": fewest_of_three,
    "compare_traces": service_most_traces,
    "compare_more_of_two": more_of_two,
}

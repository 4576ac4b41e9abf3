"""Questions about a log that ask for one fact, which stands in one entry.

Most of these entries are notes of their own sort (a release, a key, a flag), which the question words in another way
and which other services have too, with other values; three questions name a request or a user instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.log_plans import Builder, Plan
from rlm_dspy.tasks.log_world import RARE, World

_ADJECTIVES = ("amber", "brisk", "copper", "dusky", "gentle", "hollow", "ivory", "lunar", "mossy", "quiet", "russet")
_NOUNS = ("badger", "comet", "falcon", "harbor", "lantern", "meadow", "otter", "pebble", "summit", "willow", "thicket")

Value = Callable[[World, Draw], str]


def _name(world: World, draw: Draw) -> str:
    return f"{draw.choice(_ADJECTIVES)}-{draw.choice(_NOUNS)}-{draw.between(2, 99)}"


def _ticket(world: World, draw: Draw) -> str:
    return f"{draw.choice(('OPS', 'SUP', 'INC', 'CHG'))}-{draw.between(10_000, 99_999)}"


def _date(world: World, draw: Draw) -> str:
    return f"{draw.between(2031, 2039)}-{draw.between(1, 12):02d}-{draw.between(1, 28):02d}"


def _note(topic: str, value: Value, message: str, *queries: str) -> Builder:
    """A builder for notes of one topic: the asked service has one, others have theirs, and it has other notes."""

    def build(world: World, draw: Draw) -> Plan:
        service, *others = draw.sample(world.services, draw.between(3, 5))
        # Distinct values, so that a look-alike is never right by chance.
        values: dict[str, None] = {}
        while len(values) <= len(others):
            values[value(world, draw)] = None
        plants: list[dict[str, Any]] = []
        for owner, text in zip((service, *others), values, strict=True):
            plants.append({"service": owner, "topic": topic, "value": text, "message": message.format(text)})
        elsewhere = draw.choice([key for key in _NOTES if key != topic])
        other_value, other_message = _NOTES[elsewhere]
        plants.append(
            {"service": service, "topic": elsewhere, "message": other_message.format(other_value(world, draw))}
        )
        query = draw.choice(queries).format(service)
        for plant in plants:
            plant |= {"request": "", "level": "INFO"}
        return Plan(query, plants, lambda r: r.topic == topic and r.service == service, lambda r: r.value)

    return build


def _person(world: World, draw: Draw) -> str:
    return world.person()


_NOTES: dict[str, tuple[Value, str]] = {
    "release": (_person, "new build rolled out to all instances, approved by {}"),
    "key": (_name, "signing key rotated, active key is now {}"),
    "certificate": (_date, "tls certificate loaded, valid until {}"),
    "flag": (_name, "feature flag {} switched on for all traffic"),
    "complaint": (_ticket, "customer complaint about a double charge escalated as {}"),
    "backup": (_name, "nightly snapshot stored in vault under label {}"),
    "oncall": (_person, "pager handover done, on duty until monday: {}"),
}


def _builder(topic: str, *queries: str) -> Builder:
    return _note(topic, *_NOTES[topic], *queries)


def user_of_request(world: World, draw: Draw) -> Plan:
    """Who sent a request."""
    one, user = world.request_id(), draw.choice(world.users)
    plants = [{"request": one, "user": user, "level": draw.choice(("INFO", "WARN", "ERROR"))}]
    query = draw.choice(
        (f"Which user sent the request with the id {one}?", f"Whose request was {one}? Give the user, such as u1234.")
    )
    return Plan(query, plants, lambda r: r.request == one, lambda r: r.user)


def host_of_request(world: World, draw: Draw) -> Plan:
    """Where a request was handled."""
    one, host = world.request_id(), draw.choice(world.hosts)
    plants = [{"request": one, "host": host, "level": draw.choice(("INFO", "WARN", "ERROR"))}]
    query = draw.choice(
        (
            f"On which host was the request {one} handled?",
            f"Request {one} ran on one machine; what is that host's name?",
        )
    )
    return Plan(query, plants, lambda r: r.request == one, lambda r: r.host)


def request_of_user(world: World, draw: Draw) -> Plan:
    """The one request of a user that ended with a status."""
    user, *others = draw.sample(world.users, 4)
    status = draw.choice(RARE)
    plants: list[dict[str, Any]] = [{"user": one, "status": status} for one in (user, *others)]
    plants += [{"user": user} for _ in range(3)]
    query = draw.choice(
        (
            f"Exactly one request of user {user} ended with status {status}. What is its request id?",
            f"Give the id (such as r-0123456789) of the only request by {user} that was answered with status {status}.",
        )
    )
    return Plan(
        query, plants, lambda r: bool(r.request) and r.user == user and r.status == status, lambda r: r.request
    )


TEMPLATES: dict[str, Builder] = {
    "find_request_user": user_of_request,
    "find_request_host": host_of_request,
    "find_user_request": request_of_user,
    "find_release": _builder(
        "release",
        "Who signed off the build of {} that went live? Give first and last name.",
        "Which person gave permission for the rollout of {}? First and last name, please.",
    ),
    "find_key": _builder(
        "key",
        "What is the name of the key that {} signs with since its rotation?",
        "{} changed the key it signs with. What is the new one called?",
    ),
    "find_certificate": _builder(
        "certificate",
        "When does the certificate of {} expire? Give the date as YYYY-MM-DD.",
        "What is the last day (YYYY-MM-DD) on which the certificate that {} loaded can be used?",
    ),
    "find_flag": _builder(
        "flag",
        "Which feature flag was turned on in {}? Give its name.",
        "Name the flag that {} now has enabled for everybody.",
    ),
    "find_complaint": _builder(
        "complaint",
        "Under which ticket number was the complaint of a customer whom {} had charged twice passed on?",
        "A customer of {} was charged twice and complained. What is the number of that ticket?",
    ),
    "find_backup": _builder(
        "backup",
        "By what label can the snapshot of {} be found in the vault?",
        "What label does the nightly backup of {} carry?",
    ),
    "find_oncall": _builder(
        "oncall",
        "Who took over the pager for {}? Give first and last name.",
        "Which person is on duty for {} after the handover? First and last name, please.",
    ),
}

"""Unprivileged user ids for sandboxes started by root.

RLIMIT_NPROC counts the processes of a *user*, so each sandbox gets an id of its own; it owns no file and no other
process either. Ids come from a range that systemd's documentation of uid ranges lists as unused, or, in a user
namespace that lacks it, from the upper half of what is mapped.
"""

from __future__ import annotations

import os
import secrets
from functools import cache
from pathlib import Path

_FIRST, _LAST = 1_879_048_192, 2_147_483_646
CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 6, 7, 21


@cache
def capabilities() -> int:
    """The effective capabilities of this process, as a bit mask; 0 where there is no such thing."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff")), 0)


def has(*wanted: int) -> bool:
    """Whether this process has all of the capabilities."""
    return all(capabilities() >> capability & 1 for capability in wanted)


@cache
def _range() -> tuple[int, int] | None:
    """First and last usable id, or None where there are fewer than a thousand."""
    try:
        rows = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except (OSError, ValueError):
        return None
    inside = [(first, first + count - 1) for first, _, count in rows]
    if any(first <= _FIRST and last >= _LAST for first, last in inside):
        return _FIRST, _LAST
    first, last = max(inside, key=lambda row: row[1] - row[0], default=(0, 0))
    middle = first + (last - first) // 2
    return (middle, last - 1) if last - middle >= 1000 else None  # the last is often "nobody"


def can_drop() -> bool:
    """Whether this process can become another user: it is root with the rights and the ids that takes."""
    return os.geteuid() == 0 and has(CAP_SETUID, CAP_SETGID) and _range() is not None


def fresh() -> int:
    """A user id for one sandbox. Random: a second host on the machine shall not hit the same one."""
    ids = _range()
    assert ids is not None
    return ids[0] + secrets.randbelow(ids[1] - ids[0])

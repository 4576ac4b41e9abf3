"""Questions about the users of labelled records: how many they wrote, whose are most, which label leads."""

from __future__ import annotations

from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.record_counts import Builder
from rlm_dspy.tasks.record_world import Ask, World

__all__ = ["TEMPLATES"]


def user_count(world: World, draw: Draw) -> Ask:
    """How many records of one label a user wrote."""
    record = world.some()
    user, label = world.who[record], world.what[record]
    number = len(world.records(lambda one: world.who[one] == user and world.what[one] == label))
    query = f"How many records of user {world.users[user]} have the label {world.labels[label]!r}?"
    return Ask(query, number, "int")


def user_label(world: World, draw: Draw) -> Ask:
    """The label that leads among what a user wrote."""
    user = world.who[world.some()]
    leader = world.lead(world.what, len(world.labels), world.records(lambda one: world.who[one] == user))
    return Ask(f"Which label do most records of user {world.users[user]} have?", world.labels[leader], "str")


def user_most(world: World, draw: Draw) -> Ask:
    """The user who wrote the most records of a label."""
    label = world.what[world.some()]
    leader = world.lead(world.who, len(world.users), world.labelled(label))
    query = f"Which user wrote the most records with the label {world.labels[label]!r}? Answer with the user's number."
    return Ask(query, world.users[leader], "str")


def user_more(world: World, draw: Draw) -> Ask:
    """Which of two users wrote more records of a label."""
    label = world.what[world.some()]
    holders = world.labelled(label)
    first = world.who[draw.choice(holders)]
    second = draw.choice([user for user in range(len(world.users)) if user != first])
    leader = world.lead(world.who, len(world.users), [one for one in holders if world.who[one] in (first, second)])
    named = draw.shuffled((first, second))
    query = (
        f"Which of the users {world.users[named[0]]} and {world.users[named[1]]} wrote more records with the label "
        f"{world.labels[label]!r}? Answer with the user's number."
    )
    return Ask(query, world.users[leader], "str")


def users_with(world: World, draw: Draw) -> Ask:
    """Who of eight or more users wrote at least so many records of a label; one or a few did."""
    label = world.what[world.some()]
    holders = world.labelled(label)
    named = draw.sample(range(len(world.users)), draw.between(8, 12))
    counts = world.tally(world.who, len(world.users), holders)
    ranked = sorted(named, key=lambda user: -counts[user])
    # So few that naming all of them is more than `scoring.MOST` times as many.
    chosen = draw.between(1, (len(named) - 1) // 3)
    while chosen > 1 and counts[ranked[chosen - 1]] == counts[ranked[chosen]]:
        chosen -= 1
    if counts[ranked[0]] == 0:
        world.who[holders[0]] = ranked[0]
    elif counts[ranked[chosen - 1]] == counts[ranked[chosen]]:
        world.lead(world.who, len(world.users), [one for one in holders if world.who[one] in named])
    counts = world.tally(world.who, len(world.users), holders)
    least = min(counts[user] for user in ranked[:chosen]) if chosen > 1 else max(counts[user] for user in named)
    those = [world.users[user] for user in named if counts[user] >= least]
    query = (
        f"Which of the users {', '.join(world.users[user] for user in named)} wrote at least {least} "
        f"{'record' if least == 1 else 'records'} with the label {world.labels[label]!r}?"
    )
    return Ask(query, those, "list[str]")


def user_share(world: World, draw: Draw) -> Ask:
    """How many different users wrote a record of a label, of some that are named."""
    label = world.what[world.some()]
    writers = {world.who[one] for one in world.labelled(label)}
    others = [user for user in range(len(world.users)) if user not in writers]
    present = draw.sample(sorted(writers), draw.between(1, 8))
    absent = draw.sample(others, draw.between(0, 6))
    named = draw.shuffled((*present, *absent))
    query = (
        f"How many of the users {', '.join(world.users[user] for user in named)} wrote at least one record with the "
        f"label {world.labels[label]!r}?"
    )
    return Ask(query, len(present), "int")


TEMPLATES: dict[str, Builder] = {
    "user_count": user_count,
    "user_label": user_label,
    "user_most": user_most,
    "user_more": user_more,
    "users_with": users_with,
    "user_share": user_share,
}

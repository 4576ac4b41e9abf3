"""Questions about the dates of labelled records: ranges, first and last, before and after, month by month."""

from __future__ import annotations

from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.record_counts import COMPARED, Builder, compared
from rlm_dspy.tasks.record_world import Ask, World

__all__ = ["TEMPLATES"]


def date_count(world: World, draw: Draw) -> Ask:
    """How many records of a label lie in a range of dates."""
    label = world.what[world.some()]
    days = sorted(world.when[draw.choice(world.labelled(label))] for _ in range(2))
    number = len(world.records(lambda one: days[0] <= world.when[one] <= days[1] and world.what[one] == label))
    query = (
        f"How many records with the label {world.labels[label]!r} are dated from {world.days[days[0]]} to "
        f"{world.days[days[1]]}, both days included?"
    )
    return Ask(query, number, "int")


def date_edge(world: World, draw: Draw) -> Ask:
    """The date of the first or last record of a label, in a month or overall."""
    record = world.some()
    label, month = world.what[record], world.month(record)
    within = draw.chance(0.5)
    days = [world.when[one] for one in world.labelled(label) if not within or world.month(one) == month]
    word, day = draw.choice((("earliest", min(days)), ("latest", max(days))))
    where = f" of the month {month}" if within else ""
    query = (
        f"What is the date of the {word} record{where} with the label {world.labels[label]!r}? "
        "Answer as in the context, YYYY-MM-DD."
    )
    return Ask(query, world.days[day], "str")


def date_compare(world: World, draw: Draw) -> Ask:
    """Whether a label is more frequent before a date than from it on; each answer is right in a third of cases."""
    label = world.what[world.some()]
    border = draw.between(len(world.days) // 3, 2 * len(world.days) // 3)
    wanted = draw.choice(("more", "fewer", "equal"))
    holders = draw.shuffled(world.labelled(label))
    if wanted == "equal" and len(holders) % 2:
        world.what[holders.pop()] = (label + 1) % len(world.labels)
    early = [one for one in holders if world.when[one] < border]
    late = [one for one in holders if world.when[one] >= border]
    over = len(early) - len(late)
    if wanted == "equal":
        give = over // 2
    elif (over > 0) != (wanted == "more") or over == 0:
        # As far on the other side, and one further where it was even.
        give = over if over else (-1 if wanted == "more" else 1)
    else:
        give = 0
    for one in early[:give] if give > 0 else ():
        world.when[one] = draw.between(border, len(world.days) - 1)
    for one in late[:-give] if give < 0 else ():
        world.when[one] = draw.below(border)
    before = sum(world.when[one] < border for one in holders)
    query = (
        f"Is the number of records with the label {world.labels[label]!r} that are dated before {world.days[border]} "
        "more, fewer or equal compared to those of that day and later? Answer 'more', 'fewer' or 'equal'."
    )
    return Ask(query, compared(before, len(holders) - before), COMPARED)


def month_most(world: World, draw: Draw) -> Ask:
    """The month with the most records of a label."""
    label = world.what[world.some()]
    holders = world.labelled(label)
    counts = dict.fromkeys(world.months, 0)
    for one in holders:
        counts[world.month(one)] += 1
    leader, second = sorted(world.months, key=lambda month: -counts[month])[:2]
    if counts[leader] == counts[second]:
        moved = next(one for one in holders if world.month(one) == second)
        world.when[moved] = next(at for at, day in enumerate(world.days) if day.startswith(leader))
    query = f"Which month has the most records with the label {world.labels[label]!r}? Answer as YYYY-MM."
    return Ask(query, leader, "str")


def month_label(world: World, draw: Draw) -> Ask:
    """The label that leads in a month."""
    month = world.month(world.some())
    leader = world.lead(world.what, len(world.labels), world.records(lambda one: world.month(one) == month))
    return Ask(f"Which label do most records of the month {month} have?", world.labels[leader], "str")


def month_first(world: World, draw: Draw) -> Ask:
    """The first month in which one label is ahead of another; any month but the last may be the one."""
    first, second = draw.sample(range(len(world.labels)), 2)
    target = draw.below(len(world.months) - 1)
    for month in world.months[:target]:
        if _ahead(world, first, second, month) > 0:
            _swap(world, first, second, month)
    _put_ahead(world, first, second, world.months[target])
    query = (
        f"Which is the first month with more records of the label {world.labels[first]!r} than of the label "
        f"{world.labels[second]!r}? Answer as YYYY-MM."
    )
    return Ask(query, world.months[target], "str")


def months_ahead(world: World, draw: Draw) -> Ask:
    """In how many months one label is ahead of another; in one at least."""
    first, second = draw.sample(range(len(world.labels)), 2)
    _put_ahead(world, first, second, draw.choice(world.months))
    number = sum(_ahead(world, first, second, month) > 0 for month in world.months)
    query = (
        f"In how many months are there more records with the label {world.labels[first]!r} than with the label "
        f"{world.labels[second]!r}?"
    )
    return Ask(query, number, "int")


def _ahead(world: World, first: int, second: int, month: str) -> int:
    """By how many records of a month one label is ahead of another."""
    labels = [world.what[one] for one in world.records(lambda one: world.month(one) == month)]
    return labels.count(first) - labels.count(second)


def _swap(world: World, first: int, second: int, month: str) -> None:
    """Each of two labels takes the place of the other in a month."""
    other = {first: second, second: first}
    for one in world.records(lambda one: world.month(one) == month):
        world.what[one] = other.get(world.what[one], world.what[one])


def _put_ahead(world: World, first: int, second: int, month: str) -> None:
    """Makes one label more frequent than another in a month."""
    if _ahead(world, first, second, month) < 0:
        _swap(world, first, second, month)
    if _ahead(world, first, second, month) == 0:
        days = [at for at, day in enumerate(world.days) if day.startswith(month)]
        # A record of a later month, so that no earlier one changes; of this month, where there is no later one.
        later = world.records(lambda one: world.when[one] > days[-1])
        moved = world.draw.choice(later or world.records(lambda one: world.what[one] != first))
        world.what[moved], world.when[moved] = first, world.draw.choice(days)


TEMPLATES: dict[str, Builder] = {
    "date_count": date_count,
    "date_edge": date_edge,
    "date_compare": date_compare,
    "month_most": month_most,
    "month_label": month_label,
    "month_first": month_first,
    "months_ahead": months_ahead,
}

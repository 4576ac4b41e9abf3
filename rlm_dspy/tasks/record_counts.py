"""Questions about all labelled records: how many, which label is most and least frequent, which of two is more so."""

from __future__ import annotations

from collections.abc import Callable

from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.record_world import Ask, World

__all__ = ["COMPARED", "TEMPLATES", "Builder", "compared"]

Builder = Callable[[World, Draw], Ask]

#: Type of an answer that says which of two is more.
COMPARED = "Literal['more', 'fewer', 'equal']"


def compared(first: int, second: int) -> str:
    """How ``first`` compares to ``second``."""
    return "more" if first > second else "fewer" if first < second else "equal"


def count_label(world: World, draw: Draw) -> Ask:
    """How many records have one label."""
    label = draw.below(len(world.labels))
    query = f"How many records have the label {world.labels[label]!r}?"
    return Ask(query, world.what.count(label), "int")


def count_other(world: World, draw: Draw) -> Ask:
    """How many have one of two labels, or, where there are but two, not the one."""
    first, second = draw.sample(range(len(world.labels)), 2)
    if len(world.labels) == 2:
        query = f"How many records do not have the label {world.labels[first]!r}?"
        return Ask(query, world.size - world.what.count(first), "int")
    query = f"How many records have the label {world.labels[first]!r} or the label {world.labels[second]!r}?"
    return Ask(query, world.what.count(first) + world.what.count(second), "int")


def most_label(world: World, draw: Draw) -> Ask:
    """The most frequent label."""
    # Which label leads does not hang on the order in which the question names them.
    leader = world.lead(world.what, len(world.labels), range(world.size))
    return Ask("Which label do most records have?", world.labels[leader], "str")


def least_label(world: World, draw: Draw) -> Ask:
    """The least frequent label."""
    counts = world.tally(world.what, len(world.labels), range(world.size))
    least, second, *rest = sorted(range(len(counts)), key=lambda at: (counts[at], at))
    if counts[least] == counts[second]:
        world.relabel(least, (rest or [second])[-1], 1)
    return Ask("Which label do the fewest records have?", world.labels[least], "str")


def compare_labels(world: World, draw: Draw) -> Ask:
    """Whether a label is more frequent than another: each answer is right in about a third of cases."""
    first, second, *rest = draw.shuffled(range(len(world.labels)))
    wanted = draw.choice(("more", "fewer", "equal"))
    a, b = world.what.count(first), world.what.count(second)
    if wanted == "equal" and (a + b) % 2 and rest:
        world.relabel(*((first, rest[0]) if a > b else (second, rest[0])), 1)
        a, b = world.what.count(first), world.what.count(second)
    if wanted == "equal" and (a + b) % 2 == 0:
        world.relabel(*((first, second) if a > b else (second, first)), abs(a - b) // 2)
    elif a == b:
        world.relabel(second, first, 1)
    a, b = world.what.count(first), world.what.count(second)
    if (wanted == "more" and a < b) or (wanted == "fewer" and a > b):
        first, second, a, b = second, first, b, a
    query = (
        f"Are there more, fewer or equally many records with the label {world.labels[first]!r} than with the label "
        f"{world.labels[second]!r}? Answer 'more', 'fewer' or 'equal'."
    )
    return Ask(query, compared(a, b), COMPARED)


def difference(world: World, draw: Draw) -> Ask:
    """By how many records a label is ahead of another."""
    first, second = draw.sample(range(len(world.labels)), 2)
    if world.what.count(first) == world.what.count(second):
        world.relabel(first, second, 1)
    a, b = world.what.count(first), world.what.count(second)
    query = (
        f"How far apart are the numbers of records with the label {world.labels[first]!r} and of records with the "
        f"label {world.labels[second]!r}? Answer with the difference, 0 or more."
    )
    return Ask(query, abs(a - b), "int")


TEMPLATES: dict[str, Builder] = {
    "count_label": count_label,
    "count_other": count_other,
    "most_label": most_label,
    "least_label": least_label,
    "compare_labels": compare_labels,
    "difference": difference,
}

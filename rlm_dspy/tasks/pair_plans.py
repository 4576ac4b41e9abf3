"""Conditions on pairs of users, and records in which some pairs meet them.

A plan first decides how many records of each label every user has, so that few enough users or groups of them meet its
condition; then who is paired with whom is read off the records themselves (`Crowd.written`), not off the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.record_world import World

__all__ = ["TEMPLATES", "Condition", "Crowd"]


@dataclass
class Written:
    """What one user wrote: how many records of each label, and how many of these before the border."""

    counts: list[int]
    early: list[int]


@dataclass(frozen=True)
class Condition:
    """What is asked of a pair.

    Attributes:
        text: In words.
        holds: Whether it is true of one user and another; it need not be symmetric, a pair meets it either way round.
    """

    text: str
    holds: Callable[[Written, Written], bool]


class Crowd:
    """Users whose numbers of records of each label are decided before the records are.

    Attributes:
        world: The records.
        x, y: The two labels that a condition is about, as places in ``world.labels``.
        border: The day, as a place in ``world.days``, that conditions on dates are about.
        usual: How many records of one label a user has, about.
    """

    def __init__(self, draw: Draw, characters: int) -> None:
        self.draw = draw
        self.world = world = World(draw, characters, ("messages", "questions"), (6, 48, 5))
        self.x, self.y = draw.sample(range(len(world.labels)), 2)
        self._free = [at for at in range(len(world.labels)) if at not in (self.x, self.y)]
        self.border = draw.between(len(world.days) // 3, 2 * len(world.days) // 3)
        self.usual = max(1, world.size // len(world.users) // len(world.labels))
        whole, rest = divmod(world.size, len(world.users))
        self._counts = [self._split(whole + (user < rest)) for user in range(len(world.users))]
        self._late: set[int] = set()
        self._early: set[int] = set()

    def _split(self, number: int) -> list[int]:
        counts = [0] * len(self.world.labels)
        weights = [self.draw.between(1, 6) for _ in counts]
        for label, weight in enumerate(weights):
            counts[label] = number * weight // sum(weights)
        counts[self._free[0]] += number - sum(counts)
        return counts

    def some(self, share: int = 2) -> set[int]:
        """Two users or more, at most one in ``share`` of all."""
        users = range(len(self.world.users))
        return set(self.draw.sample(users, self.draw.between(2, max(2, len(users) // share))))

    def put(self, user: int, label: int, number: int) -> None:
        """Sets how many records of a label a user has; other labels give and take."""
        counts = self._counts[user]
        over = counts[label] - number
        counts[label] = number
        if over >= 0:
            counts[self.draw.choice([free for free in self._free if free != label])] += over
        while over < 0:
            giver = max((free for free in self._free if free != label), key=lambda free: counts[free])
            given = min(counts[giver], -over)
            if given == 0:  # the user writes more than the others
                break
            counts[giver] -= given
            over += given

    def lead(self, user: int, label: int) -> None:
        """Makes a label the most frequent one of a user, by one at least."""
        counts = self._counts[user]
        while True:
            second = max((at for at in range(len(counts)) if at != label), key=lambda at: counts[at])
            over = counts[second] - counts[label]
            if over < 0:
                return
            counts[second] -= over // 2 + 1
            counts[label] += over // 2 + 1

    def early(self, user: int, true: bool) -> None:
        """One record of the label ``x`` of a user is before the border, or none is."""
        (self._early if true else self._late).add(user)

    def written(self) -> list[Written]:
        """Makes the records, and says what each user wrote."""
        world, draw = self.world, self.draw
        rows = [
            (user, label)
            for user, counts in enumerate(self._counts)
            for label, count in enumerate(counts)
            for _ in range(count)
        ]
        rows = draw.shuffled(rows)
        world.size = len(rows)
        world.who = [user for user, _ in rows]
        world.what = [label for _, label in rows]
        world.when = [self._day(user, label) for user, label in rows]
        labels = len(world.labels)
        mine = [Written([0] * labels, [0] * labels) for _ in world.users]
        for (user, label), day in zip(rows, world.when, strict=True):
            mine[user].counts[label] += 1
            mine[user].early[label] += day < self.border
        return mine

    def _day(self, user: int, label: int) -> int:
        last = len(self.world.days) - 1
        if label == self.x and user in self._late:
            return self.draw.between(self.border, last)
        if label == self.x and user in self._early:
            self._early.discard(user)
            return self.draw.below(self.border)
        return self.draw.between(0, last)

    def named(self) -> tuple[str, str]:
        """The two labels, as a question names them."""
        return repr(self.world.labels[self.x]), repr(self.world.labels[self.y])

    def few(self, low: int = 1) -> int:
        """A number of records, from ``low`` to about the usual one."""
        return self.draw.between(low, max(low, self.usual))

    @property
    def users(self) -> Sequence[int]:
        """All users."""
        return range(len(self.world.users))


def both_any(crowd: Crowd) -> Condition:
    """Both have a record of one label or the other."""
    chosen, (x, y) = crowd.some(), (crowd.x, crowd.y)
    for user in crowd.users:
        one, other = crowd.draw.shuffled((x, y))
        crowd.put(user, one, crowd.few() if user in chosen else 0)
        crowd.put(user, other, crowd.draw.choice((0, crowd.few())) if user in chosen else 0)
    text = "both have at least one record with the label {} or {}".format(*crowd.named())
    return Condition(text, lambda a, b: a.counts[x] + a.counts[y] > 0 and b.counts[x] + b.counts[y] > 0)


def both_all(crowd: Crowd) -> Condition:
    """Both have records of both labels."""
    chosen, (x, y) = crowd.some(), (crowd.x, crowd.y)
    for user in crowd.users:
        kept = ((1, 1),) if user in chosen else ((0, 1), (1, 0), (0, 0))
        first, second = crowd.draw.choice(kept)
        crowd.put(user, x, first * crowd.few())
        crowd.put(user, y, second * crowd.few())
    text = "both have at least one record with the label {} and at least one with the label {}".format(*crowd.named())
    return Condition(text, lambda a, b: min(a.counts[x], a.counts[y], b.counts[x], b.counts[y]) > 0)


def both_none(crowd: Crowd) -> Condition:
    """Neither has a record of a label."""
    chosen, x = crowd.some(), crowd.x
    for user in crowd.users:
        crowd.put(user, x, 0 if user in chosen else crowd.few())
    text = f"neither of the two has any record with the label {crowd.named()[0]}"
    return Condition(text, lambda a, b: a.counts[x] == b.counts[x] == 0)


def both_least(crowd: Crowd) -> Condition:
    """Both have so many records of a label or more."""
    chosen, x, least = crowd.some(), crowd.x, crowd.usual + 1
    for user in crowd.users:
        number = crowd.draw.between(least, least + crowd.usual // 2) if user in chosen else crowd.draw.below(least)
        crowd.put(user, x, number)
    text = f"both have at least {least} records with the label {crowd.named()[0]}"
    return Condition(text, lambda a, b: a.counts[x] >= least and b.counts[x] >= least)


def both_before(crowd: Crowd) -> Condition:
    """Both have a record of a label before a date."""
    chosen, x = crowd.some(), crowd.x
    for user in crowd.users:
        crowd.put(user, x, crowd.few(int(user in chosen)))
        crowd.early(user, user in chosen)
    date = crowd.world.days[crowd.border]
    text = f"both have at least one record with the label {crowd.named()[0]} that is dated before {date}"
    return Condition(text, lambda a, b: a.early[x] > 0 and b.early[x] > 0)


def same_number(crowd: Crowd) -> Condition:
    """Both have the same number of records of a label, which is not 0."""
    x, kept = crowd.x, crowd.some()
    twins = crowd.draw.sample(sorted(kept), 2)
    number = crowd.few()
    for user in crowd.users:
        theirs = crowd.draw.between(1, 2 * crowd.usual) if user in kept else 0
        crowd.put(user, x, number if user in twins else theirs)
    text = f"both have the same number of records with the label {crowd.named()[0]}, and that number is not 0"
    return Condition(text, lambda a, b: a.counts[x] == b.counts[x] > 0)


def same_leader(crowd: Crowd) -> Condition:
    """The most frequent label of both is the same."""
    labels = len(crowd.world.labels)
    # In turn, so that no label leads with many; the first two share one.
    order = crowd.draw.shuffled(crowd.users)
    for place, user in enumerate(order):
        crowd.lead(user, max(0, place - 1) % labels)
    text = "the label that most records of the one user have is also the label that most records of the other have"
    return Condition(text, lambda a, b: a.counts.index(max(a.counts)) == b.counts.index(max(b.counts)))


def one_each(crowd: Crowd) -> Condition:
    """One has the one label and not the other, and the other the other way round."""
    x, y = crowd.x, crowd.y
    order = crowd.draw.shuffled(crowd.users)
    first, second = (crowd.draw.between(1, max(1, len(order) // 4)) for _ in range(2))
    for place, user in enumerate(order):
        alike = crowd.draw.below(2)
        has = (1, 0) if place < first else (0, 1) if place < first + second else (alike, alike)
        crowd.put(user, x, has[0] * crowd.few())
        crowd.put(user, y, has[1] * crowd.few())
    text = (
        "one of the two has at least one record with the label {0} and none with the label {1}, and the other of the "
        "two has at least one with the label {1} and none with the label {0}"
    ).format(*crowd.named())
    return Condition(text, lambda a, b: a.counts[x] > 0 and a.counts[y] == 0 and b.counts[y] > 0 and b.counts[x] == 0)


def one_exactly(crowd: Crowd) -> Condition:
    """One has so many of one label or more, and the other exactly one of another label."""
    x, y, least = crowd.x, crowd.y, crowd.usual + 1
    order = crowd.draw.shuffled(crowd.users)
    many, once = (set(crowd.draw.sample(order, crowd.draw.between(1, max(1, len(order) // 7)))) for _ in range(2))
    if many == once:
        once = {next(user for user in order if user not in many)}
    for user in crowd.users:
        crowd.put(user, x, crowd.draw.between(least, least + crowd.usual) if user in many else crowd.draw.below(least))
        crowd.put(user, y, 1 if user in once else crowd.draw.choice((0, 2)))
    text = (
        "one of the two has at least {2} records with the label {0}, and the other of the two has exactly one record "
        "with the label {1}"
    ).format(*crowd.named(), least)
    return Condition(text, lambda a, b: a.counts[x] >= least and b.counts[y] == 1)


TEMPLATES: dict[str, Callable[[Crowd], Condition]] = {
    "both_any": both_any,
    "both_all": both_all,
    "both_none": both_none,
    "both_least": both_least,
    "both_before": both_before,
    "same_number": same_number,
    "same_leader": same_leader,
    "one_each": one_each,
    "one_exactly": one_exactly,
}

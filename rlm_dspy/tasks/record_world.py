"""Records with a date, a user and a label, before they are texts: who wrote what when, and how it is written down.

Labels are decided first and the texts are written to them, so that the gold of a question comes from here and not from
the text. Where a question would have two right answers, its plan changes a few records (`World.relabel` and the like)
until it has one.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.record_texts import THEMES, Theme, text

__all__ = ["Ask", "World", "instruct", "write"]

_FIRST_DAY = datetime.date(2022, 1, 1)
#: Characters of a record beside its text.
_FRAME = len("2024-03-12 | user 48213 | \n")


class World:
    """The records of one context.

    Args:
        draw: The source of its draws.
        characters: How long the context shall be.
        themes: Names of themes, one of which it is about.
        crowd: The least and greatest number of users, and how many records there are to each, about.

    Attributes:
        theme: The sort of record.
        labels: Its labels, in a drawn order.
        users: Ids of all users, five digits each.
        days: All dates, ISO texts, in order; whole months.
        months: The months of these, such as ``"2024-03"``.
        who, when, what: Of each record, its user, day and label as places in ``users``, ``days`` and ``labels``.
    """

    def __init__(
        self,
        draw: Draw,
        characters: int,
        themes: Sequence[str] = tuple(THEMES),
        crowd: tuple[int, int, int] = (8, 60, 6),
    ) -> None:
        self.draw = draw
        self.theme: Theme = THEMES[draw.choice(themes)]
        self.labels = draw.shuffled(tuple(self.theme.labels))
        self.size = (characters - 50) // (self.theme.length + _FRAME)
        users = max(crowd[0], min(crowd[1], self.size // crowd[2]))
        self.users = [str(number) for number in draw.distinct(10_000, 99_999, users)]
        self.days = _days(draw, draw.between(4, 6 + min(6, self.size // 100)))
        self.months = list(dict.fromkeys(day[:7] for day in self.days))
        self.what = draw.shuffled([at for at, count in enumerate(self._shares()) for _ in range(count)])
        busy = [at for at in range(users) for _ in range(draw.between(2, 9))]
        self.who = [draw.choice(busy) for _ in range(self.size)]
        self.when = [draw.below(len(self.days)) for _ in range(self.size)]

    def _shares(self) -> list[int]:
        """How many records each label has, at least two of each."""
        weights = [self.draw.between(3, 16) for _ in self.labels]
        counts = [max(2, self.size * weight // sum(weights)) for weight in weights]
        most = counts.index(max(counts))
        counts[most] += self.size - sum(counts)
        return counts

    def month(self, record: int) -> str:
        """The month of a record."""
        return self.days[self.when[record]][:7]

    def records(self, keep: Callable[[int], bool]) -> list[int]:
        """The records for which ``keep`` is true, in order."""
        return [record for record in range(self.size) if keep(record)]

    def labelled(self, label: int) -> list[int]:
        """The records of that label, in order."""
        return [record for record, its in enumerate(self.what) if its == label]

    def tally(self, among: Sequence[int], size: int, records: Iterator[int] | Sequence[int]) -> list[int]:
        """How often each place of ``among``, such as ``what``, occurs in some records."""
        counts = [0] * size
        for record in records:
            counts[among[record]] += 1
        return counts

    def some(self) -> int:
        """Any record."""
        return self.draw.below(self.size)

    def relabel(self, old: int, new: int, number: int, keep: Callable[[int], bool] = lambda record: True) -> None:
        """Gives so many records of one label another one, drawn from those that may be changed."""
        holders = [record for record, label in enumerate(self.what) if label == old and keep(record)]
        for record in self.draw.sample(holders, number) if number else ():
            self.what[record] = new

    def lead(self, column: list[int], size: int, records: Sequence[int], margin: int = 1) -> int:
        """The most frequent place of a column in some records, once it is that by ``margin``.

        Records of the runner-up are given to the leader until it leads, one at a time.
        """
        counts = self.tally(column, size, records)
        leader = counts.index(max(counts))
        while True:
            second = max((at for at in range(size) if at != leader), key=lambda at: (counts[at], -at))
            if counts[leader] - counts[second] >= margin:
                return leader
            moved = next(record for record in records if column[record] == second)
            column[moved] = leader
            counts[leader] += 1
            counts[second] -= 1


@dataclass(frozen=True)
class Ask:
    """A question, its gold, and the type of its answer.

    Attributes:
        query: What is asked, after the labels have been explained.
        answer: The gold.
        type: Of the answer, as in a signature.
    """

    query: str
    answer: int | str | list[str] | list[list[int]]
    type: str


def _days(draw: Draw, months: int) -> list[str]:
    """All dates of so many months, from a drawn month on."""
    start = draw.below(24)
    first = _month(start)
    return [(first + datetime.timedelta(at)).isoformat() for at in range((_month(start + months) - first).days)]


def _month(number: int) -> datetime.date:
    return datetime.date(_FIRST_DAY.year + number // 12, 1 + number % 12, 1)


def instruct(world: World, ask: Ask) -> str:
    """The question with what it needs to be understood: what the records are, and what each label means."""
    meanings = "; ".join(f"{label!r} ({world.theme.labels[label]})" for label in world.labels)
    return (
        f"The context holds {world.theme.noun}, one a line: date, user, text. Each has exactly one label, which is not "
        f"written down and follows from what the text says: {meanings}. {ask.query}"
    )


def write(world: World, characters: int) -> str:
    """The records as text of that length, met to within one record."""
    draw, theme, length = world.draw, world.theme, world.theme.length
    blocks = [f"{world.size} {theme.noun}\n\n"]
    written = len(blocks[0])
    lines: list[str] = []
    for record in range(world.size):
        due = (characters + length) * (record + 1) // world.size
        label = world.labels[world.what[record]]
        frame = f"{world.days[world.when[record]]} | user {world.users[world.who[record]]} | "
        # About every other text has an aside, those with which the length is what is due, give or take 30 characters.
        asides = int(written + length + len(frame) - draw.below(60) < due - 30)
        if record == world.size - 1 and written + 2 * length < characters:
            asides += (characters - written) // length
        lines.append(f"{frame}{text(draw, theme, label, asides)}\n")
        written += len(lines[-1])
        if len(lines) == 5000:
            blocks.append("".join(lines))
            lines.clear()
    return "".join((*blocks, *lines))

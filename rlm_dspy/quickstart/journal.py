"""The quickstart's document: half a day of a shop's service log with notes of changes among its lines.

Its question needs both kinds of work. Why a change was made stands in prose, without a word that would give it away, so
the notes have to be read; how many requests failed after it stands in some sixty thousand lines, so these have to be
counted. The answer is known because the document is built round it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

QUESTION = (
    "Some of the changes noted in this journal were made to spend less money; others had other reasons. "
    "Which of the money-saving changes was followed by the most failed requests (ERROR lines) of the service that was "
    "changed, within the 60 minutes after the note? Give that service, the person who signed the note, and the number "
    "of failed requests."
)

COUNT_QUESTION = "How many requests in this journal failed? A failed request is a line with the level ERROR."
"""The question that the embedded model is asked: one that wants counting and no judgement."""

SERVICES = ("basket", "catalogue", "checkout", "gateway", "invoices", "mailer", "pricing", "returns", "search", "stock")
PEOPLE = ("Amara", "Bjarne", "Chiara", "Dmitri", "Esi", "Farid", "Greta", "Hiroshi", "Ines", "Jonas", "Kavya", "Lucía")

# Why each change was made is never said in one word, and each reason has a note that sounds like another one.
MONEY = (
    "The monthly bill for {service} has doubled since spring, and nobody could say what for. It runs on two "
    "machines now instead of five.",
    "Finance asked again what all those replicas of {service} are for at night, and I had no good answer. They "
    "are gone.",
    "We were paying for memory that {service} never touches. I moved it to the smallest size the vendor rents out.",
    "Our contract for the premium tier behind {service} ran out on Friday and I did not renew it; the free tier "
    "has to do.",
    "{service} kept ninety days of hot storage that nobody reads. Seven are enough, and the saving pays for a junior.",
)
OTHER = (
    # Safety
    "An auditor found that {service} still accepted an old cipher. It is switched off, and as it happens the new "
    "library is cheaper to run too, though that is not why we did it.",
    "The token that {service} uses had been pasted into a public chat. It has been replaced and the old one revoked.",
    "{service} logged card numbers in clear text. They are masked before they are written.",
    # Speed
    "People complained that {service} took four seconds on a bad day. Its results are kept in a cache now, which costs "
    "us a machine more, and is worth it.",
    "I rewrote the slowest query of {service}; the page that used it loads before you can blink.",
    # Upkeep
    "The version of the runtime under {service} is no longer maintained by anyone, so it got the current one.",
    "A flag of {service} that everybody had switched on years ago is no longer a flag. No visible change expected.",
    "Half of the settings of {service} were read from a file that no one could find. They live with the code now.",
    # Law and customers
    "The regulator wants returns kept for ten years, so {service} keeps them for ten years. The budget grew for it.",
    "A large customer needs dates in their own calendar; {service} can do that from today.",
)

_ROUTES = ("/v2/items", "/v2/orders", "/v2/quotes", "/v2/people", "/v2/labels", "/healthz", "/v2/batches")
_FAILURES = ("upstream timed out", "pool exhausted", "connection reset by peer", "no healthy backend", "queue full")

_MINUTES = 12 * 60
_WINDOW = 60


@dataclass(frozen=True)
class Change:
    """One noted change: minute of the day it was noted, service, who signed, and whether money was the reason."""

    minute: int
    service: str
    person: str
    money: bool
    text: str


@dataclass(frozen=True)
class Journal:
    """The document and what is true of it.

    Attributes:
        text: Some 6 MB, one entry a line.
        changes: In the order of the text.
        service, person, errors: The answer to `QUESTION`.
        counted: The answer to `COUNT_QUESTION`.
    """

    text: str
    changes: tuple[Change, ...]
    service: str
    person: str
    errors: int
    counted: int


def make(seed: int = 7, requests_per_minute: int = 88) -> Journal:
    """Build the journal; the same arguments give the same bytes.

    Args:
        seed: Of everything that is drawn.
        requests_per_minute: Ordinary log lines a minute; 88 make about 6 MB.
    """
    random_ = random.Random(seed)
    changes = _changes(random_)
    rates = _failure_rates(changes, random_)
    entries: list[str] = []
    failures: list[tuple[int, str]] = []
    due = {change.minute: change for change in changes}
    for minute in range(_MINUTES):
        clock = f"{6 + minute // 60:02d}:{minute % 60:02d}"
        if minute in due:
            change = due[minute]
            entries.append(f"2026-03-03T{clock}:00Z NOTE {change.service} | {change.text} (signed {change.person})")
        for second in sorted(random_.randrange(1, 60) for _ in range(requests_per_minute)):
            service = random_.choice(SERVICES)
            route, request = random_.choice(_ROUTES), f"{random_.getrandbits(48):012x}"
            prefix = f"2026-03-03T{clock}:{second:02d}Z"
            if random_.random() < rates.get((minute, service), 0.01):
                failures.append((minute, service))
                entries.append(
                    f"{prefix} ERROR {service} {route} status=503 request={request} "
                    f'took={random_.randrange(900, 30000)}ms reason="{random_.choice(_FAILURES)}"'
                )
            else:
                entries.append(
                    f"{prefix} INFO {service} {route} status=200 request={request} "
                    f"took={random_.randrange(2, 400)}ms bytes={random_.randrange(120, 90000)}"
                )
    best, errors = max(
        ((change, _count(failures, change)) for change in changes if change.money), key=lambda pair: pair[1]
    )
    return Journal("\n".join(entries) + "\n", changes, best.service, best.person, errors, len(failures))


def _changes(random_: random.Random) -> tuple[Change, ...]:
    """The changes at minutes of their own, each service often enough that its name alone does not give the answer."""
    texts = [(text, True) for text in MONEY] + [(text, False) for text in OTHER]
    texts = texts + random_.sample(texts, 9)
    random_.shuffle(texts)
    # The last hour is free, so that every change has its full window.
    minutes = sorted(random_.sample(range(5, _MINUTES - _WINDOW - 5), len(texts)))
    changes = []
    for (text, money), minute in zip(texts, minutes, strict=True):
        service, person = random_.choice(SERVICES), random_.choice(PEOPLE)
        written = text.format(service=service)
        changes.append(Change(minute, service, person, money, written[0].upper() + written[1:]))
    return tuple(changes)


def _failure_rates(changes: tuple[Change, ...], random_: random.Random) -> dict[tuple[int, str], float]:
    """How likely a request fails, by minute and service: worst of all after some change that money did not cause."""
    money = [change for change in changes if change.money]
    other = [change for change in changes if not change.money]
    troubles = [(random_.choice(other), 0.75), *((change, 0.3) for change in random_.sample(other, 3))]
    troubles += zip(random_.sample(money, 3), (0.5, 0.35, 0.25), strict=True)
    rates: dict[tuple[int, str], float] = {}
    for change, rate in troubles:
        for minute in range(change.minute, change.minute + _WINDOW):
            rates[minute, change.service] = max(rate, rates.get((minute, change.service), 0.0))
    return rates


def _count(failures: list[tuple[int, str]], change: Change) -> int:
    return sum(
        1
        for minute, service in failures
        if service == change.service and change.minute <= minute < change.minute + _WINDOW
    )

"""Questions about people, each of whom has a document: the answer is one to three documents away."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlm_dspy.tasks.base import Spot, Task
from rlm_dspy.tasks.needle_facts import DOGS, INSTRUMENTS, POOLS, TOWNS
from rlm_dspy.tasks.prose import sentence

__all__ = ["TEMPLATES"]

#: Sort of fact to its wordings, ``{P}`` the person and ``{V}`` the value, and how it is asked for.
_FACTS: dict[str, tuple[tuple[str, ...], str]] = {
    "born": (
        ("{P} first saw the light of day in {V}.", "It was in {V} that {P} was born.", "{P} is a native of {V}."),
        "In which town was {P} born?",
    ),
    "plays": (
        (
            "In the evenings {P} plays the {V}.",
            "{P} has mastered the {V}.",
            "The {V} of {P} can be heard through walls.",
        ),
        "Which musical instrument does {P} play?",
    ),
    "keeps": (
        ("{P} is never seen without a dog called {V}.", "The dog of {P} answers to {V}.", "{V} is the dog of {P}."),
        "What is the name of the dog that {P} keeps?",
    ),
}
_VALUES = {"born": TOWNS, "plays": INSTRUMENTS, "keeps": DOGS}
_MASTERS = ("{P} learned the trade from {V}.", "For seven years {P} was apprenticed to {V}.", "{V} trained {P}.")


def _task(spot: Spot, hops: int) -> Task:
    draw = spot.draw
    size = max(5, min(400, spot.characters // 800))
    people = draw.sample(POOLS["person"], size)
    # A ring in a drawn order with steps of one or two, so that three steps never lead back.
    masters = [(person + draw.between(1, 2 if size > 6 else 1)) % size for person in range(size)]
    facts = {sort: [draw.choice(_VALUES[sort]) for _ in people] for sort in _FACTS}
    documents, written = [], 0
    for number, person in enumerate(draw.shuffled(range(size)), 1):
        said = [draw.choice(_MASTERS).format(P=people[person], V=people[masters[person]])]
        for sort, (wordings, _) in _FACTS.items():
            said.append(draw.choice(wordings).format(P=people[person], V=facts[sort][person]))
        head = f"Document {number}\n\n"
        room = spot.characters * number // size - written - len(head) - sum(map(len, said)) - len(said) - 1
        lines: list[str] = []
        while room > 0:
            lines.append(sentence(draw))
            room -= len(lines[-1]) + 1
        for one in said:
            lines.insert(draw.below(len(lines) + 1), one)
        paragraphs = [" ".join(lines[at : at + 8]) for at in range(0, len(lines), 8)]
        documents.append(head + "\n".join(paragraphs) + "\n\n")
        written += len(documents[-1])
    start = asked = draw.below(size)
    for _ in range(hops):
        asked = masters[asked]
    sort = draw.choice(tuple(_FACTS))
    whom = people[start] if not hops else f"the person who taught {'the teacher of ' * (hops - 1)}{people[start]}"
    query = f"The context is a collection of documents. {_FACTS[sort][1].format(P=whom)}"
    extra = {"documents": size, "hops": hops}
    return Task("".join(documents), query, facts[sort][asked], extra, "context, query -> answer: str")


TEMPLATES: Mapping[str, Callable[[Spot], Task]] = {
    "one_document": lambda spot: _task(spot, 0),
    "two_documents": lambda spot: _task(spot, 1),
    "three_documents": lambda spot: _task(spot, 2),
}

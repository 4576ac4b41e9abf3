"""Long prose about a river town, sentence by sentence, as a bed for hidden facts.

The people in it have roles and no names, so that nothing it says is about anybody, or any place, that a fact names.
A paragraph is one line; chapters have headings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlm_dspy.tasks._draw import Draw

_WORDS: dict[str, tuple[str, ...]] = {
    "who": (
        *("the miller", "the schoolmaster", "the chandler's widow", "the youngest apprentice", "the lamplighter"),
        *("the sexton", "the toll keeper", "a travelling tinker", "the surveyor", "the baker's sister"),
        *("an old raftsman", "the midwife", "the harbour clerk", "the rope maker", "the cooper", "the magistrate"),
        *("the night watch", "the glazier", "the choir master", "a boy from the tannery", "the herb seller"),
        *("a girl with a basket", "the eel catcher"),
    ),
    "where": (
        *("by the weir", "behind the granary", "on the lower bridge", "in the cloth hall", "near the drying sheds"),
        *("under the arcades", "at the corner of the fish market", "along the dyke", "in the reading room"),
        *("outside the customs house", "on the steps of the chapel", "beyond the brick kilns", "among the orchards"),
        *("at the far end of the quay", "in the loft above the stables", "where the two canals meet"),
    ),
    "when": (
        *("before dawn", "towards noon", "at dusk", "after the second bell", "on market day"),
        *("when the fog lifted", "while the kettles boiled", "late in October", "during the long frost"),
        *("once the carts had gone", "between two showers", "as the lamps were lit", "in the first mild days of March"),
        *("one idle Sunday", "in the week of the floods"),
    ),
    "thing": (
        *("a ledger with a broken spine", "three coils of tarred rope", "a basket of quinces", "an unsigned receipt"),
        *("a map with one corner torn off", "a lantern without glass", "two sacks of barley", "a box of brass hinges"),
        *("a bundle of old petitions", "a mended sail", "a jar of lamp oil", "the keys of the counting house"),
        *("a kettle that had lost its lid", "a bolt of grey cloth", "a drawer full of buttons"),
        *("a wheel without a cart", "the lid of a churn"),
    ),
    "quality": (
        *("quiet", "stubborn", "narrow", "slow", "crooked", "pale", "brittle", "generous", "doubtful", "plain"),
        *("damp", "solemn", "careless", "bright", "weathered", "patient", "hollow", "restless", "mild", "severe"),
    ),
    "weather": (
        *("rain", "sleet", "a thin mist", "the smell of wet straw", "a wind from the marshes", "low winter light"),
        *("dust", "the noise of saws", "woodsmoke", "a warm drizzle", "the first snow", "a haze of chaff"),
    ),
    "did": (
        *("argued about", "paid twice for", "could not find", "gave away", "weighed", "hid", "asked after", "counted"),
        *("carried off", "wrote a long note about", "forgot", "laughed at", "bargained for", "polished", "inherited"),
    ),
    "matter": (
        *("the price of candles", "the new tariff", "the repairs to the lock", "the election of the wardens"),
        *("a quarrel over fences", "the shortage of salt", "the lease of the upper meadow", "a rumour from the coast"),
        *("the width of the towpath", "the painting of the boats", "the harvest", "the width of a good plank"),
        *("the behaviour of geese", "the council's silence", "an overdue shipment", "what the stars had promised"),
    ),
    "reason": (
        *("nobody had thought to ask", "the roads were bad", "it had always been done so", "there was no other chair"),
        *("the clerk had mislaid his spectacles", "bread was dear that year", "the river would not wait"),
        *("the old rule had never been repealed", "two of the planks were rotten", "silence seemed the cheaper course"),
        *("the dogs were barking", "someone had left the gate open", "the account did not balance"),
    ),
}

_SENTENCES = (
    "{Who} {did} {thing} {where}.",
    "{When}, {who} {did} {thing}, because {reason}.",
    "There was {weather} {where}, and {who} spoke of {matter}.",
    "It was a {quality} season, and {matter} kept everyone busy.",
    "{Who} and {who} talked about {matter} until the candles were {quality}.",
    "Nothing came of {matter}, since {reason}.",
    "{When} {who} stood {where} with {thing} and a {quality} expression.",
    "The street {where} looked {quality} under {weather}.",
    "{Who} said that {matter} mattered less than {thing}.",
    "Because {reason}, {thing} stayed {where} for months.",
    "Some blamed {matter}; others blamed {weather}, or {who}.",
    "{When}, {weather} came up the river and the windows turned {quality}.",
    "If {who} knew anything of {matter}, it did not show.",
    "{Who} had a {quality} way of speaking about {matter}, and most people forgave it.",
    "{Thing} lay {where}, {quality} and unclaimed, although {who} passed it twice a day.",
    "The minutes mention {matter}, then {thing}, then nothing more, for {reason}.",
    "{Where} one could hear {who} and, {when}, a {quality} sort of singing.",
    "Three times that month {who} {did} {thing}, and each time it ended {where}.",
    "What {who} {did} {when} was {thing}, or so {who} believed.",
    "A {quality} debate on {matter} filled the hall, while {who} slept {where}.",
    "{Weather} does not keep accounts, {who} liked to say, and {reason}.",
    "Later, {where}, {who} counted the cost of {matter} and found it {quality}.",
    "The {quality} part of the story concerns {thing}, which {who} {did} {when}.",
    "No one {where} cared for {matter}, least of all {who}.",
)

_HEADINGS = (
    *("The Lower Lock", "Of Tariffs and Weather", "A Winter of Accounts", "The Council Sits", "What the Geese Knew"),
    *("Salt, Rope and Candles", "The Long Frost", "A Matter of Fences", "The Upper Meadow", "Market Days"),
    *("High Water", "Small Debts"),
)


def _compiled(template: str) -> tuple[tuple[str, bool, tuple[str, ...]], ...]:
    """A template as pieces: the text before a slot, whether the slot begins a sentence, the slot's words."""
    pieces = []
    for text, slot in re.findall(r"([^{]*)(?:\{(\w+)\}|$)", template):
        words = _WORDS[slot.lower()] if slot else ("",)
        pieces.append((text, slot[:1].isupper(), words))
    return tuple(pieces)


_COMPILED = tuple(_compiled(template) for template in _SENTENCES)


def sentence(draw: Draw) -> str:
    """One sentence."""
    random = draw.random
    out: list[str] = []
    for text, begins, words in _COMPILED[int(random() * len(_COMPILED))]:
        word = words[int(random() * len(words))]
        out += (text, word[0].upper() + word[1:] if begins else word)
    return "".join(out)


def document(draw: Draw, characters: int, planted: Sequence[tuple[float, str]]) -> tuple[str, list[float]]:
    """Prose with sentences planted in it.

    Args:
        draw: The source of the prose.
        characters: How long, met to within a paragraph.
        planted: Where (a share of the document, 0 to 1) and what; in any order.

    Returns:
        The text, and where each planted sentence begins in it, as shares of its length, in the order of ``planted``.
    """
    order = sorted(range(len(planted)), key=lambda place: planted[place][0])
    starts = [0] * len(planted)
    parts = ["A Chronicle of the River Town\n"]
    size, waiting, chapter = len(parts[0]), 0, 0
    while size < characters or waiting < len(order):
        if chapter * 12_000 <= size:
            chapter += 1
            parts.append(f"\nCHAPTER {chapter}. {draw.choice(_HEADINGS)}\n\n")
            size += len(parts[-1])
        line: list[str] = []
        for _ in range(draw.between(3, 7)):
            while waiting < len(order) and (planted[order[waiting]][0] * characters <= size or size >= characters):
                starts[order[waiting]] = size
                line.append(planted[order[waiting]][1])
                size += len(line[-1]) + 1
                waiting += 1
            line.append(sentence(draw))
            size += len(line[-1]) + 1
        parts.append(" ".join(line) + "\n")
    text = "".join(parts)
    return text, [start / len(text) for start in starts]

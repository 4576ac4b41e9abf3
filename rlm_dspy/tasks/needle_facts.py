"""The facts that are hidden in prose, and how they are asked for.

A theme is one sort of fact: whom or what it is about, what it says, in two or three wordings, and its questions, in
words of their own. ``{E}`` is the entity, ``{V}`` the value; ``{A}`` and ``{B}`` are the entities that are compared. A
statement names its entity in full, so that it can be understood by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIRST = (
    *("Alda", "Bram", "Cressida", "Dunstan", "Edda", "Fenwick", "Gisela", "Harbin", "Isolde", "Jorrit", "Katrin"),
    *("Leopold", "Maude", "Niklas", "Orla", "Piers", "Quentin", "Rosalind", "Sanne", "Tobin", "Ursel", "Wendel"),
)
LAST = (
    *("Ashgrove", "Bellweather", "Copperthwaite", "Drummel", "Eastlake", "Fairholm", "Gannet", "Hawksby", "Inchbald"),
    *("Kettering", "Lockridge", "Mossman", "Northcote", "Oakshott", "Penhallow", "Quillfeather", "Ravensworth"),
    *("Saltmarsh", "Thistlewood", "Underhay", "Vandermeer", "Winterbourne", "Yarrow"),
)
TOWNS = (
    *("Aldersey", "Brackenford", "Cranmouth", "Dunmarrow", "Elverton", "Farthing Cross", "Gillsbeck", "Hollin Quay"),
    *("Ivelstead", "Kerswick", "Lanthorpe", "Marrowby", "Nettlecombe", "Osterleigh", "Pebbleham", "Quarrendon"),
    *("Rushmere", "Skelding", "Tamsworth", "Ulverdale", "Wexcombe", "Yarnbury"),
)
_COLOURS = ("Blue", "Gilded", "Grey", "Painted", "Scarlet", "Silver", "Tawny", "White")
_ANIMALS = ("Badger", "Curlew", "Dolphin", "Griffin", "Hare", "Kestrel", "Lamprey", "Otter", "Stag", "Swallow")
SIGNS = tuple(f"{colour} {animal}" for colour in _COLOURS for animal in _ANIMALS)
DOGS = (
    *("Bosun", "Clover", "Duchess", "Ember", "Flint", "Gherkin", "Juniper", "Mustard", "Nettle", "Pepper", "Sorrel"),
    *("Tinder", "Vesper", "Waffle", "Bramble", "Cinder", "Pippin", "Rumple", "Thimble", "Truffle"),
)
PASSWORDS = (
    *("tarnivel", "oswindle", "merrowick", "callabrine", "hestamoor", "dorvantry", "pellicane", "quenstable"),
    *("ravellary", "sombrietta", "ullathorn", "vintreska", "wexamine", "zephyrant", "brindolet", "farrowmint"),
    *("glisterine", "kandelabra", "lorrimande", "nimbelaine"),
)
NUMBERS = tuple(str(number) for number in range(11, 99))
YEARS = tuple(str(year) for year in range(1612, 1899))
INSTRUMENTS = (
    *("viola", "hurdy-gurdy", "clarinet", "mandolin", "zither", "bassoon", "harmonium", "dulcimer", "trombone"),
    *("oboe", "lute", "accordion", "piccolo", "spinet"),
)
BIRDS = (
    *("bittern", "goshawk", "lapwing", "nightjar", "plover", "redstart", "siskin", "turnstone", "wryneck", "whimbrel"),
    *("dotterel", "fieldfare", "hoopoe", "merlin"),
)
LANGUAGES = (
    *("Breton", "Catalan", "Danish", "Estonian", "Frisian", "Galician", "Hungarian", "Icelandic", "Latvian"),
    *("Maltese", "Portuguese", "Romanian", "Slovene", "Turkish"),
)
GOODS = (
    *("saffron", "walnuts", "indigo", "beeswax", "cinnamon", "oysters", "parchment", "pewter", "raisins", "vinegar"),
    *("turpentine", "nutmeg", "linen", "cork"),
)

#: Kind of entity or value to its names; people are made of `FIRST` and `LAST`.
POOLS: dict[str, Sequence[str]] = {
    "person": tuple(f"{first} {last}" for first in FIRST for last in LAST),
    "town": TOWNS,
    "sign": SIGNS,
    "dog": DOGS,
    "password": PASSWORDS,
    "number": NUMBERS,
    "year": YEARS,
    "instrument": INSTRUMENTS,
    "bird": BIRDS,
    "language": LANGUAGES,
    "good": GOODS,
}


@dataclass(frozen=True)
class Theme:
    """One sort of fact.

    Attributes:
        entity: Kind of what it is about, a key of `POOLS`.
        value: Kind of what it says, a key of `POOLS`; for comparisons ``(lowest, highest)``; ``""`` for events.
        statements: Its wordings.
        queries: How it is asked for.
        least: For comparisons: the smaller one is asked for.
    """

    entity: str
    value: str | tuple[int, int]
    statements: tuple[str, ...]
    queries: tuple[str, ...]
    least: bool = False


#: What else is said of an entity, which answers no question.
ASIDES = {
    "person": (
        "{E} passed the cloth hall that day and greeted nobody.",
        "It was said that {E} had a cold and a short temper.",
        "The council thanked {E} for keeping the minutes.",
    ),
    "town": (
        "The road to {E} was under repair.",
        "People from {E} are said to whistle at table.",
    ),
    "sign": (
        "A song about the {E} was popular for a month.",
        "Somebody had drawn the {E} in chalk on a wall.",
    ),
}

_FULL = "Give first and last name."
_EACH = "Every such mention in the text is an occasion of its own."

FIND = {
    "find_password": Theme(
        "person",
        "password",
        (
            "The lock of the strongbox that belongs to {E} opens to the word {V} alone.",
            "Few were told that the strongbox of {E} answers to the word {V} and to no other.",
        ),
        ("What is the password for {E}'s strongbox?", "By saying what can one unlock the strongbox owned by {E}?"),
    ),
    "find_birthplace": Theme(
        "person",
        "town",
        (
            "{E} was born in {V}, though hardly anybody remembers it.",
            "According to the parish roll, {E} was born in {V} on a stormy night.",
        ),
        ("What is the birthplace of {E}?", "From which town does {E} come by birth?"),
    ),
    "find_year": Theme(
        "sign",
        "year",
        (
            "The inn called {E} opened its doors in the year {V}.",
            "Guests have been served at the inn called {E} since the year {V}.",
        ),
        (
            "For how long has the inn named {E} been in business? Give the year it began.",
            "When did the inn {E} start? Give the year.",
        ),
    ),
    "find_captain": Theme(
        "sign",
        "person",
        (
            "Command of the barge {E} was given to {V}.",
            "Whoever wants to sail on the barge {E} has to ask {V}, who commands it.",
        ),
        (f"Who is the captain of the {{E}}? {_FULL}", f"Which person is in charge aboard the {{E}}? {_FULL}"),
    ),
    "find_creditor": Theme(
        "person",
        "person",
        (
            "{E} still owes a sum of money to {V} and pays a little of it every autumn.",
            "What {E} borrowed for the roof is still owed to {V}.",
        ),
        (f"Who lent money to {{E}}? {_FULL}", f"Who is the creditor of {{E}}? {_FULL}"),
    ),
    "find_dog": Theme(
        "person",
        "dog",
        (
            "{E} has an old dog by the name of {V}.",
            "The dog that sleeps on the doorstep of {E} is called {V}.",
        ),
        ("What is {E}'s dog called?", "Which name did {E} give to the dog?"),
    ),
    "find_house": Theme(
        "person",
        "number",
        (
            "Letters for {E} go to house number {V} in Tanner Row.",
            "In Tanner Row, behind the door with the number {V}, lives {E}.",
        ),
        (
            "Where in Tanner Row does {E} live? Give the house number only.",
            "What is the number of {E}'s home in Tanner Row?",
        ),
    ),
}

LIST = {
    "list_towns": Theme(
        "person",
        "town",
        (
            "That spring {E} travelled to {V} and came home with dusty boots.",
            "On business that nobody asked about, {E} spent a week in {V}.",
        ),
        ("Which towns did {E} visit? List all of them.", "To what towns did the journeys of {E} lead? Name each once."),
    ),
    "list_instruments": Theme(
        "person",
        "instrument",
        (
            "A broken {V} was brought to {E}, who had it playing again by nightfall.",
            "For a neighbour's wedding {E} repaired the {V}.",
        ),
        (
            "List all musical instruments that {E} mended.",
            "What kinds of instruments were fixed by {E}? Name each once.",
        ),
    ),
    "list_birds": Theme(
        "person",
        "bird",
        (
            "From the dyke {E} caught sight of a {V} in the reeds.",
            "With great patience {E} watched a {V} build its nest.",
        ),
        ("Which species of birds did {E} observe? List all.", "Name every sort of bird that {E} saw, each once."),
    ),
    "list_languages": Theme(
        "person",
        "language",
        (
            "{E} reads {V} without a dictionary.",
            "As a child {E} learned {V} from a lodger.",
        ),
        ("Which languages does {E} know? List all of them.", "Name all the languages in which {E} is versed."),
    ),
    "list_guests": Theme(
        "person",
        "person",
        (
            "{E} dined with {V} and paid for both.",
            "At the long table {E} sat and ate beside {V}.",
        ),
        (
            "With whom did {E} share a meal? List first and last names.",
            "List everybody (first and last name) in whose company {E} had dinner.",
        ),
    ),
    "list_goods": Theme(
        "person",
        "good",
        (
            "At the quay {E} sold a load of {V}.",
            "A buyer from the coast took all the {V} that {E} had to sell.",
        ),
        ("What goods has {E} sold? List all.", "In which wares did {E} deal as a seller? Name each once."),
    ),
}

COMPARE = {
    "compare_wells": Theme(
        "town",
        (20, 400),
        (
            "The well at {E} is {V} feet deep.",
            "At {E} they had to dig {V} feet before the well gave water.",
        ),
        ("Which well is deeper, the one at {A} or the one at {B}?", "{A} or {B}: which of them has the deeper well?"),
    ),
    "compare_bells": Theme(
        "town",
        (300, 9000),
        (
            "The great bell of {E} weighs {V} pounds.",
            "It took {V} pounds of bronze to cast the great bell of {E}.",
        ),
        (
            "Whose great bell is the lighter one, that of {A} or that of {B}?",
            "Of the great bells of {A} and {B}, which town has the less heavy one?",
        ),
        least=True,
    ),
    "compare_houses": Theme(
        "person",
        (200, 5000),
        (
            "The house of {E} was sold for {V} crowns.",
            "At the auction {V} crowns were paid for the house of {E}.",
        ),
        (
            f"Whose house fetched the higher price, {{A}}'s or {{B}}'s? {_FULL}",
            f"Which former owner's house was more expensive: {{A}} or {{B}}? {_FULL}",
        ),
    ),
    "compare_barges": Theme(
        "sign",
        (40, 900),
        (
            "The barge {E} carries {V} sacks of grain when fully laden.",
            "No more than {V} sacks of grain fit into the barge {E}.",
        ),
        (
            "Which barge has room for fewer sacks, the {A} or the {B}?",
            "Of the barges {A} and {B}, which is the one with the smaller hold?",
        ),
        least=True,
    ),
    "compare_distance": Theme(
        "town",
        (3, 300),
        (
            "From the ferry stairs to {E} it is {V} miles by the towpath.",
            "A rider needs to cover {V} miles from the ferry stairs to reach {E}.",
        ),
        (
            "Which place lies farther from the ferry stairs, {A} or {B}?",
            "Starting at the ferry stairs, is it {A} or {B} that is more distant?",
        ),
    ),
    "compare_bees": Theme(
        "person",
        (2, 60),
        (
            "{E} has kept bees for {V} years.",
            "For {V} years now there have been beehives in the garden of {E}.",
        ),
        (
            f"Who has been a beekeeper longer, {{A}} or {{B}}? {_FULL}",
            f"Of {{A}} and {{B}}, who has more years of beekeeping behind them? {_FULL}",
        ),
    ),
    "compare_weavers": Theme(
        "person",
        (4, 120),
        (
            "{E} employs {V} weavers.",
            "In the workshop of {E} there is work for {V} weavers.",
        ),
        (
            f"Who has fewer weavers at work, {{A}} or {{B}}? {_FULL}",
            f"Whose weaving workshop is smaller by headcount: {{A}}'s or {{B}}'s? {_FULL}",
        ),
        least=True,
    ),
}

COUNT = {
    "count_ferry": Theme(
        "person",
        "",
        (
            "{E} missed the ferry and had to wait on the stairs.",
            "By less than a minute {E} missed the ferry.",
            "Because of a loose shoelace {E} missed the ferry once more.",
        ),
        (f"How many times did {{E}} miss the ferry? {_EACH}", f"How often did the ferry leave without {{E}}? {_EACH}"),
    ),
    "count_letters": Theme(
        "person",
        "",
        (
            "A letter arrived for {E}, sealed in green wax.",
            "The carrier brought {E} a letter and would not say from whom.",
            "{E} received a letter and burned it unread.",
        ),
        (f"How many letters did {{E}} get? {_EACH}", f"How often did a letter reach {{E}}? {_EACH}"),
    ),
    "count_cards": Theme(
        "person",
        "",
        (
            "{E} lost at cards and went home early.",
            "Until midnight {E} played, and lost at cards.",
            "A coat and a watch were gone when {E} had lost at cards.",
        ),
        (f"How many times was {{E}} beaten at cards? {_EACH}", f"How often did {{E}} lose a game of cards? {_EACH}"),
    ),
    "count_fever": Theme(
        "person",
        "",
        (
            "{E} fell ill with a fever and stayed in bed.",
            "After the rains {E} fell ill with a fever.",
            "It surprised no one that {E} fell ill with a fever.",
        ),
        (
            f"How many times did {{E}} come down with a fever? {_EACH}",
            f"How many bouts of fever did {{E}} suffer? {_EACH}",
        ),
    ),
    "count_trees": Theme(
        "person",
        "",
        (
            "Behind the chapel {E} planted a tree.",
            "{E} planted a tree to mark the day.",
            "To general amusement {E} planted a tree upside down, and righted it.",
        ),
        (f"How many trees did {{E}} plant? {_EACH}", f"How often did {{E}} put a tree into the ground? {_EACH}"),
    ),
    "count_bell": Theme(
        "person",
        "",
        (
            "In the dark {E} rang the fire bell.",
            "{E} rang the fire bell, though there was only smoke.",
            "Nobody knew why {E} rang the fire bell.",
        ),
        (
            f"How many times was the fire bell rung by {{E}}? {_EACH}",
            f"How often did {{E}} sound the fire bell? {_EACH}",
        ),
    ),
}

THEMES: dict[str, dict[str, Theme]] = {"count": COUNT, "find": FIND, "list": LIST, "compare": COMPARE}

"""The texts of labelled records: what is said, so that its label has to be understood.

A theme is one sort of record and its labels. A text is a *core*, which has the label, and perhaps an *aside*, which has
none: asides speak of what other labels are about, so that words alone mislead ("The invoice was right, I checked it.").
No core and no aside names a label. ``{thing}`` and the like are slots.

There are about a dozen wordings to a label. A program that lists them all can do without reading; so does the second
gold implementation of the tests, which is a list of phrases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlm_dspy.tasks._draw import Draw

_SLOTS: dict[str, tuple[str, ...]] = {
    "thing": (
        *("kettle", "lamp", "rucksack", "clock", "blender", "desk", "bicycle", "headset", "heater", "suitcase", "tent"),
        *("camera", "keyboard", "mattress", "raincoat", "toaster", "printer", "armchair", "mirror", "ladder", "drill"),
        *("umbrella", "bookshelf", "carpet", "scale", "thermos", "violin", "telescope", "aquarium", "sledge"),
    ),
    "kind": (
        *("small", "blue", "folding", "second", "heavy", "green", "old", "wooden", "plain", "large", "grey", "new"),
        *("spare", "tall", "narrow", "yellow", "light", "striped"),
    ),
    "whom": (
        *(
            "my sister",
            "our office",
            "a neighbour",
            "my father",
            "the school",
            "our club",
            "my flatmate",
            "a colleague",
        ),
        *("the choir", "my aunt", "the workshop", "our landlord"),
    ),
    "day": (
        *("on Monday", "last week", "yesterday", "two weeks ago", "over Easter", "this morning", "on the third try"),
        *("before the holidays", "at the weekend", "in the evening", "right after lunch", "a month ago"),
    ),
    "since": (
        *("Monday", "last week", "yesterday", "Easter", "the holidays", "this morning", "lunch", "the first of May"),
        *("the weekend", "eight o'clock"),
    ),
    "town": (
        *("Aldersey", "Brackenford", "Cranmouth", "Dunmarrow", "Elverton", "Gillsbeck", "Kerswick", "Lanthorpe"),
        *("Marrowby", "Osterleigh", "Pebbleham", "Rushmere", "Skelding", "Tamsworth", "Wexcombe", "Yarnbury"),
    ),
}


@dataclass(frozen=True)
class Theme:
    """One sort of record.

    Attributes:
        noun: What a record is, in the plural.
        labels: Label to what it means.
        cores: Label to its wordings.
        asides: Sentences without a label, before or after a core.
    """

    noun: str
    labels: Mapping[str, str]
    cores: Mapping[str, tuple[str, ...]]
    asides: tuple[str, ...]

    @property
    def length(self) -> int:
        """Characters of a text, about, where every other one has an aside."""
        return _mean([core for cores in self.cores.values() for core in cores]) + _mean(self.asides) // 2


MESSAGES = Theme(
    noun="messages to a shop",
    labels={
        "billing": "what was charged, paid or refunded",
        "delivery": "whether, when or where something is brought",
        "damage": "something is broken or does not work",
        "account": "signing in, or the data kept about a customer",
        "praise": "the writer is pleased and wants nothing",
    },
    cores={
        "billing": (
            "My card shows the {kind} {thing} twice.",
            "You took {n} crowns for a {thing} that was marked half of that.",
            "When do I see the money for the {thing} that I sent back {day}?",
            "The voucher for the {thing} was not taken off the sum.",
            "Somebody drew {n} crowns from me {day}, and I never ordered a {thing}.",
            "Could I settle the {kind} {thing} in three parts?",
            "I need a receipt for the {thing} that carries the name of {whom}.",
            "Why did the {thing} come to {n} crowns more at the till than on the shelf?",
            "The sum under my order of a {thing} is not what we agreed.",
            "I transferred {n} crowns for the {thing} and still get reminders.",
        ),
        "delivery": (
            "The {kind} {thing} should have been here {day}.",
            "Your driver left the {thing} with strangers in {town}.",
            "Can the {thing} go to {town} instead of my own door?",
            "I have waited at the window for a {thing} since {since}.",
            "The tracking page has shown the {thing} in {town} for {n} days.",
            "Is there any way to have the {thing} by Friday?",
            "A parcel came {day}, but without the {thing} that I ordered.",
            "Nobody rang, and now the {thing} lies in a depot in {town}.",
            "We got the {kind} {thing} that was meant for {whom}.",
            "Please hold back the {thing} until we are home again.",
        ),
        "damage": (
            "The {kind} {thing} has a crack from top to bottom.",
            "After {n} minutes the {thing} goes dark and stays dark.",
            "One leg of the {thing} fell off {day}.",
            "The {thing} hums, then smells of smoke.",
            "I unpacked the {thing}, and half of it was in splinters.",
            "The switch of the {thing} does nothing at all.",
            "Water runs out of the {thing} wherever I put it.",
            "A seam of the {kind} {thing} came apart {day}.",
            "The {thing} was dented when I lifted the lid.",
            "Whatever I try, the {thing} will not start.",
        ),
        "account": (
            "The page says that my password is wrong, and it is not.",
            "Please strike out everything that you have stored about {whom}.",
            "I married {day} and go by another surname now.",
            "The code that you send to my phone never arrives.",
            "Since {since} I am thrown out each time I log in.",
            "How do I change the e-mail address that I registered with?",
            "Somebody in {town} seems to be logged in under my name.",
            "I have two profiles and would like to have one.",
            "The form does not accept my date of birth.",
            "My profile still lists the house in {town} that we left.",
        ),
        "praise": (
            "I have never owned a better {thing}.",
            "Tell whoever packed the {thing} that {whom} was moved.",
            "The {kind} {thing} makes me smile every single day.",
            "Just a line to say how glad we are about the {thing}.",
            "Your people in {town} were kindness itself.",
            "The {thing} does more than I hoped, thank you.",
            "Ten years of shopping here, and still a joy.",
            "Even {whom}, who likes nothing, likes the {thing}.",
            "What a lovely {kind} {thing}!",
            "I shall send all my friends in {town} to you.",
        ),
    },
    asides=(
        "The invoice itself was right, I checked it.",
        "I am not writing about the price.",
        "The parcel, by the way, came on time.",
        "This is not about a late courier.",
        "Nothing is broken, so you need not ask.",
        "The box was in one piece.",
        "I could log on without trouble, in case you wonder.",
        "You have my address already.",
        "I am otherwise fond of your shop.",
        "Normally I only write to say thanks, but not today.",
        "My order number is above.",
        "It rained all day in {town}.",
        "{Whom} told me to write to you.",
        "I do not expect a long answer.",
        "As I said on the phone {day}, it is quickly told.",
    ),
)

QUESTIONS = Theme(
    noun="questions sent to a museum",
    labels={
        "person": "the answer is somebody or a group of people",
        "place": "the answer is where something is or comes from",
        "time": "the answer is a date, a year or an hour",
        "amount": "the answer is a number, a price or a measure",
        "reason": "the answer is a cause or a purpose",
        "meaning": "the answer explains a word or what a thing is",
    },
    cores={
        "person": (
            "Who gave you the {kind} {thing}?",
            "By whom was the {thing} mended {day}?",
            "Whose initials are scratched into the {thing}?",
            "Which guide showed us the {kind} {thing} {day}?",
            "What was the maker of the {thing} called?",
            "To which family did the {kind} {thing} belong?",
            "Can you name the one that carried the {thing} out of the fire?",
            "I would like to write to the lender of the {thing}: how is he addressed?",
        ),
        "place": (
            "Where do I find the {kind} {thing}?",
            "In which hall does the {thing} stand now?",
            "From what part of the country did the {thing} reach you?",
            "Behind which door is the {kind} {thing} kept?",
            "Is the {thing} back in {town}, or in which other town?",
            "On what street was the {thing} dug up?",
            "Which country lent you the {kind} {thing}?",
            "What is the nearest stop to the hall with the {thing}?",
        ),
        "time": (
            "When was the {kind} {thing} made?",
            "In what year did the {thing} leave {town}?",
            "On which weekday is the {thing} wound up?",
            "Until what hour can the {kind} {thing} be seen?",
            "What is the birthday of the {thing}, so to speak?",
            "Which century does the {thing} belong to?",
            "From which day on will the {thing} be back?",
            "At what o'clock is the {kind} {thing} shown to schools?",
        ),
        "amount": (
            "How many parts does the {kind} {thing} have?",
            "What does the {thing} weigh?",
            "For what sum was the {thing} bought?",
            "How tall is the {kind} {thing}, with its stand?",
            "What share of the {thing} is still original?",
            "How much is a print of the {kind} {thing}?",
            "What is the distance between the {thing} and its case?",
            "The {thing} has drawn what number of visitors?",
        ),
        "reason": (
            "Why is the {kind} {thing} behind glass?",
            "What made you take the {thing} off the wall {day}?",
            "For what purpose was the {kind} {thing} painted over?",
            "How come the {thing} is missing?",
            "What is the dent in the {thing} due to?",
            "What led {whom} to part with the {thing}?",
            "What was the {kind} {thing} good for, if not for use?",
            "On what grounds do you call the {thing} a fake?",
        ),
        "meaning": (
            "What is a {thing}, to begin with?",
            "What do experts understand by a {kind} {thing}?",
            "Please explain the word {thing} to {whom}.",
            "What does the inscription on the {thing} say in plain words?",
            "How would you define a {kind} {thing}?",
            "What does it signify that the {thing} is upside down?",
            "Is a {kind} {thing} a tool, a toy, or what is it?",
            "What does the abbreviation on the {thing} stand for?",
        ),
    },
    asides=(
        "I came on a Tuesday and stayed for three hours.",
        "My guide could not tell.",
        "{Whom} lives in {town} and comes often.",
        "I do not ask about its price.",
        "There were about forty people in the hall.",
        "I know where it stands.",
        "The label gives its age already.",
        "Do not explain the term, I know it.",
        "I was there because it rained.",
        "It cost us four crowns to get in.",
        "The lady at the desk was busy.",
        "This is for a school essay.",
        "I asked the same {day} and got no reply.",
    ),
)

REVIEWS = Theme(
    noun="reviews of things that were bought",
    labels={
        "satisfied": "on the whole the writer would buy it again",
        "dissatisfied": "on the whole the writer would not buy it again",
    },
    cores={
        "satisfied": (
            "I cannot find a single fault with the {kind} {thing}.",
            "I expected little of the {thing} and was wrong.",
            "The {kind} {thing} has outlived three others, and {whom} wants one too.",
            "No other {thing} will come into my house.",
            "It would be hard to part with the {thing} now.",
            "Whoever grumbles about the {thing} has never used another.",
            "The {thing} is not cheap, and worth every coin.",
            "{Whom} borrowed the {thing} {day}, and I miss it badly.",
            "Nothing about the {kind} {thing} disappoints.",
            "I was ready to send the {thing} back and am glad I did not.",
        ),
        "dissatisfied": (
            "The {thing} would be fine if it did what the box says.",
            "I wanted to love the {kind} {thing}.",
            "A beautiful {thing}, as long as nobody touches it.",
            "The {thing} went to the attic {day} and will stay there.",
            "Thanks to the {thing} I know what I had in my old one.",
            "The best part of the {kind} {thing} is its wrapping.",
            "{Whom} is welcome to my {thing}, for nothing.",
            "I gave the {thing} a second chance, which was one too many.",
            "Such a good idea, such a sad {kind} {thing}.",
            "I shall know better next time than to trust a {thing}.",
        ),
    },
    asides=(
        "The colour is lovely.",
        "The lid squeaks a little.",
        "Friends of mine think otherwise.",
        "It came {day}.",
        "The manual is terrible.",
        "The shop in {town} was friendly.",
        "I paid the full price.",
        "{Whom} has the same one.",
        "It smelled odd at first.",
        "The photographs are honest.",
        "One screw was missing, and they sent it at once.",
        "I read all the other opinions before.",
    ),
)

#: Name of a theme to the theme.
THEMES = {"messages": MESSAGES, "questions": QUESTIONS, "reviews": REVIEWS}

_SLOT = re.compile(r"\{(\w+)\}")


def _mean(templates: Sequence[str]) -> int:
    """Characters of a filled template, about: slots are as long as their words on average."""
    words = {slot: sum(map(len, theirs)) // len(theirs) for slot, theirs in _SLOTS.items()}
    whole = [_SLOT.sub(lambda hit: "x" * words.get(hit[1].lower(), 2), one) for one in templates]
    return sum(map(len, whole)) // len(whole)


def text(draw: Draw, theme: Theme, label: str, asides: int) -> str:
    """One text with that label and so many asides."""
    out = _filled(draw, draw.choice(theme.cores[label]))
    for _ in range(asides):
        aside = _filled(draw, draw.choice(theme.asides))
        out = f"{aside} {out}" if draw.chance(0.5) else f"{out} {aside}"
    return out


def _filled(draw: Draw, template: str) -> str:
    if "{" not in template:
        return template
    return _SLOT.sub(lambda hit: _word(draw, hit[1]), template)


def _word(draw: Draw, slot: str) -> str:
    if slot == "n":
        return str(draw.between(3, 97))
    word = draw.choice(_SLOTS[slot.lower()])
    return word[0].upper() + word[1:] if slot[0].isupper() else word

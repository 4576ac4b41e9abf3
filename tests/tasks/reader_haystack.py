"""A second way to the answers in haystacks, from the text. Standard library alone, so that it can be sent away."""

from __future__ import annotations

import collections
import re

PERSON = r"([A-Z][a-z]+ [A-Z][a-z]+)"
TOWN = r"([A-Z][a-z]+(?: [A-Z][a-z]+)?)"
# Each pattern with the person first, where `turned` is not said.
FACTS = {
    "teacher": [
        (rf"{PERSON} learned the trade from {PERSON}", False),
        (rf"{PERSON} was apprenticed to {PERSON}", False),
        (rf"{PERSON} trained {PERSON}", True),
    ],
    "born": [
        (rf"{PERSON} first saw the light of day in {TOWN}", False),
        (rf"in {TOWN} that {PERSON} was born", True),
        (rf"{PERSON} is a native of {TOWN}", False),
    ],
    "musical": [
        (rf"{PERSON} plays the ([a-z-]+)", False),
        (rf"{PERSON} has mastered the ([a-z-]+)", False),
        (rf"The ([a-z-]+) of {PERSON} can be heard", True),
    ],
    "dog": [
        (rf"{PERSON} is never seen without a dog called ([A-Z][a-z]+)", False),
        (rf"The dog of {PERSON} answers to ([A-Z][a-z]+)", False),
        (rf"([A-Z][a-z]+) is the dog of {PERSON}", True),
    ],
}


def known(text, sort):
    """Person to what is said of them."""
    found = {}
    for pattern, turned in FACTS[sort]:
        for hit in re.finditer(pattern, text):
            person, value = hit.groups()[::-1] if turned else hit.groups()
            assert person not in found
            found[person] = value
    return found


def variables(text, wanted):
    """The variables that have a value, once all assignments were carried out."""
    values = {}
    for name, got in re.findall(r"\b([A-Z]{6}) (?:=|is set to) (\w+)", text):
        values[name] = got if got.isdigit() else values[got]
    return [name for name, value in values.items() if value == wanted]


def solve(text, query, template):
    """The answer to a question, told by its words."""
    if "locker" in query:
        keys = re.findall(r"\b[0-9a-f]{8}\b", query)
        found = [(key, int(value)) for key, value in re.findall(r"locker number of (\w+) is (\d+)", text)]
        values = [value for key, value in found if key in keys]
        return values if "are" in query.split() else values[0]
    if "variables" in query:
        return variables(text, re.search(r"\d+", query)[0])
    if "list of words" in query:
        ranked = collections.Counter(text.split()).most_common()
        if template == "times":
            assert ranked[0][1] > ranked[1][1]
            return ranked[0][1]
        number = {"ten": 10, "three": 3}[query.split("Which ")[1].split()[0]]
        assert ranked[number - 1][1] > ranked[number][1]
        return sorted(word for word, _ in ranked[:number])
    (person,) = re.findall(PERSON, query.replace("The context", ""))
    teacher = known(text, "teacher")
    for _ in range(query.count("taught") + query.count("teacher")):
        person = teacher[person]
    return known(text, next(sort for sort in ("born", "musical", "dog") if sort in query))[person]

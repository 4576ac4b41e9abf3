"""A second way to the answers about labelled records: it reads the text and knows nothing of how it was made.

Standard library alone, so that an oracle can send this file into a sandbox. What a label is, is decided here by a list
of phrases; this is no way to solve the task in earnest, where each text has to be read.
"""

from __future__ import annotations

import collections
import re

PHRASES = {
    "billing": r"shows the .* twice|You took \d+|see the money|voucher for|drew \d+ crowns|in three parts"
    r"|a receipt for|more at the till|sum under my order|still get reminders",
    "delivery": r"should have been here|Your driver left|instead of my own door|waited at the window|tracking page"
    r"|by Friday\?|A parcel came|in a depot|was meant for|Please hold back",
    "damage": r"crack from top|goes dark|fell off|smells of smoke|in splinters|does nothing at all|Water runs out"
    r"|came apart|was dented|will not start",
    "account": r"my password is wrong|strike out everything|by another surname|code that you send"
    r"|thrown out each time|e-mail address that|logged in under my|two profiles|date of birth"
    r"|still lists the house",
    "praise": r"never owned a better|Tell whoever packed|makes me smile|how glad we are|kindness itself|thank you\."
    r"|still a joy|who likes nothing|What a lovely|send all my friends",
    "person": r"Who gave you|By whom was|Whose initials|Which guide showed|maker of the .* called|To which family"
    r"|Can you name the one|lender of the",
    "place": r"Where do I find|In which hall does|From what part of|Behind which door|in which other town"
    r"|On what street|Which country lent|nearest stop",
    "time": r"When was the|In what year|On which weekday|Until what hour|What is the birthday|Which century"
    r"|From which day|At what o'clock",
    "amount": r"How many parts|weigh\?|For what sum|How tall|What share of|How much is|the distance between"
    r"|what number of",
    "reason": r"Why is the|What made you take|For what purpose|How come|due to\?|What led|good for, if not"
    r"|On what grounds",
    "meaning": r"to begin with\?|experts understand|Please explain|inscription on|How would you define"
    r"|does it signify|a tool, a toy|abbreviation on",
    "satisfied": r"cannot find a single fault|expected little of|outlived three|No other .* will come|hard to part with"
    r"|Whoever grumbles|worth every coin|miss it badly|disappoints\.|glad I did not",
    "dissatisfied": r"would be fine if|wanted to love|nobody touches it|went to the attic|what I had in my old"
    r"|best part of|welcome to my|one too many|Such a good idea|know better next time",
}
COMPILED = {label: re.compile(phrases) for label, phrases in PHRASES.items()}


def records(text):
    """Date, user, label of each record."""
    head, _, body = text.partition("\n\n")
    found = []
    for line in body.splitlines():
        date, user, said = line.split(" | ", 2)
        (label,) = [label for label, phrases in COMPILED.items() if phrases.search(said)]
        found.append((date, user.removeprefix("user "), label))
    assert head.split()[0] == str(len(found))
    return found


def leader(counts, least=False):
    ranked = collections.Counter(counts).most_common()
    if least:
        ranked.reverse()
    assert len(ranked) == 1 or ranked[0][1] != ranked[1][1], ranked
    return ranked[0][0]


def compare(first, second):
    return {1: "more", -1: "fewer", 0: "equal"}[(first > second) - (first < second)]


def solve(text, query, template):
    """The answer to a question of this template."""
    rows = records(text)
    asked = re.split(r"\)\. ", query)[-1]
    labels = [label for label in re.findall(r"'(\w+)'", asked) if label in PHRASES]
    users = re.findall(r"\b\d{5}\b", asked)
    days = re.findall(r"\d{4}-\d\d-\d\d", asked)
    months = re.findall(r"\b\d{4}-\d\d\b(?!-)", asked)
    mine = [row for row in rows if not labels or row[2] == labels[0]]
    per_label = collections.Counter(label for _, _, label in rows)
    if template == "count_label":
        return len(mine)
    if template == "count_other":
        return sum(per_label[label] for label in labels) if len(labels) == 2 else len(rows) - len(mine)
    if template in ("most_label", "least_label"):
        return leader(per_label, least=template == "least_label")
    if template == "compare_labels":
        return compare(per_label[labels[0]], per_label[labels[1]])
    if template == "difference":
        return abs(per_label[labels[0]] - per_label[labels[1]])
    if template == "user_count":
        return sum(user == users[0] for _, user, _ in mine)
    if template == "user_label":
        return leader(label for _, user, label in rows if user == users[0])
    if template == "user_most":
        return leader(user for _, user, _ in mine)
    if template == "user_more":
        return leader(user for _, user, _ in mine if user in users)
    if template == "users_with":
        least = int(re.search(r"at least (\d+)", asked)[1])
        wrote = collections.Counter(user for _, user, _ in mine)
        return [user for user in users if wrote[user] >= least]
    if template == "user_share":
        return len({user for _, user, _ in mine} & set(users))
    if template == "date_count":
        return sum(days[0] <= day <= days[1] for day, _, _ in mine)
    if template == "date_edge":
        dates = [day for day, _, _ in mine if not months or day.startswith(months[0])]
        return min(dates) if "earliest" in asked else max(dates)
    if template == "date_compare":
        before = sum(day < days[0] for day, _, _ in mine)
        return compare(before, len(mine) - before)
    if template == "month_most":
        return leader(day[:7] for day, _, _ in mine)
    if template == "month_label":
        return leader(label for day, _, label in rows if day.startswith(months[0]))
    ahead = collections.Counter()
    for day, _, label in rows:
        ahead[day[:7]] += (label == labels[0]) - (label == labels[1])
    won = sorted(month for month in ahead if ahead[month] > 0)
    return won[0] if template == "month_first" else len(won)

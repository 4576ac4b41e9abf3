"""A second way to the answers: it reads the text and knows nothing of how the text was made.

Standard library alone, so that an oracle can send this file into a sandbox. What a question is about (levels, names,
dates, numbers) is read from the question; only what sort of question it is, is told.
"""

from __future__ import annotations

import collections
import json
import re

PLAIN = re.compile(
    r"(?P<ts>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (?P<level>[A-Z]+) (?P<service>\S+) (?P<host>\S+) "
    r"\[(?:-\]|(?P<request>\S+)\] (?P<user>\S+) (?P<method>\S+) (?P<path>\S+) status=(?P<status>\d+) "
    r"took=(?P<latency_ms>\d+)ms) - (?P<msg>.*)"
)


def entries(text):
    """The entries of a log in any of its formats, as dicts of text."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            entry = {key: str(value) for key, value in json.loads(line).items()}
            entry["errors"] = re.findall(r"^com\.shop\.(\w+):", entry.pop("stack", ""))
        elif line.startswith("ts="):
            head, _, message = line.partition(' msg="')
            entry = {**dict(pair.split("=", 1) for pair in head.split()), "msg": message[:-1], "errors": []}
        elif line[:1].isdigit():
            match = PLAIN.fullmatch(line)
            assert match, line
            entry = {**{key: value for key, value in match.groupdict().items() if value is not None}, "errors": []}
        else:
            assert line.startswith("  "), line
            found[-1]["errors"] += re.findall(r"^  com\.shop\.(\w+):", line)
            continue
        entry["day"], entry["hour"] = entry["ts"][:10], entry["ts"][11:13]
        found.append(entry)
    return found


def conditions(query, log):
    """What the question names, field by field."""
    query = re.sub(r"such as [\w/-]+", "", query)
    named = {
        "level": re.findall(r"\b(?:WARN|ERROR|CRITICAL)\b", query),
        "status": re.findall(r"[Ss]tatus (\d{3})", query),
        "day": re.findall(r"\d{4}-\d\d-\d\d", query),
        "hour": re.findall(r"(\d\d):00:00", query),
        "request": re.findall(r"\br-[0-9a-f]{10}\b", query),
        "user": re.findall(r"\bu\d{4}\b", query),
    }
    for key in ("service", "host"):
        named[key] = [name for name in {entry[key] for entry in log} if name in query]
    limit = re.search(r"(\d+) (?:ms|milliseconds)", query)
    return {key: values for key, values in named.items() if values}, int(limit[1]) if limit else None


NOTES = {
    "find_release": r"approved by (.+)",
    "find_key": r"signing key rotated, active key is now (.+)",
    "find_certificate": r"certificate loaded, valid until (.+)",
    "find_flag": r"feature flag (.+) switched on",
    "find_complaint": r"double charge escalated as (.+)",
    "find_backup": r"snapshot stored in vault under label (.+)",
    "find_oncall": r"on duty until monday: (.+)",
}
ASKED = {
    "find_request_user": "user",
    "find_request_host": "host",
    "find_user_request": "request",
    "list_users_status": "user",
    "list_hosts_critical": "host",
    "list_services_status": "service",
    "list_slow_requests": "request",
    "list_paths_status": "path",
    "list_days_critical": "day",
    "compare_service_errors": "service",
    "compare_host_failures": "host",
    "compare_day_warnings": "day",
    "compare_user_throttled": "user",
    "compare_fewest_of_three": "service",
    "compare_traces": "service",
    "compare_more_of_two": "service",
    "compare_slowest": "service",
}


def solve_log(text, query, template):
    log = entries(text)
    named, limit = conditions(query, log)
    kept = [entry for entry in log if all(entry.get(key) in values for key, values in named.items())]
    if limit is not None:
        kept = [entry for entry in kept if int(entry.get("latency_ms", 0)) > limit]
    if template.startswith("count_"):
        return len(kept)
    if template in NOTES:
        (value,) = {hit[1] for entry in kept if (hit := re.search(NOTES[template], entry["msg"]))}
        return value
    if template == "list_exceptions":
        return list(dict.fromkeys(error for entry in kept for error in entry["errors"]))
    if template == "compare_slowest":
        return max(kept, key=lambda entry: int(entry.get("latency_ms", 0)))["service"]
    if template == "compare_host_failures":
        kept = [entry for entry in kept if entry.get("status", "").startswith("5")]
    if template == "compare_traces":
        kept = [entry for entry in kept if entry["errors"]]
    counts = collections.Counter(entry[ASKED[template]] for entry in kept)
    if template.startswith("list_"):
        return list(counts)
    if template.startswith("find_"):
        (value,) = counts
        return value
    ranked = counts.most_common()
    if template == "compare_fewest_of_three":
        ranked.reverse()
    assert ranked[0][1] != ranked[1][1], (query, ranked)
    return ranked[0][0]


E, V = r"(?P<e>[A-Z][a-z]+ [A-Z][a-z]+)", r"(?P<v>[A-Z][a-z]+ [A-Z][a-z]+)"
TOWN = r"(?P<v>[A-Z][a-z]+(?: [A-Z][a-z]+)?)"
PLACE = r"(?P<e>[A-Z][a-z]+(?: [A-Z][a-z]+)?)"
N, W = r"(?P<v>\d+)", r"(?P<v>[\w-]+)"
FACTS = {
    "find_password": (
        rf"strongbox that belongs to {E} opens to the word {W}",
        rf"strongbox of {E} answers to the word {W}",
    ),
    "find_birthplace": (rf"{E} was born in {TOWN}",),
    "find_year": (rf"inn called {E} .*?the year {N}",),
    "find_captain": (rf"Command of the barge {E} was given to {V}", rf"sail on the barge {E} has to ask {V}"),
    "find_creditor": (
        rf"{E} still owes a sum of money to {V}",
        rf"What {E} borrowed for the roof is still owed to {V}",
    ),
    "find_dog": (rf"{E} has an old dog by the name of {W}", rf"doorstep of {E} is called {W}"),
    "find_house": (rf"Letters for {E} go to house number {N}", rf"with the number {N}, lives {E}"),
    "list_towns": (rf"{E} travelled to {TOWN} and", rf"{E} spent a week in {TOWN}"),
    "list_instruments": (rf"A broken {W} was brought to {E}", rf"{E} repaired the {W}"),
    "list_birds": (rf"{E} caught sight of a {W}", rf"{E} watched a {W} build"),
    "list_languages": (rf"{E} reads {W}", rf"{E} learned {W}"),
    "list_guests": (rf"{E} dined with {V}", rf"{E} sat and ate beside {V}"),
    "list_goods": (rf"{E} sold a load of {W}", rf"all the {W} that {E} had to sell"),
    "compare_wells": (rf"The well at {PLACE} is {N} feet", rf"At {PLACE} they had to dig {N} feet"),
    "compare_bells": (
        rf"great bell of {PLACE} weighs {N}",
        rf"took {N} pounds of bronze to cast the great bell of {PLACE}",
    ),
    "compare_houses": (rf"The house of {E} was sold for {N}", rf"{N} crowns were paid for the house of {E}"),
    "compare_barges": (rf"The barge {E} carries {N}", rf"No more than {N} sacks of grain fit into the barge {E}"),
    "compare_distance": (
        rf"stairs to {PLACE} it is {N} miles",
        rf"cover {N} miles from the ferry stairs to reach {PLACE}",
    ),
    "compare_bees": (rf"{E} has kept bees for {N}", rf"For {N} years now .*? in the garden of {E}"),
    "compare_weavers": (rf"{E} employs {N}", rf"workshop of {E} there is work for {N}"),
    "count_ferry": (rf"{E} missed the ferry",),
    "count_letters": (rf"letter arrived for {E}", rf"brought {E} a letter", rf"{E} received a letter"),
    "count_cards": (rf"{E} lost at cards", rf"{E} played, and lost at cards", rf"{E} had lost at cards"),
    "count_fever": (rf"{E} fell ill",),
    "count_trees": (rf"{E} planted a tree",),
    "count_bell": (rf"{E} rang the fire bell",),
}
LEAST = ("compare_bells", "compare_barges", "compare_weavers")


def solve_needles(text, query, template):
    hits = []
    for pattern in FACTS[template]:
        for hit in re.finditer(pattern, text):
            if hit["e"] in query:
                hits.append((hit.start(), hit["e"], hit.groupdict().get("v")))
    hits.sort()
    values = [value for _, _, value in hits]
    if template.startswith("count_"):
        return len(hits)
    if template.startswith("list_"):
        return values
    if template.startswith("find_"):
        (value,) = values
        return value
    numbers = {entity: int(value) for _, entity, value in hits}
    assert len(hits) == len(numbers) == 2, hits
    return (min if template in LEAST else max)(numbers, key=numbers.get)


def solve(text, query, template):
    """The answer to a question of this template."""
    return (solve_needles if template in FACTS else solve_log)(text, query, template)

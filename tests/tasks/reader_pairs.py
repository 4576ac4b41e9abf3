"""A second way to the answers about pairs of users: from the text, by the list of phrases of the other reader.

``records`` is that of ``reader_labelled_records.py``, which is put before this file.
"""

from __future__ import annotations

import collections
import itertools
import re


def solve(text, query, template):
    """The pairs that a question of this template asks for."""
    asked = re.split(r"this is true: ", query)[1]
    labels = re.findall(r"'(\w+)'", asked)
    day = re.search(r"\d{4}-\d\d-\d\d", asked)
    least = re.search(r"at least (\d+) records", asked)
    has, early = collections.defaultdict(collections.Counter), collections.Counter()
    for date, user, label in records(text):  # noqa: F821
        has[user][label] += 1
        early[user] += bool(day and date < day[0] and label == labels[0])
    x, y = (*labels, None, None)[:2]
    many = {user for user in has if least and has[user][x] >= int(least[1])}
    if template == "same_leader":
        group = {}
        for user, counts in has.items():
            (first, number), *rest = counts.most_common()
            assert not rest or rest[0][1] < number
            group[user] = first
    elif template == "same_number":
        group = {user: has[user][x] for user in has if has[user][x]}
    elif template == "one_each":
        xs = {user for user in has if has[user][x] and not has[user][y]}
        ys = {user for user in has if has[user][y] and not has[user][x]}
        return sorted(sorted(map(int, pair)) for pair in itertools.product(xs, ys))
    elif template == "one_exactly":
        once = {user for user in has if has[user][y] == 1}
        pairs = {tuple(sorted(map(int, pair))) for pair in itertools.product(many, once) if pair[0] != pair[1]}
        return sorted(map(list, pairs))
    else:
        chosen = {
            "both_any": lambda user: has[user][x] or has[user][y],
            "both_all": lambda user: has[user][x] and has[user][y],
            "both_none": lambda user: not has[user][x],
            "both_least": lambda user: user in many,
            "both_before": lambda user: early[user],
        }[template]
        group = {user: 0 for user in has if chosen(user)}
    pairs = itertools.combinations(sorted(group), 2)
    return [[int(one), int(other)] for one, other in pairs if group[one] == group[other]]

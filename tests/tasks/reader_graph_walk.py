"""A second way to the answers about graphs, from the text. Standard library alone, so that it can be sent away."""

from __future__ import annotations

import collections
import re

NODE = r"\b[0-9a-f]{8}\b"
WAY = r"\b(?:north|east|west)\b"


def solve(text, query, template):
    """The answer to a question of this kind."""
    edges, ways = collections.defaultdict(set), {}
    for line in text.splitlines():
        first, *others = re.findall(NODE, line)
        edges[first].update(others)
        for way, end in zip(re.findall(WAY, line), others, strict=False):
            assert (first, way) not in ways
            ways[first, way] = end
    named = re.findall(NODE, query)
    if template == "parents":
        return sorted(node for node in edges if named[0] in edges[node])
    if template == "walk":
        (node,) = named
        for way in re.findall(WAY, query):
            node = ways[node, way]
        return node
    distance, waiting = {named[0]: 0}, collections.deque([named[0]])
    while waiting:
        node = waiting.popleft()
        for end in edges[node]:
            if end not in distance:
                distance[end] = distance[node] + 1
                waiting.append(end)
    if template == "distance":
        return distance[named[1]]
    steps = int(re.search(r"exactly (\d+) steps", query)[1])
    return sorted(node for node in distance if distance[node] == steps)

"""Questions about a large directed graph: the family ``graph_walk``.

The graph is a list of edges, of nodes with their edges, or of sentences (``format`` of the example), in no order. What
is asked takes several steps through the whole of it, each of which depends on the one before, so neither a search for
a word nor a part of the text answers it; code that builds the graph does.

    parents    all nodes with an edge to one                            list of str, 2 to 8
    reach      all nodes that are exactly so many steps away            list of str, 1 to 30
    distance   the least number of steps from one node to another       int, 2 to 7
    walk       where one comes by following directions from a node      str

Whoever says four steps, or nothing, is right in under one of ten.
"""

from __future__ import annotations

from collections.abc import Callable

from rlm_dspy.tasks.base import Batches, Spot, Task
from rlm_dspy.tasks.graphs import WAYS, Graph
from rlm_dspy.tasks.scoring import score

__all__ = ["KINDS", "NAME", "example", "generate", "score"]

NAME = "graph_walk"
_ABOUT = {
    "edges": "The context is a directed graph, one edge a line.",
    "adjacency": "The context is a directed graph; a line is a node and the nodes that it has edges to.",
    "prose": "The context is a map of one-way roads between places, a road is an edge from one node to another.",
}


def _parents(spot: Spot) -> Task:
    draw = spot.draw
    graph = Graph(draw, spot.characters, aim=draw.between(2, 8))
    query = f"Which nodes have an edge that leads directly to the node {graph.name(0)}?"
    return _task(graph, query, sorted(map(graph.name, graph.before(0))), "list[str]")


def _reach(spot: Spot) -> Task:
    draw = spot.draw
    graph, steps, level = Graph(draw, spot.characters), 0, [0]
    while steps < 2:
        start, steps = draw.below(graph.size), draw.between(2, 5)
        levels = graph.levels(start, steps)
        steps = min(steps, len(levels) - 1)
        while len(levels[steps]) > 30:
            steps -= 1
        level = levels[steps]
    query = (
        f"Which nodes are exactly {steps} steps away from the node {graph.name(start)}, when edges are followed in "
        "their direction? Leave out those that can be reached in fewer steps."
    )
    return _task(graph, query, sorted(map(graph.name, level)), "list[str]")


def _distance(spot: Spot) -> Task:
    draw = spot.draw
    graph, levels, steps = Graph(draw, spot.characters), [[0]], draw.between(2, 7)
    while len(levels) <= steps:
        start = draw.below(graph.size)
        levels = graph.levels(start, steps)
        # Small graphs may have no nodes so far apart.
        steps = max(2, min(steps, len(levels) - 1))
    end = draw.choice(levels[steps])
    query = (
        f"What is the least number of steps from the node {graph.name(start)} to the node {graph.name(end)}, when "
        "edges are followed in their direction?"
    )
    return _task(graph, query, steps, "int")


def _walk(spot: Spot) -> Task:
    draw = spot.draw
    graph, start, node = Graph(draw, spot.characters, ways=True), 0, 0
    while node == start:
        node = start = draw.below(graph.size)
        ways = [draw.below(len(WAYS)) for _ in range(draw.between(4, 9))]
        for way in ways:
            node = graph.after(node)[way]
    query = (
        f"Start at the node {graph.name(start)} and follow, one after the other, the edges with these names: "
        f"{', '.join(WAYS[way] for way in ways)}. At which node does this end?"
    )
    return _task(graph, query, graph.name(node), "str")


def _task(graph: Graph, query: str, answer: int | str | list[str], type: str) -> Task:
    extra = {"format": graph.form, "nodes": graph.size}
    return Task(graph.text(), f"{_ABOUT[graph.form]} {query}", answer, extra, f"context, query -> answer: {type}")


_MAKERS: dict[str, Callable[[Spot], Task]] = {
    "parents": _parents,
    "reach": _reach,
    "distance": _distance,
    "walk": _walk,
}
KINDS = tuple(_MAKERS)


def _build(spot: Spot) -> Task:
    return _MAKERS[spot.kind](spot)


_BATCHES = Batches(NAME, {kind: (kind,) for kind in KINDS}, _build)
generate, example = _BATCHES.generate, _BATCHES.example

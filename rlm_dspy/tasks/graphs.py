"""Directed graphs of any size, and how they are written down.

Every node has one to three edges to others, or one in each of three directions. Nodes are eight hexadecimal digits. A
graph is written as one edge a line, as one node with all its edges a line, or as a sentence an edge, in a drawn order.
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections.abc import Sequence

from rlm_dspy.tasks._draw import Draw, Permutation

__all__ = ["FORMATS", "WAYS", "Graph"]

#: The directions of a graph that has them.
WAYS = ("north", "east", "west")
FORMATS = ("edges", "adjacency", "prose")

#: An edge by itself, without and with its direction.
_EDGE = {
    "edges": ("{0} -> {1}\n", "{0} {2} -> {1}\n"),
    "prose": ("From {0} a road leads to {1}.\n", "From {0} the {2} road leads to {1}.\n"),
}


class Graph:
    """A graph whose text shall have a length.

    Args:
        draw: The source of its draws.
        characters: How long the text shall be.
        ways: Whether every node has exactly one edge in each of `WAYS`.
        aim: How many nodes shall have an edge to node 0, which is otherwise as others are; None for as many as come.

    Attributes:
        form: How it is written, of `FORMATS`.
        size: How many nodes it has; they are numbers here, and `name` says how they are written.
    """

    def __init__(self, draw: Draw, characters: int, ways: bool = False, aim: int | None = None) -> None:
        self._draw, self._ways = draw, ways
        self.form = draw.choice(FORMATS)
        self._names = Permutation(draw, 2**32)
        node = "x" * 8
        starts, written = array("L", [0]), 0
        while written < characters:
            edges = len(WAYS) if ways else draw.between(1, 3)
            starts.append(starts[-1] + edges)
            if self.form == "adjacency":
                written += len(self._line(node, [node] * edges))
            else:
                written += sum(len(self._edge(node, node, at)) for at in range(edges))
        self.size, self._starts = len(starts) - 1, starts
        self._ends = self._targets(aim)

    def _targets(self, aim: int | None) -> array[int]:
        draw, random, starts, size = self._draw, self._draw.random, self._starts, self.size
        ends = array("L", bytes(array("L").itemsize * starts[-1]))
        for node in range(size):
            first, last = starts[node], starts[node + 1]
            taken: list[int] = [node]
            while len(taken) <= last - first:
                end = int(random() * size)
                if end not in taken and (end or aim is None):
                    taken.append(end)
            ends[first:last] = array("L", taken[1:])
        if aim is not None:
            for node in draw.distinct(1, size - 1, aim):
                ends[starts[node] + draw.below(starts[node + 1] - starts[node])] = 0
        return ends

    def name(self, node: int) -> str:
        """How a node is written."""
        return f"{self._names(node):08x}"

    def after(self, node: int) -> Sequence[int]:
        """The nodes that a node has an edge to; in the order of `WAYS`, where it has these."""
        return self._ends[self._starts[node] : self._starts[node + 1]]

    def before(self, node: int) -> list[int]:
        """The nodes that have an edge to a node."""
        return [bisect(self._starts, place) - 1 for place, end in enumerate(self._ends) if end == node]

    def levels(self, start: int, most: int) -> list[list[int]]:
        """The nodes by the least number of steps from ``start``, from 0 to ``most`` or as far as there are any."""
        seen, levels = {start}, [[start]]
        while len(levels) <= most:
            level = dict.fromkeys(end for node in levels[-1] for end in self.after(node) if end not in seen)
            if not level:
                break
            seen.update(level)
            levels.append(list(level))
        return levels

    def text(self) -> str:
        """The graph, written down."""
        draw, edges = self._draw, self.form != "adjacency"
        names = [self.name(node) for node in range(self.size)]
        places = self._edges() if edges else range(self.size)
        blocks, lines = [], []
        for place in draw.shuffled(places):
            if edges:
                node, at = divmod(place, 4)
                lines.append(self._edge(names[node], names[self._ends[self._starts[node] + at]], at))
            else:
                lines.append(self._line(names[place], [names[end] for end in self.after(place)]))
            if len(lines) == 10_000:
                blocks.append("".join(lines))
                lines.clear()
        return "".join((*blocks, *lines))

    def _edges(self) -> array[int]:
        """Each edge as four times its node and its place among the edges of that node."""
        starts = self._starts
        return array("L", (4 * node + at for node in range(self.size) for at in range(starts[node + 1] - starts[node])))

    def _edge(self, one: str, other: str, at: int) -> str:
        return _EDGE[self.form][self._ways].format(one, other, WAYS[at])

    def _line(self, one: str, others: list[str]) -> str:
        if self._ways:
            others = [f"{way} {other}" for way, other in zip(WAYS, others, strict=True)]
        return f"{one}: {', '.join(others)}\n"

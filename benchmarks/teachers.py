"""Teachers for `benchmarks.make_preset`: programs that know a family of tasks, as the replies of a language model.

What they write is run in the sandbox like any reply, and only what was right there is made into demonstrations.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rlm_dspy.testing import Call, code

__all__ = ["TEACHERS", "graph_walk"]

_EDGES = """import re
edges = {}
for line in context.splitlines():
    node, *others = re.findall(r'[0-9a-f]{8}', line)
    edges.setdefault(node, set()).update(others)
"""
_LEVELS = """
seen, level, steps = {start}, {start}, 0
while WHILE:
    level = {b for a in level for b in edges.get(a, ())} - seen
    seen |= level
    steps += 1
"""
_WAYS = """import re
node = 'START'
for way in [WAYS]:
    for line in context.splitlines():
        names = re.findall(r'[0-9a-f]{8}', line)
        if names[0] == node and way in line:
            node = re.search(way + r'\\W+(?:\\w+ )*?([0-9a-f]{8})', line)[1]
            break
"""


def graph_walk(call: Call) -> str:
    """Looks at the first lines, then builds the graph of every line's node names, and submits what comes of it."""
    if call.turn == 0:
        return code("print(context[:300])", "First I look how a line is written.")
    query = str(call.own[0]["content"])
    query = query[query.index("directed graph") if "directed graph" in query else query.index("one-way roads") :]
    nodes = re.findall(r"\b[0-9a-f]{8}\b", query)
    if "leads directly to" in query:
        step = f"{_EDGES}\nSUBMIT(answer=[a for a, others in edges.items() if '{nodes[0]}' in others])"
        return code(step, "The first name of a line is the node, the others are where its edges lead.")
    if "steps away" in query:
        found = re.search(r"exactly (\d+) steps", query)
        assert found is not None
        levels = _LEVELS.replace("WHILE", f"steps < {found[1]}").replace("start", f"'{nodes[0]}'")
        why = "I build the graph, and go on step by step; nodes that were there before are left out."
        return code(f"{_EDGES}{levels}SUBMIT(answer=sorted(level))", why)
    if "least number of steps" in query:
        levels = _LEVELS.replace("WHILE", f"'{nodes[1]}' not in seen").replace("start", f"'{nodes[0]}'")
        why = "I build the graph, and go on step by step until the node is there; then the steps are the answer."
        return code(f"{_EDGES}{levels}SUBMIT(answer=steps)", why)
    named = query[query.index("with these names: ") :].split("?")[0].split(". ")[0]
    ways = ", ".join(f"'{way}'" for way in re.findall(r"\b(?:north|east|south|west)\b", named))
    step = _WAYS.replace("START", nodes[0]).replace("WAYS", ways)
    return code(f"{step}SUBMIT(answer=node)", "From node to node, each time by the edge with the next name.")


TEACHERS: dict[str, Callable[[Call], str]] = {"graph_walk": graph_walk}
"""By the name of the family."""

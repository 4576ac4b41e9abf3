"""The ordinary code of a made-up repository: pieces of files in several languages, about nothing that is asked.

Its names are made of words that no name of a fact has (`rlm_dspy.tasks.repo_names`), so that no ordinary piece is ever
part of an answer. Python pieces are valid Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rlm_dspy.tasks._draw import Draw

__all__ = ["FOLDERS", "HEADS", "KINDS", "piece"]

VERBS = (
    *("load", "merge", "rank", "trim", "align", "decode", "batch", "scan", "group", "measure", "sort", "expand"),
    *("filter", "index", "stream", "collect", "format", "parse", "round", "split", "store", "unpack", "wrap", "zip"),
)
NOUNS = (
    *("rows", "labels", "spans", "buckets", "tables", "tokens", "edges", "frames", "pages", "metrics", "columns"),
    *("digests", "queues", "samples", "shards", "slots", "topics", "trees", "vectors", "windows", "zones", "charts"),
)
TYPES = ("int", "str", "float", "bool", "bytes")
PEOPLE = ("oskar", "priya", "tomas", "wanda", "yusuf", "zoe")
"""Whoever ordinary remarks are left for."""

KINDS = ("code", "test", "ts", "go", "sql", "sh", "md")
"""Kinds of files: Python of services, Python tests, TypeScript, Go, SQL, shell, Markdown."""

FOLDERS = {
    "code": ("services/{f}/{n}.py", "libs/{f}/{n}.py"),
    "test": ("tests/{f}/test_{n}.py",),
    "ts": ("web/src/{f}/{n}.ts",),
    "go": ("cmd/{f}/{n}.go",),
    "sql": ("migrations/{f}_{n}.sql",),
    "sh": ("scripts/{f}_{n}.sh",),
    "md": ("docs/{f}/{n}.md",),
}
"""Kind of a file to where such files are; ``f`` and ``n`` are words."""

HEADS = {
    "code": '"""%(Verb)s %(nouns)s for the %(f)s pages."""\n\nfrom __future__ import annotations\n\nimport os\n',
    "test": '"""Tests of how %(nouns)s are made."""\n\nimport os\n',
    "ts": 'import { clock } from "../clock";\n',
    "go": 'package main\n\nimport (\n\t"fmt"\n\t"os"\n)\n',
    "sql": "BEGIN;\n",
    "sh": "#!/bin/sh\nset -eu\n",
    "md": "# %(Verb)s %(nouns)s\n",
}
"""What files begin with."""

_PIECES = {
    "code": (
        '''

def %(verb)s_%(nouns)s(items: list[%(type)s], limit: int = %(a)d) -> list[%(type)s]:
    """%(Verb)s the %(nouns)s that come first."""
    kept = []
    for position, item in enumerate(items):
        if position >= limit:
            break
        kept.append(item)
    return kept
''',
        """

def _%(verb)s_%(other)s(source, *, step=%(a)d):
    # The order matters: %(nouns)s come before %(other)s.
    total = 0
    for value in source:
        total += value %% step
    if total > %(b)d:
        raise ValueError(f"too many %(nouns)s: {total}")
    return total
""",
        """

class %(Verb)s%(Nouns)s:
    size = %(a)d

    def __init__(self, %(other)s):
        self.%(other)s = %(other)s
        self.seen = {}

    def add(self, key, value):
        if key in self.seen and len(self.seen) > self.size:
            return False
        self.seen[key] = value
        return True
""",
        """

def %(verb)s_%(other)s(path):
    with open(path) as file:
        lines = [line.strip() for line in file if line.strip()]
    # TODO(%(person)s): %(verb)s the %(nouns)s as well.
    return {line.split("=")[0]: line for line in lines[:%(b)d]}
""",
    ),
    "test": (
        """

def test_%(verb)s_%(nouns)s_keeps_%(a)d():
    found = list(range(%(b)d))
    assert len(found[:%(a)d]) <= %(b)d
    assert found == sorted(found)
""",
        """

def test_%(other)s_are_empty_without_%(nouns)s():
    table = {"%(nouns)s": %(a)d, "%(other)s": None}
    # The first release left out %(other)s.
    assert table["%(other)s"] is None
""",
    ),
    "ts": (
        """
export function %(verb)s%(Nouns)s(items: number[], limit = %(a)d): number[] {
  const kept = items.filter((item) => item %% %(b)d !== 0);
  return kept.slice(0, limit);
}
""",
        """
// TODO(%(person)s): show %(other)s beside the %(nouns)s.
export const %(nouns)s%(Verb)s = (value: string): string => {
  if (value.length > %(b)d) {
    return value.slice(0, %(a)d);
  }
  return value;
};
""",
    ),
    "go": (
        """
func %(verb)s%(Nouns)s(items []int) (int, error) {
	total := 0
	for _, item := range items {
		total += item %% %(b)d
	}
	if total > %(a)d {
		return 0, fmt.Errorf("too many %(nouns)s: %%d", total)
	}
	return total, nil
}
""",
    ),
    "sql": (
        """
CREATE TABLE %(nouns)s_%(verb)s (
  id BIGINT PRIMARY KEY,
  %(other)s TEXT NOT NULL,
  amount INTEGER DEFAULT %(a)d
);
-- TODO(%(person)s): an index over %(other)s.
""",
        """
UPDATE %(nouns)s SET amount = amount + %(a)d WHERE %(other)s IS NOT NULL AND id < %(b)d;
""",
    ),
    "sh": (
        """
# %(Verb)s what is left of the %(nouns)s.
for file in out/%(nouns)s/*.txt; do
  head -n %(a)d "$file" > "out/%(other)s/$(basename "$file")"
done
""",
    ),
    "md": (
        """
## How to %(verb)s %(nouns)s

Run the job once a day. It takes up to %(a)d minutes and leaves at most %(b)d %(other)s behind, which the next one
picks up. If %(other)s are missing, look into the queue first.
""",
    ),
}


def _compiled(template: str) -> Callable[[dict[str, object]], str]:
    return lambda values: template % values


_COMPILED = {kind: tuple(_compiled(text) for text in texts) for kind, texts in _PIECES.items()}
_CAPITALISED = {word: word.capitalize() for word in (*VERBS, *NOUNS)}
_HEADS = {kind: _compiled(text) for kind, text in HEADS.items()}
WORDS = frozenset(re.findall(r"[a-z]+", " ".join((*VERBS, *NOUNS, *PEOPLE))))
"""All words that ordinary names are made of."""


def _values(draw: Draw) -> dict[str, object]:
    random = draw.random
    verb, nouns = VERBS[int(random() * len(VERBS))], NOUNS[int(random() * len(NOUNS))]
    number = random()
    return {
        "verb": verb,
        "Verb": _CAPITALISED[verb],
        "nouns": nouns,
        "Nouns": _CAPITALISED[nouns],
        "other": NOUNS[int(random() * len(NOUNS))],
        "person": PEOPLE[int(number * len(PEOPLE))],
        "type": TYPES[int(number * len(TYPES))],
        "a": 2 + int(number * 90),
        "b": 100 + int(number * 900),
        "f": "",
    }


def piece(kind: str, draw: Draw) -> str:
    """One piece of a file of this kind."""
    choices = _COMPILED[kind]
    return choices[int(draw.random() * len(choices))](_values(draw))


def head(kind: str, folder: str, draw: Draw) -> str:
    """What a file of this kind in that folder begins with."""
    return _HEADS[kind](_values(draw) | {"f": folder})

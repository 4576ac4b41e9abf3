"""A code repository, and where what is in it: the family ``repository``.

The context is a dict of path to text: Python services with tests, TypeScript, Go, SQL, shell scripts, documentation and
settings. Facts are planted in it, and beside them what only looks like them: remarks and texts that mention a call,
functions and variables with a longer name, tests that are only named after a function, settings that are commented out
or overridden, constants of the same name elsewhere.

    count     calls of a function, tests that call it, remarks for somebody                        int
    find      who calls something with a value; the only test; a setting in force; a definition    str
    list      all callers, tests, files that set something, files that read a variable, 3–8        list of str
    compare   which of two is called by more, is set larger, has more remarks                      str

A text search alone miscounts in each of them. ``files`` of an example is the number of files.
"""

from __future__ import annotations

from typing import Any

from rlm_dspy.tasks import repo_calls, repo_settings, repo_text
from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.base import Batches, Spot, Task
from rlm_dspy.tasks.repo_facts import Plan, Plant
from rlm_dspy.tasks.repo_names import SERVICES
from rlm_dspy.tasks.scoring import score

__all__ = ["KINDS", "NAME", "TEMPLATES", "example", "generate", "score"]

NAME = "repository"
TEMPLATES = {
    "count": {**repo_calls.COUNT, **repo_settings.COUNT},
    "find": {**repo_calls.FIND, **repo_settings.FIND},
    "list": {**repo_calls.LIST, **repo_settings.LIST},
    "compare": {**repo_calls.COMPARE, **repo_settings.COMPARE},
}
KINDS = tuple(TEMPLATES)
_SHARES = (("code", 0.45), ("test", 0.6), ("ts", 0.75), ("go", 0.85), ("sql", 0.9), ("sh", 0.95), ("md", 1.0))
"""Kinds of ordinary files, by how often they are drawn (summed up)."""


def _build(spot: Spot) -> Task:
    plan = TEMPLATES[spot.kind][spot.template](spot.draw, spot.characters)
    writer = _Writer(plan, spot.draw, spot.characters)
    files: Any = writer.write()
    answer = sorted({writer.places[place] for place in plan.files}) if plan.files else plan.answer
    if isinstance(answer, list):
        # By no order of planting, which is no order of the files either.
        answer = sorted(answer)
    return Task(files, plan.query, answer, {"files": len(files)})


class _Writer:
    """Writes the files of a plan.

    Args:
        plan: The question.
        draw: The source of what is ordinary.
        characters: Of all texts together, met to within a piece or two.

    Attributes:
        places: The file of each plant, by its place in the plan.
    """

    def __init__(self, plan: Plan, draw: Draw, characters: int) -> None:
        self.places: dict[int, str] = {}
        self._draw = draw
        self._characters = characters
        self._files: dict[str, list[str]] = {}
        self._size = 0
        self._waiting: dict[str, list[tuple[float, int, Plant]]] = {}
        for place, plant in enumerate(plan.plants):
            if plant.path:
                self._add(plant.path, plant.text)
                self.places[place] = plant.path
            else:
                self._waiting.setdefault(plant.kind, []).append((draw.random(), place, plant))
                # It is counted now, so that there is room for it.
                self._size += len(plant.text)
        for waiting in self._waiting.values():
            waiting.sort(key=lambda one: one[:2], reverse=True)
        self._planted = self._size

    def write(self) -> dict[str, str]:
        """Path to text, in the order of the paths."""
        draw = self._draw
        room = max(1, self._characters - self._planted)
        length = max(500, min(9_000, self._characters // 12))
        while self._size < self._characters:
            share = draw.random()
            kind = next(kind for kind, upto in _SHARES if share < upto)
            path = self._begin(kind)
            end = min(self._size + int(length * (0.4 + draw.random())), self._characters)
            while self._size < end:
                self._plant(kind, path, (self._size - self._planted) / room)
                self._add(path, repo_text.piece(kind, draw))
        for kind in list(self._waiting):
            while self._waiting[kind]:
                paths = [path for path in self._files if self._kind(path) == kind]
                self._plant(kind, draw.choice(paths) if paths else self._begin(kind), 2.0, most=1)
        return {path: "".join(texts) for path, texts in sorted(self._files.items())}

    def _plant(self, kind: str, path: str, passed: float, most: int = 4) -> None:
        """Put plants of this kind whose place has been passed into the file, at most so many."""
        waiting = self._waiting.get(kind)
        while waiting and waiting[-1][0] <= passed and most:
            _, place, plant = waiting.pop()
            self._files[path].append(plant.text)
            self.places[place] = path
            most -= 1

    def _begin(self, kind: str) -> str:
        """A new file with its head."""
        draw = self._draw
        folder = draw.choice(repo_text.NOUNS)
        form = draw.choice(repo_text.FOLDERS[kind])
        name = f"{draw.choice(repo_text.VERBS)}_{draw.choice(repo_text.NOUNS)}"
        path, number = form.format(f=folder, n=name), 1
        while path in self._files:
            number += 1
            path = form.format(f=folder, n=f"{name}_{number}")
        self._add(path, repo_text.head(kind, folder, draw))
        return path

    def _add(self, path: str, text: str) -> None:
        self._files.setdefault(path, []).append(text)
        self._size += len(text)

    @staticmethod
    def _kind(path: str) -> str:
        if path.startswith("tests/"):
            return "test"
        suffix = path.rpartition(".")[2]
        # A planted file is whole as it is.
        planted = path.startswith("config/") or (path.startswith("services/") and path.split("/")[1] in SERVICES)
        return "" if planted else {"py": "code"}.get(suffix, suffix)


_BATCHES = Batches(NAME, TEMPLATES, _build)
generate, example = _BATCHES.generate, _BATCHES.example

"""results.json: what was measured and when, so that tables and plots can be made again without measuring.

    {"sessions": {DATE: {"command": ..., "machine": ..., "noise": ..., "versions": {...}, ...}},
     "results": {"ENGINE/WORK": {"session": DATE, "seconds": [...], ...}}}

A session is one run of the command. A result that is measured again replaces the one before; the others stay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Results = Mapping[tuple[str, str], Mapping[str, Any]]
"""By engine and work: what was measured, or ``{"reason": why there is nothing}``."""


class Store:
    """What is kept, in memory and, with a path, on disk.

    Args:
        path: Of the JSON file, which need not exist; None to keep nothing.

    Raises:
        ValueError: The file is there and is not one of these.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.sessions: dict[str, dict[str, Any]] = {}
        self.results: dict[tuple[str, str], dict[str, Any]] = {}
        if path is None or not path.exists():
            return
        try:
            data = json.loads(path.read_text())
            self.sessions = dict(data["sessions"])
            self.results = {_key(name): dict(result) for name, result in data["results"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path.name} cannot be read ({error}); remove it, and measure again") from error

    def put(self, session: str, engine: str, work: str, result: Mapping[str, Any]) -> None:
        """Keep a result in place of the one before."""
        self.results[engine, work] = {"session": session, **result}

    def save(self) -> None:
        """Write the file, whole or not at all. Sessions of which nothing is left are dropped."""
        if self._path is None:
            return
        used = {result["session"] for result in self.results.values()}
        self.sessions = {date: about for date, about in self.sessions.items() if date in used}
        data = {
            "sessions": dict(sorted(self.sessions.items())),
            "results": {"/".join(key): self.results[key] for key in sorted(self.results)},
        }
        beside = self._path.with_name(f"{self._path.name}.new")
        beside.write_text(json.dumps(_rounded(data), indent=1, ensure_ascii=False) + "\n")
        os.replace(beside, self._path)

    def of(self, names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        """The sessions, the latest first, each with those of the works ``names`` that have a result from it."""
        names = list(names)
        for date in sorted(self.sessions, reverse=True):
            works = {work for (_, work), result in self.results.items() if result["session"] == date}
            if found := [name for name in names if name in works]:
                yield date, found


def _key(name: str) -> tuple[str, str]:
    engine, _, work = name.partition("/")
    return engine, work


def _rounded(value: Any) -> Any:
    """Without digits that mean nothing: microseconds."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value

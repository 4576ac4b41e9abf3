"""A file that is not whole yet: its bytes, and a note of which of them are there.

Bytes may come from several sources and in any order, because every source has the same file: what the hub sent before
the network broke down need not come again as a package.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

from rlm_dspy.models import store
from rlm_dspy.models.catalog import LocalModel


class Partial:
    """The unfinished file of one model; the caller holds its lock.

    Args:
        model: Which one. What was kept for another file under this name is thrown away.
        size: The size of the whole file in bytes.

    Attributes:
        folder: Everything in it is removed with the file.
        path: The unfinished file.
    """

    def __init__(self, model: LocalModel, size: int) -> None:
        self.folder = store.partial_folder(model.name)
        self.path = self.folder / f"{model.file}.part"
        self.size = size
        self._state = self.folder / "ranges.json"
        self._identity = {"size": size, "sha256": model.sha256, "repo": model.repo, "revision": model.revision}
        self._ranges: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        kept = store.read_json(self._state) or {}
        if kept.get("of") == self._identity and self.path.is_file():
            self._ranges = _merged([(int(start), int(end)) for start, end in kept.get("ranges", [])])
        else:
            self.discard()
        self.folder.mkdir(parents=True, exist_ok=True)
        # What a process that was killed left of its temporary files.
        for entry in self.folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
        with open(self.path, "ab") as file:
            file.truncate(size)

    @property
    def done(self) -> int:
        """How many bytes are there."""
        return sum(end - start for start, end in self._ranges)

    @property
    def prefix(self) -> int:
        """How many bytes are there from the beginning on, without a gap."""
        return self._ranges[0][1] if self._ranges and self._ranges[0][0] == 0 else 0

    def covers(self, start: int, end: int) -> bool:
        """Whether all bytes from ``start`` to ``end`` are there."""
        return any(first <= start and end <= last for first, last in self._ranges)

    def add(self, start: int, end: int) -> None:
        """Note that the bytes from ``start`` to ``end`` were written and flushed."""
        with self._lock:
            self._ranges = _merged([*self._ranges, (start, end)])
            store.write_json(self._state, {"of": self._identity, "ranges": self._ranges})

    def finish(self, path: Path) -> None:
        """Give the file its final name."""
        os.replace(self.path, path)
        self.discard()

    def discard(self) -> None:
        """Remove the file and all notes of it."""
        self._ranges = []
        shutil.rmtree(self.folder, ignore_errors=True)


def progress(model: LocalModel) -> tuple[int, int, str] | None:
    """How far an unfinished download is: what is there, of how much, in which unit; None if there is none."""
    ranges, size = _kept(model.name)
    if not ranges or not size:
        return None
    if model.parts is not None:
        spans = [model.parts.span(number, size) for number in range(1, model.parts.count + 1)]
        whole = sum(any(first <= start and end <= last for first, last in ranges) for start, end in spans)
        return whole, model.parts.count, "parts"
    return sum(end - start for start, end in ranges) // 1_000_000, size // 1_000_000, "MB"


def all_there(model: LocalModel) -> bool:
    """Whether an interrupted download has all bytes already."""
    ranges, size = _kept(model.name)
    return bool(size) and size == model.size and ranges == [(0, size)]


def _kept(name: str) -> tuple[list[tuple[int, int]], int]:
    kept = store.read_json(store.partial_folder(name) / "ranges.json") or {}
    try:
        return _merged([(int(start), int(end)) for start, end in kept["ranges"]]), int(kept["of"]["size"])
    except (KeyError, TypeError, ValueError):
        return [], 0


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    result: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        elif start < end:
            result.append((start, end))
    return result

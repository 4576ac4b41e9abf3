"""Lines in the order of their numbers, written as they come, whatever order they are made in.

What is made before its turn waits in memory, and on disk beside the file, so that it is not lost with the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlm_dspy.errors import RecordingError
from rlm_dspy.evaluation.lines import LineFile

__all__ = ["Ordered"]

_LARGE = 1_000
"""Lines ahead on disk, most of which had their turn, after which they are written anew."""


class Ordered:
    """A file of JSON lines, each with its ``"row"``, from 0 and without a gap.

    Args:
        path: The file; what is in it stays.
        folder: For what is ahead.

    Attributes:
        next: The number of the row whose turn it is.
        ahead: Rows that were made before their turn, by number.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.next = 0
        self.ahead: dict[int, Mapping[str, Any]] = {}
        self._on_disk = 0
        self._file = LineFile(path)
        self._beside: list[LineFile] = []
        try:
            for name in ("ahead-0.jsonl", "ahead-1.jsonl"):
                self._beside.append(LineFile(folder / name))
        except BaseException:
            self.close()
            raise

    def lines(self) -> Iterator[dict[str, Any]]:
        """What is in the file. Go through it once, before anything is put: it counts the rows.

        Raises:
            RecordingError: It is damaged, or not in order.
        """
        for record in self._file.records():
            if record.get("row") != self.next:
                raise RecordingError(f"{self._file.path}: row {self.next} is not in its place; it was changed")
            self.next += 1
            yield record
        for beside in self._beside:
            for record in beside.records():
                if record["row"] >= self.next:
                    self.ahead[record["row"]] = record

    def again(self) -> Iterator[dict[str, Any]]:
        """What is in the file, once more."""
        return self._file.records()

    def put(self, line: Mapping[str, Any]) -> None:
        """Write ``line``; when this returns it is on disk."""
        number = line["row"]
        if number != self.next:
            self.ahead[number] = line
            self._beside[0].append([line])
            self._on_disk += 1
            if self._on_disk > _LARGE and self._on_disk > 4 * len(self.ahead):
                self._anew()
            return
        due = [line]
        self.next += 1
        while self.next in self.ahead:
            due.append(self.ahead.pop(self.next))
            self.next += 1
        self._file.append(due)
        if not self.ahead:
            self._clear()

    def flush(self) -> None:
        """Write what is ahead and has its turn by now."""
        if self.next in self.ahead:
            self.put(self.ahead.pop(self.next))

    def _anew(self) -> None:
        # At every moment each of them is in one of the two.
        first, second = self._beside
        second.append(self.ahead.values())
        first.clear()
        self._beside.reverse()
        self._on_disk = len(self.ahead)

    def _clear(self) -> None:
        self._on_disk = 0
        for beside in self._beside:
            if not beside.empty:
                beside.clear()

    def close(self) -> None:
        """Write no more; idempotent."""
        for file in (self._file, *self._beside):
            file.close()

    def remove_beside(self) -> None:
        """Take away what is beside the file, once nothing is ahead."""
        self.close()
        for beside in self._beside:
            beside.path.unlink(missing_ok=True)

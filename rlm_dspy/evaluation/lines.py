"""`LineFile`: records that are on disk once they were written, one JSON object a line, by one process at a time.

A process that is killed, or a machine that fails, loses at most the line that was being written; what there is of such
a line is cut off when the file is opened again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from rlm_dspy.errors import RecordingError
from rlm_dspy.reading import claimed

__all__ = ["LineFile", "text_of"]

_BLOCK = 1 << 16


def text_of(record: Mapping[str, Any]) -> str:
    """A record as one line, without its end."""
    # ASCII, because a lone surrogate in a text has no other form.
    return json.dumps(record, separators=(", ", ": "), allow_nan=False)


class LineFile:
    """A file of JSON lines that is appended to.

    Args:
        path: The file; made if it is not there, its folder too.

    Attributes:
        path: The file.

    Raises:
        RecordingError: Another process writes to it, or it cannot be opened.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RecordingError(f"{self.path} cannot be written: {error.strerror or error}") from None
        self._file: BinaryIO = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            self._claim()
            self._end = self._whole()
            self._file.truncate(self._end)
            self._file.seek(self._end)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> LineFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _claim(self) -> None:
        if not claimed(self._file):
            raise RecordingError(f"another process writes to {self.path}: wait for it, or write to another place")

    def _whole(self) -> int:
        """Where the last whole line ends."""
        end = self._file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - _BLOCK)
            self._file.seek(begin)
            cut = self._file.read(end - begin).rfind(b"\n")
            if cut >= 0:
                return begin + cut + 1
            end = begin
        return 0

    def records(self) -> Iterator[dict[str, Any]]:
        """All records, from the first, one at a time.

        Raises:
            RecordingError: A line is no JSON object; the message names it.
        """
        left = self._end
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                left -= len(line)
                if left < 0:
                    return
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    record = None
                if not isinstance(record, dict):
                    raise RecordingError(
                        f"line {number} of {self.path} is damaged; take that line out, or write to another place"
                    )
                yield record

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records; when this returns they are on disk.

        Raises:
            RecordingError: They cannot be written, such as on a full disk; the file ends with what was before.
        """
        data = "".join(text_of(record) + "\n" for record in records).encode("ascii")
        if not data:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            try:
                self._file.truncate(self._end)
                self._file.seek(self._end)
            except OSError:
                pass
            raise RecordingError(
                f"{self.path} cannot be written: {error.strerror or error}. What is in it is kept: run the same again "
                "once that is mended"
            ) from error
        self._end += len(data)

    def clear(self) -> None:
        """Take all records out."""
        self._file.truncate(0)
        self._file.seek(0)
        self._end = 0

    @property
    def empty(self) -> bool:
        """Whether there is no record."""
        return self._end == 0

    def close(self) -> None:
        """Write no more; idempotent."""
        self._file.close()

"""The folder of a compile: every rollout and every reflection, written as it is done, so that none is paid twice.

    compile.json      what is being compiled, by digests, and with which settings
    rollouts.jsonl    a rollout a line (`rlm_dspy.optimizers.rollouts.Rollout`)
    proposals.jsonl   a reflection a line: predictor, digest of what was asked, the instruction that came

A compile that was killed is made again from the beginning, in the same order, with what is in its folder in place of
runs and reflections: it comes to where it was in seconds, and goes on. Nothing is pickled. Texts are written without
known secrets. They hold parts of the examples; the files are readable by their owner alone.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from rlm_dspy.errors import ConfigurationError, RecordingError
from rlm_dspy.kept import atomically
from rlm_dspy.optimizers.rollouts import Rollout
from rlm_dspy.reading import claimed
from rlm_dspy.redact import redacted, redactor

SCHEMA = 1
HEAD, ROLLOUTS, PROPOSALS = "compile.json", "rollouts.jsonl", "proposals.jsonl"


class Folder:
    """What a compile has done, in memory, and on disk where there is a folder.

    Args:
        path: None for memory alone.
        about: What is compiled and how; a folder of another compile is refused.

    Raises:
        ConfigurationError: The folder is of another compile, holds other things, or another process works in it.
        RecordingError: It is damaged, or of a newer version.
    """

    def __init__(self, path: str | PathLike[str] | None, about: Mapping[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.about = dict(about)
        self.rollouts: dict[tuple[str, str, int], Rollout] = {}
        self.proposals: dict[str, str] = {}
        self._lock = threading.Lock()
        self._files: dict[str, BinaryIO] = {}
        self.resumed = False
        if self.path is not None:
            self._open(self.path)

    def add(self, rollout: Rollout) -> None:
        """Keep a rollout; from any thread."""
        self.rollouts[rollout.key] = rollout
        self._write(ROLLOUTS, rollout.to_dict())

    def propose(self, key: str, predictor: str, text: str) -> None:
        """Keep the instruction that a reflection gave.

        Args:
            key: The digest of what was asked.
            predictor: Whose instruction it is.
            text: The instruction.
        """
        self.proposals[key] = text
        self._write(PROPOSALS, {"key": key, "predictor": predictor, "text": text})

    def save(self, name: str, text: str) -> None:
        """Write a file beside the others; nothing where there is no folder."""
        if self.path is not None:
            data = redactor()(text).encode("utf-8", "backslashreplace")
            atomically(self.path / name, lambda file: file.write(data))

    def close(self) -> None:
        """Let another process go on here; idempotent."""
        files, self._files = self._files, {}
        for file in files.values():
            file.close()

    def _open(self, path: Path) -> None:
        if path.exists() and not path.is_dir():
            raise ConfigurationError(f"{path} is a file; a compile wants a folder")
        head = path / HEAD
        if path.is_dir() and not head.exists() and not all(_begun(one) for one in path.iterdir()):
            raise ConfigurationError(f"{path} holds other things; give a compile a folder of its own")
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            for name in (ROLLOUTS, PROPOSALS):
                file = os.fdopen(os.open(path / name, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
                self._files[name] = file
                if not claimed(file):
                    raise ConfigurationError(f"another process compiles in {path}; wait for it, or give another folder")
            self._check_head(head)
            for data in self._lines(ROLLOUTS):
                rollout = Rollout.from_dict(data)
                if not (rollout.outage or rollout.unscored):
                    self.rollouts[rollout.key] = rollout
            for data in self._lines(PROPOSALS):
                self.proposals[str(data["key"])] = str(data["text"])
        except (TypeError, ValueError, KeyError) as error:
            self.close()
            if isinstance(error, (ConfigurationError, RecordingError)):
                raise
            raise RecordingError(f"{path} is damaged: {error}. Give another folder to begin anew") from error

    def _check_head(self, head: Path) -> None:
        if not head.exists():
            data = json.dumps({"format": "rlm-dspy compile", "schema": SCHEMA, **self.about}, indent=2)
            atomically(head, lambda file: file.write(data.encode()))
            return
        found = json.loads(head.read_bytes())
        if not isinstance(found, dict) or found.get("format") != "rlm-dspy compile":
            raise RecordingError(f"{head} is not that of a compile of rlm-dspy; give another folder")
        if int(found.get("schema", 0)) > SCHEMA:
            raise RecordingError(f"{head} has schema {found['schema']}, this rlm-dspy reads up to {SCHEMA}: upgrade it")
        now = json.loads(json.dumps(self.about))
        other = [name for name, value in now.items() if found.get(name) != value]
        if other:
            told = "; ".join(f"{name} was {found.get(name)!r}, is {now[name]!r}" for name in other)
            raise ConfigurationError(
                f"the folder {head.parent} is that of another compile ({told}). To go on with it give the same "
                "program, examples and settings; to begin anew give another folder"
            )
        self.resumed = True

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        """The whole lines of a file; a torn last one, which a killed process leaves, is taken off."""
        file = self._files[name]
        data = file.read()
        whole = data.rfind(b"\n") + 1
        file.truncate(whole)
        file.seek(whole)
        yield from (json.loads(line) for line in data[:whole].splitlines() if line.strip())

    def _write(self, name: str, data: Mapping[str, Any]) -> None:
        with self._lock:
            if (file := self._files.get(name)) is not None:
                # One write, handed to the system before anything else is done.
                file.write(json.dumps(redacted(dict(data))).encode() + b"\n")
                file.flush()


def _begun(path: Path) -> bool:
    """Whether a file is of a compile that was killed before its first line was written."""
    ours = path.name in (ROLLOUTS, PROPOSALS) or path.suffix == ".part"
    return ours and path.is_file() and path.stat().st_size == 0

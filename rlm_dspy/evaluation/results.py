"""The results of an evaluation on disk, so that one that was ended goes on: one line an example, in one file a folder.

``results.jsonl`` begins with the format. Then there is a line for each program's settings, one for each example that a
program was called with, and one for what was spent on calls that were not brought to an end. A line of a program and
key is replaced by a later one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import dspy
from pydantic_core import to_jsonable_python

import rlm_dspy
from rlm_dspy.digests import digest
from rlm_dspy.errors import ConfigurationError, RecordingError
from rlm_dspy.evaluation.calling import Called
from rlm_dspy.evaluation.lines import LineFile
from rlm_dspy.evaluation.programs import Program
from rlm_dspy.prices import PICO
from rlm_dspy.redact import error_text, redacted, redactor
from rlm_dspy.render import shorten

__all__ = ["FILE", "Results", "digest_of", "key_of", "row_of"]

FILE = "results.jsonl"
FORMAT = "rlm-dspy evaluation"
SCHEMA = 1
_SHOWN = 20_000
_WORD = re.compile(r"[\w.+-]{1,60}")
_ABOUT = ("trajectory", "usage", "outcome", "final_reasoning")
_TOLD = ("family", "kind", "tokens", "seed", "template")


class Results:
    """What is known of an evaluation, in a folder or in memory alone. To be used by one thread.

    Args:
        folder: Made where it is not there; None keeps nothing on disk.

    Attributes:
        spent: Picodollars of all calls so far, those included that were not brought to an end.

    Raises:
        RecordingError: Another process writes there, the file is damaged, or of a newer version.
        ConfigurationError: There is something else in that place.
    """

    def __init__(self, folder: str | PathLike[str] | None) -> None:
        self.folder = None if folder is None else Path(folder)
        self.spent = 0
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}
        self._settings: dict[str, dict[str, Any]] = {}
        self._file: LineFile | None = None
        if self.folder is None:
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigurationError(f"{self.folder} is a file; results go into a folder")
        self._file = LineFile(self.folder / FILE)
        try:
            self._read(self._file)
        except BaseException:
            self._file.close()
            raise

    def _read(self, file: LineFile) -> None:
        if file.empty:
            file.append([{"format": FORMAT, "schema": SCHEMA, "rlm_dspy": rlm_dspy.__version__}])
            return
        for number, line in enumerate(file.records()):
            if number == 0:
                if line.get("format") != FORMAT:
                    raise ConfigurationError(f"{file.path} is none of `rlm-dspy eval`: name another folder")
                if line.get("schema", 0) > SCHEMA:
                    raise RecordingError(f"{file.path} is of a newer rlm-dspy: upgrade it")
                continue
            self._take(line)

    def _take(self, line: Mapping[str, Any]) -> None:
        record = line.get("record")
        if record == "program":
            self._settings[str(line["program"])] = dict(line)
            return
        self.spent += picodollars(line)
        if record == "result":
            row = {name: value for name, value in line.items() if name != "record"}
            self._rows[str(row["program"]), str(row["key"])] = row

    def _keep(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.append([line])
        self._take(line)

    def begin(self, program: Program) -> None:
        """Say that results of ``program`` follow.

        Raises:
            ConfigurationError: There are results of it with other settings; the message names them and the fix.
        """
        settings = json.loads(json.dumps(dict(program.settings), default=str))
        before = self._settings.get(program.name)
        if before is None:
            self._keep({"record": "program", "program": program.name, "digest": program.digest, "settings": settings})
        elif before["digest"] != program.digest:
            changed = changes(before["settings"], settings)
            raise ConfigurationError(
                f"{self.folder} has results of {program.name} with other settings ({changed}). Give the "
                "settings of then to go on, or another folder (--out) for these"
            )

    def get(self, program: str, key: str, digest: str) -> dict[str, Any] | None:
        """The result of that example, or None.

        Raises:
            ConfigurationError: It is of another example of the same key.
        """
        row = self._rows.get((program, key))
        if row is not None and row["example"] != digest:
            raise ConfigurationError(
                f"{self.folder} has a result for {key}, but of another example: the examples have changed since. Give "
                "another folder (--out)"
            )
        return row

    def add(self, row: dict[str, Any]) -> None:
        """Keep a result; it is on disk when this returns."""
        self._keep({"record": "result", **row})

    def unfinished(self, program: str, key: str, called: Called) -> None:
        """Keep what a call has cost that was not brought to an end."""
        if called.usage.calls:
            usage = called.usage.to_dict()
            self._keep({"record": "unfinished", "program": program, "key": key, **usage})

    @property
    def known(self) -> bool:
        """Whether there is any result."""
        return bool(self._rows)

    def close(self) -> None:
        """Write no more; idempotent."""
        if self._file is not None:
            self._file.close()


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """In what two settings differ; empty where they are the same."""
    names = sorted({*then, *now})
    return "; ".join(
        f"{name} was {then.get(name)!r} and is {now.get(name)!r}" for name in names if then.get(name) != now.get(name)
    )


def picodollars(line: Mapping[str, Any]) -> int:
    """What is known of the cost on a line."""
    cost = line.get("cost") if line.get("cost") is not None else line.get("known_cost")
    return round(float(cost or 0.0) * PICO)


def key_of(example: Any, number: int) -> str:
    """The name of an example: family, kind, tokens and seed where it is one of a task, and its number among such."""
    parts = [_part(example[name]) for name in ("family", "kind", "tokens", "seed") if name in example]
    return "/".join([*parts, str(number)])


def _is_word(value: Any) -> bool:
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    return isinstance(value, (int, float)) and abs(value) < 1e18


def _part(value: Any) -> str:
    """A word or number as it is; of anything else, which is no task's, a hash."""
    if _is_word(value):
        return str(value)
    data = plain(value, limit=None)
    text = data if isinstance(data, str) else json.dumps(data)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def digest_of(example: dspy.Example) -> str:
    """Of all that an example holds; 16 hexadecimal digits."""
    return digest([dict(example)])


def row_of(
    program: str, key: str, digest: str, example: dspy.Example, called: Called, score: float | None
) -> dict[str, Any]:
    """A result as a line."""
    labels = example.labels()
    names = [name for name in labels.keys() if not (name in _TOLD and _is_word(labels[name]))]
    names = [name for name in names if name not in ("signature", "depths")]
    return {
        "program": program,
        "key": key,
        "example": digest,
        # Of a task's examples. Others may have something else under these names, by which nothing is told apart.
        **{name: example[name] for name in _TOLD if name in example and _is_word(example[name])},
        "gold": {name: plain(example[name]) for name in names},
        "answer": outputs_of(called.prediction),
        "score": score,
        **called.figures(),
    }


def outputs_of(prediction: Any, limit: int | None = _SHOWN) -> Any:
    """What a program gave, as plain data without how it came to it."""
    if not isinstance(prediction, (dspy.Example, Mapping)):
        return plain(prediction, limit)
    return {str(name): plain(prediction[name], limit) for name in prediction.keys() if name not in _ABOUT}


def plain(value: Any, limit: int | None = _SHOWN) -> Any:
    """``value`` as data without secrets, shortened to text beyond ``limit`` characters; NaN and infinities as text.

    Never raises, because what it is made of has been paid for: what has no form as data is its ``repr``.
    """
    try:
        data = to_jsonable_python(value, fallback=str, bytes_mode="base64", inf_nan_mode="constants")
        text = json.dumps(redacted(data))
        if limit is None or len(text) <= limit:
            return json.loads(text, parse_constant=str)
    except Exception as error:  # it holds itself, is too deep, has an integer too long to write, fails to be a text
        try:
            text = redactor()(repr(value))
        except Exception:
            return f"[{type(value).__name__} that cannot be written: {error_text(error, 200)}]"
    return text if limit is None else shorten(text, limit)

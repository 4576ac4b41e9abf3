"""A trajectory as one file: JSON Lines, whole enough to look at it, to run it again and to train on it.

The first line is ``{"format": "rlm-dspy trajectory", "schema": 1, "rlm_dspy": VERSION, "run": ID}``. Every other line
is one event (`rlm_dspy.events`): ``run``, the id of its run, ``kind``, and the fields of that kind. The events of a
child stand right before the ``child_ended`` line that names its ``run_id``. In the place of a value stands one of

    null                                       there was none
    {"bytes", "digest", "data", "blobs"}       what the codec made of it (`rlm_dspy.kept`); ``blobs`` in base64
    {"why": "…"}                               it was not kept, and why

A newer version may add kinds and fields: what is unknown is passed over. One that changes what is there counts
``schema`` up, and an older rlm-dspy then refuses the file.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import rlm_dspy
from rlm_dspy import events as ev
from rlm_dspy import kept
from rlm_dspy.errors import RecordingError
from rlm_dspy.journals import KINDS, Hide, event_of, plain, without_secrets
from rlm_dspy.kept import Kept
from rlm_dspy.reading import reading
from rlm_dspy.redact import redactor

FORMAT = "rlm-dspy trajectory"
SCHEMA = 1


def lines(events: Iterable[ev.Event], *, values: bool = True) -> Iterator[str]:
    """The lines of a file, without line ends.

    Secrets that `rlm_dspy.redact` knows are hidden, but in the inputs, which are written as they are.

    Args:
        events: The events of one run.
        values: Write the values too; without them the run can be looked at and not be run again.
    """
    log = tuple(events)
    run = next((event.run_id for event in log if isinstance(event, ev.RunStarted)), "")
    yield _line({"format": FORMAT, "schema": SCHEMA, "rlm_dspy": rlm_dspy.__version__, "run": run})
    yield from _lines_of(log, run, redactor(), _inline if values else _left_out)


def _lines_of(log: Iterable[ev.Event], run: str, hide: Hide, keep: Any) -> Iterator[str]:
    for event in log:
        if isinstance(event, ev.ChildEnded):
            yield from _lines_of(event.events, event.run_id, hide, keep)
        yield _line({"run": run} | plain(event, hide, keep))


def _line(data: dict[str, Any]) -> str:
    # ASCII, because a lone surrogate in a text has no other form.
    return json.dumps(data, separators=(",", ":"))


def write(path: str | PathLike[str], events: Iterable[ev.Event], *, values: bool = True) -> None:
    """Write `lines` to a file that is there whole or not at all, readable by its owner alone."""

    def content(file: Any) -> None:
        for line in lines(events, values=values):
            file.write(line.encode("ascii") + b"\n")

    kept.atomically(Path(path), content)


def read(source: str | PathLike[str] | Iterable[str]) -> tuple[ev.Event, ...]:
    """The events in a file of `write`, or of `lines`.

    Raises:
        RecordingError: It is none, damaged, or of a newer version.
    """
    if isinstance(source, (str, PathLike)):
        try:
            with open(source, encoding="utf-8", errors="surrogateescape") as file:
                return _events(file, str(source))
        except OSError as error:
            raise RecordingError(f"{source} cannot be read: {error.strerror}") from None
    return _events(source, "the trajectory")


def _events(source: Iterable[str], name: str) -> tuple[ev.Event, ...]:
    logs: dict[str, list[ev.Event]] = {}
    rows = enumerate(source, start=1)
    root = _head(next(rows, (1, ""))[1], name)
    for number, text in rows:
        if not text.strip():
            continue
        with reading(f"line {number} of {name}"):
            data = json.loads(text)
            run, kind = str(data.pop("run")), KINDS.get(data["kind"])
            if kind is None:
                continue
            event = event_of(data | {"run": run}, _value)
        if isinstance(event, ev.ChildEnded):
            event = dataclasses.replace(event, events=tuple(logs.pop(event.run_id, ())))
        logs.setdefault(run, []).append(event)
    return tuple(logs.get(root, ()))


def _head(line: str, name: str) -> str:
    """The id of the run that the file is of."""
    try:
        head = json.loads(line)
        schema = int(head["schema"]) if head["format"] == FORMAT else None
        run = str(head["run"]) if schema is not None else ""
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        schema = None
    if schema is None:
        raise RecordingError(f"{name} is not a trajectory of rlm-dspy; such a file is written by trajectory.to_jsonl")
    if schema > SCHEMA:
        raise RecordingError(f"{name} has schema {schema}, this rlm-dspy reads up to {SCHEMA}: upgrade it")
    return run


def _inline(value: Kept, hide: Hide) -> dict[str, Any]:
    if value.why:
        return {"why": hide(value.why)}
    try:
        if value.data is not None:
            text, blobs = value.data, list(value.blobs)
        else:
            assert value.file is not None
            with value.file.open("rb") as file:
                text, blobs = kept.parts(file, value.file.name)
    except OSError as error:
        return {"why": f"its file could not be read: {error.strerror}"}
    except RecordingError as error:
        return {"why": hide(str(error))}
    text, blobs = without_secrets(text, blobs, hide)
    encoded = [base64.b64encode(blob).decode("ascii") for blob in blobs]
    return {"bytes": value.size, "digest": value.digest, "data": text, "blobs": encoded}


def _left_out(value: Kept, hide: Hide) -> dict[str, Any]:
    return {"why": hide(value.why) or f"values were left out of the file; it had {value.size:,} bytes"}


def _value(given: Any) -> Kept | None:
    if given is None:
        return None
    if "why" in given:
        return Kept(why=str(given["why"]))
    blobs = tuple(base64.b64decode(blob, validate=True) for blob in given["blobs"])
    return Kept(int(given["bytes"]), str(given["digest"]), str(given["data"]), blobs)

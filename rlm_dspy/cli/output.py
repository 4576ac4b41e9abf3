"""Writing for people and pipes: standard output gets the answer, standard error all the rest."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO


def answer(text: str) -> None:
    """``text`` and a line end on standard output.

    A pipe gets it as it is; on a terminal control characters are written out. A reader that has gone is no error.
    """
    stream = sys.stdout
    if stream is None:
        return
    if _isatty(stream):
        from rlm_dspy.render import printable

        text = printable(text)
    page(text)


def page(text: str) -> None:
    """``text``, made by this program and safe for a terminal, and a line end on standard output."""
    stream = sys.stdout
    if stream is None:
        return
    try:
        stream.write(_encodable(text, stream) + "\n")
        stream.flush()
    except BrokenPipeError:
        # What is still buffered would fail again when Python ends.
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def say(text: str) -> None:
    """One message on standard error, under the program's name."""
    from rlm_dspy.render import printable

    stream = sys.stderr
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        stream.write(_encodable(f"rlm-dspy: {printable(text)}", stream) + "\n")
        stream.flush()


def progress_wanted(quiet: bool) -> bool:
    """Whether progress is to be shown: standard error is a terminal, and nobody asked for silence."""
    return not quiet and sys.stderr is not None and _isatty(sys.stderr)


def outputs_text(outputs: Mapping[str, Any]) -> str:
    """The only output as its text, several as ``name: value`` lines; what is not text as JSON."""
    texts = {name: _text(value) for name, value in outputs.items()}
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n".join(f"{name}: {text}" for name, text in texts.items())


def json_text(value: Any, *, pretty: bool = False) -> str:
    """``value`` as JSON in ASCII, which neither an encoding nor a terminal can spoil; indented for people."""
    pretty = pretty or (sys.stdout is not None and _isatty(sys.stdout))
    return json.dumps(plain(value), indent=2 if pretty else None)


def plain(value: Any) -> Any:
    """``value`` as JSON-able data: models as dicts, dates as ISO text, NaN and infinities as null, the rest as text."""
    from pydantic_core import to_jsonable_python

    return _finite(to_jsonable_python(value, fallback=str, bytes_mode="base64"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) != float("inf") and value == value else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether ``stream`` is there and a terminal."""
    return stream is not None and _isatty(stream)


def _isatty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False

"""The second way to the answers, for all tests of tasks.

A family's reader is ``reader_<family>.py`` beside this file, ``reader.py`` where there is none of that name; `BEFORE`
names readers whose functions it uses, which are put before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
BEFORE = {"pairs": ("labelled_records",)}


@functools.cache
def _source(family: str) -> str:
    own = HERE / f"reader_{family}.py"
    files = [
        *(HERE / f"reader_{name}.py" for name in BEFORE.get(family, ())),
        own if own.exists() else HERE / "reader.py",
    ]
    return "\n".join(file.read_text().replace("from __future__ import annotations\n", "") for file in files)


@functools.cache
def _reader(family: str) -> Callable[[Any, str, str], Any]:
    names: dict[str, Any] = {}
    exec(compile(_source(family), f"reader of {family}", "exec"), names)
    read: Callable[[Any, str, str], Any] = names["solve"]
    return read


@pytest.fixture(scope="session")
def solve() -> Callable[[Any], Any]:
    """``solve(example)``: the answer, read from the text."""
    return lambda example: _reader(example.family)(example.context, example.query, example.template)


@pytest.fixture(scope="session")
def reader_source() -> Callable[[str], str]:
    """``reader_source(family)``: the source of its reader, to be sent into a sandbox."""
    return _source

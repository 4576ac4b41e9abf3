"""The second way to the answers, for all tests of tasks."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

READER = Path(__file__).with_name("reader.py")


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tasks_reader", READER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def solve() -> Callable[[Any], Any]:
    """``solve(example)``: the answer, read from the text."""
    read = _load().solve
    return lambda example: read(example.context, example.query, example.template)


@pytest.fixture(scope="session")
def reader_source() -> str:
    """The source of the reader, to be sent into a sandbox."""
    return READER.read_text().replace("from __future__ import annotations\n", "")

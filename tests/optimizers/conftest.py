"""The toy task, as a module, for all tests of optimisers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOY = Path(__file__).with_name("toy.py")
_NAME = "rlm_dspy_toy"


def load() -> ModuleType:
    """The module of ``toy.py``, the same at each call."""
    if _NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(_NAME, TOY)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_NAME] = module
        spec.loader.exec_module(module)
    return sys.modules[_NAME]


@pytest.fixture(scope="session")
def toy() -> Any:
    """The module ``toy``."""
    return load()

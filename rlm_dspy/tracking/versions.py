"""The versions of the packages that made a run."""

from __future__ import annotations

import functools
import importlib.metadata
import platform


@functools.cache
def versions() -> dict[str, str]:
    """By name."""
    found = {"python": platform.python_version()}
    for name in ("rlm-dspy", "dspy", "mlflow"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found

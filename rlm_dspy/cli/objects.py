"""Things of a user's own that the command line names: ``package.module:name`` or ``file.py:name``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.redact import error_text


def find(spec: str, option: str) -> Any:
    """What ``spec`` names. The module runs as it is, with its folder (of a module: this one) on the path.

    Args:
        spec: Such as ``"program.py:rlm"`` or ``"my_package.metrics:exact"``.
        option: That named it, for messages.

    Raises:
        ConfigurationError: There is none, or its module failed.
    """
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise ConfigurationError(f"{option} {spec!r}: write FILE.py:NAME or PACKAGE.MODULE:NAME")
    is_file = place.endswith(".py")
    folder = str(Path(place).resolve().parent if is_file else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = _file(Path(place)) if is_file else importlib.import_module(place)
    except FileNotFoundError:
        raise ConfigurationError(f"{option} {spec!r}: there is no file {place}") from None
    except Exception as error:
        raise ConfigurationError(f"{option} {spec!r}: {place} could not be imported: {error_text(error)}") from error
    try:
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        there = [n for n in vars(module) if not n.startswith("_")]
        raise ConfigurationError(f"{option} {spec!r}: {place} has no {name}; it has {', '.join(there[:20])}") from None
    return found


def _file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(path)
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path.resolve()):
        return known
    # Under its own name where that is free, else one that is the same in every process: what it defines can be pickled.
    digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    name = path.stem if path.stem.isidentifier() and known is None else f"rlm_dspy_file_{digest}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module

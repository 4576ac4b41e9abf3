"""What the model's code must not read: the source of the task that it is scored by.

A task set is an installed package, and the confined local environment shows code what is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dspy

from rlm_dspy import environments
from rlm_dspy.engine import modules_of
from rlm_dspy.environments.local import Local
from rlm_dspy.rlm import RLM

__all__ = ["hiding", "sources"]

_OTHERS = ("builtins", "typing", "abc", "pydantic", "rlm_dspy", "verifiers")


def sources(*tasks: object) -> tuple[str, ...]:
    """The files in which the classes of these objects are written, absolute; of a package's own module, its folder.

    What `rlm_dspy` and verifiers bring themselves is left out: no answers are in it that are not hidden anyway.
    """
    found: dict[str, None] = {}
    for task in tasks:
        for kind in type(task).__mro__:
            module = sys.modules.get(kind.__module__)
            file = getattr(module, "__file__", None)
            if file is None or kind.__module__.partition(".")[0] in _OTHERS:
                continue
            path = Path(file).absolute()
            found[str(path.parent if path.name == "__init__.py" else path)] = None
    return tuple(path for path in found if Path(path).exists())


def hiding(program: dspy.Module, paths: tuple[str, ...]) -> dspy.Module:
    """The program with these files hidden from the code of its RLMs, where that runs in the local environment.

    An environment whose ``hidden`` was set stays as it is: whoever set it has said what is to be hidden.
    """
    if not paths:
        return program
    program = program.deepcopy()
    for module in modules_of(program):
        if isinstance(module, RLM):
            place: Any = module._factory or environments.get("local")
            if isinstance(place, Local) and place.hidden == ():
                module._factory = place.with_hidden(paths)
    return program

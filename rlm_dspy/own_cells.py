"""Cells of the project's own: they run beside the code's names, whatever it has called ``list``, ``str`` or ``print``.

Code that small models write takes the names of builtins often. What the project itself runs in a session, to save its
variables or to look at their sizes, must not depend on them.
"""

from __future__ import annotations

from typing import Any

from rlm_dspy.environments.cells import OWN

TOLD = "_rlm_told "
"""How a line begins that a cell of the project's own prints for the host."""


def own_cell(source: str, **given: Any) -> str:
    """The text of a cell that runs ``source`` in a namespace of its own, which leaves nothing behind.

    Args:
        source: Standard library only, Python 3.8 syntax. It has Python's builtins, the session's variables as the dict
            ``names``, and host functions in there by their names.
        **given: Further names: values that ``repr`` writes as Python.
    """
    own = "".join(f", {name!r}: {value!r}" for name, value in given.items())
    # Syntax alone: to look a name up, be it `globals` or `exec`, could already be wrong.
    return (
        f"{OWN}try:\n"
        f"    _rlm_builtins.exec({source!r}, {{'__name__': '_rlm_cell', 'names': (lambda: 0).__globals__, "
        f"'__builtins__': (lambda: 0).__globals__.get('__builtins__', _rlm_builtins){own}}})\n"
        "finally:\n"
        "    del _rlm_builtins\n"
    )


def told(stdout: str) -> list[str]:
    """What such a cell has printed by ``print(TOLD + ...)``, a line each; threads of the code may print as well."""
    return [line[len(TOLD) :] for line in stdout.splitlines() if line.startswith(TOLD)]

"""The program text that confines a starting Python: `rlm_dspy.environments.confine`, ready for ``python -c``.

The text goes in front of the worker's bootstrap. It carries compiled code as hexadecimal digits, because the other
end is this very Python and compiling the source there would cost more than running it.
"""

from __future__ import annotations

import importlib.util
import marshal
from functools import cache
from types import ModuleType
from typing import Any

from rlm_dspy.environments import confine, landlock

_LOADER = """\
import sys,marshal
def _load(code):
 m=type(sys)('confine');exec(marshal.loads(bytes.fromhex(code)),vars(m));return m
"""


@cache
def _code(name: str) -> str:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        # Without docstrings, which nobody reads there; the file name is what tracebacks of a failing start show.
        return marshal.dumps(compile(file.read(), f"<{name.rpartition('.')[2]}>", "exec", optimize=2)).hex()


def for_bubblewrap(**arguments: Any) -> str:
    """Text that calls `confine.inside_bubblewrap` with ``arguments``; see there."""
    first = _module(landlock) if arguments["keep"] is not None else "None"
    return _text("inside_bubblewrap", first, arguments)


def for_landlock(**arguments: Any) -> str:
    """Text that calls `confine.inside_landlock` with ``arguments``; see there."""
    return _text("inside_landlock", _module(landlock), arguments)


def _module(module: ModuleType) -> str:
    return f"_load({_code(module.__name__)!r})"


def _text(function: str, first: str, arguments: dict[str, Any]) -> str:
    call = f"{_module(confine)}.{function}({first},**{arguments!r})"
    return f"{_LOADER}{call}\ndel _load,marshal,sys\n"

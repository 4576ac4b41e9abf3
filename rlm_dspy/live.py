"""The variables of a session, with what is worth knowing of each: type, size, or a short value itself."""

from __future__ import annotations

import json
from collections.abc import Collection

from rlm_dspy import events as ev
from rlm_dspy.own_cells import TOLD, own_cell, told
from rlm_dspy.redact import error_text
from rlm_dspy.render import one_line
from rlm_dspy.run import Run, Stopped

SECONDS = 5.0
"""Time that looking at sizes may take."""
LISTED = 60
"""Variables that are named; a root with more has ``SHOW_VARS()``."""

# Only exact built-in types and two well-known shapes are looked at: nothing of the user's own code runs.
_SIZES = """\
import json
def _rlm_size(_v):
    _t = type(_v)
    if _v is None or _t in (bool, float) or (_t is int and _v.bit_length() < 200):
        return "= " + repr(_v)
    if _t is str and len(_v) <= 60:
        return "= " + repr(_v)
    if _t in (str, bytes, bytearray):
        return format(len(_v), ",") + (" characters" if _t is str else " bytes")
    if _t in (list, tuple, dict, set, frozenset) or _t.__module__ == "collections":
        return format(len(_v), ",") + (" item" if len(_v) == 1 else " items")
    if _t.__name__ in ("DataFrame", "Series", "ndarray") and _t.__module__[:5] in ("panda", "polar", "numpy"):
        return "shape " + str(tuple(_v.shape))
    return ""
print(told + json.dumps({_n: _rlm_size(_v) for _n, _v in list(names.items()) if _n in wanted}))
"""


async def variables(run: Run, hidden: Collection[str] = ()) -> dict[str, str]:
    """The variables of the run's session: name to type and size; empty where the session cannot say.

    Args:
        run: Its session is open. What it is asked leaves no trace in it.
        hidden: Names to leave out.

    Raises:
        Stopped: A limit struck meanwhile.
    """
    try:
        types = await run.bounded(run.session.variables())
        own = {*run.tools, *run.program.sub_calls, *hidden, "SUBMIT"}
        types = {name: kind for name, kind in types.items() if name not in own and name.isidentifier()}
        sizes = await _sizes(run, list(types))
    except Stopped:
        raise
    except Exception as error:
        run.events.emit(ev.Note(message=f"the variables could not be listed: {error_text(error)}"))
        return {}
    return {name: f"{kind} {sizes.get(name, '')}".strip() for name, kind in types.items()}


async def _sizes(run: Run, names: list[str]) -> dict[str, str]:
    if not names:
        return {}
    work = run.session.run(own_cell(_SIZES, wanted=names, told=TOLD), {}, timeout=SECONDS)
    result = await run.bounded(work, interrupt=getattr(run.session, "interrupt", None))
    if result.lost:
        # The session died just now; the inputs are still here.
        await run.bounded(run.session.set(run.inputs))
    try:
        found = json.loads(told(result.stdout)[-1])
    except (ValueError, IndexError):
        # Interpreters of somebody else's may not have what it takes; types are known all the same.
        return {}
    return {str(name): str(size) for name, size in found.items()} if isinstance(found, dict) else {}


def listed(variables: dict[str, str]) -> str:
    """``variables`` as one line of text."""
    names = sorted(variables)
    told = [f"`{name}` ({one_line(variables[name], 100)})" for name in names[:LISTED]]
    if len(names) > LISTED:
        told.append(f"and {len(names) - LISTED:,} more, see SHOW_VARS()")
    return ", ".join(told)

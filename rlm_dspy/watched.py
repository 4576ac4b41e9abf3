"""DSPy's ``on_interpreter_*`` callbacks for the sessions that an RLM drives.

DSPy fires them where an interpreter's ``start``, ``execute``, ``invoke_tool`` and ``shutdown`` are called. An RLM
drives the session below those methods, so it reports the same four steps itself. An interpreter of somebody else's,
behind a `rlm_dspy.environments.foreign.ForeignSession`, is still called by those methods and reports by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dspy
from dspy.primitives.code_interpreter import FinalOutput
from dspy.utils import with_callbacks
from dspy.utils.callback import BaseCallback

from rlm_dspy.environments.base import CellResult, HostFunction, Session

_STEPS = tuple(f"on_interpreter_{step}_{end}" for step in ("execute", "tool_call") for end in ("start", "end"))


async def open_session(session: Session) -> None:
    """``session.open()``, reported as ``on_interpreter_startup_*``."""
    await getattr(session, "astart", session.open)()


async def close_session(session: Session) -> None:
    """``session.close()``, reported as ``on_interpreter_shutdown_*``."""
    await getattr(session, "ashutdown", session.close)()


async def run_cell(session: Session, code: str, functions: Mapping[str, HostFunction]) -> CellResult:
    """``session.run(code, functions)``, reported as ``on_interpreter_execute_*``.

    Calls of host functions are reported as ``on_interpreter_tool_call_*`` inside of it. The reported outputs are those
    that a ``dspy.CodeInterpreter`` gives for such a cell: text, a ``FinalOutput``, None, or a
    ``dspy.CodeExecutionError``.
    """
    given = [*(dspy.settings.callbacks or []), *(getattr(session, "callbacks", None) or [])]
    # Reporting costs each call of a host function a twentieth of a millisecond: only where somebody listens.
    if not any(map(_listens, given)) or not isinstance(session, dspy.CodeInterpreter):
        return await session.run(code, functions)
    results: list[CellResult] = []

    async def execute(self: Any, code: str, variables: dict[str, Any] | None = None) -> Any:
        result = await session.run(code, {name: _watched(session, name, call) for name, call in functions.items()})
        results.append(result)
        if result.submission is not None:
            return FinalOutput(dict(result.submission.kwargs) or list(result.submission.args))
        text = "\n".join(part for part in (result.stdout.rstrip("\n"), result.value) if part)
        if result.error is not None:
            raise dspy.CodeExecutionError(f"{text}\n{result.error.traceback}".lstrip("\n"))
        return text or None

    try:
        await with_callbacks(execute)(session, code)
    except dspy.CodeExecutionError:
        if not results:
            raise
    return results[0]


def _listens(callback: Any) -> bool:
    """Whether ``callback`` does anything at an interpreter's steps."""
    return any(getattr(getattr(callback, n, None), "__func__", None) is not getattr(BaseCallback, n) for n in _STEPS)


def _watched(session: Session, name: str, function: HostFunction) -> HostFunction:
    async def invoke_tool(self: Any, tool_name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return await function(*args, **kwargs)

    reported = with_callbacks(invoke_tool)

    async def call(*args: Any, **kwargs: Any) -> Any:
        return await reported(session, tool_name=name, args=list(args), kwargs=kwargs)

    call.__doc__ = getattr(function, "__doc__", None)
    return call

"""The registry and the helpers of the conformance suite (`rlm_dspy.environments.conformance`)."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from rlm_dspy._aio import run_sync
from rlm_dspy.environments.base import CellResult, Session

Factory = Callable[[], Session]
"""Makes a fresh session; an environment is one."""


class Check(Protocol):
    """One check: call it with a factory of sessions. ``__name__``, ``__doc__`` and ``tags`` describe it."""

    __name__: str
    tags: frozenset[str]

    def __call__(self, factory: Factory, /) -> None: ...


registered: list[Any] = []
"""All checks, in the order in which they run."""


def check(*tags: str) -> Callable[[Callable[[Any], Awaitable[None]]], Any]:
    """Register an async function of an open session as a check."""

    def register(function: Callable[[Any], Awaitable[None]]) -> Any:
        @functools.wraps(function)
        def run(factory: Factory, /) -> None:
            async def drive() -> None:
                session = factory()
                await session.open()
                try:
                    await function(session)
                finally:
                    await session.close()

            run_sync(drive())

        run.tags = frozenset(tags)  # type: ignore[attr-defined]
        registered.append(run)
        return run

    return register


async def ok(session: Any, code: str, functions: Any = None, **options: Any) -> CellResult:
    """Run a cell that must not fail."""
    result = await session.run(textwrap.dedent(code), functions, **options)
    assert result.error is None, result.error.traceback
    return result


async def prints(session: Any, code: str, expected: str, functions: Any = None) -> None:
    """Run a cell and check all that it printed."""
    result = await ok(session, code, functions)
    # Some interpreters drop the last line's end.
    assert result.stdout.rstrip("\n") == expected.rstrip("\n"), f"printed {result.stdout!r}, not {expected!r}"


async def back(session: Any, name: str) -> Any:
    """A variable's value, by the way of SUBMIT."""
    result = await ok(session, f"SUBMIT({name})")
    assert result.submission is not None
    return result.submission.args[0]

"""The registry and the helpers of the conformance suite (`rlm_dspy.environments.conformance`)."""

from __future__ import annotations

import contextlib
import functools
import textwrap
import unittest
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from rlm_dspy._aio import run_sync
from rlm_dspy.environments.base import CellResult, Environment, Session

Factory = Callable[[], Session]
"""Makes a fresh session; an environment is one."""


class Skip(unittest.SkipTest):
    """Raised by a check that makes no sense for this backend; the text says why. Test runners know it."""


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
        async def with_session(factory: Factory) -> None:
            async with opened(factory) as session:
                await function(session)

        return factory_check(*tags)(functools.wraps(function)(with_session))

    return register


def factory_check(*tags: str) -> Callable[[Callable[[Factory], Awaitable[None]]], Any]:
    """Register an async function of a factory of sessions as a check."""

    def register(function: Callable[[Factory], Awaitable[None]]) -> Any:
        @functools.wraps(function)
        def run(factory: Factory, /) -> None:
            async def drive() -> None:
                await function(factory)

            run_sync(drive())

        run.tags = frozenset(tags)  # type: ignore[attr-defined]
        registered.append(run)
        return run

    return register


@contextlib.asynccontextmanager
async def opened(factory: Factory) -> AsyncIterator[Any]:
    """A fresh session, open, and closed in the end."""
    session = factory()
    try:
        await session.open()
        yield session
    finally:
        await session.close()


def environment_of(factory: Any) -> Environment:
    """The environment behind a factory of sessions.

    Raises:
        Skip: There is none.
    """
    found = factory if isinstance(factory, Environment) else getattr(factory(), "environment", None)
    if not isinstance(found, Environment):
        raise Skip("its sessions are not those of an rlm_dspy.environments.Environment")
    return found


def method(session: Any, name: str) -> Any:
    """A method that not every session has.

    Raises:
        Skip: This one has not.
    """
    found = getattr(session, name, None)
    if found is None:
        raise Skip(f"its sessions have no {name}()")
    return found


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

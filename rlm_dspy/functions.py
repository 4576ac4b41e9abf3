"""The functions of the host that the REPL's code can call, made fresh for each run.

Every call is recorded in the event log here, whatever it is: sub-calls (`rlm_dspy.subcalls`), children
(`rlm_dspy.children`), the user's tools, and what ``import dspy`` in the REPL builds. A failure of one call in a batch
comes back in its slot as a `FailedCall`, a string that begins with ``[ERROR]``; all others are raised in the code.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import dspy

from rlm_dspy import _compat, tools
from rlm_dspy import events as ev
from rlm_dspy.children import Children
from rlm_dspy.environments.base import HostFunction
from rlm_dspy.environments.host_tasks import describe_failure
from rlm_dspy.errors import CallFailed, CallRefused
from rlm_dspy.inputs import repr_fits, short_repr
from rlm_dspy.kept import Kept, digest
from rlm_dspy.redact import error_text
from rlm_dspy.render import one_line
from rlm_dspy.signatures.contract import FunctionInfo
from rlm_dspy.streaming import run_in_thread
from rlm_dspy.subcalls import SubCalls, own_lm

if TYPE_CHECKING:
    from rlm_dspy.run import Run

SHOW_VARS = FunctionInfo("SHOW_VARS() -> dict[str, str]", "the variables that exist, with their types")
HINT_CALLS = 4
"""Single sub-calls in a row after which code is told of the batched one."""
_HINT = (
    "{} sub-calls were made one after the other. The batched call takes a list and makes them at the same time: "
    "answers = llm_query_batched([prompt for each part])"
)
BUDGET = FunctionInfo("budget() -> dict[str, float | None]", "what is left of the limits")


class Recorder(Protocol):
    """Records one call in the event log while ``work`` is done for it."""

    def __call__(
        self, name: str, preview: str, work: Callable[[], Awaitable[Any]], *, reused: bool = False
    ) -> Awaitable[Any]: ...


class HostFunctions:
    """The host functions of one run.

    Args:
        run: The run they belong to.

    Attributes:
        calls: The sub-calls.
        children: The children.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._numbers = itertools.count(1)
        self._returns = itertools.count(1)
        self._sub_agents: _compat.SubAgents | None = None
        self._hinted = False
        self._signatures: dict[str, inspect.Signature] | None = None
        self.calls = SubCalls(run, self.recorded)
        self.children = Children(run, self.calls, self.recorded)

    @property
    def _taken(self) -> set[str]:
        """Names of the user's own: those of ours that are not reserved give way to them."""
        return {*self._run.inputs, *self._run.tools, *self._run.program.sub_calls}

    def all(self) -> dict[str, HostFunction]:
        """Name to function, as `rlm_dspy.environments.base.Session.run` takes them."""
        taken = self._taken
        functions = {**self.calls.functions(taken), **self.children.functions(taken)}
        if "budget" not in taken:
            functions["budget"] = self.budget
        for name, tool in self._run.tools.items():
            functions[name] = functools.partial(self._tool, name, tool)
        if self._sub_agents is not None:
            for name, function in self._sub_agents.tools.items():
                functions[name] = functools.partial(self._blocking, name, function)
        if self._run.recording is not None:
            functions = self._run.recording.functions(functions)
        return {name: self._returning(name, function) for name, function in functions.items()}

    def infos(self) -> tuple[FunctionInfo, ...]:
        """What the contract says of them."""
        taken = self._taken
        helpers = [info for info in (SHOW_VARS, BUDGET) if info.call.split("(")[0] not in taken]
        told = [*self.calls.infos(taken), *self.children.infos(taken)]
        return (*told, *map(tools.describe, self._run.tools.values()), *helpers)

    def notices(self) -> list[str]:
        """What code should know of the calls it has made in this turn, each said once in a run."""
        # Nothing else is known where they were not made one after the other: a loop in threads is a batch.
        if self._run.program.guidance.hint_batches and not self._hinted and self.calls.one_by_one >= HINT_CALLS:
            self._hinted = True
            self._run.events.emit(ev.Aided(turn=self._run.turn, aid="hint_batches"))
            return [*self.children.notices(), _HINT.format(self.calls.one_by_one)]
        if self._run.recording is not None:
            return self._run.recording.notices(self._run.turn)
        return self.children.notices()

    def _returning(self, name: str, function: HostFunction) -> HostFunction:
        """``function``, with an event that keeps what it gives to the code."""

        async def call(*args: Any, **kwargs: Any) -> Any:
            run, turn, number = self._run, self._run.turn, next(self._returns)
            arguments, result, error = digest([list(args), kwargs]), None, None
            try:
                value = await function(*args, **kwargs)
                try:
                    result = await run.events.keep(value)
                except Exception as raised:
                    # It cannot cross to the code either, which is told so.
                    result, error = Kept(why=str(raised)), describe_failure(raised)
                return value
            except Exception as raised:
                error = describe_failure(raised)
                raise
            finally:
                if result is not None or error is not None:
                    run.events.emit(
                        ev.Returned(
                            turn=turn, number=number, name=name, arguments=arguments, result=result, error=error
                        )
                    )

        call.__name__ = call.__qualname__ = name
        call.__doc__ = getattr(function, "__doc__", None)
        if getattr(self._run.session, "needs_signatures", False):
            if self._signatures is None:
                self._signatures = dict(known for info in self.infos() if (known := _signature(info)))
            call.__signature__ = self._signatures.get(name)  # type: ignore[attr-defined]
        return call

    async def budget(self) -> dict[str, Any]:
        """What is left of the run's limits."""
        return {**self._run.ledger.left(), "depth": self._run.levels}

    async def _tool(self, name: str, tool: dspy.Tool, /, *args: Any, **kwargs: Any) -> Any:
        self._run.ledger.count_tool_call()
        preview = ", ".join([*map(repr_short, args), *(f"{k}={repr_short(v)}" for k, v in kwargs.items())])
        return await self.recorded(name, one_line(preview), lambda: tools.invoke(tool, args, kwargs))

    async def _blocking(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self.recorded(name.strip("_"), "", lambda: run_in_thread(function, *args, **kwargs))

    async def recorded(
        self, name: str, preview: str, work: Callable[[], Awaitable[Any]], *, reused: bool = False
    ) -> Any:
        """Do ``work`` for a call of the function ``name``, with an event before and one after it.

        Raises:
            CallFailed: ``work`` failed.
        """
        run, number = self._run, next(self._numbers)
        turn, started = run.turn, time.monotonic()
        run.events.emit(ev.CallStarted(turn=turn, call=number, name=name, preview=preview))
        error: str | None = None
        shown = ""
        try:
            result = await work()
            shown = one_line(result) if isinstance(result, str) else one_line(short_repr(result), 60)
            return result
        except Exception as raised:
            error = error_text(raised)
            # What the code sees of a host error is its redacted text; the error itself may hold keys and requests.
            raise CallFailed(error) from raised
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            seconds = round(time.monotonic() - started, 6)
            run.events.emit(
                ev.CallEnded(
                    turn=turn, call=number, name=name, seconds=seconds, error=error, preview=shown, reused=reused
                )
            )

    async def install_sub_agents(self) -> None:
        """Make ``import dspy`` in the REPL give DSPy's stand-in, whose predictors run on the host."""
        run = self._run
        if self._sub_agents is not None or "dspy" in run.inputs:
            return
        lm = own_lm(run.program.sub) or run.program.sub_lm
        self._sub_agents = _compat.SubAgents(run.tools, run.factory, lm, self._reserve_now)
        await run.session.set(self._sub_agents.variables)
        result = await run.session.run(self._sub_agents.code, self.all())
        if result.error is not None:
            run.events.emit(ev.Note(message=f"import dspy is not available in this session: {result.error.message}"))

    def forget_sub_agents(self) -> None:
        """The session is a new one; the stand-in has to be installed again."""
        self._sub_agents = None

    def _reserve_now(self, count: int) -> None:
        """Sub-agents call their LMs themselves: what they reserve is spent at once."""
        try:
            self._run.ledger.reserve_calls(count)
        except CallRefused as refused:
            raise RuntimeError(str(refused)) from None
        for _ in range(count):
            self._run.ledger.settle_call()


def repr_short(value: Any) -> str:
    """A short ``repr`` that never builds a long one first."""
    if isinstance(value, (str, bytes)) and len(value) > 60:
        return f"{value[:50]!r}…"
    if isinstance(value, (list, tuple, dict, set, Mapping)) and len(value) > 8:
        return f"{type(value).__name__} of {len(value):,}"
    return one_line(repr(value) if repr_fits(value, 1_000) else short_repr(value), 60)


def _signature(info: FunctionInfo) -> tuple[str, inspect.Signature] | None:
    """The name and the parameters of a function from its call as the contract has it; their types are left out.

    None where that is no Python, as with types that only people can read.
    """
    try:
        # What it gives is told in words where there is more than one output.
        definition = ast.parse(f"def {info.call.rpartition(') -> ')[0] or info.call.removesuffix(')')}): ...").body[0]
    except (SyntaxError, ValueError):
        return None
    assert isinstance(definition, ast.FunctionDef)
    given, kind = definition.args, inspect.Parameter
    places = [*given.posonlyargs, *given.args]
    first = len(places) - len(given.defaults)
    found = [
        kind(
            a.arg,
            kind.POSITIONAL_OR_KEYWORD,
            default=kind.empty if i < first else _default(given.defaults[i - first]),
        )
        for i, a in enumerate(places)
    ]
    if given.vararg is not None:
        found.append(kind(given.vararg.arg, kind.VAR_POSITIONAL))
    found += [
        kind(a.arg, kind.KEYWORD_ONLY, default=kind.empty if d is None else _default(d))
        for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg is not None:
        found.append(kind(given.kwarg.arg, kind.VAR_KEYWORD))
    return definition.name, inspect.Signature(found)


def _default(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ...

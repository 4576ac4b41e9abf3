"""`Interpreter`: a session that is also a DSPy ``CodeInterpreter``.

DSPy's own modules (``dspy.RLM``, ``dspy.CodeAct``, ``dspy.Flex``) drive it by `start`, `execute` and `shutdown`; the
RLM of this project drives it by the `rlm_dspy.environments.base.Session` contract. Both are the same session.
`DSPyFace` is the part that turns any session into a ``CodeInterpreter``.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable
from typing import Any

import dspy
from dspy.primitives.code_interpreter import FinalOutput
from dspy.utils.callback import BaseCallback, with_callbacks

from rlm_dspy._aio import run_sync, threads
from rlm_dspy.environments.base import CellResult, Environment, Submission
from rlm_dspy.environments.channel import doc_of
from rlm_dspy.environments.session import RESERVED, WorkerSession

_IMMUTABLE = (str, bytes, int, float, bool, type(None))


def _twin(name: str, coroutine: Any) -> Any:
    """An asynchronous method that DSPy's callbacks, which go by the name, take for the synchronous ``name``."""
    coroutine.__name__ = name
    return with_callbacks(coroutine)


class DSPyFace:
    """DSPy's ``CodeInterpreter`` protocol on top of the session methods ``open``, ``set``, ``run``, ``close``.

    Attributes:
        tools: Host functions that code may call, sync or async; read at each `execute`.
        output_fields: ``[{"name": ..., "type": ...}]`` for positional ``SUBMIT`` arguments, or None.
        callbacks: DSPy callbacks of this interpreter, besides those of ``dspy.settings``.
    """

    environment: Environment

    def __init__(
        self,
        tools: dict[str, Callable[..., Any]] | None = None,
        output_fields: list[dict[str, Any]] | None = None,
        callbacks: list[BaseCallback] | None = None,
    ) -> None:
        self.tools: dict[str, Callable[..., Any]] = dict(tools or {})
        self.output_fields = output_fields
        self.callbacks: list[BaseCallback] = list(callbacks or [])
        self._sent: dict[str, Any] = {}

    @property
    def execution_instructions(self) -> str:
        """What a model has to know about this interpreter."""
        return self.environment.instructions

    # ------------------------------------------------------------------------------------------------- life

    @with_callbacks
    def start(self) -> None:
        """Open the session; nothing to do if it is open."""
        run_sync(self._session.open())

    @with_callbacks
    def shutdown(self) -> None:
        """End the session and everything it started. Idempotent."""
        run_sync(self._session.close())

    @with_callbacks
    def execute(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        """Run one cell.

        Args:
            code: Python text.
            variables: Assigned before the cell runs. An object that was passed under the same name before is not sent
                again, so that a cell's own reassignment of it lives on.

        Returns:
            ``FinalOutput`` if the code called SUBMIT; else what it printed, with the repr of the last expression after
            it; else, when nothing was printed, the last expression's value itself where it can cross (its repr where
            it cannot); else None.

        Raises:
            SyntaxError: the code does not compile.
            dspy.CodeExecutionError: it raised, ran into the time limit, or lost the sandbox, which was then restarted.
            dspy.CodeInterpreterError: the session is over, or the variables cannot be sent.
        """
        return run_sync(self._execute(code, variables))

    async def _astart(self) -> None:
        """Asynchronous `start`."""
        await self._session.open()

    async def _ashutdown(self) -> None:
        """Asynchronous `shutdown`."""
        await self._session.close()

    async def _aexecute(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        """Asynchronous `execute`; never blocks the event loop."""
        return await self._execute(code, variables)

    astart = _twin("start", _astart)
    ashutdown = _twin("shutdown", _ashutdown)
    aexecute = _twin("execute", _aexecute)

    @property
    def _session(self) -> Any:
        # The session methods come from the class that this one is mixed into.
        return self

    # ------------------------------------------------------------------------------------------------- tools

    @with_callbacks
    async def invoke_tool(self, tool_name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call one of `tools`: an async one on the event loop, any other in a thread of its own."""
        if tool_name not in self.tools:
            raise dspy.CodeInterpreterError(f"Unknown tool: {tool_name}")
        tool = self.tools[tool_name]
        args, kwargs = _bind(tool, args, kwargs)
        if inspect.iscoroutinefunction(tool) or inspect.iscoroutinefunction(getattr(tool, "__call__", None)):  # noqa: B004
            return await tool(*args, **kwargs)
        value = await threads.run(tool, *args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    def _host_functions(self) -> dict[str, Any]:
        bad = [n for n in self.tools if not str(n).isidentifier() or keyword.iskeyword(n) or n in RESERVED]
        if bad:
            raise ValueError(f"tool names must be Python identifiers that are not reserved; these are not: {bad!r}")

        def host_function(name: str) -> Any:
            async def call(*args: Any, **kwargs: Any) -> Any:
                return await self.invoke_tool(tool_name=name, args=list(args), kwargs=kwargs)

            call.__doc__ = doc_of({name: self.tools[name]})[name]
            return call

        return {name: host_function(name) for name in self.tools}

    # ------------------------------------------------------------------------------------------------- execute

    async def _execute(self, code: str, variables: dict[str, Any] | None) -> Any:
        if not isinstance(code, str):
            raise dspy.CodeInterpreterError(f"code must be a str, not {type(code).__name__}")
        try:
            functions = self._host_functions()
            await self._session.open()
            await self._send(variables or {}, functions)
        except (TypeError, ValueError) as error:
            raise dspy.CodeInterpreterError(str(error)) from error
        result: CellResult = await self._session.run(code, functions, wants_value=True)
        if result.lost or (result.error is not None and result.error.type == "SandboxDied"):
            self._sent.clear()
        if result.submission is not None:
            return FinalOutput(self._fields(result.submission))
        if result.error is None:
            return self._value(result)
        before = result.stdout if not result.stdout or result.stdout.endswith("\n") else result.stdout + "\n"
        if result.error.kind == "syntax":
            raise SyntaxError(before + result.error.traceback)
        raise dspy.CodeExecutionError(before + result.error.traceback + _lost_note(result))

    async def _send(self, variables: dict[str, Any], functions: dict[str, Any]) -> None:
        clash = sorted(set(variables) & set(functions))
        if clash:
            raise ValueError(f"variables and tools must have different names; these are both: {clash!r}")
        fresh = {name: value for name, value in variables.items() if not self._same(name, value)}
        if fresh:
            await self._session.set(fresh)
            self._sent.update(fresh)

    def _same(self, name: str, value: Any) -> bool:
        if name not in self._sent:
            return False
        sent = self._sent[name]
        if sent is value:
            return True
        return type(sent) is type(value) and type(value) in _IMMUTABLE and sent == value

    def _value(self, result: CellResult) -> Any:
        if result.stdout:
            if result.value is None:
                return result.stdout
            return result.stdout + ("" if result.stdout.endswith("\n") else "\n") + result.value
        if result.value is None:
            return None
        value = self._session.last_value
        return result.value if value is None else value

    def _fields(self, submission: Submission) -> Any:
        names = None if self.output_fields is None else [str(field["name"]) for field in self.output_fields]
        if names is None:
            if submission.kwargs and not submission.args:
                return dict(submission.kwargs)
            if len(submission.args) != 1 or submission.kwargs:
                raise dspy.CodeExecutionError("TypeError: SUBMIT takes one value")
            return {"output": submission.args[0]}
        values = dict(zip(names, submission.args, strict=False))
        repeated = sorted(set(values) & set(submission.kwargs))
        values.update(submission.kwargs)
        missing = [name for name in names if name not in values]
        unknown = sorted(set(values) - set(names))
        if missing or unknown or repeated or len(submission.args) > len(names):
            raise dspy.CodeExecutionError(
                f"TypeError: SUBMIT must be called with the fields {', '.join(names)}"
                + (f"; missing: {', '.join(missing)}" if missing else "")
                + (f"; unknown: {', '.join(unknown)}" if unknown else "")
                + (f"; given twice: {', '.join(repeated)}" if repeated else "")
                + (f"; {len(submission.args)} values given" if len(submission.args) > len(names) else "")
            )
        return values

    # ------------------------------------------------------------------------------------------------- with, call

    def __call__(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        """`execute`."""
        return self.execute(code, variables)

    def __enter__(self) -> Any:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()

    async def __aenter__(self) -> Any:
        await self.astart()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.ashutdown()


class Interpreter(DSPyFace, WorkerSession):
    """A session in an environment, for DSPy's modules and for the RLM.

    Args:
        environment: Where code runs.
        tools: Host functions, by name.
        output_fields: For positional ``SUBMIT`` arguments.
        callbacks: DSPy callbacks of this interpreter.

    Calling an environment makes one: ``local()``. It is not thread-safe; different threads may use it in turn. In a
    fork of the process it starts a session of its own and leaves the parent's alone.
    """

    def __init__(
        self,
        environment: Environment,
        tools: dict[str, Callable[..., Any]] | None = None,
        output_fields: list[dict[str, Any]] | None = None,
        callbacks: list[BaseCallback] | None = None,
    ) -> None:
        WorkerSession.__init__(self, environment)
        DSPyFace.__init__(self, tools, output_fields, callbacks)

    def _forget(self) -> None:
        super()._forget()
        self._sent.clear()

    def _lose(self) -> tuple[str, ...]:
        self._sent.clear()
        return super()._lose()


def _lost_note(result: CellResult) -> str:
    return f"; gone: {', '.join(result.lost)}" if result.lost else ""


def _bind(tool: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional arguments as keywords where the tool's signature names them: DSPy's tools take keywords only."""
    if not args:
        return args, kwargs
    try:
        parameters = list(inspect.signature(tool).parameters.values())
    except (TypeError, ValueError):
        return args, kwargs
    names = [p.name for p in parameters[: len(args)] if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    if len(names) < len(args) or set(names) & set(kwargs):
        return args, kwargs
    return [], {**dict(zip(names, args, strict=True)), **kwargs}

"""Any DSPy ``CodeInterpreter`` as a session of this project.

`ForeignSession` drives an interpreter that somebody else wrote: ``dspy.PythonInterpreter``, ``dspy.LocalInterpreter``
or a third party's. Its calls block and may belong to one thread, so each session has a thread of its own for them. Host
functions are bridged to the event loop. What such an interpreter cannot do (interrupt, capture output before an error,
carry any value) stays as it is there.
"""

from __future__ import annotations

import asyncio
import base64
import contextvars
import dataclasses
import datetime
import enum
import inspect
import json
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import dspy
from dspy.primitives.code_interpreter import FinalOutput

from rlm_dspy.environments.base import (
    Bound,
    CellError,
    CellResult,
    Description,
    Environment,
    HostFunction,
    Submission,
)
from rlm_dspy.environments.channel import Call
from rlm_dspy.environments.host_tasks import HostTasks
from rlm_dspy.environments.session import GRACE_SECONDS, _settled, check_names, serializable_cell

_NAMES_CODE = (
    "import json as _json\n"
    "print(_json.dumps({_n: type(_v).__name__ for _n, _v in list(globals().items())"
    " if _n[:1] != '_' and type(_v).__name__ not in ('module', 'builtin_function_or_method')}))"
)


class ForeignSession:
    """A DSPy ``CodeInterpreter`` as a `base.Session`.

    Args:
        factory: Makes a fresh interpreter; DSPy calls it ``interpreter_factory``.
        timeout: Seconds one cell may compute, host calls not counted; None for no limit. A foreign interpreter can
            only be stopped by ending it: it is shut down and replaced, and its variables are gone.
        environment: Where the factory is one, such as ``pyodide``, it describes the session.

    Attributes:
        interpreter: The interpreter that runs now, or None.
        output_fields: Handed to the interpreter before each cell, for those that type ``SUBMIT``.
    """

    needs_signatures = True
    """Host functions have to tell their parameters: interpreters define them anew on their side."""

    def __init__(
        self, factory: Callable[[], Any], *, timeout: float | None = None, environment: Environment | None = None
    ) -> None:
        self._factory = factory
        self._environment = environment
        self._timeout = timeout
        self.interpreter: Any = None
        self.output_fields: list[dict[str, Any]] | None = None
        self._owner = _Owner()
        self._pending: dict[str, Any] = {}
        self._names: set[str] = set()
        self._installed: set[str] = set()
        self._ended = False
        self._running = False

    @property
    def execution_instructions(self) -> str:
        """What the interpreter says a model has to know about it."""
        for source in (self.interpreter, self._environment, self._factory):
            text = getattr(source, "execution_instructions", None)
            if isinstance(text, str):
                return text
        return ""

    # ------------------------------------------------------------------------------------------------- session

    async def open(self) -> None:
        """Make and start the interpreter."""
        if self._ended:
            raise dspy.CodeInterpreterError("the session has been closed; make a new one")
        if self.interpreter is not None:
            return

        def start() -> Any:
            interpreter = self._factory()
            if not isinstance(interpreter, dspy.CodeInterpreter):
                raise TypeError(f"the factory must return a CodeInterpreter, not {type(interpreter).__name__}")
            interpreter.start()
            return interpreter

        self.interpreter = await self._owner.run(start)

    async def close(self) -> None:
        """Shut the interpreter down. Idempotent."""
        self._ended = True
        interpreter, self.interpreter = self.interpreter, None
        owner, self._owner = self._owner, _Owner()
        if interpreter is None:
            owner.stop()
            return
        closing = owner.submit(interpreter.shutdown)
        owner.stop()
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(closing)), timeout=30)
        except TimeoutError:
            # Its thread is stuck in a cell that never ends: ended from here, whatever it says about threads.
            await _Owner.once(_quietly, _end, interpreter)

    async def set(self, values: Mapping[str, Any]) -> None:
        """Assign variables; they cross with the next cell, in a form that JSON has."""
        check_names(values)
        for name, value in values.items():
            cell = serializable_cell(name, value)
            if cell is None:
                self._pending[name] = json_ready(value)
            else:
                code, variables = cell
                self._pending.update(variables)
                result = await self.run(code)
                if result.error is not None:
                    raise ValueError(f"input {name!r} could not be rebuilt in the sandbox: {result.error.message}")
            self._names.add(name)

    async def variables(self) -> dict[str, str]:
        """The user-made globals, as far as the interpreter lets them be listed."""
        result = await self.run(_NAMES_CODE)
        try:
            found = json.loads(result.stdout)
        except ValueError:
            return dict.fromkeys(sorted(self._names), "object")
        return {str(name): str(kind) for name, kind in found.items() if name not in self._installed | {"SUBMIT"}}

    def describe(self) -> Description:
        """What is known about the kind of interpreter."""
        if self._environment is not None:
            return self._environment.describe()
        interpreter = self.interpreter
        name = type(interpreter).__name__ if interpreter is not None else getattr(self._factory, "__name__", "foreign")
        opened = [
            option
            for option in ("enable_read_paths", "enable_write_paths", "enable_env_vars", "enable_network_access")
            if getattr(interpreter, option, None)
        ]
        if isinstance(interpreter, dspy.PythonInterpreter) and not opened:
            bound = Bound("bounded", "Deno without permissions, WebAssembly")
            return Description(name, ("deno", "pyodide"), files=bound, network=bound, secrets=bound)
        return Description(name, missing=("confinement: not known for this interpreter",))

    async def run(
        self, code: str, functions: Mapping[str, HostFunction] | None = None, *, timeout: float | None = None
    ) -> CellResult:
        """Run one cell; see `base.Session.run`."""
        if self._running:
            raise dspy.CodeInterpreterError("the session is already running a cell")
        await self.open()
        self._running = True
        limit = self._timeout if timeout is None else timeout
        host = HostTasks(functions or {}, _reply, _reply_error)
        start = time.perf_counter()
        try:
            answer = self._owner.submit(self._execute, self.interpreter, code, dict(functions or {}), host)
            ended = await host.watch(answer, limit)
            if not ended:
                interrupt = getattr(self.interpreter, "interrupt", None)
                if callable(interrupt):
                    await _Owner.once(_quietly, interrupt)
                    await _settled(answer, GRACE_SECONDS)
        except BaseException:
            if not answer.done():
                await self._replace()
            raise
        finally:
            self._running = False
            await host.close()
        seconds = time.perf_counter() - start
        if not answer.done():
            lost = await self._replace()
            message = f"the cell computed for more than {limit:g} seconds; the interpreter was ended and replaced"
            error = CellError("TimeoutError", message, f"TimeoutError: {message}", "timeout")
            return CellResult(error=error, seconds=seconds, host_seconds=host.waited(), lost=lost)
        result = answer.result()
        return dataclasses.replace(result, seconds=seconds, host_seconds=host.waited())

    async def _replace(self) -> tuple[str, ...]:
        interpreter, self.interpreter = self.interpreter, None
        owner, self._owner = self._owner, _Owner()
        owner.stop()
        await asyncio.shield(_Owner.once(_quietly, _end, interpreter))
        lost = tuple(sorted(self._names))
        self._names.clear()
        self._pending.clear()
        self._installed.clear()
        return lost

    # ------------------------------------------------------------------------------------------------- in its thread

    def _execute(self, interpreter: Any, code: str, functions: dict[str, Any], host: HostTasks) -> CellResult:
        for name in self._installed - set(functions):
            interpreter.tools.pop(name, None)
        interpreter.tools.update({name: _bridge(name, function, host) for name, function in functions.items()})
        self._installed = set(functions)
        if hasattr(interpreter, "output_fields"):
            interpreter.output_fields = self.output_fields
        if hasattr(interpreter, "_tools_registered"):
            # DSPy's own interpreter registers tools once unless told that they have changed.
            interpreter._tools_registered = False
        variables, self._pending = self._pending, {}
        try:
            result = interpreter.execute(code, variables=variables)
        except SyntaxError as error:
            text = str(error) or "invalid syntax"
            return CellResult(error=CellError("SyntaxError", text, f"SyntaxError: {text}", "syntax"))
        except dspy.CodeExecutionError as error:
            text = str(error)
            kind, colon, message = text.rpartition("\n")[2].partition(": ")
            known = bool(colon) and kind.isidentifier()
            return CellResult(
                error=CellError(kind if known else "CodeExecutionError", message if known else text, text)
            )
        if isinstance(result, FinalOutput):
            return CellResult(submission=self._submission(result.output))
        if result is None:
            return CellResult()
        if isinstance(result, list) and all(isinstance(line, str) for line in result):
            return CellResult(stdout="\n".join(result))
        return CellResult(stdout=result) if isinstance(result, str) else CellResult(value=repr(result))

    def _submission(self, output: Any) -> Submission:
        if not isinstance(output, dict):
            return Submission((output,))
        if self.output_fields is None and set(output) == {"output"}:
            return Submission((output["output"],))
        return Submission(kwargs=dict(output))


def json_ready(value: Any, depth: int = 0) -> Any:
    """``value`` in terms of what JSON has: the nearest such form of each part.

    Raises:
        TypeError: a part has no such form.
        ValueError: nested more than 200 levels deep.
    """
    if depth > 200:
        raise ValueError("the value is nested more than 200 levels deep, or contains itself")
    depth += 1
    if value is None or isinstance(value, (bool, str)):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, enum.Enum):
        return json_ready(value.value, depth)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else str(json_ready(key, depth)): json_ready(item, depth)
            for key, item in value.items()
        }
    if hasattr(value, "_asdict"):
        return json_ready(value._asdict(), depth)
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [json_ready(item, depth) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            return base64.b64encode(value).decode("ascii")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_ready(getattr(value, field.name), depth) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return json_ready(value.model_dump(), depth)
    if hasattr(value, "toDict"):
        return json_ready(value.toDict(), depth)
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return json_ready(value.to_dict("records"), depth)
    if hasattr(value, "tolist"):
        return json_ready(value.tolist(), depth)
    if type(value).__name__ in ("Decimal", "Fraction", "UUID", "PosixPath", "WindowsPath", "PurePosixPath"):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__!r} cannot cross into this interpreter; convert it first")


def _bridge(name: str, function: Any, host: HostTasks) -> Callable[..., Any]:
    """A host function as the synchronous tool that a foreign interpreter calls from one of its threads."""

    signature, rest = _signature(function)

    def tool(*args: Any, **kwargs: Any) -> Any:
        more = kwargs.pop(rest, None) if rest else None
        call = _Call(0, name, args, {**kwargs, **(more if isinstance(more, dict) else {})})
        host.accept(call)
        return json_ready(call.outcome.result())

    tool.__name__ = tool.__qualname__ = name
    tool.__doc__ = getattr(function, "__doc__", None)
    if signature is not None:
        tool.__signature__ = signature  # type: ignore[attr-defined]
    return tool


def _signature(function: Any) -> tuple[inspect.Signature | None, str | None]:
    """Its parameters as interpreters read them that define the function anew on their side, where they can.

    Such a definition has neither ``*args`` nor ``**kwargs`` nor defaults that JSON has not: the first and the last are
    left out, the second becomes one parameter that takes a dict, whose name is given as well.
    """
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None, None
    parameters, rest = [], None
    for parameter in found:
        if parameter.kind is parameter.VAR_POSITIONAL or not _is_plain(parameter.default):
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            rest = parameter.name
            parameter = parameter.replace(kind=parameter.KEYWORD_ONLY, default=None)
        parameters.append(parameter)
    named = any(parameter.name != rest for parameter in parameters)
    return (inspect.Signature(parameters), rest) if named else (None, None)


def _is_plain(default: Any) -> bool:
    return default is inspect.Parameter.empty or default is None or isinstance(default, (bool, int, float, str))


class _Call(Call):
    """A call that is answered by a future."""

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self.outcome: Future[Any] = Future()


def _reply(call: Any, value: Any = None) -> None:
    call.outcome.set_result(value)


def _reply_error(call: Any, kind: str, message: str) -> None:
    call.outcome.set_exception({"ValueError": ValueError, "TypeError": TypeError}.get(kind, RuntimeError)(message))


def _end(interpreter: Any) -> None:
    """End an interpreter that is in the middle of a cell."""
    process = getattr(interpreter, "deno_process", None)
    if process is not None:
        # DSPy's own asks its process to end, and waits for that as long as the cell takes.
        process.kill()
    interpreter.shutdown()


def _quietly(function: Callable[..., Any], *args: Any) -> None:
    try:
        function(*args)
    except Exception:
        # Ending an interpreter that is in an unknown state: there is nothing left to tell anyone.
        pass


class _Owner:
    """One thread that makes all calls of one interpreter; it starts with the first and ends with `stop`."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        outcome: Future[Any] = Future()
        outcome.set_running_or_notify_cancel()
        context = contextvars.copy_context()

        def job() -> None:
            try:
                result = context.run(function, *args)
            except BaseException as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        self._work.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="rlm-dspy-foreign", daemon=True)
            self._thread.start()
        return outcome

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.wrap_future(self.submit(function, *args))

    @classmethod
    async def once(cls, function: Callable[..., Any], *args: Any) -> Any:
        """Run in a fresh thread that ends with the call."""
        owner = cls()
        outcome = owner.submit(function, *args)
        owner.stop()
        return await asyncio.wrap_future(outcome)

    def stop(self) -> None:
        self._work.put(None)

    def _loop(self) -> None:
        while (job := self._work.get()) is not None:
            job()
            del job

"""The ``inprocess`` environment: code runs by ``exec`` in the host. For trusted code and for tests.

There is no boundary of any kind: the code has the host's memory, files, environment and network, and can end the host.
What it shares with the other environments is the behaviour: the same cells, outputs, errors, host functions, SUBMIT.
Inputs are handed over by reference; what code submits or passes to host functions is converted as on a channel.
"""

from __future__ import annotations

import builtins
import contextvars
import ctypes
import itertools
import linecache
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Self, Unpack

import dspy
from dspy.utils.callback import BaseCallback

from rlm_dspy._aio import threads
from rlm_dspy.environments import cells as _cells
from rlm_dspy.environments.base import (
    BaseOptions,
    Bound,
    CellError,
    CellResult,
    Description,
    Environment,
    HostFunction,
    Image,
    Submission,
    Transport,
)
from rlm_dspy.environments.channel import Call
from rlm_dspy.environments.codec import Decoder, Encoder
from rlm_dspy.environments.host_tasks import HostTasks
from rlm_dspy.environments.interpreter import DSPyFace
from rlm_dspy.environments.prepare import failed
from rlm_dspy.environments.records import FailedCall, Record
from rlm_dspy.environments.session import (
    GRACE_SECONDS,
    _settled,
    _settled_despite_cancelling,
    check_names,
    interrupted_error,
    serializable_cell,
)
from rlm_dspy.environments.wire import TextBlob
from rlm_dspy.errors import ConfigurationError, SandboxUnavailableError

_stream: contextvars.ContextVar[_cells.Stream | None] = contextvars.ContextVar(
    "rlm_dspy_inprocess_stream", default=None
)
_ids = itertools.count(1)


class InProcess(Environment):
    """``exec`` in the host, in a thread. Not a sandbox; nothing is kept apart. For trusted code and tests only.

    Args:
        **base: ``timeout``, ``max_output``, ``max_value`` and ``setup_code`` as for every environment. Past the timeout
            only code that runs Python bytecode can be interrupted; a thread that is stuck elsewhere is left behind.

    Raises:
        ConfigurationError: ``packages`` or ``files`` are given: there is no Python and no folder of its own to put
            them into.
    """

    name = "inprocess"
    execution_instructions = (
        "Code runs as CPython. State, imports and functions persist between cells. input() does not work."
    )

    lacks = {  # noqa: RUF012
        "process": "the code has no process of its own",
        "output": "output of C code and child processes is not captured",
        "kill": "a thread cannot be killed",
        "files": "the code has no folder of its own",
        "packages": "the code runs in this Python, with what is installed for it",
    }

    def __init__(self, **base: Unpack[BaseOptions]) -> None:
        super().__init__(**base)
        if self.packages:
            raise ConfigurationError(
                "the inprocess environment has no packages of its own; install them in this Python, or choose another"
            )
        if self.files:
            raise ConfigurationError(
                "the inprocess environment has no folder of its own; the code can read this process's files as they are"
            )

    def with_options(self, **base: Unpack[BaseOptions]) -> Self:
        """See `Environment.with_options`."""
        options = self.base_options()
        options.update(base)
        return type(self)(**options)

    def open(self) -> Transport:
        """There is no stream to this environment; its sessions come from calling it."""
        raise SandboxUnavailableError(
            "the inprocess environment has no worker; call it to get a session: inprocess()()"
        )

    def describe(self) -> Description:
        """Says that nothing is confined."""
        return Description(
            environment=self.name,
            time=Bound("not bounded", "Python bytecode can be interrupted, nothing else"),
            missing=("confinement: the code runs inside the host process, for trusted code and tests only",),
        )

    def __call__(self) -> InProcessInterpreter:  # type: ignore[override]
        """A fresh session."""
        return InProcessInterpreter(self)


class _Switch:
    """Stands in for ``sys.stdout`` while cells run: texts of a cell's thread go to its session, all others through."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._users = 0
        self.original: Any = None

    def enter(self) -> None:
        with self._lock:
            if getattr(sys, self._name) is not self:
                self.original = getattr(sys, self._name)
                setattr(sys, self._name, self)
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and getattr(sys, self._name) is self:
                setattr(sys, self._name, self.original)

    def __getattr__(self, name: str) -> Any:
        return getattr(_stream.get() or self.original, name)


_switches = (_Switch("stdout"), _Switch("stderr"))


def _cross(value: Any, limit: int | None = None) -> Any:
    """``value`` as it would arrive on the host from a worker; ValueError if it has more than ``limit`` bytes."""
    encoder = Encoder(limit)
    tree = encoder.dump(value)
    blobs = [b"".join(blob.pieces()) if isinstance(blob, TextBlob) else blob for blob in encoder.blobs]
    return Decoder(blobs, records=False).load(tree)


class _Interrupt:
    """The interrupt of one cell: strikes its thread at most once, and never after the cell has ended."""

    def __init__(self) -> None:
        self.fired = False
        self._lock = threading.Lock()
        self._thread: int | None = None

    def arm(self) -> None:
        """Aim at the calling thread."""
        with self._lock:
            self._thread = threading.get_ident()

    def fire(self) -> None:
        """Strike, if armed and not yet fired."""
        with self._lock:
            if self._thread is not None and not self.fired:
                self.fired = True
                _raise_in(self._thread, ctypes.py_object(KeyboardInterrupt))

    def disarm(self) -> None:
        """In the thread: from now on nothing strikes. An interrupt that is on its way strikes in here, and is eaten."""
        while True:
            try:
                with self._lock:
                    self._thread = None
                    _raise_in(threading.get_ident(), None)
                return
            except KeyboardInterrupt:
                continue


def _raise_in(thread: int, exception: Any) -> None:
    """Have ``exception`` raised in a thread at its next bytecode; None takes back one that has not struck yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)


class InProcessInterpreter(DSPyFace):
    """A session of `InProcess`: both a `base.Session` and a DSPy ``CodeInterpreter``."""

    def __init__(
        self,
        environment: InProcess | None = None,
        tools: dict[str, Callable[..., Any]] | None = None,
        output_fields: list[dict[str, Any]] | None = None,
        callbacks: list[BaseCallback] | None = None,
    ) -> None:
        super().__init__(tools, output_fields, callbacks)
        self.environment: Environment = environment or InProcess()
        self.last_value: Any = None
        self._cells: _cells.Cells | None = None
        self._output = _cells.Output(self.environment.max_output)
        self._stream = _cells.Stream(self._output.write, None, "<stdout>")
        self._host: HostTasks | None = None
        self._submission: Submission | None = None
        self._ended = False
        self._running = False
        self._current = _Interrupt()

    # ------------------------------------------------------------------------------------------------- session

    async def open(self) -> None:
        """Make the namespace."""
        if self._ended:
            raise dspy.CodeInterpreterError("the session has been closed; make a new one")
        if self._cells is None:
            number = next(_ids)
            module = _cells.module(f"rlm_dspy_session_{number}")
            self._cells = _cells.Cells(module, f"session {number} cell")
            # Elsewhere there is one session a process, and its module is __main__.
            self._cells.shown = {f"<session {number} ": "<", f"{module.__name__}.": ""}
            extra = {"input": _cells.input_unavailable, "Record": Record, "FailedCall": FailedCall}
            self._cells.ns["__builtins__"] = {**vars(builtins), **extra}
            if self.environment.shell is not None:
                from rlm_dspy.environments.ipython_shell import Shell

                self._cells.shell = Shell(module, False)
            if self.environment.setup_code:
                await self._set_up(self.environment.setup_code, f"session {number} setup")

    async def _set_up(self, code: str, name: str) -> None:
        assert self._cells is not None
        limit = self.environment.timeout
        self._current = current = _Interrupt()
        answer = threads.submit(self._run_cell, self._cells, code, False, current, name)
        if not await _settled(answer, 1e9 if limit is None else limit):
            current.fire()
            self._forget_cells()
            raise failed(self.environment, f"it computed for more than {limit:g} seconds")
        error, printed = answer.result()["error"], self._output.take()
        if error is not None:
            self._forget_cells()
            raise failed(self.environment, f"{printed}{error['traceback']}")

    async def close(self) -> None:
        """Drop the namespace; interrupt a cell that still runs."""
        self.interrupt()
        self._ended = True
        self._forget_cells()

    def _forget_cells(self) -> None:
        cells, self._cells = self._cells, None
        if cells is not None:
            sys.modules.pop(cells.module.__name__, None)
            if cells.shell is not None:
                cells.shell.close()
            for filename in cells.files:
                linecache.cache.pop(filename, None)

    def describe(self) -> Description:
        """Says that nothing is confined."""
        return self.environment.describe()

    async def set(self, values: Mapping[str, Any]) -> None:
        """Assign variables, by reference."""
        check_names(values)
        await self.open()
        assert self._cells is not None
        for name, value in values.items():
            cell = serializable_cell(name, value)
            if cell is None:
                self._cells.ns[name] = value
            else:
                self._cells.ns.update(cell[1])
                result = await self.run(cell[0])
                if result.error is not None:
                    raise ValueError(f"input {name!r} could not be rebuilt: {result.error.traceback}")

    async def get(self, names: Any) -> dict[str, Any]:
        """The values of variables, converted as from a worker."""
        await self.open()
        assert self._cells is not None
        missing = [name for name in names if name not in self._cells.ns]
        if missing:
            raise KeyError(f"no variable is called {', '.join(missing)}")
        return {name: _cross(self._cells.ns[name], self.environment.max_value) for name in names}

    async def variables(self) -> dict[str, str]:
        """The user-made global variables: name to type name."""
        await self.open()
        assert self._cells is not None
        return self._cells.variables()

    async def run(
        self,
        code: str,
        functions: Mapping[str, HostFunction] | None = None,
        *,
        timeout: float | None = None,
        wants_value: bool = False,
        docs: Mapping[str, str | None] | None = None,
    ) -> CellResult:
        """Run one cell in a thread; see `base.Session.run`."""
        if self._running:
            raise dspy.CodeInterpreterError("the session is already running a cell")
        await self.open()
        assert self._cells is not None
        self._running = True
        limit = self.environment.timeout if timeout is None else timeout
        functions = dict(functions or {})
        host = self._host = HostTasks(functions, _reply, _reply_error)
        self._submission = None
        self._current = current = _Interrupt()
        own = {name: self._host_function(name, f, (docs or {}).get(name)) for name, f in functions.items()}
        for note in self._cells.heal():
            self._output.write(note + "\n")
        self._cells.protect({"SUBMIT": self._submit, "SHOW_VARS": self._show_variables(self._cells), **own})
        start = time.perf_counter()
        answer = threads.submit(self._run_cell, self._cells, code, wants_value, current)
        try:
            if not await host.watch(answer, limit):
                self.interrupt()
                await _settled(answer, GRACE_SECONDS)
        except BaseException:
            self.interrupt()
            await _settled_despite_cancelling(answer, GRACE_SECONDS)
            raise
        finally:
            self._running = False
            await host.close()
        seconds = time.perf_counter() - start
        if not answer.done():
            return await self._abandon(limit, seconds, host.waited())
        return self._result(answer.result(), limit, seconds, host.waited())

    def _result(self, done: dict[str, Any], limit: float | None, seconds: float, waited: float) -> CellResult:
        error = done["error"]
        cap = self._output.cap
        failure = None
        if error is not None and self._submission is None:
            name, message, traceback = (_cells.cap_text(error[key], cap) for key in ("type", "message", "traceback"))
            failure = CellError(name, message, traceback, error["kind"])
            if self._current.fired:
                failure = interrupted_error(failure, limit if limit is not None and seconds >= limit else None)
        self.last_value = done.get("object")
        return CellResult(
            stdout=self._output.take(),
            value=None if done["value"] is None else _cells.cap_text(done["value"], cap),
            error=failure,
            submission=self._submission,
            seconds=seconds,
            host_seconds=waited,
            images=tuple(Image(kind, data) for kind, data in done.get("images") or ()),
        )

    async def _abandon(self, limit: float | None, seconds: float, waited: float) -> CellResult:
        """The thread does not stop: it keeps its namespace, the session gets a new one."""
        assert self._cells is not None
        lost = tuple(sorted(self._cells.variables()))
        stdout, self._output = self._output.take(), _cells.Output(self.environment.max_output)
        self._stream = _cells.Stream(self._output.write, None, "<stdout>")
        self._cells = None
        self._sent.clear()
        await self.open()
        message = (
            f"the cell computed for more than {limit:g} seconds and ignored the interrupt; the session starts anew"
        )
        error = CellError("TimeoutError", message, f"TimeoutError: {message}", "timeout")
        return CellResult(
            stdout=stdout,
            error=error,
            submission=self._submission,
            seconds=seconds,
            host_seconds=waited,
            lost=lost,
        )

    # ------------------------------------------------------------------------------------------------- in the thread

    def _run_cell(
        self, cells: _cells.Cells, code: str, wants_value: bool, current: _Interrupt, name: str | None = None
    ) -> dict[str, Any]:
        for switch in _switches:
            switch.enter()
        token = _stream.set(self._stream)
        try:
            try:
                current.arm()
                result = cells.run(code, wants_value, name)
            finally:
                current.disarm()
        except KeyboardInterrupt as error:
            # It struck between the code's own end and the line above; it strikes once, so not in here.
            result = {"error": cells.describe(error), "value": None}
        finally:
            _stream.reset(token)
            for switch in _switches:
                switch.leave()
        if "object" in result:
            try:
                result["object"] = _cross(result["object"], self.environment.max_value)
            except (TypeError, ValueError):
                # It does not cross; its repr does.
                del result["object"]
        return result

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the cell that runs, if any, at its next bytecode; once for each cell."""
        self._current.fire()
        cells = self._cells
        if cells is not None:
            cells.wake()

    def _submit(self, *args: Any, **kwargs: Any) -> None:
        """Hand over the final answer and end the cell."""
        if self._submission is None:
            self._submission = Submission(*self._arguments(args, kwargs))
        raise _cells.Submitted

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        positional, by_name = _cross([list(args), kwargs], self.environment.max_value)
        return tuple(positional), by_name

    @staticmethod
    def _show_variables(cells: _cells.Cells) -> Any:
        def show_variables() -> dict[str, str]:
            """The variables made so far: name to type name."""
            return cells.variables()

        return show_variables

    def _host_function(self, name: str, function: Any, doc: str | None) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            host = self._host
            if host is None:
                raise RuntimeError("the run has ended")
            outcome: Future[Any] = Future()
            request = _Call(0, name, *self._arguments(args, kwargs), outcome=outcome)
            host.accept(request)
            # In short waits, because an interrupt of a thread strikes between bytecodes only.
            while True:
                try:
                    return outcome.result(timeout=0.05)
                except TimeoutError:
                    if outcome.done():
                        raise

        call.__name__ = call.__qualname__ = name
        call.__doc__ = doc or getattr(function, "__doc__", None)
        return call


class _Call(Call):
    """A call that is answered by a future instead of a frame."""

    def __init__(self, *fields: Any, outcome: Future[Any]) -> None:
        super().__init__(*fields)
        self.outcome = outcome


def _reply(call: Any, value: Any = None) -> None:
    if not call.outcome.done():
        call.outcome.set_result(value)


def _reply_error(call: Any, kind: str, message: str) -> None:
    if not call.outcome.done():
        call.outcome.set_exception({"ValueError": ValueError, "TypeError": TypeError}.get(kind, RuntimeError)(message))

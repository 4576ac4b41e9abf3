"""A session in a worker: the `rlm_dspy.environments.base.Session` contract over a `Channel`.

The session watches the clock, runs host functions as tasks, interrupts what takes too long, and replaces a worker that
died or would not stop. Everything it waits for is a ``concurrent.futures`` future, so one session can be used from one
event loop after another, and from synchronous code in between.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import dspy

from rlm_dspy._aio import threads
from rlm_dspy.environments import channel as channels
from rlm_dspy.environments import pool, sessions
from rlm_dspy.environments.base import (
    CellError,
    CellResult,
    Description,
    Environment,
    HostFunction,
    Image,
    Kind,
    Submission,
)
from rlm_dspy.environments.cells import cap_text
from rlm_dspy.environments.channel import Channel, ChannelClosed, RequestFailed
from rlm_dspy.environments.host_tasks import HostTasks, retrieve
from rlm_dspy.environments.transfer import Transfer

REQUEST_SECONDS = 60.0
"""Seconds after which a worker that takes nothing and answers nothing is given up, in requests that run no code."""
GRACE_SECONDS = 1.0
"""Seconds that an interrupted cell has to end by itself before its worker is killed."""
RESERVED = frozenset({"SUBMIT", "SHOW_VARS", "__builtins__"})
"""Names that belong to the session."""


def serializable_cell(name: str, value: Any) -> tuple[str, dict[str, Any]] | None:
    """For a DSPy ``SandboxSerializable`` value: the code that rebuilds it and the variables that code reads."""
    from dspy.primitives.sandbox_serializable import SandboxSerializable

    if not isinstance(value, SandboxSerializable):
        return None
    payload = value.to_sandbox()
    raw = f"_raw_{name}"
    lines = []
    if isinstance(payload, bytes):
        try:
            variables: dict[str, Any] = {raw: payload.decode("utf-8")}
        except UnicodeDecodeError:
            variables = {f"{raw}_base64": base64.b64encode(payload).decode("ascii")}
            lines = ["import base64", f"{raw} = base64.b64decode({raw}_base64)"]
    else:
        variables = {raw: str(payload)}
    lines += [value.sandbox_setup(), value.sandbox_assignment(name, raw), f"del {raw}"]
    return "\n".join(line for line in lines if line), variables


def check_names(names: Any) -> None:
    """Raise ValueError unless all ``names`` can be variables of the sandbox."""
    bad = [name for name in names if not isinstance(name, str) or not name.isidentifier() or name in RESERVED]
    if bad:
        raise ValueError(f"these are not names that a variable in the sandbox can have: {bad!r}")


class WorkerSession(Transfer):
    """Code running in a worker in ``environment``. One cell at a time.

    Args:
        environment: Where. Its ``timeout``, ``max_output`` and ``max_value`` apply.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._channel: Channel | None = None
        self._ended = False
        self._running: int | None = None
        self._interrupt_next = False
        self._printing: Channel | None = None
        self._submissions: list[Submission] = []
        self._names: set[str] = set()
        self._finalizer: Any = None
        self._lease: sessions.Lease | None = None
        self._failing = False

    # ------------------------------------------------------------------------------------------------- life

    async def open(self) -> None:
        """Start the worker, or take a warm one; nothing to do if it runs. See `base.Session.open`."""
        if self._ended:
            raise dspy.CodeInterpreterError("the session has been closed; make a new one")
        channel = self._channel
        if channel is not None:
            if channel.pid == os.getpid():
                return
            # After a fork: the parent's worker is the parent's; this process gets its own.
            self._forget()
        channel = await pool.aacquire(self.environment)
        if self._ended:
            await _close(channel)
            raise dspy.CodeInterpreterError("the session was closed while it started")
        self._channel, self._lease = channel, sessions.current()
        self._finalizer = weakref.finalize(self, _close_if_owner, channel)
        # At exit the transports end themselves; a thread could not be started any more.
        self._finalizer.atexit = False

    def _forget(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
        self._channel = None
        self._running = None
        self._names = set()

    async def close(self) -> None:
        """Kill the worker and all it started. Idempotent."""
        self._ended = True
        channel = self._channel
        self._channel = None
        if channel is None or channel.pid != os.getpid():
            return
        if self._finalizer is not None:
            self._finalizer.detach()
        closing = threads.submit(channel.close)
        cancelled = False
        # The worker must be gone when this returns, also when it is the clean-up of a cancelled task.
        while not closing.done():
            try:
                await asyncio.shield(asyncio.wrap_future(closing))
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError

    def describe(self) -> Description:
        """What is and is not confined."""
        return self.environment.describe()

    # ------------------------------------------------------------------------------------------------- variables

    async def set(self, values: Mapping[str, Any]) -> None:
        """Assign variables. ``TypeError`` or ``ValueError`` for a value that cannot cross."""
        check_names(values)
        held = bool(self._names)
        plain = {}
        special = []
        for name, value in values.items():
            cell = serializable_cell(name, value)
            if cell is None:
                plain[name] = value
            else:
                special.append((name, cell))
        if plain:
            try:
                await self._request("set", plain)
            except dspy.CodeInterpreterError:
                # A fresh worker that was killed from outside has lost nothing: once more, in another.
                if held or self._channel is not None or self._ended:
                    raise
                await self._request("set", plain)
            self._names.update(plain)
        for name, (code, variables) in special:
            await self._request("set", variables)
            result = await self.run(code)
            if result.error is not None:
                raise ValueError(f"input {name!r} could not be rebuilt in the sandbox: {result.error.traceback}")

    async def get(self, names: Any) -> dict[str, Any]:
        """The values of variables. ``KeyError`` if one does not exist, ``TypeError`` if one cannot cross."""
        names = list(names)
        try:
            return await self._request("get", names)
        except RequestFailed as error:
            kinds = {"NameError": KeyError, "TypeError": TypeError}
            raise kinds.get(error.kind, ValueError)(str(error)) from None

    async def variables(self) -> dict[str, str]:
        """The user-made global variables: name to type name."""
        return await self._request("vars")

    async def _request(self, op: str, body: Any = None) -> Any:
        await self.open()
        channel = self._channel
        assert channel is not None
        answer = channel.request(op, body)
        try:
            await self._responding(channel, answer)
            return answer.result()
        except ChannelClosed as error:
            self._lose()
            raise dspy.CodeInterpreterError(f"the sandbox ended: {error}") from None
        except RequestFailed as error:
            if op in ("get", "write", "read"):
                raise
            raise dspy.CodeInterpreterError(f"the sandbox could not do {op!r}: {error.kind}: {error}") from None

    async def _responding(self, channel: Channel, answer: Future[Any]) -> None:
        """Wait for an answer. A worker that stands still, stopped or kept busy by what code left behind, is killed."""
        sent = -1
        while not answer.done() and channel.sent != sent:
            sent = channel.sent
            await _settled(answer, max(REQUEST_SECONDS, self.environment.timeout or 0.0))
        if not answer.done():
            await _close(channel, "it does not respond")

    # ------------------------------------------------------------------------------------------------- cells

    async def run(
        self,
        code: str,
        functions: Mapping[str, HostFunction] | None = None,
        *,
        timeout: float | None = None,
        wants_value: bool = False,
        docs: Mapping[str, str | None] | None = None,
    ) -> CellResult:
        """Run one cell; see `base.Session.run`.

        ``wants_value`` also brings the last expression's value itself where it can cross and nothing was printed, in
        `last_value`. ``docs`` replaces the doc texts that the functions themselves carry.
        """
        if self._running is not None and (self._channel is None or self._channel.pid == os.getpid()):
            raise dspy.CodeInterpreterError("the session is already running a cell")
        self._running = 0
        self._printing = None
        self._interrupt_next = False
        self.last_value: Any = None
        try:
            await self.open()
            sessions.resume(self._lease)
            return await self._run(code, dict(functions or {}), timeout, wants_value, docs)
        finally:
            self._running = None

    async def _run(
        self,
        code: str,
        functions: dict[str, HostFunction],
        timeout: float | None,
        wants_value: bool,
        docs: Mapping[str, str | None] | None,
    ) -> CellResult:
        channel = self._channel
        assert channel is not None
        limit = self.environment.timeout if timeout is None else timeout
        host = HostTasks(functions, channel.reply, channel.reply_error)
        submissions = self._submissions = []

        def on_submit(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not submissions:
                submissions.append(Submission(args, kwargs))

        body: dict[str, Any] = {"code": code}
        installed = dict(docs) if docs is not None else channels.doc_of(functions)
        if installed != channel.functions:
            body["functions"] = installed
        if wants_value:
            body["wants_value"] = True
        number = channel.new_id()
        self._running = number
        self._printing = channel
        start = time.perf_counter()
        channel.activate(number, host.accept, on_submit)
        answer = channel.request("exec", body, number)
        channel.functions = installed
        if self._interrupt_next:
            channel.interrupt(number)
        try:
            interrupted = not await host.watch(answer, limit)
            if interrupted:
                channel.interrupt(number)
                await _settled(answer, GRACE_SECONDS)
        except BaseException:
            # Cancelled, or Ctrl-C in a host function: the cell must not go on.
            channel.interrupt(number)
            channel.deactivate()
            if not await _settled_despite_cancelling(answer, GRACE_SECONDS):
                await self._drop(channel)
            raise
        finally:
            channel.deactivate()
            ended = answer.done() and not answer.cancelled() and answer.exception() is None
            await host.close(channel.postpone if ended else None)
        seconds = time.perf_counter() - start
        submission = submissions[0] if submissions else None
        if not answer.done() or isinstance(answer.exception(), ChannelClosed):
            return await self._replace(channel, answer, limit, submission, seconds, host.waited())
        failure = answer.exception()
        if isinstance(failure, RequestFailed):
            # The worker could not run the cell, or not report on it. What fails twice in a row is broken.
            if self._failing:
                return await self._replace(channel, answer, limit, submission, seconds, host.waited())
            self._failing = True
            message = cap_text(str(failure), self.environment.max_output)
            done = {"error": {"type": failure.kind, "message": message, "traceback": f"{failure.kind}: {message}"}}
        else:
            self._failing = False
            done = answer.result()
        return self._result(done, submission, host.waited(), interrupted, limit)

    def _result(
        self, done: Any, submission: Submission | None, waited: float, interrupted: bool, limit: float | None
    ) -> CellResult:
        """The cell's result from the worker's answer, which is only trusted to be *some* value."""
        done = done if isinstance(done, dict) else {}
        names = done.get("names")
        if isinstance(names, list):
            self._names = {name for name in names[:10_000] if isinstance(name, str) and len(name) < 1000}
        error = done.get("error")
        if submission is not None:
            cell_error = None
        elif isinstance(error, dict):
            told = "timeout" if interrupted else error.get("kind")
            kind: Kind = "syntax" if told == "syntax" else "timeout" if told == "timeout" else "runtime"
            cell_error = CellError(
                self._text(error.get("type"))[:1000],
                self._text(error.get("message")),
                self._text(error.get("traceback")),
                kind,
            )
            if kind == "timeout":
                cell_error = interrupted_error(cell_error, limit if interrupted else None)
        else:
            cell_error = None
        value = done.get("value")
        self.last_value = done.get("object")
        seconds = done.get("seconds")
        return CellResult(
            stdout=self._text(done.get("stdout")),
            value=self._text(value) if isinstance(value, str) else None,
            error=cell_error,
            submission=submission,
            seconds=seconds if isinstance(seconds, float) else 0.0,
            host_seconds=waited,
            images=_images(done.get("images")),
        )

    def _text(self, value: Any) -> str:
        """Text within the cap; the worker has capped it already, unless code has taken the worker over."""
        return cap_text(value, self.environment.max_output) if isinstance(value, str) else ""

    # ------------------------------------------------------------------------------------------------- loss

    def _lose(self) -> tuple[str, ...]:
        """Forget a worker that is gone; gives the names of the variables that went with it."""
        # What the set-up code makes is there again after a restart.
        lost = tuple(sorted(self._names - (self._channel.made if self._channel is not None else frozenset())))
        if self._finalizer is not None:
            self._finalizer.detach()
        self._channel = None
        self._names = set()
        self._failing = False
        return lost

    async def _drop(self, channel: Channel) -> None:
        """Kill a worker that does not stop; the next request gets a new one."""
        self._lose()
        with contextlib.suppress(asyncio.CancelledError):
            await _close(channel)

    async def _replace(
        self,
        channel: Channel,
        answer: Future[Any],
        limit: float | None,
        submission: Submission | None,
        seconds: float,
        waited: float,
    ) -> CellResult:
        """The worker died, or was interrupted in vain and is killed: a new one, and a result that says what is gone."""
        if answer.done():
            failure = answer.exception()
            failed = f"it fails at every cell: {failure.kind}: " if isinstance(failure, RequestFailed) else ""
            kind, name, why = "runtime", "SandboxDied", failed + cap_text(str(failure), self.environment.max_output)
        else:
            kind, name = "timeout", "TimeoutError"
            why = f"the cell computed for more than {limit:g} seconds and ignored the interrupt, so it was killed"
        lost = self._lose()
        await _close(channel)
        printed = channel.printed
        if submission is None:
            await self.open()
            message = f"{why}. The sandbox was restarted, without the variables it held"
        else:
            # The next request opens another; a start that fails must not cost an answer that is here.
            message = f"{why}. The variables it held are gone"
        return CellResult(
            stdout=printed,
            error=CellError(name, message, f"{name}: {message}", "timeout" if kind == "timeout" else "runtime"),
            submission=submission,
            seconds=seconds,
            host_seconds=waited,
            lost=lost,
        )

    @property
    def partial_output(self) -> str:
        """What the cell that runs, or that was given up, has printed so far."""
        return self._printing.printed if self._printing is not None else ""

    @property
    def partial_submission(self) -> Submission | None:
        """What the cell that runs, or that was given up, has submitted, or None."""
        return self._submissions[0] if self._submissions else None

    def interrupt(self) -> None:
        """Interrupt the cell that is running, if any; from any thread. The cell ends in a ``timeout`` error."""
        channel, number = self._channel, self._running
        if number == 0:
            self._interrupt_next = True
        elif channel is not None and number and channel.pid == os.getpid():
            channel.interrupt(number)


def _images(found: Any) -> tuple[Image, ...]:
    pairs = [item for item in found if type(item) is list and len(item) == 2] if type(found) is list else []
    return tuple(Image(kind[:100], data) for kind, data in pairs if type(kind) is str and type(data) is bytes)


def interrupted_error(error: CellError, limit: float | None) -> CellError:
    """The error of a cell that was interrupted: the code did not raise the KeyboardInterrupt that ends its traceback.

    Args:
        error: As the cell ended.
        limit: The seconds it had, or None if it was interrupted for another reason.
    """
    why = f": it computed for more than {limit:g} seconds" if limit is not None else ""
    message = f"the cell was interrupted{why}"
    frames = error.traceback.rstrip().rpartition("\n")[0]
    last = f"TimeoutError: {message}"
    return CellError("TimeoutError", message, f"{frames}\n{last}" if frames else last, "timeout")


async def _close(channel: Channel, reason: str = "closed") -> None:
    """Close ``channel``; cancelling stops the waiting, not the closing."""
    await asyncio.shield(asyncio.wrap_future(threads.submit(channel.close, reason)))


def _close_if_owner(channel: Channel) -> None:
    if channel.pid == os.getpid():
        threads.submit(channel.close)


async def _settled(answer: Future[Any], seconds: float) -> bool:
    waiter = asyncio.wrap_future(answer)
    waiter.add_done_callback(retrieve)
    await asyncio.wait((waiter,), timeout=seconds)
    return answer.done()


async def _settled_despite_cancelling(answer: Future[Any], seconds: float) -> bool:
    deadline = time.perf_counter() + seconds
    while not answer.done() and (left := deadline - time.perf_counter()) > 0:
        try:
            await _settled(answer, left)
        except asyncio.CancelledError:
            # A second cancellation does not change what has to be cleaned up, only how long it may take.
            deadline = min(deadline, time.perf_counter() + 0.1)
    return answer.done()

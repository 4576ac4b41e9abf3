"""Making a worker that has just started what its environment says: packages, IPython's shell where
cells are its, files, and the set-up code.

It is done where workers are made (`rlm_dspy.environments.pool`), so that a spare is ready, and that a worker which
takes the place of a dead one is as the first was.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any

import dspy

from rlm_dspy.environments import given, packages
from rlm_dspy.environments.cells import cap_text
from rlm_dspy.environments.channel import Call, Channel, ChannelClosed, RequestFailed
from rlm_dspy.environments.program import shell_source
from rlm_dspy.errors import SandboxUnavailableError
from rlm_dspy.redact import redact

if TYPE_CHECKING:
    from rlm_dspy.environments.base import Environment

ANSWER_SECONDS = 60.0
"""Seconds after which a worker that takes nothing and answers nothing is given up."""
_GRACE_SECONDS = 1.0
_SHOWN = 20_000
_ARCHIVE, _UNPACKED = ".packages.zip", ".packages"


def prepare(channel: Channel, environment: Environment) -> None:
    """Bring what ``environment`` gives into a worker. Blocking.

    Raises:
        ConfigurationError: pip cannot install the packages, or the files are too many.
        SandboxUnavailableError: A file cannot be read here or written there, or the set-up code fails.
    """
    try:
        if environment.packages:
            _bring_packages(channel, environment)
        if environment.shell is not None:
            # After the packages, which may hold it.
            _start_shell(channel, environment)
        for source in given.sources(environment.files) if environment.files else ():
            for piece in source.pieces(piece_size(environment)):
                _ask(channel, "write", piece)
        if environment.setup_code:
            _set_up(channel, environment)
    except ChannelClosed as error:
        raise SandboxUnavailableError(
            f"the {environment.name!r} environment ended while it was set up: {error}"
        ) from None
    except RequestFailed as error:
        raise SandboxUnavailableError(
            f"files or packages cannot be put into the {environment.name!r} environment: {error.kind}: {error}"
        ) from None
    except OSError as error:
        raise SandboxUnavailableError(f"files or packages cannot be read: {error}") from error


def piece_size(environment: Environment) -> int:
    """Bytes of a file that cross in one frame."""
    return min(given.PIECE, max(1, environment.max_value // 2))


def _bring_packages(channel: Channel, environment: Environment) -> None:
    folder = packages.install(environment.packages, _ask(channel, "python", {}))
    # Where the sandbox sees the folder, because it was shown to it or sees all of the host, nothing has to be sent.
    if _ask(channel, "import_from", {"folder": str(folder), "mark": packages.MARK}) is True:
        return
    path = packages.archive(folder)
    for piece in given.Source(_ARCHIVE, path, path.stat().st_size).pieces(piece_size(environment)):
        _ask(channel, "write", piece)
    _ask(channel, "unpack", {"name": _ARCHIVE, "folder": _UNPACKED, "mark": packages.MARK})


def _start_shell(channel: Channel, environment: Environment) -> None:
    try:
        channel.request("shell", shell_source()).result(ANSWER_SECONDS)
    except RequestFailed as error:
        raise SandboxUnavailableError(
            f"IPython does not start in the {environment.name!r} environment: {error.kind}: {error}. Install it where "
            "the code runs: pip install 'rlm-dspy[ipython]' for those of this machine, or packages=['ipython']"
        ) from None
    except FutureTimeout:
        raise SandboxUnavailableError(f"IPython did not start within {ANSWER_SECONDS:g} seconds") from None


def _set_up(channel: Channel, environment: Environment) -> None:
    submitted: list[Any] = []

    def refuse(call: Call) -> None:
        channel.reply_error(call, "RuntimeError", "the set-up code cannot call functions of the host")

    number = channel.new_id()
    channel.activate(number, refuse, lambda args, kwargs: submitted.append(args))
    try:
        answer = channel.request("exec", {"code": environment.setup_code, "name": "setup"}, number)
        try:
            limit = environment.timeout
            done = answer.result(None if limit is None else min(limit, threading.TIMEOUT_MAX))
        except FutureTimeout:
            channel.interrupt(number)
            try:
                answer.result(timeout=_GRACE_SECONDS)
            except FutureTimeout:
                pass
            raise failed(environment, f"it computed for more than {environment.timeout:g} seconds") from None
        except ChannelClosed as error:
            raise failed(environment, channel.printed + str(error)) from None
    finally:
        channel.deactivate()
    done = done if isinstance(done, dict) else {}
    found = done.get("error")
    if isinstance(found, dict):
        raise failed(environment, f"{done.get('stdout') or ''}{found.get('traceback')}")
    if submitted:
        raise failed(environment, "it calls SUBMIT, which ends a run")
    names = done.get("names")
    channel.made = (
        frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
    )


def failed(environment: Environment, why: str) -> SandboxUnavailableError:
    """The error of set-up code that failed."""
    why = redact(cap_text(why, _SHOWN))
    return SandboxUnavailableError(f"setup_code of the {environment.name!r} environment failed: {why}")


def _ask(channel: Channel, op: str, body: Any) -> Any:
    """Ask a worker for something that runs no code of others; one that stands still is given up."""
    answer: Future[Any] = channel.request(op, body)
    sent = -1
    while channel.sent != sent:
        sent = channel.sent
        try:
            return answer.result(timeout=ANSWER_SECONDS)
        except FutureTimeout:
            continue
    channel.close("it does not respond")
    raise dspy.CodeInterpreterError("the sandbox does not respond while it is set up")

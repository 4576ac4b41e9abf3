"""``rlm-dspy ui``: MLflow's user interface on what was tracked, and nothing of it left when it ends."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from rlm_dspy.cli import exits, output, traces

_DEFAULTS = {
    # Schedulers and consumers of jobs on the server, which take seven processes: nothing to look at needs them.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
# The leader of the server's group, which ends all of it when this process is gone, however that came about.
_LEADER = """
import os, signal, subprocess, sys, threading
def watch():
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)
signal.signal(signal.SIGTERM, lambda *_: None)
threading.Thread(target=watch, daemon=True).start()
sys.exit(subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL))
"""
_LOOK_SECONDS = 0.2
_END_SECONDS = 10.0


def run(options: argparse.Namespace) -> int:
    """Serve it until Ctrl-C or SIGTERM, which end it and all that it started."""
    from rlm_dspy.errors import RLMError

    try:
        traces.store(options)
    except RLMError as error:
        output.say(str(error))
        return exits.USAGE
    if options.tracking_uri.startswith(("http://", "https://")):
        output.say("this store is a server, which has a user interface of its own:")
        output.answer(options.tracking_uri)
        return exits.SUBMITTED
    if why := _refused(options.host, options.port):
        output.say(f"cannot listen on {options.host}:{options.port}: {why}. Choose another port with --port P")
        return exits.USAGE
    output.say("starting MLflow's user interface, some seconds ...")
    where = ["--backend-store-uri", options.tracking_uri, "--host", options.host, "--port", str(options.port)]
    with _signals():
        server = [sys.executable, "-m", "mlflow", "server", "--workers", "1", *where]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LEADER, *server] if hasattr(os, "killpg") else server,
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={**_DEFAULTS, **os.environ},
        )
        try:
            code = _until_it_ends(process, options)
        except (KeyboardInterrupt, _Ended):
            return exits.SUBMITTED
        finally:
            _end(process)
    output.say("MLflow's server has ended; what it said stands above")
    return exits.ERROR if code else exits.SUBMITTED


def _until_it_ends(process: subprocess.Popen[bytes], options: argparse.Namespace) -> int:
    told = False
    while True:
        try:
            # Never without a limit: a Ctrl-C right before the wait would not be noticed in it.
            return process.wait(1.0 if told else _LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if not told and _answers(options.host, options.port):
                told = True
                host = f"[{options.host}]" if ":" in options.host else options.host
                output.say(f"MLflow's user interface: http://{host}:{options.port} (Ctrl-C ends it)")


def _answers(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1.0):
        return True
    return False


def _refused(host: str, port: int) -> str:
    """Why a server cannot listen there, ``""`` if it can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except (OSError, OverflowError) as error:
        return str(error)
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    if not hasattr(os, "killpg"):
        process.terminate()
        process.wait()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(_END_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _Ended(BaseException):
    """A signal asked this process to end."""


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and a terminal that is closed end the server as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> Any:
        raise _Ended

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""The server of a model: starting it, knowing that it is ready, starting it again, ending it.

One server for each file and set-up in a process, shared by all that ask for it, from any thread. What has to hold:

- *It does not outlive its host*, see child.py. At the host's exit it is ended.
- *A fork of the host* goes on using the parent's server while that answers, and starts its own when it does not.
- *A server that has died* is started again, unless it keeps dying: then the error says what it said last.
- *Nobody else uses it*: it listens on the loopback interface and wants a key that only this process knows.
"""

from __future__ import annotations

import atexit
import collections
import dataclasses
import importlib.util
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from rlm_dspy.errors import ConfigurationError, LocalModelError, MissingExtraError
from rlm_dspy.models import machine
from rlm_dspy.models.child import Child, Inside

START_SECONDS = 300.0
_BROKEN_SECONDS = 1.0
_GONE_SECONDS = 2.0
_DEATHS = 3
_DEATHS_SECONDS = 120.0
# Keys and values of Qwen2.5-1.5B in 16 bits: 28 layers of 2 heads of 128. Models of twice its size need about as much.
_TOKEN_BYTES = 28 << 10
_FIXED_BYTES = 400 << 20
# What is asked for is an estimate; much less than it is certain to fail or to swap.
_MEMORY_LEAST = 0.75


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """How a model is served.

    Attributes:
        context: Tokens of prompt and reply together, for each request.
        threads: Threads that compute; the cores that this process may use if None. On a machine with other work fewer
            are faster, because they wait for each other.
        parallel: Requests that are worked on at once, each with ``context`` of its own; more are queued. Memory for
            the context grows with it.
        prompt_cache: Reuse what was computed for the beginning of an earlier prompt. Without it the same prompt gives
            the same reply whatever was asked before (at temperature 0), and conversations cost more with each turn.
        serve: ``"process"``: a process of its own. ``"inprocess"``: threads of this process, which a crash of the
            model's code ends with them.
        port: The port; chosen by the system if 0.
        key: Whether requests need a key that is made up for this server.
        check_memory: Refuse to start where far less memory is free than the model needs.
    """

    context: int = 16_384
    threads: int | None = None
    parallel: int = 1
    prompt_cache: bool = True
    serve: Literal["process", "inprocess"] = "process"
    port: int = 0
    key: bool = True
    check_memory: bool = True

    def __post_init__(self) -> None:
        for name, least in (("context", 256), ("parallel", 1), ("threads", 1), ("port", 0)):
            value = getattr(self, name)
            if value is None and name == "threads":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigurationError(f"{name} is a whole number of at least {least}, not {value!r}")
        if self.serve not in ("process", "inprocess"):
            raise ConfigurationError(f"serve is 'process' or 'inprocess', not {self.serve!r}")


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a server answers: ``url`` with ``/v1`` is what OpenAI's clients call the base URL; ``key`` goes with it."""

    url: str
    key: str


class ModelServer:
    """One model, served on the loopback interface. Made by `shared`, or for itself.

    Args:
        path: The GGUF file.
        name: How requests and replies name the model.
        options: How.
    """

    def __init__(self, path: Path, name: str, options: ServerOptions) -> None:
        self.path, self.name, self.options = Path(path), name, options
        self._address: Address | None = None
        self._running: Child | Inside | None = None
        self._deaths: collections.deque[tuple[float, str]] = collections.deque(maxlen=_DEATHS)
        self._lock = threading.Lock()
        _servers.append(self)

    @property
    def pid(self) -> int | None:
        """The process that serves; None if there is none."""
        running = self._running
        return running.pid if running is not None and running.why_dead() is None else None

    @property
    def alive(self) -> bool:
        """Whether a server that this process started runs."""
        running = self._running
        return running is not None and running.why_dead() is None

    def ensure(self) -> Address:
        """The address of the running server, which is started if there is none. This takes seconds then.

        Raises:
            MissingExtraError: The extra ``local`` is not installed.
            LocalModelError: It cannot be started, or has died again and again; the message holds its last words.
        """
        address, running = self._address, self._running
        if address is not None and running is not None and running.why_dead() is None:
            return address
        with self._lock:
            if self._address is not None:
                if self._running is None:
                    # The parent's, in a fork of it.
                    if _answers(self._address.url):
                        return self._address
                else:
                    why = self._running.why_dead()
                    if why is None:
                        return self._address
                    self._mourn(why)
                self._address = None
            return self._start()

    def stop(self) -> None:
        """End the server, if it is this process' own; the next `ensure` starts another."""
        with self._lock:
            running, self._running, self._address = self._running, None, None
            if running is not None:
                running.stop()

    def gone(self, broken: bool = False) -> bool:
        """Whether the server at the last address is there no more; asked when a request has failed.

        Args:
            broken: The connection broke. A process that is being killed may still answer for a moment.
        """
        address, running = self._address, self._running
        watched = time.monotonic() + (_BROKEN_SECONDS if broken else 0.0)
        while running is not None and running.why_dead() is None and time.monotonic() < watched:
            time.sleep(0.02)
        deadline = time.monotonic() + _GONE_SECONDS
        while address is not None and not _answers(address.url):
            # A process that ends closes its sockets first; that it has ended shows a moment later.
            if running is None or running.why_dead() is not None:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return address is None or (running is not None and running.why_dead() is not None)

    def why_dead(self) -> str | None:
        """What became of the server that this process started; None while it runs, or if there was none."""
        running = self._running
        return None if running is None else running.why_dead()

    def _start(self) -> Address:
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingExtraError("a local model", "local")
        if not self.path.is_file():
            raise LocalModelError(f"the model's file {self.path} is gone; fetch it with: rlm-dspy model pull")
        options = self.options
        if options.check_memory:
            _check_memory(self.path, options)
        if options.port and not _free(options.port):
            raise LocalModelError(f"port {options.port} is taken; choose another, or none for the system's choice")
        key = secrets.token_urlsafe(24) if options.key else ""
        setup = {
            "path": str(self.path),
            "name": self.name,
            "context": options.context,
            "threads": options.threads or machine.usable_cores(),
            "parallel": options.parallel,
            "prompt_cache": options.prompt_cache,
            "key": key,
            "port": options.port,
        }
        running: Child | Inside = Child(setup) if options.serve == "process" else Inside(setup)
        try:
            url = running.ready(START_SECONDS)
        except BaseException:
            # Ctrl-C while it loads, too.
            running.stop()
            raise
        self._running, self._address = running, Address(url, key or "none")
        return self._address

    def _mourn(self, why: str) -> None:
        now = time.monotonic()
        self._deaths.append((now, why))
        self._running = None
        if len(self._deaths) == _DEATHS and now - self._deaths[0][0] < _DEATHS_SECONDS:
            self._address = None
            self._deaths.clear()
            raise LocalModelError(f"the server of {self.name} keeps dying: {why}")

    def _forked(self) -> None:
        """In a forked child: the server is the parent's; only its address is of use."""
        self._lock = threading.Lock()
        running, self._running = self._running, None
        if running is not None:
            running.forget()


def _check_memory(path: Path, options: ServerOptions) -> None:
    size = path.stat().st_size
    needed = int(size * 1.25) + options.context * options.parallel * _TOKEN_BYTES + min(_FIXED_BYTES, 4 * size)
    free = machine.available_memory()
    if free is not None and free < needed * _MEMORY_LEAST:
        raise LocalModelError(
            f"{path.name} with a context of {options.context:,} tokens needs about {needed / 1e9:.1f} GB of memory, "
            f"and {free / 1e9:.1f} GB are free. Free some, or take a smaller context= or a smaller model; "
            "check_memory=False tries it all the same"
        )


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _answers(url: str) -> bool:
    place = urlsplit(url)
    try:
        socket.create_connection((place.hostname or "127.0.0.1", place.port or 80), timeout=1.0).close()
    except OSError:
        return False
    return True


def shared(path: Path, name: str, options: ServerOptions) -> ModelServer:
    """The server of this file and set-up in this process; not started by this."""
    key = (os.path.realpath(path), name, options)
    with _shared_lock:
        if key not in _shared:
            _shared[key] = ModelServer(path, name, options)
        return _shared[key]


def stop_all() -> None:
    """End all servers of this process. They start again when they are needed."""
    for server in list(_servers):
        server.stop()


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for server in _servers:
        server._forked()


_servers: list[ModelServer] = []
_shared: dict[tuple[str, str, ServerOptions], ModelServer] = {}
_shared_lock = threading.Lock()
atexit.register(stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

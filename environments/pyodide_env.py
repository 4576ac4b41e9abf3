"""The ``pyodide`` environment: DSPy's own ``PythonInterpreter``, which runs Python as WebAssembly in Deno.

It is the sandbox of ``dspy.RLM``, here behind the name of an environment. What it cannot do stays so: no threads, no
child processes, no packages with C code of their own, values cross as JSON, and past a time limit it is ended and
replaced, its variables gone.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from typing import Any, Unpack

import dspy

from rlm_dspy.environments.base import BaseOptions, Bound, Description, Environment, Transport
from rlm_dspy.errors import ConfigurationError, MissingExtraError, SandboxUnavailableError


class Pyodide(Environment):
    """CPython as WebAssembly, in Deno, without permissions. Started in seconds; the first time Deno fetches Pyodide.

    Args:
        enable_read_paths: Files and folders that code finds under their last name; unlike the others' ``files=``.
        enable_write_paths: Likewise, and what it changes there is written back.
        enable_env_vars: Environment variables that it sees.
        enable_network_access: Domains that it reaches.
        deno_command: How Deno is started, as ``dspy.PythonInterpreter`` takes it.
        **base: As for every environment, without ``packages`` and ``files``.

    Raises:
        ConfigurationError: ``packages`` or ``files`` are given.
        MissingExtraError: There is no Deno.
    """

    name = "pyodide"
    keeps_spares = False
    execution_instructions = (
        "Code runs as CPython compiled to WebAssembly, without network and the host's files. No threads, no child "
        "processes; of packages the standard library. Functions of the host take keyword arguments only."
    )

    def __init__(
        self,
        *,
        enable_read_paths: Sequence[str | os.PathLike[str]] = (),
        enable_write_paths: Sequence[str | os.PathLike[str]] = (),
        enable_env_vars: Sequence[str] = (),
        enable_network_access: Sequence[str] = (),
        deno_command: Sequence[str] | None = None,
        **base: Unpack[BaseOptions],
    ) -> None:
        super().__init__(**base)
        for option, instead in (("packages", "it has none but the standard library"), ("files", "enable_read_paths=")):
            if getattr(self, option):
                raise ConfigurationError(f"the pyodide environment takes no {option}: {instead}")
        self.enable_read_paths = tuple(os.fspath(path) for path in enable_read_paths)
        self.enable_write_paths = tuple(os.fspath(path) for path in enable_write_paths)
        self.enable_env_vars = tuple(enable_env_vars)
        self.enable_network_access = tuple(enable_network_access)
        self.deno_command = None if deno_command is None else tuple(deno_command)
        if deno_command is None and importlib.util.find_spec("deno") is None and shutil.which("deno") is None:
            raise MissingExtraError("the pyodide environment", "pyodide")

    def open(self) -> Transport:
        """There is no stream to this environment; its interpreters come from calling it."""
        raise SandboxUnavailableError("the pyodide environment has no worker; call it to get an interpreter")

    def describe(self) -> Description:
        """What Deno and WebAssembly confine, and what the options have opened."""

        def bound(opened: Any, how: str) -> Bound:
            return Bound("not bounded", "opened by an option") if opened else Bound("bounded", how)

        return Description(
            environment=self.name,
            layers=("deno", "pyodide"),
            files=bound(self.enable_write_paths, "Deno without permissions: a file system in memory"),
            network=bound(self.enable_network_access, "Deno without permissions"),
            secrets=bound(self.enable_env_vars, "Deno without permissions"),
            memory=Bound("per process only", "WebAssembly: 4 GiB"),
            processes=Bound("bounded", "WebAssembly starts none"),
            disk=bound(self.enable_write_paths, "a file system in memory"),
            time=Bound("bounded", "ended and replaced") if self.timeout else Bound("not bounded"),
        )

    def __call__(self) -> Any:
        """A fresh ``dspy.PythonInterpreter``; the RLM makes a session of it."""
        return _Interpreter(
            self.setup_code,
            deno_command=None if self.deno_command is None else list(self.deno_command),
            enable_read_paths=list(self.enable_read_paths),
            enable_write_paths=list(self.enable_write_paths),
            enable_env_vars=list(self.enable_env_vars),
            enable_network_access=list(self.enable_network_access),
        )


class _Interpreter(dspy.PythonInterpreter):
    """DSPy's interpreter, which runs the set-up code when it starts."""

    def __init__(self, setup_code: str | None, **options: Any) -> None:
        super().__init__(**options)
        self._setup_code = setup_code
        self._set_up = False

    def start(self) -> None:
        """Start Deno and Pyodide; the set-up code runs once."""
        super().start()
        if self._setup_code and not self._set_up:
            self._set_up = True
            try:
                self.execute(self._setup_code)
            except Exception as error:
                raise SandboxUnavailableError(f"setup_code of the 'pyodide' environment failed: {error}") from error

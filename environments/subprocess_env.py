"""The ``subprocess`` environment: a process of its own, not confined, by explicit choice.

The code runs with the user's full authority: files, network, processes. What it has is separation: its own memory,
its own lifetime, a time limit, capped output, and an environment without the host's variables.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Unpack

from rlm_dspy.environments.base import BaseOptions, Bound, Description, Environment, Transport
from rlm_dspy.environments.program import BOOTSTRAP
from rlm_dspy.environments.spawn import spawn


class Subprocess(Environment):
    """Python in a plain child process. Not a sandbox.

    Args:
        env: Environment variables of the child, on top of PATH, LANG and a HOME that is a scratch directory.
        inherit_env: Pass the host's whole environment on, secrets included.
        python: The interpreter to run; the host's own by default.
        **base: As for every environment, see `Environment`.
    """

    name = "subprocess"
    starts_here = True
    execution_instructions = (
        "Code runs as CPython in a process of its own. State, imports and functions persist between cells; threads, "
        "child processes and top-level await work. input() does not."
    )

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        inherit_env: bool = False,
        python: str | None = None,
        **base: Unpack[BaseOptions],
    ) -> None:
        super().__init__(**base)
        self.env = dict(env) if env is not None else None
        self.inherit_env = inherit_env
        self.python = python

    def open(self) -> Transport:
        """Start the process in a fresh scratch directory."""
        scratch = tempfile.mkdtemp(prefix="rlm-dspy-")
        python = self.python or sys.executable
        return spawn(
            [python, "-I", "-u", "-c", BOOTSTRAP],
            env=self.variables(scratch),
            cwd=scratch,
            scratch=scratch,
            same_python=self.python is None,
        )

    def variables(self, scratch: str) -> dict[str, str]:
        """The environment variables of a child whose scratch directory is ``scratch``."""
        env = dict(os.environ) if self.inherit_env else {}
        if not self.inherit_env:
            env["PATH"] = os.environ.get("PATH", os.defpath)
            env["LANG"] = "C.UTF-8"
            env["HOME"] = env["TMPDIR"] = scratch
        env.update(self.env or {})
        return env

    def describe(self) -> Description:
        """Nothing but time and the caller's variables is kept apart."""
        secrets = "inherited by choice" if self.inherit_env else "the environment is not passed on, files are readable"
        return Description(
            environment=self.name,
            layers=("process",),
            time=Bound("bounded" if self.timeout else "not bounded", "interrupt, then kill" if self.timeout else ""),
            secrets=Bound("not bounded", secrets),
            missing=("confinement: the subprocess environment has none, by choice",),
        )

"""Where code runs.

    from rlm_dspy import environments

    environments.local(memory="2GiB")       # the default: a confined process of this Python
    environments.subprocess()               # a process of its own, not confined: for trusted code
    environments.inprocess()                # exec in this process: for trusted code and tests
    environments.docker(image="...")        # a hardened container of a Docker engine
    environments.e2b(template="base")       # a microVM at E2B; likewise prime(), modal(), daytona()
    environments.ipython(within="local")     # IPython's cells in any of the others
    environments.get("local", timeout=30)   # by name; `names` lists them

An `Environment` is a description of a place: cheap, immutable, comparable. Called, it gives an interpreter that fits
``dspy.CodeInterpreter``, so that each one is also an ``interpreter_factory`` for DSPy's own modules.

The rooms of this folder:

    base.py            the contracts: Environment, Transport, Session
    local.py           the default environment: the choice of a layer, and what it bounds
    layers.py          starting a process under a layer; bubblewrap.py and landlock.py are what they are made of
    confine.py         what the confined Python does to itself first; prelude.py sends it; seccomp.py is the filter
    layout.py          which files this Python needs; users.py, sizes.py, scratch.py: ids, sizes, folders
    subprocess_env.py  a process of its own, not confined
    inprocess.py       exec in this process
    docker_env.py      a container; docker_engine.py finds the engine, docker_images.py pulls and builds,
                       docker_container.py starts one, docker_stream.py is the stream to it, docker_program.py what
                       runs there first, docker_describe.py what it confines, docker_reaper.py removes what dead
                       hosts left
    ipython_env.py     IPython's cells, in any environment; ipython_shell.py runs them; kernel.py a Jupyter kernel
    pyodide_env.py     dspy.PythonInterpreter: Python as WebAssembly, in Deno
    cloud.py           what environments at a provider share: e2b.py, prime.py, modal.py, daytona.py
    remote.py          a sandbox there as a stream; loops.py drives SDKs that are asynchronous only; _compat.py
    foreign.py         any other dspy.CodeInterpreter behind our interface
    transports.py      what transports share; spawn.py processes that never outlive their host
    pool.py            warm spares; sessions.py how many there are at once
    worker.py          the program in the sandbox; cells.py runs the code, capture.py takes what it prints;
                       program.py sends them
    given.py           what an environment gives its sessions, checked; prepare.py brings it into a worker;
                       packages.py fetches packages; place.py is the worker's end; transfer.py moves files
    wire.py            frames; codec.py, scalars.py, arrays.py, records.py: values in them
    armour.py          frames on a stream that carries text only
    channel.py         the host's end of the stream; session.py a session on it; host_tasks.py the calls it serves;
                       interpreter.py its DSPy face
    registry.py        environments by name
    conformance.py     the checks that every environment passes, in conformance_python.py, conformance_host.py,
                       conformance_life.py, conformance_files.py, conformance_bounds.py; conformance_base.py
"""

from __future__ import annotations

if __name__ != "rlm_dspy.environments":
    raise ImportError(
        "this folder is the package rlm_dspy.environments and cannot be imported as "
        f"{__name__!r}: install the project first (pip install -e .) and import rlm_dspy.environments"
    )

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlm_dspy.environments.base import (
        BaseOptions,
        Bound,
        CellError,
        CellResult,
        Description,
        Environment,
        HostFunction,
        Image,
        Session,
        Submission,
        Transport,
    )
    from rlm_dspy.environments.daytona import Daytona
    from rlm_dspy.environments.docker_env import Docker
    from rlm_dspy.environments.e2b import E2B
    from rlm_dspy.environments.inprocess import InProcess
    from rlm_dspy.environments.interpreter import Interpreter
    from rlm_dspy.environments.ipython_env import IPython
    from rlm_dspy.environments.local import Local
    from rlm_dspy.environments.modal import Modal
    from rlm_dspy.environments.pool import warm
    from rlm_dspy.environments.prime import Prime
    from rlm_dspy.environments.program import BOOTSTRAP
    from rlm_dspy.environments.pyodide_env import Pyodide
    from rlm_dspy.environments.registry import from_options, get, names
    from rlm_dspy.environments.subprocess_env import Subprocess

    local, subprocess, inprocess, ipython, pyodide = Local, Subprocess, InProcess, IPython, Pyodide
    docker, e2b, prime, modal, daytona = Docker, E2B, Prime, Modal, Daytona

_WHERE = {
    "BOOTSTRAP": "program",
    "BaseOptions": "base",
    "Bound": "base",
    "CellError": "base",
    "CellResult": "base",
    "Daytona": "daytona",
    "Description": "base",
    "E2B": "e2b",
    "Environment": "base",
    "HostFunction": "base",
    "IPython": "ipython_env",
    "Image": "base",
    "Session": "base",
    "Submission": "base",
    "Transport": "base",
    "Docker": "docker_env",
    "InProcess": "inprocess",
    "Interpreter": "interpreter",
    "Local": "local",
    "Modal": "modal",
    "Pyodide": "pyodide_env",
    "Prime": "prime",
    "Subprocess": "subprocess_env",
    "from_options": "registry",
    "get": "registry",
    "names": "registry",
    "warm": "pool",
}

_PLACES = {
    "local": "Local",
    "subprocess": "Subprocess",
    "inprocess": "InProcess",
    "ipython": "IPython",
    "pyodide": "Pyodide",
    "docker": "Docker",
    "e2b": "E2B",
    "prime": "Prime",
    "modal": "Modal",
    "daytona": "Daytona",
}
"""The classes by the names of their environments, so that ``environments.local(...)`` has the options of `Local`."""

__all__ = [
    "BOOTSTRAP",
    "BaseOptions",
    "Bound",
    "CellError",
    "CellResult",
    "Daytona",
    "Description",
    "Docker",
    "E2B",
    "Environment",
    "HostFunction",
    "IPython",
    "Image",
    "InProcess",
    "Interpreter",
    "Local",
    "Modal",
    "Pyodide",
    "Prime",
    "Session",
    "Submission",
    "Subprocess",
    "Transport",
    "docker",
    "daytona",
    "e2b",
    "from_options",
    "get",
    "inprocess",
    "ipython",
    "local",
    "modal",
    "names",
    "pyodide",
    "prime",
    "subprocess",
    "warm",
]


class _Room(types.ModuleType):
    """Keeps the environments' names where importing a module of the same name would put that module in their place.

    ``from rlm_dspy.environments.local import Local`` works as ever: it does not look at this attribute.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PLACES and isinstance(value, types.ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Room


def __getattr__(name: str) -> Any:
    attribute = _PLACES.get(name, name)
    if attribute in _WHERE:
        value = getattr(importlib.import_module(f"rlm_dspy.environments.{_WHERE[attribute]}"), attribute)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def places() -> dict[str, str]:
    """The built-in environments: name to module and class, as an entry point has them."""
    return {name: f"rlm_dspy.environments.{_WHERE[made]}:{made}" for name, made in _PLACES.items()}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""A Jupyter kernel as the place of a worker: any Python that has a kernelspec, with ipykernel's shell.

The kernel is started as all processes are (`rlm_dspy.environments.spawn`), on Unix sockets in its scratch folder, so
nothing listens on a port. One request, made over Jupyter's protocol, hands its main thread to the worker, which
speaks on the pipes that the kernel was started with. From there on time limits, interrupts and values are the worker's.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile

from rlm_dspy.environments.base import Transport
from rlm_dspy.environments.program import BOOTSTRAP
from rlm_dspy.environments.scratch import remove_tree
from rlm_dspy.environments.spawn import spawn
from rlm_dspy.environments.subprocess_env import Subprocess
from rlm_dspy.errors import ConfigurationError, MissingExtraError, SandboxUnavailableError

START_SECONDS = 60.0
"""Seconds that a kernel may take until it answers."""

# ipykernel puts descriptors 1 and 2 away for its own; the copies stay.
_START = """\
import os, runpy, sys
os.environ["RLM_DSPY_STREAM"] = "%d,%d" % (os.dup(0), os.dup(1))
null = os.open(os.devnull, os.O_RDWR)
os.dup2(null, 0)
os.dup2(2, 1)
sys.argv[0] = "ipykernel_launcher"
runpy.run_module("ipykernel_launcher", run_name="__main__")
"""
# The kernel's loop runs in this thread and waits for this very request: cells shall not see it, or asyncio.run fails.
_HAND_OVER = f"""\
import asyncio, os
asyncio._set_running_loop(None)
for n, fd in enumerate(os.environ.pop("RLM_DSPY_STREAM").split(",")):
    os.dup2(int(fd), n)
    os.close(int(fd))
exec({BOOTSTRAP!r}, {{}})
"""


def open_kernel(name: str, place: Subprocess) -> Transport:
    """Start the kernel ``name`` and return the stream to a Python in it that reads its program.

    Args:
        name: As ``jupyter kernelspec list`` has it.
        place: Whose environment variables the kernel gets.

    Raises:
        MissingExtraError: There is no jupyter_client here.
        ConfigurationError: There is no such kernel, or it is not ipykernel's.
        SandboxUnavailableError: It does not start.
    """
    if importlib.util.find_spec("jupyter_client") is None:
        raise MissingExtraError('shell="kernel"', "ipython")
    from jupyter_client.blocking.client import BlockingKernelClient
    from jupyter_client.connect import write_connection_file

    python, env = _kernel(name)
    scratch = tempfile.mkdtemp(prefix="rlm-dspy-")
    try:
        file = os.path.join(scratch, "kernel.json")
        write_connection_file(file, ip=os.path.join(scratch, "k"), transport="ipc")
    except BaseException:
        remove_tree(scratch)
        raise
    transport = spawn(
        [python, "-u", "-c", _START, "-f", file],
        env={**place.variables(scratch), "IPYTHONDIR": os.path.join(scratch, "ipython"), **env},
        cwd=scratch,
        scratch=scratch,
        same_python=os.path.realpath(python) == os.path.realpath(sys.executable),
    )
    client = BlockingKernelClient(connection_file=file)
    try:
        client.load_connection_file()
        client.start_channels(stdin=False, hb=False)
        try:
            client.wait_for_ready(timeout=START_SECONDS)
        except RuntimeError as error:
            why = f"{error}; {transport.reason()}"
            raise SandboxUnavailableError(f"the kernel {name!r} does not answer: {why}") from None
        client.execute(_HAND_OVER, silent=True, store_history=False)
    except BaseException:
        transport.close()
        raise
    finally:
        client.stop_channels()
    return transport


def _kernel(name: str) -> tuple[str, dict[str, str]]:
    """The Python of a kernel and the variables that its specification sets."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    manager = KernelSpecManager()
    try:
        spec = manager.get_kernel_spec(name)
    except NoSuchKernel:
        known = ", ".join(sorted(manager.find_kernel_specs())) or "none"
        raise ConfigurationError(
            f"there is no kernel {name!r}; those of this machine are: {known}. A Python becomes one by: "
            f"python -m ipykernel install --user --name {name}"
        ) from None
    if not any("ipykernel" in part for part in spec.argv):
        raise ConfigurationError(f"the kernel {name!r} is not a Python one: {' '.join(spec.argv)}")
    python = spec.argv[0]
    # The kernel that jupyter_client itself brings names no path.
    return (sys.executable if python in ("python", "python3") else python), dict(spec.env)

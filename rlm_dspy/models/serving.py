"""The program of the server's process: llama.cpp's own OpenAI-compatible server on the loopback interface.

It is run by its path, needs only the standard library and ``xllamacpp``, reads its set-up as one line of JSON from
standard input (a command line could be read by others, and there is a key in it), says its address in one line on
standard error, and ends when standard input does, or when its parent goes.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

READY = "rlm-dspy-ready"
_PR_SET_PDEATHSIG = 1
_HOST_CACHE_MIB = 512


def start(setup: dict[str, Any]) -> Any:
    """The running ``xllamacpp.Server``; the model is loaded when this returns.

    Args:
        setup: ``path``, ``name``, ``context``, ``threads``, ``parallel``, ``prompt_cache``, ``key`` or None, ``port``
            (0: the system's choice).

    Raises:
        RuntimeError: The file is no model, or the port is taken; why is on standard error.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = setup["path"]
    params.model_alias = {setup["name"]}
    # The context is cut into equal slots.
    params.n_ctx = setup["context"] * setup["parallel"]
    params.n_parallel = setup["parallel"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = setup["threads"]
    params.hostnames = ["127.0.0.1"]
    params.port = setup["port"]
    if setup["key"]:
        params.api_keys = [setup["key"]]
    # Other origins: a web page in a browser on this machine has no business here.
    params.cors_origins, params.cors_origins_explicit = "http://127.0.0.1", True
    params.ui = False
    params.endpoint_slots = False
    params.use_jinja = True
    params.offline = True
    params.warmup = True
    params.sampling.seed = 0
    # What earlier prompts have left is kept here for prompts that begin alike; the default would be 8 GiB.
    params.cache_ram_mib = _HOST_CACHE_MIB if setup["prompt_cache"] else 0
    params.cache_prompt = setup["prompt_cache"]
    # Warnings and errors.
    params.verbosity = 2
    return xllamacpp.Server(params)


def main() -> None:
    """Serve until standard input ends."""
    setup = json.loads(sys.stdin.buffer.readline())
    _die_with_parent(setup["parent"])
    server = start(setup)
    print(READY, setup["token"], server.listening_address, file=sys.stderr, flush=True)
    while os.read(0, 1 << 16):
        pass
    # Not by the way of destructors: nothing here needs to be saved.
    os._exit(0)


def _die_with_parent(parent: int) -> None:
    """Be killed when the parent's thread that started this process ends (prctl(2)); Linux alone has it."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    main()

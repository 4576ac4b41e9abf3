"""A language model on this machine: no key, no account, and after one download no network.

    import dspy, rlm_dspy

    dspy.configure(lm=rlm_dspy.models.local_lm())

It needs the extra ``local`` (llama.cpp as a prebuilt wheel, and the client of the model hub). The modules, in the order
of the way from a name to an answer:

    catalog.py    the models that are known by name, and how any other GGUF file is named
    store.py      the cache folder: what is there, what was verified, who is writing
    partial.py    a file that is not whole yet, and which bytes of it are there
    job.py        one download under way, as the sources of bytes see it
    hub.py        bytes from the model hub, resumed where they broke off
    packages.py   the same bytes out of package parts, which are read and never installed
    progress.py   what is shown meanwhile
    fetch.py      the whole way: sources in order, disk, hash
    machine.py    processors and memory that this process may use
    serving.py    the program of the server's process
    child.py      that process, or the same in threads of this one
    server.py     one server for all who want the same: started, started again when it has died, ended
    lm.py         `local_lm`, the ``dspy.LM`` in front of it
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlm_dspy.models.catalog import CATALOG, LocalModel, resolve
    from rlm_dspy.models.fetch import pull
    from rlm_dspy.models.lm import LocalLM, local_lm
    from rlm_dspy.models.server import ServerOptions

_HOMES = {
    "CATALOG": "catalog",
    "LocalModel": "catalog",
    "resolve": "catalog",
    "pull": "fetch",
    "LocalLM": "lm",
    "local_lm": "lm",
    "ServerOptions": "server",
}

__all__ = ["CATALOG", "LocalLM", "LocalModel", "ServerOptions", "local_lm", "pull", "resolve"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rlm_dspy.models.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""The worker as one program to send, and the line of Python that receives it.

``python -I -u -c BOOTSTRAP`` reads its program from descriptor 0: one byte for the kind (``m`` marshalled code, ``s``
source text), twelve ASCII digits for the length, and the program. The stream goes on as the worker's channel.
"""

from __future__ import annotations

import functools
import marshal
from importlib.resources import files

BOOTSTRAP = (
    "import os\n"
    "def r(n):\n"
    " b=b''\n"
    " while len(b)<n:\n"
    "  p=os.read(0,min(n-len(b),65536))\n"
    "  if not p:os._exit(0)\n"
    "  b+=p\n"
    " return b\n"
    "k=r(1);p=r(int(r(12)))\n"
    "if k==b'm':\n"
    " import marshal;c,parts=marshal.loads(p)\n"
    "else:\n"
    " c=compile(p,'<rlm>','exec');parts=None\n"
    "exec(c,{'__name__':'_rlm','parts':parts})\n"
)
"""What ``python -c`` runs in an environment; ASCII, Python 3.8."""

# Executed in the environment: every part becomes a module, then the worker starts. It never returns. Each module has a
# copy of the builtins, so that code which deletes or replaces one cannot break the worker.
_LOADER = """
import builtins, sys
for name, code in parts:
    module = type(sys)("_rlm_" + name)
    module.__dict__["__builtins__"] = dict(vars(builtins))
    sys.modules["_rlm_" + name] = module
    if type(code) is str:
        code = compile(code, "<rlm " + name + ">", "exec")
    exec(code, module.__dict__)
del parts, module, code
sys.modules["_rlm_worker"].main()
"""

_PARTS = ("wire", "records", "scalars", "arrays", "codec", "cells", "place", "worker")


def _sources() -> list[tuple[str, str]]:
    room = files("rlm_dspy.environments")
    return [(name, room.joinpath(f"{name}.py").read_text(encoding="utf-8")) for name in _PARTS]


@functools.cache
def worker_program(same_python: bool) -> bytes:
    """The bytes to send to a Python that runs `BOOTSTRAP`.

    Args:
        same_python: The receiving Python is of this very version, so compiled code may be sent: it starts faster.
    """
    if same_python:
        parts = [(name, compile(source, f"<rlm {name}>", "exec", dont_inherit=True)) for name, source in _sources()]
        kind, payload = b"m", marshal.dumps((compile(_LOADER, "<rlm>", "exec", dont_inherit=True), parts))
    else:
        kind, payload = b"s", f"parts = {_sources()!a}\n{_LOADER}".encode("ascii")
    return kind + b"%012d" % len(payload) + payload

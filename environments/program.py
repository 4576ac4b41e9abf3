"""The worker as one program to send, and the line of Python that receives it.

``python -I -u -c BOOTSTRAP`` reads its program from descriptor 0: one byte for the kind (``m`` marshalled code, ``s``
source text, ``z`` source text compressed and in base64), twelve ASCII digits for the length, and the program. The
stream goes on as the worker's channel.
"""

from __future__ import annotations

import base64
import functools
import marshal
import zlib
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
    " if k==b'z':\n"
    "  import base64,zlib;p=zlib.decompress(base64.b64decode(p))\n"
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
sys.modules["_rlm_worker"].main(%r)
"""

_PARTS = ("wire", "records", "scalars", "arrays", "codec", "cells", "capture", "place", "worker")


def _sources(text: bool) -> list[tuple[str, str]]:
    room = files("rlm_dspy.environments")
    parts = (_PARTS[0], "armour", *_PARTS[1:]) if text else _PARTS
    return [(name, room.joinpath(f"{name}.py").read_text(encoding="utf-8")) for name in parts]


@functools.cache
def shell_source() -> str:
    """The source of `rlm_dspy.environments.ipython_shell`, for a worker whose cells are to be IPython's."""
    return files("rlm_dspy.environments").joinpath("ipython_shell.py").read_text(encoding="utf-8")


@functools.cache
def worker_program(same_python: bool, text: bool = False) -> bytes:
    """The bytes to send to a Python that runs `BOOTSTRAP`.

    Args:
        same_python: The receiving Python is of this very version, so compiled code may be sent: it starts faster.
        text: The stream carries text only, both ways; the program is a line of ASCII then.
    """
    loader, sources = _LOADER % text, _sources(text)
    if text:
        packed = zlib.compress(f"parts = {sources!a}\n{loader}".encode("ascii"), 9)
        kind, payload = b"z", base64.b64encode(packed)
    elif same_python:
        parts = [(name, compile(source, f"<rlm {name}>", "exec", dont_inherit=True)) for name, source in sources]
        kind, payload = b"m", marshal.dumps((compile(loader, "<rlm>", "exec", dont_inherit=True), parts))
    else:
        kind, payload = b"s", f"parts = {sources!a}\n{loader}".encode("ascii")
    return kind + b"%012d" % len(payload) + payload + (b"\n" if text else b"")

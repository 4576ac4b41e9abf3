"""What the Python of a container does before the worker's bootstrap: confine itself, and look after orphans.

*The filter.* An engine's own filter of system calls leaves calls open that ``local`` refuses, and depends on the
engine's age: some let a container open a socket to the machine's hypervisor (``AF_VSOCK``), which no network namespace
holds back. The filter of `rlm_dspy.environments.seccomp` on top of it makes code see the same refusals in both places.
It is installed with prctl(2), for which ``no-new-privileges`` suffices.

*Process 1* inherits every process whose parent has ended, and those that nobody waits for count as processes for ever.
So it waits for them, and the worker is its child. An engine's own init would run without the filter, as the same user
as the code, which could write to its memory and act in its place.
"""

from __future__ import annotations

import base64
from functools import cache

from rlm_dspy.environments import seccomp
from rlm_dspy.environments.program import BOOTSTRAP

# Both in Python 3.8. PR_SET_NO_NEW_PRIVS is 38, PR_SET_SECCOMP 22, SECCOMP_MODE_FILTER 2.
_FILTER = """\
import base64,ctypes,struct
def f(p):
 c=ctypes.CDLL(None,use_errno=True).prctl;n=ctypes.c_ulong;b=ctypes.create_string_buffer(p,len(p))
 h=ctypes.create_string_buffer(struct.pack('@HP',len(p)//8,ctypes.addressof(b)))
 if c(38,n(1),n(0),n(0),n(0))or c(22,n(2),h,n(0),n(0)):
  raise OSError(ctypes.get_errno(),'the system-call filter is refused here; the option filter=False goes without it')
f(base64.b64decode('%s'))
del f,base64,ctypes,struct
"""
# Without the worker's streams, or the end of none would ever be seen.
_FIRST = """\
import os,signal
if os.getpid()==1:
 p=os.fork()
 if p:
  signal.signal(2,signal.SIG_IGN)
  for d in(0,1,2):os.close(d)
  while 1:
   w,s=os.wait()
   if w==p:os._exit(128+(s&127) if s&127 else s>>8)
 os.setsid();del p
del os,signal
"""


@cache
def program(machine: str | None) -> str:
    """The text for ``python -c`` in a container.

    Args:
        machine: Of the image, as ``platform.machine()`` calls it, for the filter; None for no filter.
    """
    text = _FIRST + BOOTSTRAP
    if machine is None:
        return text
    return _FILTER % base64.b64encode(seccomp.program(machine=machine)).decode("ascii") + text

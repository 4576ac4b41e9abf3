"""The system-call filter of the local environment, as classic BPF built with ``struct`` alone.

A deny list: ordinary programs, numpy and child processes run as they are; what reaches another process, the kernel's
configuration, a new namespace or the network is refused. Refused calls return an error instead of killing, so that
the code sees a ``PermissionError`` and goes on. Sources: seccomp(2), the kernel's Documentation/userspace-api/
seccomp_filter.rst and linux/bpf_common.h; numbers from the kernel's syscall tables.

Three points that are easy to miss:

- ``clone3`` passes its flags in memory, where a filter cannot look. It answers ENOSYS; libc then uses ``clone``.
- ``socketpair`` stays, since asyncio needs it, for connected UNIX sockets only: a *datagram* pair could be pointed at
  any UNIX socket of the host, and neither ``connect`` nor a file system layer would be asked.
- Objects that live in memory outside a process's address space (``memfd_create``, System V shared memory) would
  escape RLIMIT_AS and, the latter, outlive the sandbox.
"""

from __future__ import annotations

import platform
import struct
from functools import cache

from rlm_dspy.errors import SandboxUnavailableError

OWN_PID = 0x7A5D5DA7
"""Stands in the filter for a process id that is known only in the sandbox; far above the kernel's largest."""

EPERM, ENOSYS = 1, 38
_PRETEND = 0  # "Error 0": the call is skipped and reports success.

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}

_Calls = dict[str, tuple[int | None, int | None]]
# name: (x86_64, aarch64); None where the architecture has no such call.
_ALWAYS: _Calls = {
    # other processes' memory and descriptors
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    # the network; socketpair has its own rule below
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    # the kernel itself
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "acct": (163, 89),
    "lookup_dcookie": (212, 18),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "nfsservctl": (180, 42),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
    "sysfs": (139, None),
    "ustat": (136, None),
    # the clock and the machine's name
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # memory that no rlimit counts, and System V objects: they outlive their maker, and others' are found by number
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
}

# Without a pid namespace the process group is what gets killed, so nothing may leave it.
_GROUP: _Calls = {"setsid": (112, 157), "setpgid": (109, 154)}

# Landlock does not rule over these, and the code's user may own files of the host. They report success and do
# nothing, because shutil.copy and tarfile take a refusal for a failure.
_METADATA: _Calls = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}

# Reach another process of the same user by its number.
_SAME_USER: _Calls = {
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "inotify_add_watch": (254, 27),
}
_SIGNALS: _Calls = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
_TRUNCATE: _Calls = {"truncate": (76, 45)}

_CLONE = (56, 220)
_CLONE3 = (435, 435)
_SOCKETPAIR = (53, 199)
_SENDTO = (44, 206)
_IOCTL = (16, 29)
_PRLIMIT64 = (302, 261)
_TGKILL = (234, 131)
_SCHED_SETAFFINITY = (203, 122)

_CLONE_NEW = 0x7E020000  # every CLONE_NEW* flag that clone(2) takes
_TTY_IOCTLS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into a terminal
_X32 = 0x40000000
_AF_UNIX = 1
_SOCK_TYPE_MASK, _SOCK_STREAM, _SOCK_SEQPACKET = 0xF, 1, 5

# BPF opcodes (linux/bpf_common.h) and filter results (linux/seccomp.h)
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000


class _Program:
    """Instructions in order. Only short forward jumps are made, so none needs patching."""

    def __init__(self, machine: str) -> None:
        self._column = _COLUMN[machine]
        self._code: list[tuple[int, int, int, int]] = []

    def add(self, operation: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        self._code.append((operation, if_true, if_false, value))

    def refuse(self, calls: _Calls, error: int = EPERM) -> None:
        """Answer ``error`` to every call in ``calls``; the accumulator holds the call's number, before and after."""
        for numbers in calls.values():
            if (number := numbers[self._column]) is not None:
                self.add(_EQUAL, number, 0, 1)
                self.add(_RETURN, _ERRNO | error)

    def inspect(self, numbers: tuple[int, int], tests: list[tuple[int, int, int, int]]) -> None:
        """For one call, run ``tests`` on its arguments and return a verdict.

        A test is (operation, value, if_true, if_false). The tests must end in returns. The accumulator keeps the
        number for all other calls.
        """
        self.add(_EQUAL, numbers[self._column], 0, len(tests))
        for test in tests:
            self.add(*test)

    def bytes(self) -> bytes:
        return b"".join(struct.pack("=HBBI", operation, t, f, value) for operation, t, f, value in self._code)


def _low(argument: int) -> int:
    """Offset in ``struct seccomp_data`` of an argument's low 32 bits (both machines are little-endian)."""
    return 16 + 8 * argument


def _high(argument: int) -> int:
    return 20 + 8 * argument


_REFUSED = (_RETURN, _ERRNO | EPERM, 0, 0)
_ALLOWED = (_RETURN, _ALLOW, 0, 0)


def supported(machine: str | None = None) -> bool:
    """Whether the tables know this machine (``platform.machine()``)."""
    return (machine or platform.machine()) in _AUDIT_ARCH


@cache
def program(
    *,
    group: bool = False,
    same_user: bool = False,
    own_signals: bool = False,
    truncate: bool = False,
    machine: str | None = None,
) -> bytes:
    """The filter, as the array of ``struct sock_filter`` that seccomp(2) and ``bwrap --seccomp`` take.

    Args:
        group: Also refuse to leave the process group (there is no pid namespace to kill).
        same_user: The code runs as a user who owns files or processes of the host: also refuse to change files'
            metadata, other processes' scheduling and limits, and to watch files.
        own_signals: Also refuse all signals but those of the process `OWN_PID` to its own threads (nothing else keeps
            the code from signalling the user's other processes). The process that installs the filter puts its own
            number in the place of `OWN_PID`.
        truncate: Also refuse ``truncate`` by path (Landlock before ABI 3 does not see it).
        machine: ``platform.machine()`` of the target; None for this one.

    Raises:
        SandboxUnavailableError: No table for this machine.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        raise SandboxUnavailableError(
            f"the seccomp filter knows {' and '.join(_AUDIT_ARCH)}, not {machine}; "
            'use interpreter="subprocess" if the code is trusted'
        )
    out = _Program(machine)
    out.add(_LOAD, 4)
    out.add(_EQUAL, _AUDIT_ARCH[machine], 1, 0)
    out.add(_RETURN, _KILL)
    out.add(_LOAD, 0)
    if machine == "x86_64":
        out.add(_AT_LEAST, _X32, 0, 1)
        out.add(_RETURN, _ERRNO | ENOSYS)
    out.refuse(_ALWAYS)
    if group:
        out.refuse(_GROUP)
    if same_user:
        out.refuse(_METADATA, _PRETEND)
        out.refuse(_SAME_USER)
        out.inspect(_SCHED_SETAFFINITY, [(_LOAD, _low(0), 0, 0), (_EQUAL, 0, 1, 0), _REFUSED, _ALLOWED])
    if own_signals:
        out.refuse(_SIGNALS)
        out.inspect(_TGKILL, [(_LOAD, _low(0), 0, 0), (_EQUAL, OWN_PID, 1, 0), _REFUSED, _ALLOWED])
    if truncate:
        out.refuse(_TRUNCATE)
    out.refuse({"clone3": _CLONE3}, ENOSYS)
    out.inspect(_CLONE, [(_LOAD, _low(0), 0, 0), (_AND, _CLONE_NEW, 0, 0), (_EQUAL, 0, 1, 0), _REFUSED, _ALLOWED])
    out.inspect(
        _SOCKETPAIR,
        [
            (_LOAD, _low(0), 0, 0),
            (_EQUAL, _AF_UNIX, 0, 4),
            (_LOAD, _low(1), 0, 0),
            (_AND, _SOCK_TYPE_MASK, 0, 0),
            (_EQUAL, _SOCK_STREAM, 2, 0),
            (_EQUAL, _SOCK_SEQPACKET, 1, 0),
            _REFUSED,
            _ALLOWED,
        ],
    )
    # An address, that is a destination other than the peer.
    out.inspect(
        _SENDTO,
        [(_LOAD, _low(4), 0, 0), (_EQUAL, 0, 0, 2), (_LOAD, _high(4), 0, 0), (_EQUAL, 0, 1, 0), _REFUSED, _ALLOWED],
    )
    out.inspect(
        _IOCTL,
        [
            (_LOAD, _low(1), 0, 0),
            *((_EQUAL, request, len(_TTY_IOCTLS) - i, 0) for i, request in enumerate(_TTY_IOCTLS)),
            _ALLOWED,
            _REFUSED,
        ],
    )
    # Limits of other processes; 0 is the caller itself.
    out.inspect(_PRLIMIT64, [(_LOAD, _low(0), 0, 0), (_EQUAL, 0, 1, 0), _REFUSED, _ALLOWED])
    out.add(_RETURN, _ALLOW)
    return out.bytes()

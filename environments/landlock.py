"""Landlock, capabilities and the seccomp filter, as a process applies them to itself.

This module travels: its code is sent into the starting Python of the Landlock layer and runs there before anything
else (`rlm_dspy.environments.confine`), so it needs the standard library only. libc is called through ctypes because
Python wraps none of these calls. Sources: landlock(7), landlock_create_ruleset(2), capabilities(7), capset(2),
prctl(2), seccomp(2).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # Importing typing would cost milliseconds in every sandbox.
    from typing import Any

CAP_DAC_READ_SEARCH = 2

_PR_SET_PDEATHSIG, _PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 1, 8, 24, 36
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 38, 47
_AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 2, 4
_CAPABILITY_VERSION_3 = 0x20080522
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC = 1, 1
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FILES_ABI_1 = (1 << 13) - 1
_NET_TCP = 0b11
_SCOPE = 0b11  # abstract UNIX sockets, signals

_libc: Any = None


def _c() -> Any:
    global _libc
    if _libc is None:
        import ctypes

        _libc = ctypes.CDLL(None, use_errno=True)
    return _libc


def _check(result: int, what: str) -> int:
    if result < 0:
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _long(value: int) -> Any:
    import ctypes

    return ctypes.c_long(value)


def _prctl(option: int, *args: int) -> int:
    # prctl refuses some options unless all the unused arguments are zeros of full width.
    values = [_long(value) for value in (*args, 0, 0, 0, 0)[:4]]
    return _check(_c().prctl(option, *values), f"prctl({option})")


def _syscall(number: int, *args: Any) -> int:
    return int(_c().syscall(_long(number), *(_long(value) if isinstance(value, int) else value for value in args)))


def abi() -> int:
    """Version of Landlock in this kernel; 0 where there is none or it is not enabled."""
    return max(0, _syscall(_CREATE_RULESET, None, 0, 1))


def no_new_privs() -> None:
    """Make execve unable to grant anything: set-uid programs and file capabilities lose their effect."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(signal: int) -> None:
    """Get ``signal`` when the thread that started this process ends. A change of user undoes it."""
    _prctl(_PR_SET_PDEATHSIG, signal)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def keep_capabilities() -> None:
    """Keep the permitted set over the next change of user."""
    _prctl(_PR_SET_KEEPCAPS, 1)


def permitted() -> int:
    """The permitted capabilities of this process, as a bit mask."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith("CapPrm"))


def drop_bounding_set(keep: int | None = None) -> None:
    """Give up, for good, what execve could grant, except ``keep``. Does nothing for an ordinary user, who lacks it."""
    _prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    for capability in range(64):
        if capability != keep:
            try:
                _prctl(_PR_CAPBSET_DROP, capability)
            except OSError:
                break  # EINVAL: past the last one. EPERM: no right to.


def set_capabilities(keep: int | None = None) -> None:
    """Have no capability but ``keep``, which children inherit."""
    import ctypes

    mask = 0 if keep is None else 1 << keep
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    _check(_c().capset(header, sets), "capset")
    if keep is not None:
        _prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, keep)


class Ruleset:
    """Rules for files, collected while paths can still be opened, and put in force later.

    Args:
        read: Files and folders that may be read and executed; those that do not exist are left out.
        write: Folders that may be changed in any way, and device files that may be written.
        names: Folders whose entries may be listed, though not opened.
        hidden: Folders and files in those of ``read`` that may not be read.
    """

    def __init__(self, read: list[str], write: list[str], names: list[str], hidden: list[str]) -> None:
        import struct

        read, above = _without(read, hidden)
        names = [*names, *above]

        version = abi()
        if version < 1:
            raise OSError("this kernel has no Landlock")
        files = _FILES_ABI_1
        for added_in, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
            if version >= added_in:
                files |= right
        attributes = struct.pack("=QQQ", files, _NET_TCP if version >= 4 else 0, _SCOPE if version >= 6 else 0)
        attributes = attributes[: 8 if version < 4 else 16 if version < 6 else 24]
        self._fd = _check(_syscall(_CREATE_RULESET, attributes, len(attributes), 0), "landlock_create_ruleset")
        everything = files & ~(_MAKE_CHAR | _MAKE_BLOCK)
        for paths, rights in ((read, _EXECUTE | _READ_FILE | _READ_DIR), (write, everything), (names, _READ_DIR)):
            for path in paths:
                self._add(path, rights & files, struct)

    def _add(self, path: str, rights: int, struct: Any) -> None:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            if not os.path.isdir(path):
                rights &= _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
            rule = struct.pack("=Qi", rights, descriptor)
            _check(_syscall(_ADD_RULE, self._fd, _RULE_PATH_BENEATH, rule, 0), f"landlock_add_rule({path})")
        finally:
            os.close(descriptor)

    def enforce(self) -> None:
        """Put the rules in force for this thread and all that it starts; needs `no_new_privs`."""
        _check(_syscall(_RESTRICT_SELF, self._fd, 0), "landlock_restrict_self")
        os.close(self._fd)


def _without(read: list[str], hidden: list[str]) -> tuple[list[str], list[str]]:
    """``read`` with what lies beside ``hidden`` in the place of what lies above it, because rules can only allow; and
    what lies above, of which the names may be read."""
    found, names = list(dict.fromkeys(map(os.path.realpath, read))), []
    for path in dict.fromkeys(map(os.path.realpath, hidden)):
        while above := next((one for one in found if _holds(one, path)), None):
            found.remove(above)
            if above != path:
                names.append(above)
                with os.scandir(above) as entries:
                    beside = [entry.path for entry in entries]
                # A link is there for whoever may read what it leads to, and may lead to what is hidden.
                leads = [os.path.realpath(one) for one in beside if os.path.islink(one)]
                found += [one for one in beside if not os.path.islink(one)]
                found += [one for one in leads if not _holds(one, path)]
    return found, names


def _holds(folder: str, path: str) -> bool:
    return (path + "/").startswith(folder.rstrip("/") + "/")


def install_filter(program: bytes) -> None:
    """Put a seccomp filter in force for all threads of this process; needs `no_new_privs`."""
    import ctypes
    import platform
    import struct

    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    number = {"x86_64": 317, "aarch64": 277}[platform.machine()]
    _check(_syscall(number, _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC, header), "seccomp")

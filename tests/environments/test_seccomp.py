"""The system-call filter, interpreted instruction by instruction for both machines it knows."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy.environments import seccomp
from rlm_dspy.errors import SandboxUnavailableError

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
MACHINES = list(ARCH)
VARIANTS = [
    {},
    {"group": True},
    {"group": True, "same_user": True},
    {"group": True, "same_user": True, "own_signals": True, "truncate": True},
]


def interpret(program: bytes, number: int, args: tuple[int, ...] = (), arch: int | None = None) -> int:
    """What the kernel would answer (the subset of classic BPF that seccomp allows and the filter uses)."""
    assert arch is not None
    data = struct.pack("=IIQ6Q", number & 0xFFFFFFFF, arch, 0, *(a % 2**64 for a in (*args, *[0] * 6)[:6]))
    code = list(struct.iter_unpack("=HBBI", program))
    at, accumulator = 0, 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif operation == 0x54:
            accumulator &= value
        elif operation == 0x15:
            at += if_true if accumulator == value else if_false
        elif operation == 0x35:
            at += if_true if accumulator >= value else if_false
        elif operation == 0x06:
            return int(value)
        else:
            raise AssertionError(f"unknown operation {operation:#x}")


# name: (x86_64, aarch64, arguments, error or None)
CASES = [
    ("read", 0, 63, (), None),
    ("openat", 257, 56, (), None),
    ("execve", 59, 221, (), None),
    ("mmap", 9, 222, (), None),
    ("futex", 202, 98, (), None),
    ("kill", 62, 129, (1, 9), None),
    ("landlock_restrict_self", 446, 446, (), None),
    ("socket", 41, 198, (2, 1, 0), 1),
    ("connect", 42, 203, (), 1),
    ("ptrace", 101, 117, (), 1),
    ("process_vm_readv", 310, 270, (), 1),
    ("mount", 165, 40, (), 1),
    ("unshare", 272, 97, (0x10000000,), 1),
    ("setns", 308, 268, (), 1),
    ("bpf", 321, 280, (), 1),
    ("io_uring_setup", 425, 425, (), 1),
    ("keyctl", 250, 219, (), 1),
    ("shmat of a segment found by its number", 30, 196, (5, 0, 0), 1),
    ("msgrcv of a queue found by its number", 70, 188, (5,), 1),
    ("semop of a set found by its number", 65, 193, (5,), 1),
    ("clone3", 435, 435, (), 38),
    ("clone for a thread", 56, 220, (0x3D0F00,), None),
    ("clone for a child", 56, 220, (17,), None),
    ("clone of a user namespace", 56, 220, (0x10000000 | 17,), 1),
    ("clone of a mount namespace", 56, 220, (0x00020000 | 17,), 1),
    ("clone of a network namespace", 56, 220, (0x40000000 | 17,), 1),
    ("socketpair stream", 53, 199, (1, 1), None),
    ("socketpair stream, close-on-exec", 53, 199, (1, 1 | 0o2000000), None),
    ("socketpair datagram", 53, 199, (1, 2), 1),
    ("socketpair datagram, non-blocking", 53, 199, (1, 2 | 0o4000), 1),
    ("socketpair raw", 53, 199, (1, 3), 1),
    ("socketpair of another family", 53, 199, (30, 1), 1),
    ("sendto the peer", 44, 206, (3, 0, 0, 0, 0, 0), None),
    ("sendto an address", 44, 206, (3, 0, 0, 0, 0x7FFF12345678, 16), 1),
    ("sendto an address with clear low bits", 44, 206, (3, 0, 0, 0, 0x7F00000000, 16), 1),
    ("ioctl FIONREAD", 16, 29, (0, 0x541B), None),
    ("ioctl TIOCSTI", 16, 29, (0, 0x5412), 1),
    ("ioctl TIOCSTI with high bits set", 16, 29, (0, 0x100005412), 1),
    ("ioctl TIOCLINUX", 16, 29, (0, 0x541C), 1),
    ("prlimit of itself", 302, 261, (0, 7), None),
    ("prlimit of another", 302, 261, (1234, 7), 1),
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_verdicts(
    machine: str, options: dict[str, bool], case: tuple[str, int, int, tuple[int, ...], int | None]
) -> None:
    name, x86, arm, args, error = case
    if name == "kill" and options.get("own_signals"):
        error = 1
    program = seccomp.program(machine=machine, **options)
    verdict = interpret(program, x86 if machine == "x86_64" else arm, args, ARCH[machine])
    assert verdict == (ALLOW if error is None else ERRNO | error)


@pytest.mark.parametrize("machine", MACHINES)
def test_additions_for_landlock(machine: str) -> None:
    column = MACHINES.index(machine)
    cases = [
        # option, (numbers), arguments, with, without
        ("group", (112, 157), (), ERRNO | 1, ALLOW),  # setsid
        ("group", (109, 154), (), ERRNO | 1, ALLOW),  # setpgid
        ("same_user", (268, 53), (), ERRNO, ALLOW),  # fchmodat: pretended
        ("same_user", (141, 140), (), ERRNO | 1, ALLOW),  # setpriority
        ("same_user", (203, 122), (0,), ALLOW, ALLOW),  # sched_setaffinity of itself
        ("same_user", (203, 122), (77,), ERRNO | 1, ALLOW),
        ("truncate", (76, 45), (), ERRNO | 1, ALLOW),
        ("own_signals", (234, 131), (seccomp.OWN_PID, 1, 2), ALLOW, ALLOW),  # tgkill
        ("own_signals", (234, 131), (1, 1, 2), ERRNO | 1, ALLOW),
        ("own_signals", (424, 424), (3, 9), ERRNO | 1, ALLOW),  # pidfd_send_signal
    ]
    for option, numbers, args, with_it, without_it in cases:
        for switched, expected in ((True, with_it), (False, without_it)):
            program = seccomp.program(machine=machine, **{option: switched})
            assert interpret(program, numbers[column], args, ARCH[machine]) == expected, (option, numbers)


def test_other_architectures_are_no_way_round() -> None:
    program = seccomp.program(machine="x86_64")
    assert interpret(program, 1, arch=0x40000003) == KILL  # i386
    assert interpret(program, 1, arch=ARCH["aarch64"]) == KILL
    assert interpret(program, 0x40000000 | 41, arch=ARCH["x86_64"]) == ERRNO | 38  # x32


@given(
    machine=st.sampled_from(MACHINES),
    options=st.sampled_from(VARIANTS),
    number=st.integers(0, 2**32 - 1),
    args=st.lists(st.integers(0, 2**64 - 1), max_size=6).map(tuple),
    arch=st.sampled_from([*ARCH.values(), 0x40000003]),
)
def test_every_call_gets_a_verdict(
    machine: str, options: dict[str, bool], number: int, args: tuple[int, ...], arch: int
) -> None:
    verdict = interpret(seccomp.program(machine=machine, **options), number, args, arch)
    assert verdict in (ALLOW, KILL) or verdict & ~0xFF == ERRNO
    assert (verdict == KILL) == (arch != ARCH[machine])


def test_the_filter_fits_the_kernels_limit() -> None:
    assert all(len(seccomp.program(machine=m, **options)) // 8 <= 4096 for m in MACHINES for options in VARIANTS)


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(SandboxUnavailableError, match="riscv64"):
        seccomp.program(machine="riscv64")
    assert not seccomp.supported("riscv64")

"""Every way out that we know of, tried from inside, under every layer and identity, against what `describe` claims.

The host of each scenario is a process of its own: this file, run as a program, by root or by an ordinary user, with
namespaces allowed or refused. It opens a real session, runs the attempts, and prints what came of them as JSON.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import platform
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

MARKER = "rlm-dspy-confinement-marker"
PROCESSES = 24
SCRATCH = 48 << 20

# Each defines attempt(), run in the sandbox: an exception or a false result means that it was held.
# name: (what `describe` must call bounded for it to be held, code). None: held under every layer.
ATTEMPTS: dict[str, tuple[str | None, str]] = {
    "read_passwd": ("files", "def attempt(): return open('/etc/passwd').read()"),
    "read_shadow": ("files", "def attempt(): return open('/etc/shadow').read()"),
    "read_home": ("files", "def attempt(): return [n for n in os.listdir(HOST['home']) if n not in HOST['shown']]"),
    "read_root_home": ("files", "def attempt(): return [n for n in os.listdir('/root') if n not in HOST['shown']]"),
    "read_secret_file": ("files", "def attempt(): return open(HOST['secret']).read()"),
    "read_secret_through_link": (
        "files",
        "def attempt():\n os.symlink(HOST['secret'], 'link')\n return open('link').read()",
    ),
    "read_secret_through_proc": (
        "files",
        "def attempt(): return open('/proc/%d/root%s' % (HOST['pid'], HOST['secret'])).read()",
    ),
    "hard_link_secret": ("files", "def attempt():\n os.link(HOST['secret'], 'hard')\n return True"),
    "rename_secret": ("files", "def attempt():\n os.rename(HOST['secret'], 'moved')\n return True"),
    "write_secret_folder": (
        "files",
        "def attempt():\n open(os.path.join(os.path.dirname(HOST['secret']), 'new'), 'w')\n return True",
    ),
    "truncate_secret": ("files", "def attempt():\n os.truncate(HOST['secret'], 0)\n return True"),
    "delete_secret": ("files", "def attempt():\n os.unlink(HOST['secret'])\n return True"),
    "write_usr": ("files", "def attempt():\n open('/usr/x', 'w')\n return True"),
    "write_root": ("files", "def attempt():\n open('/x', 'w')\n return True"),
    "write_dev": ("files", "def attempt():\n open('/dev/x', 'w')\n return True"),
    "write_var_tmp": ("files", "def attempt():\n open('/var/tmp/x', 'w')\n return True"),
    "write_python": ("files", "def attempt():\n open(os.__file__, 'a')\n return True"),
    "write_proc_sys": ("files", "def attempt():\n open('/proc/sys/kernel/core_pattern', 'w').write('x')\n return True"),
    "open_by_handle": ("files", "def attempt(): return sys_(304 if X86 else 265, -100, 0, 0) >= 0"),
    "make_device": (
        "files",
        "def attempt():\n os.mknod('dev', 0o60600, os.makedev(254, 0))\n return open('dev', 'rb')",
    ),
    "environment": ("secrets", "def attempt(): return [v for v in os.environ.values() if HOST['marker'] in v]"),
    "environment_of_others": (
        "secrets",
        """
        def attempt():
            for pid in filter(str.isdigit, os.listdir('/proc')):
                try:
                    if HOST['marker'].encode() in open('/proc/%s/environ' % pid, 'rb').read(): return pid
                except OSError: pass
        """,
    ),
    "memory_of_parent": (
        "secrets",
        "def attempt(): return open('/proc/%d/mem' % os.getppid(), 'rb') and HOST['alone']",
    ),
    "memory_of_host": ("secrets", "def attempt(): return open('/proc/%d/maps' % HOST['pid']).read()"),
    "process_vm_readv": ("secrets", "def attempt(): return sys_(310 if X86 else 270, HOST['pid'], 0, 0, 0, 0, 0) >= 0"),
    "ptrace_host": ("secrets", "def attempt(): return sys_(101 if X86 else 117, 16, HOST['pid'], 0, 0) >= 0"),
    "ptrace_self": ("secrets", "def attempt(): return sys_(101 if X86 else 117, 0, 0, 0, 0) >= 0"),
    "pidfd_getfd": ("secrets", "def attempt(): return sys_(438, 0, 0, 0) >= 0"),
    "signal_host": (None, "def attempt():\n os.kill(HOST['pid'], 0)\n return HOST['alone']"),
    "signal_host_thread": (
        None,
        "def attempt(): return sys_(234 if X86 else 131, HOST['pid'], HOST['pid'], 0) >= 0 and HOST['alone']",
    ),
    # Reports success even where every single process was out of reach: the host counts what arrives.
    "signal_everybody": (None, "import signal\ndef attempt(): os.kill(-1, signal.SIGCONT)"),
    "limit_host": (
        None,
        "import resource\ndef attempt():\n resource.prlimit(HOST['pid'], 7)\n return HOST['alone']",
    ),
    "renice_host": (None, "def attempt():\n os.setpriority(os.PRIO_PROCESS, HOST['pid'], 19)\n return HOST['alone']"),
    "socket_inet": ("network", "def attempt(): return socket.socket(socket.AF_INET, socket.SOCK_STREAM)"),
    "socket_inet6": ("network", "def attempt(): return socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)"),
    "socket_unix": ("network", "def attempt(): return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)"),
    "socket_netlink": ("network", "def attempt(): return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"),
    "socket_packet": ("network", "def attempt(): return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    "socket_vsock": ("network", "def attempt(): return socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)"),
    "connect": ("network", "def attempt(): return socket.create_connection(('127.0.0.1', HOST['port']), 2)"),
    "resolve": ("network", "def attempt(): return socket.getaddrinfo('example.org', 80)"),
    "datagram_pair": ("network", "def attempt(): return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)"),
    "pair_sendto": (
        "network",
        "def attempt():\n a, b = socket.socketpair()\n a.sendto(b'x', HOST['unix'])\n return True",
    ),
    "pair_sendmsg": (
        "network",
        "def attempt():\n a, b = socket.socketpair()\n a.sendmsg([b'x'], [], 0, HOST['unix'])\n return True",
    ),
    "pair_connect": ("network", "def attempt():\n a, b = socket.socketpair()\n a.connect(HOST['unix'])\n return True"),
    "subprocess_socket": (
        "network",
        """
        def attempt():
            code = 'import socket; socket.socket()'
            return subprocess.run([sys.executable, '-I', '-S', '-c', code], capture_output=True).returncode == 0
        """,
    ),
    "mount": (None, "def attempt(): return sys_(165 if X86 else 40, b'none', b'/tmp', b'tmpfs', 0, 0) >= 0"),
    "umount": (None, "def attempt(): return sys_(166 if X86 else 39, b'/proc', 2) >= 0"),
    "fsopen": (None, "def attempt(): return sys_(430, b'tmpfs', 0) >= 0"),
    "unshare_user": (None, "def attempt(): return sys_(272 if X86 else 97, 0x10000000) >= 0"),
    "clone_new_user": (None, "def attempt(): return clone(0x10000000 | 17)"),
    "clone_new_net": (None, "def attempt(): return clone(0x40000000 | 17)"),
    "clone3": (None, "def attempt(): return sys_(435, 0, 0) >= 0 or ctypes.get_errno() != 38"),
    "setns": (None, "def attempt(): return sys_(308 if X86 else 268, 0, 0) >= 0 or ctypes.get_errno() != 1"),
    "chroot": (None, "def attempt():\n os.chroot('.')\n return True"),
    "bpf": (None, "def attempt(): return sys_(321 if X86 else 280, 0, 0, 0) >= 0 or ctypes.get_errno() != 1"),
    "io_uring": (None, "def attempt(): return sys_(425, 8, 0) >= 0 or ctypes.get_errno() != 1"),
    "userfaultfd": (None, "def attempt(): return sys_(323 if X86 else 282, 1) >= 0"),
    "perf": (None, "def attempt(): return sys_(298 if X86 else 241, 0, 0, 0, 0, 0) >= 0 or ctypes.get_errno() != 1"),
    "keyring": (None, "def attempt(): return sys_(250 if X86 else 219, 0, -3, 1) >= 0"),
    "kernel_module": (None, "def attempt(): return sys_(175 if X86 else 105, 0, 0, 0) >= 0 or ctypes.get_errno() != 1"),
    "kexec": (None, "def attempt(): return sys_(246 if X86 else 104, 0, 0, 0, 0) >= 0 or ctypes.get_errno() != 1"),
    "set_clock": (
        None,
        "def attempt():\n import time\n time.clock_settime(time.CLOCK_REALTIME, time.time())\n return True",
    ),
    "shared_memory": (None, "def attempt(): return sys_(29 if X86 else 194, 0, 4096, 0o1600) >= 0"),
    "memfd": (None, "def attempt():\n os.memfd_create('x')\n return True"),
    "become_root": (None, "def attempt():\n os.setuid(0) if os.getuid() else 1 / 0\n return True"),
    "privileges_by_exec": (None, "def attempt(): return libc.prctl(39, 0, 0, 0, 0) != 1"),
    "no_filter": (None, "def attempt(): return libc.prctl(21, 0, 0, 0, 0) != 2"),
    "terminal": (None, "def attempt():\n import fcntl\n fcntl.ioctl(0, 0x5412, b'x')\n return True"),
    "memory": ("memory", "def attempt(): return len(bytearray(10 * 2**30))"),
    "memory_by_mmap": ("memory", "def attempt():\n import mmap\n return mmap.mmap(-1, 10 * 2**30)"),
    "raise_limits": (
        None,
        "def attempt():\n import resource\n resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n return True",
    ),
    "one_large_file": (
        "disk",
        "def attempt():\n import signal\n signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        " with open('big', 'wb', 0) as f:\n  for _ in range(HOST['scratch'] // 2**20 + 16): f.write(bytes(2**20))\n"
        " return True",
    ),
    # Bubblewrap's own process 1 may be the code's to take over; it must be worth nothing.
    "unlimited_first_process": (
        "processes",
        """
        def attempt():
            lines = open('/proc/1/limits').read().splitlines()
            wanted = ('Max address space', 'Max processes', 'Max file size', 'Max core file size')
            found = {line[:26].strip(): line[26:].split()[1] for line in lines}
            mine = os.stat('/proc/1').st_uid == os.getuid()
            return mine and [name for name in wanted if found[name] == 'unlimited' or int(found[name]) > 2**32]
        """,
    ),
    "core_dump": (None, "def attempt():\n import resource\n return resource.getrlimit(resource.RLIMIT_CORE)[1]"),
}
# Run only where `describe` calls the resource bounded: elsewhere they would take the machine down.
HARSH: dict[str, tuple[str, str]] = {
    "fork_bomb": (
        "processes",
        """
        def attempt():
            import signal, time
            pids = []
            try:
                while len(pids) < 4 * HOST['processes'] + 5000:
                    pid = os.fork()
                    if pid == 0:
                        time.sleep(60); os._exit(0)
                    pids.append(pid)
            except OSError: pass
            for pid in pids: os.kill(pid, signal.SIGKILL)
            for pid in pids: os.waitpid(pid, 0)
            return len(pids) > HOST['processes'] and 'shared user' not in HOST['note'] and len(pids)
        """,
    ),
    "fill_disk": (
        "disk",
        """
        def attempt():
            written = 0
            for folder in (os.environ['TMPDIR'], '/dev/shm'):
                for i in range(1000):
                    try:
                        with open('%s/fill%d' % (folder, i), 'wb', 0) as f:
                            for _ in range(16): written += f.write(bytes(2**20))
                    except OSError: break
            for folder in (os.environ['TMPDIR'], '/dev/shm'):
                for name in os.listdir(folder):
                    if name.startswith('fill'): os.unlink(folder + '/' + name)
            return written > 2 * HOST['scratch'] and written
        """,
    ),
}
_SETUP = """
import ctypes, os, platform, socket, subprocess, sys
X86 = platform.machine() == 'x86_64'
libc = ctypes.CDLL(None, use_errno=True)
def sys_(number, *args):
    return libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
def clone(flags):
    pid = sys_(56 if X86 else 220, flags, 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    return pid > 0
def verdict(function):
    try:
        result = function()
    except BaseException as error:
        return 'held: %s: %s' % (type(error).__name__, error)
    return 'ESCAPED: %.300r' % (result,) if result else 'held'
"""
SHORT = ("busy_loop", "long_sleep", "ignores_interrupts", "stop_self")
# What a sandbox may do to itself and to its channel; the session goes on, or says that it lost its variables.
ABUSE = {
    "busy_loop": "while True: pass",
    "long_sleep": "import time; time.sleep(1e9)",
    "ignores_interrupts": "while True:\n try:\n  while True: pass\n except BaseException: pass",
    "os_exit": "import os; os._exit(3)",
    "abort": "import os; os.abort()",
    "kill_self": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "kill_group": "import os, signal; os.killpg(0, signal.SIGKILL)",
    "stop_self": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "close_descriptors": "import os\nfor fd in range(256):\n try: os.close(fd)\n except OSError: pass\nprint('on')",
    "close_all_descriptors": "import os; os.closerange(0, 5000)",
    "input": "input('? ')",
    "huge_output": "for _ in range(1024): print('x' * 2**20)",
    "huge_output_of_a_child": "import subprocess; subprocess.run('yes | head -c 200000000', shell=True)",
    "noise_on_every_descriptor": (
        "import os\nfor fd in range(3, 1100):\n try: os.write(fd, b'\\x00garbage\\xff\\n' * 10)\n except OSError: pass"
    ),
    "forged_frames": (
        "import os, json\n"
        "frames = [{'op': 'done', 'id': 1}, {'op': 'ready'}, {'op': 'call', 'id': 10**30, 'name': 'x' * 10**6},\n"
        "          {'op': 'done', 'id': 'x', 'blobs': [10**15]}, {'op': 'call', 'blobs': [-1]}, [], None, 5,\n"
        "          {'op': 'call', 'id': 1, 'name': 'f', 'body': {'$': 'blob', 'n': 99}}]\n"
        "for fd in range(3, 1100):\n"
        " for frame in frames:\n"
        "  try: os.write(fd, (json.dumps(frame) + '\\n').encode())\n"
        "  except OSError: break"
    ),
    "endless_line": (
        "import os\n"
        "def flood(fd):\n"
        " try:\n"
        "  for _ in range(64): os.write(fd, b'[' * 2**20)\n"
        " except OSError: pass\n"
        "import stat\n"
        "for fd in range(3, 1100):\n"
        " try:\n"
        "  if stat.S_ISFIFO(os.fstat(fd).st_mode): flood(fd)\n"
        " except OSError: pass"
    ),
}


# --------------------------------------------------------------------------------------------- the host of a scenario


async def _host(layer: str) -> dict[str, Any]:
    from rlm_dspy.environments import bubblewrap, layers, local
    from rlm_dspy.environments.layout import python_layout

    environment = local(
        layer=layer, timeout=20, memory="2GiB", processes=PROCESSES, scratch=SCRATCH, max_output=100_000
    )
    description = await asyncio.to_thread(environment.describe)
    folder = tempfile.mkdtemp(dir="/var/tmp")
    os.chmod(folder, 0o777)
    secret = os.path.join(folder, "secret")
    Path(secret).write_text(MARKER)
    os.chmod(secret, 0o666)
    inet = socket.create_server(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    unix.bind(os.path.join(folder, "socket"))
    os.chmod(os.path.join(folder, "socket"), 0o777)
    shown = {Path(p).relative_to(top).parts[0] for p in python_layout(True, ()).read
             for top in (Path.home(), Path("/root")) if Path(p).is_relative_to(top) and p != str(top)}  # fmt: skip
    shared_user = description.layers[0] == "landlock" and os.geteuid() != 0
    facts = {
        "home": str(Path.home()),
        "shown": sorted(shown),
        "secret": secret,
        "pid": os.getpid(),
        "marker": MARKER,
        "port": inet.getsockname()[1],
        "unix": unix.getsockname(),
        "processes": PROCESSES,
        "scratch": SCRATCH,
        "note": "shared user" if shared_user else "",
        # In a pid namespace the host's number means another process, so reaching "it" proves nothing.
        "alone": description.layers[0] != "bubblewrap",
    }
    arrived: list[int] = []
    signal.signal(signal.SIGCONT, lambda number, _: arrived.append(number))
    results: dict[str, str] = {}
    session = environment()
    await session.open()
    await session.set({"HOST": facts})
    assert (await session.run(_SETUP)).error is None
    harsh = {n: a for n, a in HARSH.items() if getattr(description, a[0]).level == "bounded" and not shared_user}
    for name, (_, code) in {**ATTEMPTS, **harsh}.items():
        result = await session.run(f"{textwrap.dedent(code).strip()}\nprint(verdict(attempt))")
        results[name] = result.stdout.strip() or f"{result.error} {result.lost}"
        if result.lost:
            await session.set({"HOST": facts})
            await session.run(_SETUP)
    abuse: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for name, code in ABUSE.items():
        start = time.perf_counter()
        await session.set({"keep": 1})
        result = await session.run(code, timeout=1.5 if name in SHORT else 15)
        after = await session.run("print(2 + 2)")
        seconds[name] = round(time.perf_counter() - start, 2)
        alive = after.stdout.strip() == "4"
        abuse[name] = f"{'alive' if alive else 'DEAD'} lost={bool(result.lost)} {result.error and result.error.type}"
    await session.close()
    intact = Path(secret).read_text() == MARKER and sorted(os.listdir(folder)) == ["secret", "socket"]
    mode = os.stat(secret).st_mode & 0o777
    inet.close()
    unix.close()
    shutil.rmtree(folder)
    return {
        "describe": dataclasses.asdict(description),
        "results": results,
        "abuse": abuse,
        "seconds": seconds,
        "signalled": bool(arrived),
        "intact": intact and mode == 0o666,
        "user_namespace_count": layers.counts_user_namespace(),
        "as_root": bubblewrap.as_root(),
        "peak_kib": int(next(r for r in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in r).split()[1]),
    }


def _refuse_namespaces() -> None:
    """As a container's default profile does: neither new namespaces nor mounts, from here on."""
    from rlm_dspy.environments import landlock

    x86 = platform.machine() == "x86_64"
    unshare, clone, mount = (272, 56, 165) if x86 else (97, 220, 40)
    load, equal, mask, give, refusal, fine = 0x20, 0x15, 0x54, 0x06, 0x50001, 0x7FFF0000
    code = [(load, 0, 0, 0)]
    for number, errno in ((unshare, 1), (mount, 1), (435, 38)):
        code += [(equal, 0, 1, number), (give, 0, 0, 0x50000 | errno)]
    code += [(equal, 0, 4, clone), (load, 0, 0, 16), (mask, 0, 0, 0x7E020000), (equal, 1, 0, 0), (give, 0, 0, refusal)]
    code += [(give, 0, 0, fine)]
    landlock.no_new_privs()
    landlock.install_filter(b"".join(struct.pack("=HBBI", op, t, f, k) for op, t, f, k in code))


def _main() -> None:
    layer, *options = sys.argv[1:]
    os.environ["RLM_DSPY_TEST_SECRET"] = MARKER
    if "refused" in options:
        _refuse_namespaces()
    print("\n" + json.dumps(asyncio.run(_host(layer))))


# ------------------------------------------------------------------------------------------------- the scenarios

SCENARIOS = {
    # name: (who, layer, further options)
    "root-bubblewrap": ("root", "bubblewrap", ()),
    "root-landlock": ("root", "landlock", ()),
    "root-landlock-python-for-all": ("root-reachable", "landlock", ()),
    "root-landlock-stays-root": ("root-bound", "landlock", ()),
    "root-namespaces-refused": ("root", "auto", ("refused",)),
    "user-bubblewrap": ("user", "bubblewrap", ()),
    "user-landlock": ("user", "landlock", ()),
    "user-namespaces-refused": ("user", "auto", ("refused",)),
}
_USER = 54_321


def _with_reachable_python(command: list[str], stash: Path) -> list[str]:
    """``command`` in a mount namespace in which everybody can reach this Python, even one in root's own home."""
    from rlm_dspy.environments.layout import python_layout

    def closed(path: Path) -> Path | None:
        above = [parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001]
        return above[0] if above else None

    needed = [Path(p) for p in (*python_layout(True, ()).read, str(Path(__file__).resolve().parent))]
    moved = [(path, cover) for path in needed if (cover := closed(path)) is not None]
    lines = ["set -e"]
    for number, (path, _) in enumerate(moved):
        lines += [f"mkdir {stash}/{number}", f"mount --bind {shlex.quote(str(path))} {stash}/{number}"]
    for cover in sorted({cover for _, cover in moved}):
        lines += [f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(cover))}"]
    for number, (path, _) in enumerate(moved):
        place = shlex.quote(str(path))
        lines += [f"mkdir -p {place}", f"mount --bind {stash}/{number} {place}"]
    return ["unshare", "--mount", "sh", "-c", "\n".join([*lines, f"exec {shlex.join(command)}"])]


def _run(name: str, stash: Path) -> dict[str, Any]:
    from rlm_dspy.environments import bubblewrap, landlock

    who, layer, options = SCENARIOS[name]
    if layer == "bubblewrap" and bubblewrap.find() is None:
        pytest.skip("bubblewrap is not installed")
    if layer != "bubblewrap" and landlock.abi() < 1:
        pytest.skip("this kernel has no Landlock")
    command = [sys.executable, "-B", str(Path(__file__).resolve()), layer, *options]
    environ = {**os.environ, "HOME": str(Path.home()), "DSPY_CACHEDIR": str(stash / "cache")}
    if os.geteuid() != 0:
        if who != "user":
            pytest.skip("needs to run as root")
    elif who != "root":
        if shutil.which("unshare") is None or shutil.which("setpriv") is None:
            pytest.skip("needs unshare and setpriv (util-linux)")
        if who == "root-bound":
            command = ["setpriv", "--bounding-set", "-setuid,-setgid", *command]
        elif who == "root-reachable":
            command = _with_reachable_python(command, stash)
        else:
            home = tempfile.mkdtemp(dir="/var/tmp")
            os.chown(home, _USER, _USER)
            environ |= {"HOME": home, "DSPY_CACHEDIR": f"{home}/cache"}
            identity = ["setpriv", "--reuid", str(_USER), "--regid", str(_USER), "--clear-groups"]
            command = _with_reachable_python([*identity, *command], stash)
    try:
        done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, timeout=240)
    finally:
        if environ["HOME"].startswith("/var/tmp"):
            shutil.rmtree(environ["HOME"], ignore_errors=True)
    if done.returncode != 0:
        pytest.fail(f"the host of {name} ended with {done.returncode}:\n{done.stderr[-3000:]}", pytrace=False)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=SCENARIOS)
def scenario(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a whole scenario found; run once."""
    return {"name": request.param, **_run(request.param, tmp_path_factory.mktemp("stash"))}


def test_nothing_escapes(scenario: dict[str, Any]) -> None:
    """An attempt succeeds only where `describe` does not claim that its resource is bounded."""
    described, wrong = scenario["describe"], []
    for name, verdict in scenario["results"].items():
        resource = {**ATTEMPTS, **HARSH}[name][0]
        claimed = resource is None or described[resource]["level"] != "not bounded"
        if claimed and not verdict.startswith("held"):
            wrong.append(f"{name}: {verdict}")
    assert not wrong, "\n".join(wrong)
    assert len(scenario["results"]) >= len(ATTEMPTS)


def test_the_host_and_its_files_are_as_before(scenario: dict[str, Any]) -> None:
    assert scenario["intact"]
    assert not scenario["signalled"]
    assert scenario["peak_kib"] < 600_000


@pytest.mark.parametrize("abuse", ABUSE)
def test_the_session_goes_on_after(scenario: dict[str, Any], abuse: str) -> None:
    assert scenario["abuse"][abuse].startswith("alive"), scenario["abuse"][abuse]


def test_the_description_is_what_was_found(scenario: dict[str, Any]) -> None:
    described, name = scenario["describe"], scenario["name"]
    levels = {key: value["level"] for key, value in described.items() if isinstance(value, dict)}
    assert levels["files"] == levels["network"] == levels["secrets"] == levels["time"] == "bounded"
    assert levels["memory"] == "per process only"
    if "bubblewrap" in name:
        assert described["layers"] == ["bubblewrap", "seccomp", "rlimits"]
        assert levels["disk"] == "bounded" and not described["missing"]
        assert levels["processes"] == (
            "bounded" if scenario["as_root"] or scenario["user_namespace_count"] else "not bounded"
        )
    else:
        assert described["layers"] == ["landlock", "seccomp", "rlimits"]
        assert levels["disk"] == "per process only"
        assert levels["processes"] == ("not bounded" if "stays-root" in name else "bounded")
    if "refused" in name:
        assert any(text.startswith("bubblewrap: ") for text in described["missing"])


if __name__ == "__main__":
    _main()

"""What the confinement suite tries from inside a sandbox; data, loaded by test_confinement.py."""

from __future__ import annotations

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
    "memory_by_mmap": (
        "memory",
        "def attempt():\n import mmap\n m = mmap.mmap(-1, 10 * 2**30)\n"
        " for i in range(0, len(m), 4096): m[i] = 1\n return True",
    ),
    "raise_limits": (
        None,
        "def attempt():\n import resource\n limits = resource.RLIMIT_AS, resource.RLIMIT_DATA\n"
        " limits = [limit for limit in limits if resource.getrlimit(limit)[1] != -1]\n"
        " for limit in limits: resource.setrlimit(limit, (-1, -1))\n return True",
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
            loose = [name for name in wanted if found[name] == 'unlimited' or int(found[name]) > 2**32]
            return mine and 'container' not in HOST['note'] and loose
        """,
    ),
    # In a container process 1 is ours; it must be under the same filters as the code that could take it over.
    "unfiltered_first_process": (
        None,
        """
        def attempt():
            def filters(pid): return [l for l in open('/proc/%s/status' % pid) if l.startswith('Seccomp')]
            return 'container' in HOST['note'] and filters(1) != filters('self')
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
SETUP = """
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

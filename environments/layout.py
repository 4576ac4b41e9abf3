"""Which files of the host this very Python needs, so that a sandbox can run it and import what is installed.

Nothing else is shown to the sandbox. Prefixes are shown whole; the source tree of an editable install is shown package
by package, because what lies beside the packages (``.env``, ``.git``) is none of the sandbox's business.
"""

from __future__ import annotations

import glob
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlm_dspy.errors import ConfigurationError, SandboxUnavailableError

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# What the dynamic loader and Debian's links need of /etc.
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives")
_STORES = ("/nix/store", "/gnu/store")


@dataclass(frozen=True)
class Layout:
    """Files of the host, all absolute paths.

    Attributes:
        executable: The Python to run, by the name through which it finds its prefix.
        flags: Its first options.
        read: Folders and files to show at the same place, read-only; none lies in another, none in `SYSTEM`.
        links: (target, name) for names on the way from ``executable`` to the program that lie in none of ``read``.
        hidden: Folders and files in those of ``read``, or in the system's, that are not to be seen: what was asked for,
            and tasks with known answers, which code could make again.
        names: Folders that lead to entries of ``read`` and are searched by imports.
        paths: What to append to ``sys.path`` there.
        world_readable: Whether a user who owns none of it can read it once it is in view.
        reachable: Whether such a user could also reach it on the host, through all its parents.
    """

    executable: str
    flags: tuple[str, ...]
    read: tuple[str, ...]
    hidden: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    names: tuple[str, ...]
    paths: tuple[str, ...]
    world_readable: bool
    reachable: bool


@cache
def python_layout(packages: bool, readable: tuple[str, ...], hidden: tuple[str, ...] = ()) -> Layout:
    """The layout of the running Python.

    Args:
        packages: Whether site-packages are importable.
        readable: Further folders and files to show.
        hidden: Folders and files not to show.

    Raises:
        ConfigurationError: Python itself is in what is to be hidden.
        SandboxUnavailableError: Python does not know its own program file (an embedded interpreter).
    """
    executable = sys.executable or getattr(sys, "_base_executable", "")
    if not executable or not os.path.exists(executable):
        raise SandboxUnavailableError(
            "sys.executable names no program (is Python embedded in another program?), so there is nothing to start"
        )
    executable = os.path.abspath(executable)
    real = os.path.realpath(executable)
    wanted = [p for p in _prefixes() if not _too_wide(p)]
    paths = sysconfig.get_paths()
    wanted += [paths["stdlib"], paths["platstdlib"], os.path.dirname(os.__file__), real]
    wanted += [store for store in _STORES if real.startswith(store)]
    # A copied or relocated Python may load its library from where it was built.
    library = [sysconfig.get_config_var(name) for name in ("LIBDIR", "INSTSONAME")]
    if all(library):
        wanted.append(os.path.join(*library))
    names: list[str] = []
    added: list[str] = []
    if packages:
        folders = _site_folders()
        wanted += folders
        if site.ENABLE_USER_SITE:
            # ``-I`` leaves the user's own site-packages out.
            added += [folder for folder in folders if folder == site.getusersitepackages()]
        for folder in _linked_folders(folders):
            if os.path.basename(folder) in ("site-packages", "dist-packages"):
                wanted.append(folder)
            else:
                names.append(folder)
                wanted += _importable(folder)
        wanted += _editable_packages()
    on_path = {os.path.abspath(entry) for entry in sys.path if entry}
    added += [path for path in readable if path in on_path]
    wanted += readable
    # An empty path would mean the working directory.
    read = _outermost(p for path in filter(None, wanted) for p in (os.path.abspath(path), os.path.realpath(path)))
    shown = (*SYSTEM, *read)
    for needed in (executable, real, os.__file__):
        if _inside(needed, hidden):
            raise ConfigurationError(f"hidden: {needed} is of the Python that is to run the code")
    links = tuple((real, name) for name in _chain(executable) if not _inside(name, shown))
    checked = [p for p in (*read, os.path.dirname(os.__file__), os.__file__, real, *_prefixes()) if os.path.exists(p)]
    world_readable = all(_others_can_read(path) for path in checked)
    return Layout(
        executable=executable,
        flags=("-I", "-B", "-u") if packages else ("-I", "-S", "-B", "-u"),
        read=read,
        hidden=_outermost((p for p in (*_answers(), *_with_compiled(hidden)) if _inside(p, shown)), but=()),
        links=links,
        names=tuple(name for name in _outermost(names) if not _inside(name, read)),
        paths=tuple(dict.fromkeys(added)),
        world_readable=world_readable,
        reachable=world_readable and all(_others_can_reach(path) for path in read),
    )


def _answers() -> tuple[str, ...]:
    """Where this distribution makes tasks and their answers."""
    folders = [os.path.join(os.path.abspath(place), "tasks") for place in sys.modules["rlm_dspy"].__path__]
    return tuple(dict.fromkeys(path for folder in folders for path in (folder, os.path.realpath(folder))))


def _with_compiled(paths: Iterable[str]) -> Iterator[str]:
    """The paths, by all their names, and of modules also what Python has compiled of them."""
    for path in paths:
        if not os.path.islink(path):
            yield path
        yield os.path.realpath(path)
        if path.endswith(".py"):
            place = Path(os.path.realpath(path))
            yield from map(str, place.parent.glob(f"__pycache__/{glob.escape(place.stem)}.*.pyc"))


def _prefixes() -> list[str]:
    return list(dict.fromkeys((sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix)))


def _too_wide(path: str) -> bool:
    """Whether a prefix is the root or holds the home folder, so that showing it whole would show that, too."""
    home = os.path.realpath(os.path.expanduser("~"))
    return _inside(home, (os.path.realpath(path),)) and home != "/"


def _inside(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _outermost(paths: Iterable[str], but: Iterable[str] = SYSTEM) -> tuple[str, ...]:
    """The paths that exist and lie neither in another one nor in the system's folders, sorted."""
    found: list[str] = []
    for path in sorted({p for p in paths if os.path.exists(p)}):
        if not _inside(path, (*but, *found)):
            found.append(path)
    return tuple(found)


def _chain(path: str) -> Iterator[str]:
    """``path`` and every name that its symbolic links pass through, the last target excluded."""
    seen: set[str] = set()
    while os.path.islink(path) and path not in seen:
        seen.add(path)
        yield path
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))


def _site_folders() -> list[str]:
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]


def _linked_folders(folders: list[str]) -> list[str]:
    """Folders that ``.pth`` files put on ``sys.path`` and that lie outside the prefixes."""
    found = []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.pth")):
            try:
                lines = file.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError):
                continue
            for line in lines:
                line = line.strip()
                if line and not line.startswith(("#", "import ", "import\t")):
                    path = os.path.abspath(os.path.join(folder, line))
                    if os.path.isdir(path) and not _inside(path, (*_prefixes(), *folders)):
                        found.append(path)
    return found


def _importable(folder: str) -> list[str]:
    """The packages, modules and metadata in a folder."""
    found = []
    for entry in os.scandir(folder):
        if entry.is_dir():
            if entry.name.endswith((".dist-info", ".egg-info")):
                found.append(entry.path)
            elif entry.name.isidentifier() and any(
                True for pattern in ("*.py", "*/__init__.py") for _ in Path(entry.path).glob(pattern)
            ):
                found.append(entry.path)
        elif entry.name.endswith((".py", ".so")):
            found.append(entry.path)
    return found


def _editable_packages() -> list[str]:
    """What setuptools' import hooks for editable installs map package names to."""
    found = []
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            mapping = getattr(module, "MAPPING", None)
            if isinstance(mapping, dict):
                found += [path for path in map(str, mapping.values()) if os.path.exists(path)]
    return found


def _others_can_read(path: str) -> bool:
    mode = os.stat(path).st_mode
    return mode & 0o005 == 0o005 if os.path.isdir(path) else bool(mode & 0o004)


def _others_can_reach(path: str) -> bool:
    return all(os.stat(parent).st_mode & 0o001 for parent in Path(os.path.realpath(path)).parents)

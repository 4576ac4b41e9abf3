"""The worker's own folder and what the host puts there: files, and packages that the code can import.

Names are relative to the folder in which the worker started, wherever code has moved since. All of it runs with the
rights of the sandboxed code; what the host takes from here is only trusted to be some bytes.

This module travels into the sandbox as source text: standard library only, Python 3.8 syntax.
"""

# ruff: noqa: UP031
from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PART = ".rlm-part"
"""What the name of a file ends in until all of it has arrived."""


class Place:
    """The folder in which the worker started."""

    def __init__(self) -> None:
        try:
            self.home = os.getcwd()
        except OSError:
            self.home = os.sep

    def serve(self, op: str, body: Any) -> Any:
        """Do what a request asks for: ``write``, ``read``, ``python``, ``import_from`` or ``unpack``."""
        return getattr(self, op)(**body)

    def write(self, name: str, data: Any, start: int, last: bool, executable: bool) -> None:
        """Write a piece of a file; the file has its name once the last piece has come."""
        path = os.path.join(self.home, *name.split("/"))
        if start == 0:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        # Not through a link that code has put there.
        flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | (os.O_TRUNC if start == 0 else 0)
        with os.fdopen(os.open(path + PART, flags, 0o777 if executable else 0o666), "wb") as file:
            file.seek(start)
            file.write(data)
        if last:
            os.replace(path + PART, path)

    def read(self, name: str, start: int, size: int) -> dict[str, Any]:
        """A piece of a file, and how long the whole is."""
        import stat

        # Without waiting: opening a pipe that nobody writes to would never return.
        descriptor = os.open(os.path.join(self.home, *name.split("/")), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise IsADirectoryError("%s is a folder or a device, not a file" % name)
            file.seek(start)
            return {"data": file.read(size), "size": status.st_size}

    def python(self) -> dict[str, Any]:
        """Which Python this is, as far as the choice of packages goes."""
        import sysconfig

        libc, version = "", ""
        try:
            text = os.confstr("CS_GNU_LIBC_VERSION") or ""
            libc, _, version = text.partition(" ")
        except (AttributeError, OSError, ValueError):
            pass
        return {
            "version": list(sys.version_info[:3]),
            "implementation": sys.implementation.name,
            "soabi": str(sysconfig.get_config_var("SOABI") or ""),
            "platform": sysconfig.get_platform(),
            "libc": libc,
            "libc_version": version,
        }

    def import_from(self, folder: str, mark: str) -> bool:
        """Let code import from ``folder``, if it can be read here and has the file ``mark`` in it."""
        try:
            with open(os.path.join(folder, mark), "rb"):
                pass
        except OSError:
            return False
        if folder not in sys.path:
            places = [i for i, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages"))]
            # What was asked for by name comes before what happens to be installed.
            sys.path.insert(min(places) if places else len(sys.path), folder)
            sys.path_importer_cache.clear()
        return True

    def unpack(self, name: str, folder: str, mark: str) -> bool:
        """Unpack an archive of packages that was written here, drop it, and let code import from the result."""
        import zipfile

        path = os.path.join(self.home, name)
        folder = os.path.join(self.home, folder)
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        os.unlink(path)
        return self.import_from(folder, mark)

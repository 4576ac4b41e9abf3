"""Which kind of PDF or office file some bytes are, by their content and name. Nothing of them is parsed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True)
class OfficeKind:
    """A kind of file whose text has to be taken out of it.

    Attributes:
        what: It, in words, such as ``"a PDF"``.
        reader: Which reader of `rlm_dspy.office_text` does it: ``pdf``, ``docx``, ``pptx``, ``sheet``; None for none.
        convert: Where none does, how to get something that is read.
    """

    what: str
    reader: str | None = None
    convert: str = ""


_CONVERT = "Convert it with: libreoffice --headless --convert-to"
_PDF = OfficeKind("a PDF", "pdf")
_WORD = OfficeKind("a Word document", "docx")
_SLIDES = OfficeKind("a PowerPoint presentation", "pptx")
_SHEET = OfficeKind("a spreadsheet", "sheet")
_OLD_WORD = OfficeKind("a document of an old or another word processor", None, f"{_CONVERT} docx FILE")
_OLD_SLIDES = OfficeKind("a presentation of an old or another program", None, f"{_CONVERT} pptx FILE")
_BOOK = OfficeKind("an e-book", None, "Convert it with: pandoc FILE -t plain -o FILE.txt")
_APPLE = OfficeKind("an Apple iWork document", None, "Export it there as PDF, Word, PowerPoint or Excel")
_LOCKED = OfficeKind("protected by a password, or misnamed", None, "Save it again, without a password")
_ZIPPED = {
    ".docx": _WORD, ".docm": _WORD, ".dotx": _WORD, ".odt": _OLD_WORD,
    ".pptx": _SLIDES, ".pptm": _SLIDES, ".ppsx": _SLIDES, ".odp": _OLD_SLIDES,
    ".xlsx": _SHEET, ".xlsm": _SHEET, ".xlsb": _SHEET, ".ods": _SHEET,
    ".epub": _BOOK, ".pages": _APPLE, ".numbers": _APPLE, ".key": _APPLE,
}  # fmt: skip
_OLE = bytes.fromhex("d0cf11e0a1b11ae1")
# Password-protected Office files are OLE files with an entry of this name.
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")


def office_kind(name: str, data: bytes) -> OfficeKind | None:
    """What kind of PDF or office file this is, by its content or name; None for every other."""
    suffix = PurePath(name).suffix.lower()
    # Readers of PDF allow for some bytes before the mark.
    if data.startswith(b"%PDF-") or (suffix == ".pdf" and b"%PDF-" in data[:1024]):
        return _PDF
    if data.startswith(rb"{\rtf"):
        return _OLD_WORD
    if data.startswith(b"PK\x03\x04"):
        return _ZIPPED.get(suffix)
    if data.startswith(_OLE):
        if _ENCRYPTED in data:
            return _LOCKED
        if suffix == ".xls":
            return _SHEET
        return _OLD_SLIDES if suffix in (".ppt", ".pps") else _LOCKED if suffix in _ZIPPED else _OLD_WORD
    return None

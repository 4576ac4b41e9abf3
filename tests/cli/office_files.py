"""PDF and office files for tests, made by other libraries than those that read them where there are others."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence


def pdf(*pages: str) -> bytes:
    """A PDF with one page a text; an empty text gives a page with nothing but a drawn line, as a scan has no text."""
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    objects: list[bytes] = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", font]
    kids = []
    for text in pages:
        lines = "".join(f"({line.translate(_ESCAPES)}) Tj T*\n" for line in text.split("\n"))
        drawn = f"BT /F1 12 Tf 14 TL 72 720 Td\n{lines}ET" if text else "0 0 m 100 100 l S"
        stream = drawn.encode("latin-1")
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream))
        content = len(objects)
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % content
        )
        kids.append(b"%d 0 R" % len(objects))
    objects[1] = b"<< /Type /Pages /Count %d /Kids [%b] >>" % (len(kids), b" ".join(kids))
    out = io.BytesIO()
    out.write(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(objects, start=1):
        offsets.append(out.tell())
        out.write(b"%d 0 obj\n%b\nendobj\n" % (number, body))
    table = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    for offset in offsets:
        out.write(b"%010d 00000 n \n" % offset)
    out.write(b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table))
    return out.getvalue()


_ESCAPES = str.maketrans({"(": r"\(", ")": r"\)", "\\": r"\\"})


def locked_pdf(data: bytes, user: str, algorithm: str = "RC4-128") -> bytes:
    """``data`` encrypted; with an empty ``user`` password everybody may open it, as many published PDFs are."""
    import pypdf

    writer = pypdf.PdfWriter(clone_from=io.BytesIO(data))
    writer.encrypt(user, owner_password="owner", algorithm=algorithm)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def docx(macros: bool = False) -> bytes:
    """Headings, a list, a table with a merged cell and a table inside a cell, text after them."""
    import docx as library

    document = library.Document()
    document.add_heading("Contract", 0)
    document.add_heading("Deadlines", 2)
    document.add_paragraph("Deliver by 3 May.")
    document.add_paragraph("first item", style="List Bullet")
    table = document.add_table(rows=3, cols=2)
    for at, text in (((0, 0), "item"), ((0, 1), "price"), ((1, 0), "tea | green"), ((1, 1), "3\n€")):
        table.cell(*at).text = text
    table.cell(2, 0).merge(table.cell(2, 1)).text = "total 3"
    inner = table.cell(1, 1).add_table(rows=1, cols=1)
    inner.cell(0, 0).text = "inside"
    document.add_paragraph("After the table.")
    out = io.BytesIO()
    document.save(out)
    if not macros:
        return out.getvalue()
    plain = b"application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    macro = b"application/vnd.ms-word.document.macroEnabled.main+xml"
    return edited(out.getvalue(), "[Content_Types].xml", plain, macro)


def pptx() -> bytes:
    """Two slides: title, text, notes, a table; and a chart in a slide without a title."""
    from pptx import Presentation
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE

    show = Presentation()
    slide = show.slides.add_slide(show.slide_layouts[1])
    slide.shapes.title.text = "The plan"
    slide.placeholders[1].text = "first\nsecond"
    slide.notes_slide.notes_text_frame.text = "say it slowly"
    table = slide.shapes.add_table(1, 2, 0, 5_000_000, 1_000_000, 1_000_000).table
    table.cell(0, 0).text, table.cell(0, 1).text = "key", "value"
    blank = show.slides.add_slide(show.slide_layouts[6])
    data = CategoryChartData()
    data.categories = ["East", "West"]
    data.add_series("2024", (19.2, 21))
    blank.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, 0, 0, 5_000_000, 4_000_000, data)
    out = io.BytesIO()
    show.save(out)
    return out.getvalue()


def xlsx(**sheets: Sequence[Sequence[object]]) -> bytes:
    """A workbook of these sheets, dates as dates."""
    import xlsxwriter

    out = io.BytesIO()
    book = xlsxwriter.Workbook(out, {"in_memory": True, "default_date_format": "yyyy-mm-dd hh:mm"})
    for name, rows in sheets.items():
        sheet = book.add_worksheet(name)
        for number, row in enumerate(rows):
            sheet.write_row(number, 0, row)
    book.close()
    return out.getvalue()


def edited(archive: bytes, member: str, old: bytes, new: bytes) -> bytes:
    """A ZIP archive in which one member's text was replaced."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename == member:
                assert old in data
                data = data.replace(old, new)
            target.writestr(entry.filename, data)
    return out.getvalue()


def bomb(member: str, size: int) -> bytes:
    """A ZIP archive with a part of ``size`` zeros."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        with target.open(member, "w", force_zip64=True) as part:
            for _ in range(size >> 20):
                part.write(bytes(1 << 20))
    return out.getvalue()

"""PDF and office files become text that can be cited, in a sandbox; hostile and broken ones become clear messages."""

from __future__ import annotations

import datetime
import os
import runpy
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import documents, office, office_text
from rlm_dspy.documents import DocumentError, read
from rlm_dspy.environments import Local
from rlm_dspy.errors import MissingExtraError, SandboxUnavailableError

files = types.SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("office_files.py"))))
pytestmark = pytest.mark.usefixtures("no_leaks")
for library in office.LIBRARIES.values():
    pytest.importorskip(library, reason="needs the extra rlm-dspy[documents]")


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, bytes], str]:
    """Writes a file and gives its path."""

    def write(name: str, data: bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return str(path)

    return write


def test_pdf_page_by_page(put: Any) -> None:
    path = put("a.pdf", files.pdf("Deadlines\nDeliver by 3 May (noon).", "Second page"))
    found = read([path])
    assert found.context == "=== page 1 ===\nDeadlines\nDeliver by 3 May (noon).\n=== page 2 ===\nSecond page\n"
    assert (found.size, found.notes) == (os.path.getsize(path), ())


def test_a_pdf_by_its_content_whatever_its_name(put: Any) -> None:
    assert read([put("a.txt", files.pdf("x"))]).context == "=== page 1 ===\nx\n"
    # Some bytes before the mark are common, such as those of a mail gateway.
    assert "x" in read([put("b.pdf", b"junk\n" + files.pdf("x"))]).context


def test_pages_without_text_are_named_and_a_scan_is_an_error(put: Any) -> None:
    assert read([put("a.pdf", files.pdf("x", "", "y"))]).notes == ("a.pdf: 1 of 3 pages hold no text (images?): 2",)
    with pytest.raises(DocumentError, match=r"scan\.pdf holds no text on its 2 pages.*ocrmypdf"):
        read([put("scan.pdf", files.pdf("", ""))])


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-256"])
def test_encrypted_pdfs(put: Any, algorithm: str) -> None:
    pytest.importorskip("pypdf")
    if algorithm != "RC4-128":
        pytest.importorskip("cryptography")
    plain = files.pdf("open to all")
    assert "open to all" in read([put("a.pdf", files.locked_pdf(plain, "", algorithm))]).context
    with pytest.raises(DocumentError, match=r"b\.pdf is protected by a password.*qpdf --decrypt"):
        read([put("b.pdf", files.locked_pdf(plain, "secret", algorithm))])


def test_docx_in_order_with_tables(put: Any) -> None:
    assert read([put("a.docx", files.docx())]).context.splitlines() == [
        "# Contract",
        "## Deadlines",
        "Deliver by 3 May.",
        "- first item",
        "| item | price |",
        "| tea \\| green | 3 € |",
        "| total 3 |",
        "| inside |",
        "After the table.",
    ]


def test_docm_is_read_like_docx(put: Any) -> None:
    assert "Deliver by 3 May." in read([put("a.docm", files.docx(macros=True))]).context


def test_pptx_slide_by_slide(put: Any) -> None:
    assert read([put("a.pptx", files.pptx())]).context.splitlines() == [
        "=== slide 1: The plan ===",
        "first",
        "second",
        "| key | value |",
        "[notes] say it slowly",
        "=== slide 2 ===",
        "|  | East | West |",
        "| 2024 | 19.2 | 21 |",
    ]


def test_one_sheet_is_records_and_several_are_a_dict(put: Any) -> None:
    day = datetime.datetime(2024, 5, 3)
    rows = [["day", "n", "note"], [day, 3, 'a, "b"\nc'], [day + datetime.timedelta(minutes=1), 1.5, "é"]]
    records = [
        {"day": "2024-05-03", "n": "3", "note": 'a, "b"\nc'},
        {"day": "2024-05-03 00:01:00", "n": "1.5", "note": "é"},
    ]
    assert read([put("a.xlsx", files.xlsx(Sales=rows))]).context == records
    found = read([put("b.xlsx", files.xlsx(Sales=rows, Empty=[], More=[["x", "y"], [1, True]]))])
    assert found.context == {"Sales": records, "More": [{"x": "1", "y": "True"}]}
    assert found.notes == ("b.xlsx: sheet 'Empty' is empty",)


def test_in_a_folder_all_are_text(put: Any, tmp_path: Path) -> None:
    put("f/a.pdf", files.pdf("page text"))
    put("f/b/c.xlsx", files.xlsx(One=[["x", "y"], [1, 2]], Two=[["z", "w"], [3, 4]]))
    put("f/plain.txt", b"plain")
    put("f/broken.docx", b"PK\x03\x04nothing")
    put("f/old.doc", bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600))
    busy: list[str] = []
    found = read([tmp_path / "f"], busy=busy.append)
    assert found.context == {
        "a.pdf": "=== page 1 ===\npage text\n",
        "b/c.xlsx": "=== sheet 1: One ===\nx,y\n1,2\n=== sheet 2: Two ===\nz,w\n3,4\n",
        "plain.txt": "plain",
    }
    assert busy == ["a.pdf", "broken.docx", "b/c.xlsx"]
    notes = "\n".join(found.notes)
    assert "left out: broken.docx is broken" in notes
    assert "old.doc" in notes and "libreoffice --headless --convert-to docx" in notes


def test_many_broken_files_of_a_folder_are_not_as_many_notes(put: Any, tmp_path: Path) -> None:
    for number in range(30):
        put(f"f/{number}.docx", b"PK\x03\x04nothing")
    notes = read([tmp_path / "f"]).notes
    assert len(notes) < 15 and any("and 20 more" in note for note in notes)


def test_from_standard_input(put: Any, tmp_path: Path) -> None:
    path = put("a.pdf", files.pdf("piped"))
    with open(path, "rb") as stream:
        assert read(["-"], stdin=stream).context == "=== page 1 ===\npiped\n"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.pdf", b"%PDF-1.7\n\xff\0", r"a\.pdf is broken.*qpdf"),
        ("a.docx", b"PK\x03\x04\0\0", r"a\.docx is broken.*save it again"),
        ("a.pptx", files.xlsx(One=[[1]]), r"a\.pptx is not what its name says"),
        ("a.xlsx", files.docx(), r"a\.xlsx is broken, or not what its name says"),
        ("a.docx", files.edited(files.docx(), "word/document.xml", b"</w:body>", b"<w:body>"), "is broken"),
        ("a.docx", bytes.fromhex("d0cf11e0a1b11ae1") + "EncryptedPackage".encode("utf-16-le"), "password"),
        ("a.xls", bytes.fromhex("d0cf11e0a1b11ae1") + b"\0", r"a\.xls is broken"),
        ("a.doc", bytes.fromhex("d0cf11e0a1b11ae1") + b"\0", r"libreoffice --headless --convert-to docx"),
        ("a.ppt", bytes.fromhex("d0cf11e0a1b11ae1") + b"\0", r"libreoffice --headless --convert-to pptx"),
        ("a.rtf", rb"{\rtf1 text}", "libreoffice"),
        ("a.odt", b"PK\x03\x04\0", "libreoffice"),
        ("a.epub", b"PK\x03\x04\0", "pandoc"),
        ("a.pages", b"PK\x03\x04\0", "Export it there as PDF"),
    ],
)
def test_what_cannot_be_read_says_what_helps(put: Any, name: str, data: bytes, message: str) -> None:
    with pytest.raises(DocumentError, match=message) as caught:
        read([put(name, data)])
    assert "Traceback" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_zip_bomb_is_refused_before_it_is_unpacked(put: Any) -> None:
    path = put("a.docx", files.bomb("word/document.xml", office_text.MAX_UNPACKED + (1 << 20)))
    assert os.path.getsize(path) < 2 << 20
    start = time.monotonic()
    with pytest.raises(DocumentError, match=r"would unpack to 1,074,790,400 bytes.*as a ZIP bomb does"):
        read([path])
    assert time.monotonic() - start < 10


def test_an_archive_that_lies_about_its_sizes_ends_in_a_message(put: Any) -> None:
    data = files.bomb("word/document.xml", 64 << 20)
    # Both records of the size, as the library reads one and this project the other.
    lie = data.replace((64 << 20).to_bytes(8, "little"), (64).to_bytes(8, "little"))
    lie = lie.replace((64 << 20).to_bytes(4, "little"), (64).to_bytes(4, "little"))
    assert lie != data
    with pytest.raises(DocumentError, match=r"a\.docx "):
        read([put("a.docx", lie)])


def test_xml_entities_are_not_expanded_and_files_not_included(put: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    declared = b"<?xml version='1.0' encoding='UTF-8' standalone='yes'?>"
    laughs = b"".join(b'<!ENTITY l%d "%b">' % (n, b"&l%d;" % (n - 1) * 10) for n in range(1, 10))
    doctype = b'<!DOCTYPE d [<!ENTITY l0 "lol">' + laughs + b'<!ENTITY x SYSTEM "file://%b">]>' % str(secret).encode()
    data = files.edited(files.docx(), "word/document.xml", declared, declared + doctype)
    for entity in (b"&x;", b"&l9;"):
        bad = files.edited(data, "word/document.xml", b"Deliver by 3 May.", entity)
        try:
            text = str(read([put("a.docx", bad)]).context)
        except DocumentError as error:
            text = str(error)
        assert "the secret" not in text and text.count("lol") < 100 and len(text) < 10_000


def test_a_parser_that_hangs_is_ended(put: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office, "SECONDS", 0.5)
    source = "import time\ndef extract(kind, data):\n    while True: pass\n"
    monkeypatch.setattr(office, "_source", lambda: source)
    with pytest.raises(DocumentError, match=r"a\.pdf takes more than 0\.5 seconds to be read"):
        read([put("a.pdf", files.pdf("x"))])


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), 9)", "x = bytes(8 << 30)", "raise RuntimeError('bad')"])
def test_a_parser_that_dies_leaves_the_other_files(
    put: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    body = f"    if b'evil' in data: {how}\n    return dict(text='fine', notes=[])\n"
    source = "import os\ndef extract(kind, data):\n" + body
    monkeypatch.setattr(office, "_source", lambda: source)
    for name in ("a", "evil", "z"):
        put(f"f/{name}.pdf", files.pdf(name))
    found = read([tmp_path / "f"])
    assert found.context == {"a.pdf": "fine", "z.pdf": "fine"}
    assert len(found.notes) == 1 and "left out: evil.pdf cannot be read" in found.notes[0]


def test_parsers_run_where_nothing_of_the_host_can_be_reached(
    put: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Local().describe().confined:
        pytest.skip("this machine confines nothing")
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    monkeypatch.setenv("MY_API_KEY", "sk-very-secret-0123456789")
    source = (
        "import os, socket\n"
        "def extract(kind, data):\n"
        "    seen = [dict(os.environ)]\n"
        f"    for do in (lambda: open({str(secret)!r}).read(), lambda: socket.create_connection(('127.0.0.1', 1))):\n"
        "        try: seen.append(do())\n"
        "        except OSError as error: seen.append(type(error).__name__)\n"
        "    return dict(text=repr(seen), notes=[])\n"
    )
    monkeypatch.setattr(office, "_source", lambda: source)
    text = read([put("a.pdf", files.pdf("x"))]).context
    assert "the secret" not in text and "sk-very-secret" not in text and "ConnectionRefused" not in text


def test_without_a_sandbox_a_process_with_limits_reads_and_says_so(put: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Local) -> Any:
        raise SandboxUnavailableError("no layer")

    monkeypatch.setattr(Local, "open", refuse)
    found = read([put("a.pdf", files.pdf("still read"))])
    assert "still read" in found.context
    assert len(found.notes) == 1 and "without a sandbox" in found.notes[0] and "rlm-dspy doctor" in found.notes[0]
    body = "return dict(text=str(resource.getrlimit(resource.RLIMIT_AS)), notes=[])"
    source = f"import resource\ndef extract(kind, data): {body}"
    monkeypatch.setattr(office, "_source", lambda: source)
    assert read([put("a.pdf", files.pdf("x"))]).context == str((office.MEMORY, office.MEMORY))


def test_a_file_that_is_too_large(put: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office, "MAX_FILE", 100)
    with pytest.raises(DocumentError, match=r"bytes, and a PDF or office file may have 100"):
        read([put("a.pdf", files.pdf("x"))])


def test_without_the_extra(put: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(office.LIBRARIES, "pdf", "no_such_library_of_ours")
    path = put("f/a.pdf", files.pdf("x"))
    with pytest.raises(MissingExtraError, match=r"a\.pdf is a PDF.*pip install 'rlm-dspy\[documents\]'"):
        read([path])
    put("f/b.txt", b"b")
    for number in range(8):
        put(f"f/more{number}.pdf", files.pdf("x"))
    found = read([tmp_path / "f"])
    assert found.context == {"b.txt": "b"}
    assert len(found.notes) == 1
    for said in ("9 files", "a.pdf", "pip install 'rlm-dspy[documents]'"):
        assert said in found.notes[0]


def test_a_folder_given_to_a_program_leaves_them_out(put: Any, tmp_path: Path) -> None:
    put("f/a.pdf", files.pdf("x"))
    found = documents.folder(tmp_path / "f")
    assert found.value == {} and "rlm_dspy.documents.read reads them" in found.notes[0]


def test_ask_reads_a_pdf(ask: Any, script: Any, put: Any) -> None:
    model = script("def root(call): return code('SUBMIT(context)')")
    result = ask("q", put("a.pdf", files.pdf("in the file")), "--model", model)
    assert (result.code, result.out) == (0, "=== page 1 ===\nin the file\n\n")


def test_ask_without_the_extra_names_the_line(
    ask: Any, script: Any, put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(office.LIBRARIES, "pdf", "no_such_library_of_ours")
    result = ask("q", put("a.pdf", files.pdf("x")), "--model", script("root = []"))
    assert result.code == 2 and "pip install 'rlm-dspy[documents]'" in result.err

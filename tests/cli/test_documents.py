"""Files, folders and standard input become values, and nothing is lost or guessed in silence."""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path

import pytest

from rlm_dspy import documents
from rlm_dspy.documents import DocumentError, read
from rlm_dspy.errors import ConfigurationError


def put(path: Path, content: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def test_one_document_is_the_context_itself(tmp_path: Path) -> None:
    found = read([put(tmp_path / "a.txt", "hello\r\nworld\0 ü")])
    assert found.context == "hello\r\nworld\0 ü"
    assert (found.items, found.sizes, found.notes) == ({"a.txt": found.context}, {"a.txt": 16}, ())


def test_several_documents_are_a_dict_in_order(tmp_path: Path) -> None:
    paths = [put(tmp_path / "b.json", '{"x": [1, 2.5, null]}'), put(tmp_path / "a.tsv", "n\tv\nx\t1\ny\t2\n")]
    found = read(paths)
    assert list(found.context) == ["b.json", "a.tsv"]
    assert found.context == {"b.json": {"x": [1, 2.5, None]}, "a.tsv": [{"n": "x", "v": "1"}, {"n": "y", "v": "2"}]}
    assert found.size == sum(os.path.getsize(path) for path in paths)


def test_names_are_as_long_as_it_takes(tmp_path: Path) -> None:
    paths = [put(tmp_path / name, name) for name in ("x/a/f.txt", "y/a/f.txt", "y/b/f.txt", "g.txt")]
    assert list(read(paths).context) == ["x/a/f.txt", "y/a/f.txt", "b/f.txt", "g.txt"]
    assert read(paths).context["x/a/f.txt"] == "x/a/f.txt"


def test_a_document_given_twice_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.txt", "text")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("a.txt")
    found = read([path, "a.txt", path, "link"])
    assert found.context == "text"
    assert len(found.notes) == 2 and all("read once" in note for note in found.notes)


@pytest.mark.parametrize("stdin", [io.BytesIO(b"caf\xc3\xa9\r\n"), io.StringIO("café\r\n", newline="")])
def test_standard_input(tmp_path: Path, stdin: io.BytesIO | io.StringIO) -> None:
    found = read(["-", put(tmp_path / "stdin", "a file of that name")], stdin=stdin)
    assert found.items["stdin"] == "café\r\n" and found.sizes["stdin"] == 7
    assert found.items[f"{tmp_path.name}/stdin"] == "a file of that name"


def test_a_pipe_as_a_file() -> None:
    receive, send = os.pipe()
    os.write(send, b"from a pipe")
    os.close(send)
    try:
        assert read([f"/dev/fd/{receive}"]).context == "from a pipe"
    finally:
        os.close(receive)


def test_a_folder_is_a_dict_of_its_texts(tmp_path: Path) -> None:
    root = tmp_path / "project"
    put(root / "b.py", "print()")
    put(root / "a" / "x.json", '{"kept": "as text"}')
    put(root / "a" / "old.txt", b"caf\xe9")
    put(root / ".git" / "config", "secret")
    put(root / ".env", "KEY=1")
    put(root / "logo.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    put(root / "paper.pdf", b"%PDF-1.7\n")
    put(tmp_path / "outside.txt", "outside")
    (root / "out.txt").symlink_to(tmp_path / "outside.txt")
    (root / "in.txt").symlink_to("b.py")
    (root / "loop").symlink_to(root)
    os.mkfifo(root / "fifo")
    found = read([root])
    assert found.context == {
        "b.py": "print()",
        "in.txt": "print()",
        "a/old.txt": "café",
        "a/x.json": '{"kept": "as text"}',
    }
    assert found.sizes == {"project": 7 + 7 + 4 + 19}
    notes = "\n".join(found.notes)
    for left_out in (".git", ".env", "logo.png", "paper.pdf", "out.txt", "loop", "fifo"):
        assert left_out in notes
    assert "a/old.txt" in notes and "Latin-1" in notes


def test_many_files_left_out_are_one_note(tmp_path: Path) -> None:
    for number in range(100):
        put(tmp_path / f"{number:03}.bin", b"\xff\0\xfe")
    found = read([tmp_path])
    assert found.context == {}
    assert any("and 95 more" in note for note in found.notes) and any("no text" in note for note in found.notes)


def test_a_folder_and_files(tmp_path: Path) -> None:
    put(tmp_path / "src" / "m.py", "1")
    found = read([tmp_path / "src", put(tmp_path / "q.txt", "2")])
    assert found.context == {"src": {"m.py": "1"}, "q.txt": "2"}


def test_a_binary_file_is_an_error_that_says_what_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"music\.mp3 is a binary file.*text, JSON, CSV, PDF, Word"):
        read([put(tmp_path / "music.mp3", b"ID3\xff\0\0")])


def test_a_text_with_an_office_name_is_read(tmp_path: Path) -> None:
    assert read([put(tmp_path / "notes.key", "plain")]).context == "plain"


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"missing\.txt does not exist"):
        read([tmp_path / "missing.txt"])
    with pytest.raises(DocumentError, match="not a path"):
        read(["a\0b"])
    put(tmp_path / "file", "x")
    with pytest.raises(DocumentError, match="file/below"):
        read([tmp_path / "file" / "below"])
    with pytest.raises(DocumentError, match="/proc/self/mem cannot be read"):
        read(["/proc/self/mem"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_files_and_folders_are_errors(tmp_path: Path) -> None:
    path = put(tmp_path / "folder" / "locked.txt", "x")
    os.chmod(path, 0)
    with pytest.raises(DocumentError, match=r"locked\.txt cannot be read"):
        read([path])
    with pytest.raises(DocumentError, match=r"locked\.txt cannot be read"):
        read([tmp_path / "folder"])
    os.chmod(tmp_path / "folder", 0)
    try:
        with pytest.raises(DocumentError, match="folder cannot be read"):
            read([tmp_path / "folder"])
    finally:
        os.chmod(tmp_path / "folder", stat.S_IRWXU)


def test_notes_name_their_document(tmp_path: Path) -> None:
    found = read([put(tmp_path / "bad.jsonl", '{"a": 1}\nnot json\n{"a": 2}\n')])
    assert found.context == [{"a": 1}, "not json", {"a": 2}]
    assert found.notes == ("bad.jsonl: not valid JSON, kept as text: line 2",)


def test_a_large_line(tmp_path: Path) -> None:
    text = "x" * 20_000_000
    assert read([put(tmp_path / "line.txt", text)]).context == text
    assert read([put(tmp_path / "line.json", json.dumps([text]))]).context == [text]
    assert read([put(tmp_path / "line.csv", f"a,b\n{text},1\n")]).context == [{"a": text, "b": "1"}]


def test_nothing_given() -> None:
    assert documents.read([]).context == {}

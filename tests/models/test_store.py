"""The cache folder: where it is, what is verified when, what is removed; and files that are not whole."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy.errors import LocalModelError
from rlm_dspy.models import partial, store
from tests.models.conftest import DATA, described


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RLM_DSPY_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert store.root() == tmp_path / ".cache" / "rlm-dspy"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert store.root() == tmp_path / ".cache" / "rlm-dspy"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.root() == tmp_path / "xdg" / "rlm-dspy"
    monkeypatch.setenv("RLM_DSPY_CACHE", str(tmp_path / "own"))
    assert store.root() == tmp_path / "own"


def test_a_file_is_hashed_once_and_again_when_it_changed(cache: Path) -> None:
    model = described()
    path = store.target(model)
    assert store.complete(model) is None
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA)
    hashed: list[int] = []
    assert store.complete(model, hashed.append) == path and sum(hashed) == len(DATA)
    assert store.complete(model, hashed.append) == path and sum(hashed) == len(DATA)
    os.utime(path, ns=(0, 0))
    assert store.complete(model, hashed.append) == path and sum(hashed) == 2 * len(DATA)


def test_another_file_is_found_out_and_removed(cache: Path) -> None:
    model = described()
    path = store.target(model)
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA)
    assert store.complete(model) == path
    path.write_bytes(DATA[:-1] + b"!")
    with pytest.raises(LocalModelError, match=f"expected {model.sha256}, got [0-9a-f]{{64}}.*model pull pretend"):
        store.complete(model)
    assert not path.exists()


def test_a_users_own_file_is_never_removed(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.gguf"
    path.write_bytes(b"something else")
    with pytest.raises(LocalModelError, match="is not the file it should be"):
        store.complete(described(path=str(path)))
    assert path.read_bytes() == b"something else"


def test_remove_says_what_it_freed(cache: Path) -> None:
    model = described()
    store.describe(model)
    store.target(model).write_bytes(DATA)
    assert store.names() == ["pretend"] and store.described("pretend") == model
    assert store.remove("pretend") >= len(DATA)
    assert store.names() == [] and store.described("pretend") is None
    assert store.remove("pretend") == 0
    for name in ("../pretend", "..", ".locks", "a/b"):
        with pytest.raises(LocalModelError):
            store.remove(name)


def test_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    cache.write_text("a file in its place")
    with pytest.raises(LocalModelError, match="Set RLM_DSPY_CACHE to another one"), store.locked("x"):
        pass


def test_one_writer_at_a_time(cache: Path) -> None:
    order: list[str] = []
    waits = threading.Event()

    def second() -> None:
        with store.locked("x", waits.set):
            order.append("second")

    with store.locked("x"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(20)
        order.append("first")
    thread.join(20)
    assert order == ["first", "second"]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted), max_size=12))
def test_pieces_in_any_order_add_up(tmp_path_factory: pytest.TempPathFactory, pieces: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLM_DSPY_CACHE", str(tmp_path_factory.mktemp("cache")))
        model, there = described(size=40), set()
        part = partial.Partial(model, 40)
        for start, end in pieces:
            part.add(start, end)
            there |= set(range(start, end))
            assert part.done == len(there)
            assert part.prefix == next(i for i in range(41) if i not in there)
        for start, end in pieces:
            assert start == end or part.covers(start, end)
        assert all((place in there) == part.covers(place, place + 1) for place in range(40))
        assert partial.all_there(model) == (len(there) == 40)
        assert partial.Partial(model, 40).done == len(there)
        # Of another file nothing is of use.
        assert partial.Partial(described(size=40, sha256="ab" * 32), 40).done == 0

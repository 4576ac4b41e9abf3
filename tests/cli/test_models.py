"""Embedded models by name on the command line, and the fix that an error of a provider comes with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

import rlm_dspy.models as embedded
from rlm_dspy.cli import exits
from rlm_dspy.cli.models import is_embedded, models
from rlm_dspy.errors import MissingExtraError
from rlm_dspy.testing import ScriptedLM, code


@pytest.mark.parametrize(
    ("name", "which"),
    [("local", ()), ("local/qwen2.5-coder-0.5b", ("qwen2.5-coder-0.5b",)), ("local/a/b.gguf", ("a/b.gguf",))],
)
def test_embedded_models_are_made_by_name(monkeypatch: pytest.MonkeyPatch, name: str, which: tuple[str, ...]) -> None:
    asked: list[tuple[tuple[str, ...], int | None]] = []

    def local_lm(*args: str, threads: int | None = None) -> dspy.BaseLM:
        asked.append((args, threads))
        return ScriptedLM([code("SUBMIT(1)")])

    monkeypatch.setattr(embedded, "local_lm", local_lm)
    root, sub = models(name, name, None)
    assert asked == [(which, None)] and sub is root, "one copy of the weights is enough"
    models("openai/root", name, None, threads=3)
    assert asked[1:] == [(which, 3)]


def test_threads_reach_the_server_of_the_embedded_model(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF" + bytes(100))
    root, _ = models(f"local/{file}", None, None, threads=3)
    assert isinstance(root, embedded.LocalLM) and root.options.threads == 3


@pytest.mark.parametrize(
    ("threads", "model", "said"),
    [
        ("2", "openai/root", "--threads is for the embedded model (--model local), and openai/root computes elsewhere"),
        ("two", "local", "'two' is not a whole number"),
        ("0", "local", "threads is a whole number of at least 1, not 0"),
    ],
)
def test_threads_that_cannot_be_meant(ask: Any, document: str, threads: str, model: str, said: str) -> None:
    if threads == "0":
        pytest.importorskip("xllamacpp")
    result = ask("q", document, "--model", model, "--threads", threads)
    assert result.code == exits.USAGE and said in result.err


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("local", True), ("local/x", True), ("localai/x", False), ("openai/local", False)],
)
def test_what_names_an_embedded_model(name: str, is_one: bool) -> None:
    assert is_embedded(name) == is_one


def test_without_the_extra(ask: Any, document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def local_lm(*_: str, threads: int | None = None) -> dspy.BaseLM:
        raise MissingExtraError("the embedded model", "local")

    monkeypatch.setattr(embedded, "local_lm", local_lm)
    result = ask("q", document, "--model", "local")
    assert result.code == exits.USAGE and "pip install 'rlm-dspy[local]'" in result.err


def test_a_missing_key_comes_with_its_fix(ask: Any, document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = ask("q", document, "--model", "openai/gpt-5.4-mini")
    assert (result.code, result.out) == (exits.ERROR, "")
    fix, error = result.err.splitlines()[-2:]
    assert "OPENAI_API_KEY" in fix and "export" in fix and "the error was: LMNotConfiguredError" in error


def test_no_model_names_all_ways_to_one(ask: Any, document: str) -> None:
    result = ask("q", document)
    for way in ("RLM_DSPY_MODEL", "OPENAI_API_KEY", "--api-base", "--model local", "rlm-dspy doctor"):
        assert way in result.err

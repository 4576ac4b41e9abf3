"""The notebooks run from top to bottom, and are committed with outputs that are small and of no particular machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
EVERY = sorted(NOTEBOOKS.glob("*.ipynb"))


WITH_MODEL = {"02_no_key.ipynb"}
"""Those of the embedded model. Its replies may differ from processor to processor: only that they run is held."""

NEEDS = {"08_from_traces_to_training.ipynb": ("torch", "trl", "peft", "datasets", "verifiers")}
"""Modules beyond those of development, by notebook."""


def text_of(notebook: Any) -> list[str]:
    """What each code cell printed or gave, as text; without the cells tagged as telling of the machine."""
    shown = []
    for cell in notebook.cells:
        if cell.cell_type == "code" and "machine" not in cell.metadata.get("tags", []):
            parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
            shown.append("".join(parts))
    return shown


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """``notebooks/execute.py``."""
    spec = importlib.util.spec_from_file_location("notebooks_execute", NOTEBOOKS / "execute.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_notebooks() -> None:
    assert EVERY


@pytest.mark.parametrize("path", EVERY, ids=[path.name for path in EVERY])
def test_committed_with_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code), "run notebooks/execute.py"
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    assert path.stat().st_size < 150_000


@pytest.mark.heavy
@pytest.mark.alone
@pytest.mark.parametrize("path", EVERY, ids=[path.name for path in EVERY])
def test_runs_and_gives_what_is_committed(
    path: Path, tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPY_CACHEDIR", str(tmp_path / "cache"))
    for name in ("OPENAI_API_KEY", "RLM_DSPY_MODEL"):
        monkeypatch.delenv(name, raising=False)
    for module in NEEDS.get(path.name, ()):
        pytest.importorskip(module, reason="needs pip install 'rlm-dspy[train,trl]'")
    if path.name in WITH_MODEL:
        pytest.importorskip("xllamacpp")
        from rlm_dspy.models import catalog, resolve, store

        if store.complete(resolve(catalog.DEFAULT)) is None:
            pytest.skip("the embedded model is not here: rlm-dspy model pull")
    committed = text_of(nbformat.read(path, as_version=4))
    assert text_of(tool.execute(path, timeout=400)) == committed

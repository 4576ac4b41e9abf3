"""Run notebooks from top to bottom and keep their outputs: ``python notebooks/execute.py [NOTEBOOK ...]``.

Outputs are kept small and free of what differs from machine to machine, so that a diff shows what changed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent


def execute(path: Path, *, timeout: float = 120) -> Any:
    """Run one notebook in a kernel of its own; the notebook with its outputs.

    Args:
        path: The ``.ipynb`` file; it is not changed.
        timeout: Seconds that one cell may take.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell raised.
    """
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(HERE)}}
    NotebookClient(notebook, timeout=timeout, kernel_name="python3", resources=where).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day
        if cell.cell_type == "code":
            # The rich form is enough where there is one; Jupyter shows one of them.
            for output in cell.outputs:
                data = output.get("data", {})
                if "text/html" in data:
                    data["text/plain"] = "(shown as HTML)"
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main(arguments: list[str]) -> None:
    """Execute the notebooks named, or all in this folder, in place."""
    for path in [Path(name) for name in arguments] or sorted(HERE.glob("*.ipynb")):
        nbformat.write(execute(path), path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])

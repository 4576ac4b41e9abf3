"""What importing the room costs, and what it says where its extra is missing."""

from __future__ import annotations

import subprocess
import sys


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_importing_it_imports_nothing_of_verifiers() -> None:
    done = python("import rlm_dspy.training, sys; print({'verifiers', 'aiohttp', 'transformers'} & set(sys.modules))")
    assert done.stdout.strip() == "set()", done.stderr


def test_without_the_extra_the_pip_line_is_named() -> None:
    hide = "import importlib.util as u; real = u.find_spec; "
    hide += "u.find_spec = lambda n, *a: None if n == 'verifiers' else real(n, *a)"
    done = python(f"{hide}\nimport rlm_dspy.training\nrlm_dspy.training.RLMEnv")
    assert done.returncode != 0
    assert "MissingExtraError" in done.stderr and "pip install 'rlm-dspy[train]'" in done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    done = python("import rlm_dspy.training as t\nprint(hasattr(t, 'nothing'), 'RLMEnv' in dir(t))")
    assert done.stdout.split() == ["False", "True"], done.stderr

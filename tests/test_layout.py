"""The shape of the project: import direction, lazy imports, sizes, docstrings, and what must not be in its files."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlm_dspy

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("signatures", "environments", "optimizers", "training")
FOLDERS = {"rlm_dspy": "rlm_dspy", **{f"rlm_dspy.{room}": room for room in ROOMS}}
# What lies here is imported under its own name, because verifiers finds it by that.
BY_NAME = ROOT / "training" / "tasksets"

# A layer may import itself and what stands above it. Whatever is not named is the core.
LAYERS = ("leaf", "signatures", "environments", "core", "upper", "front")
LEAVES = {"rlm_dspy", "rlm_dspy.errors", "rlm_dspy._aio", "rlm_dspy._signals", "rlm_dspy.redact"}
UPPER = ("rlm_dspy.optimizers", "rlm_dspy.training", "rlm_dspy_")
FRONT = ("rlm_dspy.cli", "rlm_dspy.doctor", "rlm_dspy.quickstart")

# Heavy or optional: nothing of ours may load one before it is asked for.
FOREIGN = (
    *("mlflow", "docker", "modal", "e2b", "daytona", "daytona_sdk", "prime", "prime_sandboxes", "IPython", "ipykernel"),
    *("verifiers", "torch", "transformers", "ray", "pandas", "pyarrow", "gepa", "optuna", "cloudpickle"),
    *("pypdfium2", "docx", "pptx", "python_calamine", "xllamacpp", "huggingface_hub"),
)


def modules() -> list[tuple[str, Path]]:
    """Every module of the package: dotted name and file."""
    found = []
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            own = path.is_relative_to(BY_NAME)
            parts = path.relative_to(BY_NAME if own else ROOT / folder).with_suffix("").parts
            name = ".".join((*([] if own else [package]), *(p for p in parts if p != "__init__")))
            found.append((name, path))
    return found


MODULES = modules()
NAMES = {name for name, _ in MODULES}


def layer(name: str) -> int:
    """Where a module stands, 0 at the bottom."""
    if name in LEAVES:
        return LAYERS.index("leaf")
    for room in ("signatures", "environments"):
        if name == f"rlm_dspy.{room}" or name.startswith(f"rlm_dspy.{room}."):
            return LAYERS.index(room)
    if name.startswith(FRONT):
        return LAYERS.index("front")
    if name.startswith(UPPER):
        return LAYERS.index("upper")
    return LAYERS.index("core")


def imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The project's modules that a module imports, anywhere in it but under ``if TYPE_CHECKING``."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(inner for child in node.body for inner in ast.walk(child))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name.startswith("rlm_dspy"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rlm_dspy":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner if inner in NAMES else str(node.module)), node.lineno


@pytest.mark.parametrize(("name", "path"), MODULES, ids=[name for name, _ in MODULES])
class TestModule:
    """What holds for every module by itself."""

    def test_imports_point_downwards(self, name: str, path: Path) -> None:
        if name == "rlm_dspy":
            return  # its imports are for type checkers, or made when a name is first used
        wrong = [
            f"line {line}: {name} ({LAYERS[layer(name)]}) imports {target} ({LAYERS[layer(target)]})"
            for target, line in imported(ast.parse(path.read_text()))
            if layer(target) > layer(name)
        ]
        assert not wrong, "\n".join(wrong)

    def test_private_names_of_other_packages_are_for_compat_alone(self, name: str, path: Path) -> None:
        found = [
            f"line {node.lineno}: {whole}"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(("rlm_dspy", "_rlm_"))
            for whole in (f"{node.module}.{alias.name}" for alias in node.names)
            if re.search(r"(^|\.)_(?!_)", whole)
        ]
        assert not found or path.name == "_compat.py", "\n".join(found)

    def test_at_most_500_lines(self, name: str, path: Path) -> None:
        assert len(path.read_text().splitlines()) <= 500

    def test_public_things_have_docstrings(self, name: str, path: Path) -> None:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), "the module has no docstring"
        bare = sorted(_without_docstring(tree))
        assert not bare, f"without a docstring: {', '.join(bare)}"


def _without_docstring(tree: ast.Module) -> Iterator[str]:
    """Public functions, classes and methods that say nothing of themselves.

    A method that overrides one of a class in the same module, or is as short as an accessor, inherits its meaning; so
    do dunder methods, overloads and what is nested in a function.
    """
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in tree.body:
        if not isinstance(node, kinds) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node) and not _fields_only(node):
            yield node.name
        if not isinstance(node, ast.ClassDef):
            continue
        if node.bases:
            continue  # what it overrides is documented where it was declared
        for method in node.body:
            if isinstance(method, kinds) and not method.name.startswith("_") and not ast.get_docstring(method):
                if not any("overload" in ast.unparse(d) for d in method.decorator_list):
                    if len(method.body) > 1 or not isinstance(method.body[0], ast.Return):
                        yield f"{node.name}.{method.name}"


def _fields_only(node: ast.AST) -> bool:
    """True for a signature whose ``__doc__`` is assigned in its body."""
    return isinstance(node, ast.ClassDef) and any(
        isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "__doc__" for item in node.body
    )


def python(code: str, *, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """``code`` in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def loaded_by_dspy() -> set[str]:
    """The modules that ``import dspy`` loads."""
    done = python("import dspy, sys; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["rlm_dspy", "rlm_dspy.rlm", "rlm_dspy.environments", "rlm_dspy.testing"])
def test_importing_loads_nothing_optional(module: str, loaded_by_dspy: set[str]) -> None:
    """Beyond what ``import dspy`` itself loads."""
    # What DSPy loads by itself is DSPy's; the difference is ours.
    done = python(f"import {module}, sys; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in set(done.stdout.split()) - loaded_by_dspy}
    assert not loaded & {*FOREIGN, "numpy"}, sorted(loaded & {*FOREIGN, "numpy"})


def test_import_rlm_dspy_alone_is_light() -> None:
    """The package by itself loads neither DSPy nor anything else that takes time: the command line starts at once."""
    done = python("import rlm_dspy, sys; print(*sys.modules); rlm_dspy.__version__")
    assert done.returncode == 0, done.stderr
    assert not {"dspy", "litellm", "pydantic", "rich", "asyncio"} & set(done.stdout.split())


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_refuse_a_bare_name(room: str) -> None:
    """From the checkout's root, where the folder is importable by accident."""
    done = python(f"import {room}", PYTHONPATH=str(ROOT))
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError"), done.stderr
    assert "pip install -e ." in last and f"rlm_dspy.{room}" in last


@pytest.mark.parametrize("name", sorted(rlm_dspy.__all__))
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(rlm_dspy, name) is not None


def test_public_names_are_those_that_can_be_imported_lazily() -> None:
    assert set(rlm_dspy.__all__) == {"__version__", *rlm_dspy._HOMES, *rlm_dspy._MODULES}


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_that_name'"):
        _ = rlm_dspy.nothing_of_that_name


def test_every_folder_of_modules_is_in_the_distribution() -> None:
    declared = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    assert {name for name, path in MODULES if path.name == "__init__.py"} == declared


@pytest.mark.parametrize(
    ("folder", "text"),
    [
        ("rlm_dspy", "CONTRIBUTING.md"),
        ("signatures", "signatures/__init__.py"),
        ("environments", "environments/__init__.py"),
        ("optimizers", "optimizers/__init__.py"),
        ("training", "training/__init__.py"),
    ],
)
def test_every_module_is_on_the_map_of_its_room(folder: str, text: str) -> None:
    said = (ROOT / text).read_text()
    names = [path.name for path in (ROOT / folder).glob("*.py") if path.name != "__init__.py"]
    assert not [name for name in names if not re.search(rf"\b{re.escape(name)}\b", said)]


def test_typed_marker_is_shipped() -> None:
    assert (ROOT / "rlm_dspy" / "py.typed").exists()
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert "py.typed" in data["rlm_dspy"]


def test_versions_agree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert rlm_dspy.__version__ == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def tracked() -> list[Path]:
    """The text files that git knows or would take."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = (ROOT / os.fsdecode(name) for name in done.stdout.split(b"\0") if name)
    return [path for path in paths if path.is_file() and not path.is_symlink() and b"\0" not in path.read_bytes()]


# Put together from parts, so that this file does not hold what it looks for.
_MACHINE = re.compile("|".join(rf"(?<![\w.<}}\])-])/{top}/[\w.-]+" for top in ("work", "opt", "root", "home", "Users")))
_TEMPORARY = re.compile(r"(?<![\w.}\]])/" + r"tmp/[\w.-]+")
_HOSTS = (r"pypi\." + "org", r"files\.python" + "hosted", r"registry\.npm" + "js", r"deb\." + "debian")
_REGISTRY = re.compile("|".join(_HOSTS))
# Made up by a test: what a sandbox must not reach, and a place inside a container.
_ALLOWED = re.compile(r"/(home|root)/(user|someone|nobody|\.ssh|\.bashrc)\b|/tmp/" + r"cache\b")


def test_no_machine_paths_or_registry_hosts() -> None:
    found = []
    for path in tracked():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for pattern in (_MACHINE, _TEMPORARY, _REGISTRY):
                hits = [hit[0] for hit in pattern.finditer(line) if not _ALLOWED.match(hit[0])]
                found += [f"{path.relative_to(ROOT)}:{number}: {hit}" for hit in hits]
    assert not found, "\n".join(found)

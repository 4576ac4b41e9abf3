"""The wheel, as a user gets it: built, installed into an environment of its own, used from another folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ("rlm_dspy", "signatures", "environments", "optimizers", "training")

pytestmark = [pytest.mark.heavy, pytest.mark.alone]

USE = """
import importlib.metadata as metadata
import sys
from pathlib import Path

import dspy
import rlm_dspy
from rlm_dspy import RLM, environments, errors, events, optimizers, signatures, testing, training
from rlm_dspy.testing import ScriptedLM, code

for module in (rlm_dspy, environments, signatures, optimizers, training):
    assert Path(module.__file__).is_relative_to(sys.prefix), module.__file__
assert metadata.version("rlm-dspy") == rlm_dspy.__version__
found = {entry.name for entry in metadata.entry_points(group="rlm_dspy.environments")}
assert {"local", "subprocess", "inprocess"} <= found, found
root = ScriptedLM([code("total = sum(map(int, context.split()))"), code("SUBMIT(answer=total)")])
with dspy.context(lm=root):
    pred = RLM("context -> answer: int")(context="1 2 3")
assert pred.answer == 6 and pred.outcome == "submitted", pred
print("used")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that the checkout stays as it is."""
    if int(version("setuptools").split(".")[0]) < 77:
        pytest.skip("building needs setuptools 77 or newer; make install brings it")
    source = tmp_path_factory.mktemp("source")
    for name in SHIPPED:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    target = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(target), str(source)])
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of a fresh environment that has the wheel, and what it needs from this one."""
    home = tmp_path_factory.mktemp("installed") / "env"
    venv.create(home, with_pip=False, symlinks=True)
    executable = home / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", str(executable), "install", "--no-deps", "--no-index", str(wheel)])
    packages = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    # A path file that names a folder adds it without reading its own path files: no editable install comes along.
    Path(packages, "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return str(executable)


def run(command: list[str], *, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command that has to end well."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    done = subprocess.run(
        command, cwd=cwd, env={**clean, **environment}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    return done


def test_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    rooms = {"rlm_dspy": "rlm_dspy", **{room: f"rlm_dspy/{room}" for room in SHIPPED[1:]}}
    expected = {
        f"{target}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, target in rooms.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    # Those that verifiers finds by name lie beside the package.
    expected = {path.removeprefix("rlm_dspy/training/tasksets/") for path in expected}
    modules = {name for name in names if name.endswith(".py")}
    assert modules == expected
    assert "rlm_dspy/py.typed" in names
    texts = {
        f"{target}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, target in rooms.items()
        for path in (ROOT / folder).rglob("README.md")
    }
    assert texts == {name for name in names if name.endswith(".md")}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_wheel_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    text = archive.read(info).decode()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"\nVersion: {project['version']}\n" in text
    for requirement in project["dependencies"]:
        assert f"\nRequires-Dist: {requirement.split('>')[0]}" in text
    assert "# rlm-dspy" in text, "the README is the long description"


def test_used_from_another_folder(python: str, tmp_path: Path) -> None:
    done = run([python, "-c", USE], cwd=tmp_path, DSPY_CACHEDIR=str(tmp_path / "cache"))
    assert done.stdout.splitlines()[-1] == "used"


def test_command_line_is_installed(python: str, tmp_path: Path) -> None:
    command = str(Path(python).with_name("rlm-dspy"))
    assert "rlm-dspy ask" in run([command, "ask", "--help"], cwd=tmp_path).stdout
    shown = run([command, "--version"], cwd=tmp_path).stdout
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] in shown


def test_quickstart_runs_from_the_wheel(python: str, tmp_path: Path) -> None:
    done = run([python, "-m", "rlm_dspy.quickstart"], cwd=tmp_path, SCRIPTED="1", DSPY_CACHEDIR=str(tmp_path / "cache"))
    assert "Verdict: the answer is right" in done.stdout


def test_tests_pass_against_the_wheel(python: str, tmp_path: Path) -> None:
    """Two rooms' tests, away from the checkout, so that nothing is imported from it by accident."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    for name in ("core/test_prefix.py", "core/test_state.py", "environments/test_wire.py"):
        target = tmp_path / "tests" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / name, target)
    shutil.move(tmp_path / "conftest.py", tmp_path / "tests" / "conftest.py")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not heavy", "tests"]
    done = run(command, cwd=tmp_path, DSPY_CACHEDIR=str(tmp_path / "cache"))
    assert " passed" in done.stdout
    where = run([python, "-c", "import rlm_dspy; print(rlm_dspy.__file__)"], cwd=tmp_path).stdout
    assert str(ROOT) not in where

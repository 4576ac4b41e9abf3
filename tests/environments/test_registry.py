"""Environments by name, their options, and the rooms' refusal to load under a bare name."""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import environments
from rlm_dspy.environments import registry
from rlm_dspy.environments.base import Description, Environment, Transport
from rlm_dspy.environments.layout import python_layout
from rlm_dspy.environments.local import Local
from rlm_dspy.environments.sizes import format_size, parse_size
from rlm_dspy.errors import ConfigurationError, SandboxUnavailableError

ROOT = Path(__file__).resolve().parents[2]


class Mine(Environment):
    """A third party's environment."""

    name = "mine"

    def __init__(
        self, *, words: list[str] | None = None, labels: dict[str, str] | None = None, rate: float = 1.0
    ) -> None:
        super().__init__()
        self.words, self.labels, self.rate = words, labels, rate

    def open(self) -> Transport:
        raise NotImplementedError

    def describe(self) -> Description:
        return Description("mine")


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("mine", f"{__name__}:Mine", registry.GROUP)
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    monkeypatch.setattr(registry, "_entry_points", lambda: [entry])


def _this_module() -> Any:
    import types

    module = types.ModuleType(__name__)
    vars(module).update(globals())
    return module


def test_built_in_names_come_without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_entry_points", list)
    assert environments.names()[:3] == ["local", "subprocess", "inprocess"]
    assert {"docker", "ipython", "pyodide", "e2b", "prime"} < set(environments.names())
    assert environments.get("local", timeout=5) == environments.local(timeout=5)
    assert environments.get("subprocess") == environments.subprocess()


def test_the_factories_survive_the_modules_of_the_same_name() -> None:

    assert callable(environments.local) and isinstance(environments.local(), Local)


def test_an_environment_is_taken_as_it_is() -> None:
    place = environments.local()
    assert environments.get(place) is place
    with pytest.raises(ConfigurationError, match="an environment already"):
        environments.get(place, timeout=3)


def test_third_parties_are_found(mine: None) -> None:
    assert "mine" in environments.names()
    place = environments.from_options("mine", {"words": "a,b", "labels": "x=1,y=2", "rate": "0.5"})
    assert (place.words, place.labels, place.rate) == (["a", "b"], {"x": "1", "y": "2"}, 0.5)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("locl", "Did you mean 'local'"),
        ("nowhere", "local, subprocess, inprocess"),
    ],
)
def test_unknown_names_are_explained(name: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        environments.get(name)
    assert words in str(caught.value) and "local" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("no_such_module:X", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:Nope", "cannot be loaded: AttributeError"),
        ("json:dumps", "cannot be made by name: missing a required argument: 'obj'"),
        ("json:__name__", "is no subclass of rlm_dspy.environments.Environment"),
        ("rlm_dspy.environments.base:Environment", "is not whole: it lacks describe, open"),
    ],
)
def test_a_broken_entry_point_is_named(value: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("broken", value, registry.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [entry])
    assert "broken" in environments.names()
    for make in (lambda: environments.get("broken"), lambda: environments.from_options("broken", {})):
        with pytest.raises(ConfigurationError, match="'broken'") as caught:
            make()
        assert words in str(caught.value)


@pytest.mark.parametrize("name", sorted(environments.places()))
def test_a_class_that_lacks_an_option_names_those_it_has(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"the '{name}' environment has no option 'timout'\. Did you mean"):
        getattr(environments, name)(timout=3)
    with pytest.raises(ConfigurationError, match=rf"the '{name}' environment has no option 'timout'\. Did you mean"):
        environments.get(name, timout=3)


def test_options_of_ipython_are_its_own_and_those_of_the_environment_inside() -> None:
    with pytest.raises(ConfigurationError, match=r"no option 'shel'\. Did you mean 'shell'"):
        environments.ipython(shel="worker")
    with pytest.raises(ConfigurationError, match=r"no option 'dockerfil'\. Did you mean 'dockerfile'"):
        environments.ipython(within="docker", dockerfil="x")


def test_options_come_as_text() -> None:
    options = {
        "timeout": "none", "memory": "2GiB", "processes": "32", "site_packages": "no", "strict": "true",
        "readable": f"/usr{os.pathsep}{ROOT}", "layer": "bubblewrap", "scratch": "1048576", "hidden": str(ROOT),
    }  # fmt: skip
    place = environments.from_options("local", options)
    expected = environments.local(
        timeout=None, memory=2 << 30, processes=32, site_packages=False, strict=True, readable=("/usr", ROOT),
        hidden=(ROOT,), layer="bubblewrap", scratch="1MiB",
    )  # fmt: skip
    assert place == expected and hash(place) == hash(expected)
    assert pickle.loads(pickle.dumps(place)) == place


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeot": "3"}, r"no option 'timeot'\. Did you mean 'timeout'\? Its"),
        ({"timeout": "soon"}, "a number"),
        ({"processes": "3.5"}, "whole number"),
        ({"site_packages": "perhaps"}, "true or false"),
        ({"layer": "paper"}, "'bubblewrap', 'landlock'"),
        ({"memory": "much"}, "512MiB"),
    ],
)
def test_wrong_text_is_explained(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        environments.from_options("local", options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": 10}, "at least 128 MiB"),
        ({"memory": -1}, "positive"),
        ({"processes": 2}, "from 8 up"),
        ({"processes": True}, "whole number"),
        ({"scratch": "0"}, "scratch"),
        ({"layer": "none"}, "auto"),
        ({"readable": "/usr"}, "sequence"),
        ({"readable": ("/",)}, "cannot be shown"),
        ({"readable": ("/proc/1",)}, "cannot be shown"),
        ({"readable": ("/does/not/exist",)}, "does not exist"),
        ({"hidden": "/usr"}, "hidden takes a sequence"),
        ({"hidden": ("/",)}, "cannot be hidden"),
        ({"hidden": ("/does/not/exist",)}, "does not exist"),
        ({"layer": "landlock", "strict": True}, "bubblewrap layer"),
        ({"timeout": 0}, "timeout must be a positive number"),
        ({"timeout": "30s"}, "timeout must be a positive number"),
        ({"max_output": "1MB"}, "max_output must be a positive whole number"),
        ({"max_value": 0}, "max_value must be a positive whole number"),
    ],
)
def test_local_checks_its_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        environments.local(**options)


def test_other_systems_are_told_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxUnavailableError, match='interpreter="subprocess"'):
        environments.local().open()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 << 30),
        ("1.5 kb", 1500),
        ("512M", 512_000_000),
        ("7", 7),
        (" 1 mib ", 1 << 20),
        (3, 3),
        ("2Ti", 2 << 40),
    ],
)
def test_sizes(text: int | str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "1 mile", "1e3", 0, -5, True, 1.5, None])
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(ConfigurationError, match="positive"):
        parse_size(text, "memory")


def test_sizes_are_written_for_readers() -> None:
    assert [format_size(n) for n in (5, 1 << 10, 3 << 29, 4 << 30)] == ["5 bytes", "1 KiB", "1.5 GiB", "4 GiB"]


@pytest.mark.parametrize("room", ["environments", "optimizers", "training"])
def test_rooms_refuse_a_bare_name(room: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {room}"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert "pip install -e ." in done.stderr and f"rlm_dspy.{room}" in done.stderr


def test_the_room_is_light_to_import() -> None:
    code = (
        "import sys; from rlm_dspy import environments; environments.local(); "
        "print(sorted({'ctypes.util', 'numpy', 'pandas', 'docker', 'modal'} & set(sys.modules) - before))"
    )
    code = f"import dspy, sys; before = set(sys.modules); {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_editable_tree_is_shown_by_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies beside the packages of a source tree on ``sys.path`` is not shown."""
    from rlm_dspy.environments import layout

    source = tmp_path / "project"
    (source / "package").mkdir(parents=True)
    (source / "package" / "__init__.py").touch()
    (source / ".git").mkdir()
    (source / "notes").mkdir()
    (source / ".env").write_text("KEY=1")
    (source / "single.py").touch()
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "mine.pth").write_text(f"# comment\nimport os\n{source}\n/does/not/exist\n")
    monkeypatch.setattr(layout.site, "getsitepackages", lambda: [str(packages)])
    found = python_layout.__wrapped__(True, ())
    shown = {path for path in found.read if path.startswith(str(tmp_path))}
    assert shown == {str(packages), str(source / "package"), str(source / "single.py")}
    assert found.names == (str(source),)


def test_a_prefix_that_holds_the_home_is_not_shown_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert str(tmp_path) not in python_layout.__wrapped__(False, ()).read


def test_an_unknown_library_path_does_not_show_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from rlm_dspy.environments import layout

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(layout.sysconfig, "get_config_var", lambda name: None)
    assert str(tmp_path) not in python_layout.__wrapped__(True, ()).read

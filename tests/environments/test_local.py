"""The local environment as its users meet it: choice of the layer, options, what code finds inside."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import py_compile
import subprocess
import sys
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import environments, tasks
from rlm_dspy.environments import bubblewrap, landlock, pool
from rlm_dspy.environments.base import CellResult, Environment
from rlm_dspy.environments.layout import python_layout
from rlm_dspy.errors import ConfigurationError

needs_bubblewrap = pytest.mark.skipif(bubblewrap.find() is None, reason="no bubblewrap here")
LAYERS = [
    pytest.param("bubblewrap", marks=needs_bubblewrap),
    pytest.param("landlock", marks=pytest.mark.skipif(landlock.abi() < 1, reason="no Landlock in this kernel")),
]


def run(place: Environment, *cells: str) -> list[CellResult]:
    async def main() -> list[CellResult]:
        session = place()
        await session.open()
        try:
            return [await session.run(cell) for cell in cells]
        finally:
            await session.close()

    return asyncio.run(main())


def printed(place: Environment, code: str) -> str:
    (result,) = run(place, code)
    assert result.error is None, result.error
    return result.stdout.strip()


@pytest.mark.parametrize("layer", LAYERS)
def test_installed_packages_import_and_work(layer: str) -> None:
    code = "import numpy, pandas, pydantic, rlm_dspy.errors\nprint(int(pandas.Series(numpy.arange(5)).sum()))"
    assert printed(environments.local(layer=layer), code) == "10"


@pytest.mark.parametrize("layer", LAYERS)
def test_without_packages_only_the_standard_library(layer: str) -> None:
    code = "import json, sqlite3, ctypes, zoneinfo\ntry: import numpy\nexcept ImportError: print('none')"
    assert printed(environments.local(layer=layer, site_packages=False), code) == "none"


@pytest.mark.parametrize("layer", LAYERS)
def test_readable_folders_are_readable_and_no_more(layer: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "table.csv").write_text("a,b")
    (tmp_path / "beside.txt").write_text("x")
    for path in (tmp_path, folder):
        path.chmod(0o755)
    code = (
        f"print(open({str(folder / 'table.csv')!r}).read())\n"
        f"for path, mode in (({str(folder / 'table.csv')!r}, 'a'), ({str(tmp_path / 'beside.txt')!r}, 'r')):\n"
        " try: open(path, mode); print('open')\n except OSError: print('closed')"
    )
    assert printed(environments.local(layer=layer, readable=(folder,)), code).split() == ["a,b", "closed", "closed"]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_readable_folder_on_the_path_is_importable(
    layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_module.py").write_text("value = 42")
    monkeypatch.syspath_prepend(str(tmp_path))
    code = "import my_own_module; print(my_own_module.value)"
    assert printed(environments.local(layer=layer, readable=(tmp_path,)), code) == "42"


@pytest.mark.parametrize("layer", LAYERS)
def test_the_place_is_an_ordinary_one(layer: str) -> None:
    code = """
import getpass, os, pathlib, shutil, subprocess, sys, tempfile, threading, time
assert os.listdir('.') == [] and os.getcwd() == os.environ['HOME'] == tempfile.gettempdir()
with tempfile.NamedTemporaryFile() as f: f.write(b'x')
pathlib.Path('a/b').mkdir(parents=True); pathlib.Path('a/b/c').write_text('text')
shutil.copytree('a', 'd'); shutil.make_archive('z', 'zip', 'd'); os.chmod('a/b/c', 0o600); os.utime('a/b/c')
shutil.rmtree('a')
assert getpass.getuser() == 'sandbox' and time.tzname and pathlib.Path.home()
assert subprocess.run([sys.executable, '-I', '-c', 'print(6 * 7)'], capture_output=True).stdout == b'42\\n'
assert subprocess.run('echo $((6 * 7)) | cat', shell=True, capture_output=True).stdout == b'42\\n'
child = subprocess.Popen(['sleep', '100']); child.terminate(); assert child.wait() == -15
found = []
threads = [threading.Thread(target=found.append, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
import asyncio
async def main():
    process = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)
    return (await process.communicate())[0]
assert await main() == b'hi\\n'
print('fine', len(found))
"""
    assert printed(environments.local(layer=layer), code) == "fine 8"


@needs_bubblewrap
def test_multiprocessing_works_where_shared_memory_is_private() -> None:
    code = (
        "import multiprocessing\ndef f(x): return x * x\n"
        "with multiprocessing.get_context('fork').Pool(2) as p: print(p.map(f, range(4)))"
    )
    assert printed(environments.local(layer="bubblewrap"), code) == "[0, 1, 4, 9]"


@needs_bubblewrap
def test_sessions_of_root_have_users_of_their_own() -> None:
    if not bubblewrap.as_root():
        pytest.skip("needs to run as root")
    place = environments.local(site_packages=False)
    users = {printed(place, "import os; print(os.getuid(), os.getgid(), os.getgroups())") for _ in range(3)}
    pool.close()
    assert len(users) == 3 and not any(text.startswith("0 ") for text in users)


@needs_bubblewrap
def test_strict_is_met_by_bubblewrap_and_described() -> None:
    place = environments.local(strict=True)
    described = place.describe()
    assert described.confined and described.layers == ("bubblewrap", "seccomp", "rlimits")
    assert printed(place, "print(1)") == "1"


def host(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options)


# The answer of a kernel without Landlock, for this process and its children.
WITHOUT_LANDLOCK = """
import struct
from rlm_dspy.environments import landlock
landlock.no_new_privs()
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (6, 0, 0, 0x50000 | 38), (6, 0, 0, 0x7fff0000)]
landlock.install_filter(b"".join(struct.pack("=HBBI", *i) for i in code))
"""
ASK = """
from rlm_dspy import environments
try: print(environments.local({options}).describe())
except Exception as error: print(type(error).__name__, error)
"""


def without_bubblewrap(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PATH": str(tmp_path)}


def test_without_any_layer_the_error_names_reasons_and_fixes(tmp_path: Path) -> None:
    out = host(WITHOUT_LANDLOCK + ASK.format(options=""), env=without_bubblewrap(tmp_path)).stdout
    assert out.startswith("SandboxUnavailableError")
    for words in (
        "bubblewrap: bwrap is not installed",
        "landlock: this kernel has no Landlock",
        "apt install bubblewrap",
    ):
        assert words in out
    assert 'interpreter="subprocess"' in out


@pytest.mark.skipif(landlock.abi() < 1, reason="no Landlock in this kernel")
def test_strict_refuses_landlock_and_says_what_is_missing(tmp_path: Path) -> None:
    out = host(ASK.format(options="strict=True"), env=without_bubblewrap(tmp_path)).stdout
    assert out.startswith("SandboxUnavailableError") and "bwrap is not installed" in out
    assert "disk per process only" in out and "apt install bubblewrap" in out


@pytest.mark.skipif(landlock.abi() < 1, reason="no Landlock in this kernel")
def test_the_weaker_layer_is_reported(tmp_path: Path) -> None:
    out = host(ASK.format(options=""), env=without_bubblewrap(tmp_path)).stdout
    assert "layers=('landlock', 'seccomp', 'rlimits')" in out and "bubblewrap: bwrap is not installed" in out


@needs_bubblewrap
def test_a_layer_that_worked_is_not_given_up_later(tmp_path: Path) -> None:
    code = f"""
import importlib.util
import os
import py_compile
from rlm_dspy import environments
from rlm_dspy.environments import bubblewrap
place = environments.local(site_packages=False)
place.open().close()
assert place.describe().layers[0] == 'bubblewrap'
bubblewrap.find.cache_clear()
os.environ['PATH'] = {str(tmp_path)!r}
try: place.open(); print('opened')
except Exception as error: print(type(error).__name__, error)
"""
    assert host(code).stdout.startswith("SandboxUnavailableError bwrap is not installed")


@pytest.mark.parametrize("layer", LAYERS)
def test_a_child_of_a_fork_opens_its_own(layer: str) -> None:
    place = environments.local(layer=layer, site_packages=False)
    assert printed(place, "print(1)") == "1"
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if printed(place, "print(2)") == "2" else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pool.close()


@pytest.mark.parametrize("layer", LAYERS)
def test_what_is_hidden_cannot_be_read_in_what_is_readable(
    layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders, files, modules with what was compiled of them, and names that are links."""
    root = tmp_path / "shown"
    (root / "answers").mkdir(parents=True)
    (root / "answers" / "key.txt").write_text("gold")
    for name in ("questions.py", "golds.py"):
        (root / name).write_text("value = 'gold'\n")
        py_compile.compile(str(root / name))
    (root / "real").mkdir()
    (root / "real" / "x.txt").write_text("gold")
    (root / "link").symlink_to(root / "real")
    for path in (tmp_path, *root.rglob("*")):
        path.chmod(0o755)
    monkeypatch.syspath_prepend(str(root))
    place = environments.local(
        layer=layer, readable=(root,), hidden=(root / "answers", root / "golds.py", root / "link")
    )
    code = (
        "import os, questions\n"
        "read = []\n"
        f"for base, _, files in os.walk({str(root)!r}, followlinks=True):\n"
        "    for name in files:\n"
        "        try:\n"
        "            open(os.path.join(base, name), 'rb').read()\n"
        "            read.append(name)\n"
        "        except OSError:\n"
        "            pass\n"
        "try:\n"
        "    import golds\n"
        "    read.append(golds.value)\n"
        "except Exception:\n"
        "    pass\n"
        "print(sorted(read))"
    )
    compiled = Path(importlib.util.cache_from_source("questions.py")).name
    assert printed(place, code) == str(sorted(["questions.py", compiled]))


def test_the_python_that_runs_the_code_cannot_be_hidden() -> None:
    with pytest.raises(ConfigurationError, match="is of the Python that is to run the code"):
        printed(environments.local(hidden=(Path(os.__file__).parent,)), "1")


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("installed", [False, True], ids=["as it is", "in site-packages"])
def test_code_cannot_make_the_answers_of_tasks_again(
    layer: str, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, beside = Path(tasks.__file__).parent, "rlm_dspy"
    if installed:
        # Any package that lies where this one does without -e.
        folder, beside = Path(dspy.__file__).parent / "teleprompt", "dspy"
        python_layout.cache_clear()
        monkeypatch.setattr("rlm_dspy.environments.layout._answers", lambda: (str(folder),))
    code = (
        "import importlib.util, os, sys\n"
        f"assert os.path.exists(importlib.util.find_spec({beside!r}).origin)\n"
        f"assert os.path.exists({str(folder.parent / '__init__.py')!r})\n"
        "read = []\n"
        f"for place in [{str(folder)!r}, *({str(folder)!r}.replace('/lib/', '/lib64/'),)]:\n"
        "    for base, _, files in os.walk(place):\n"
        "        for name in files:\n"
        "            try:\n"
        "                read.append(open(os.path.join(base, name)).read(1))\n"
        "            except OSError:\n"
        "                pass\n"
        "import numpy, json\n"
        "print(read)"
    )
    try:
        assert printed(environments.local(layer=layer), code) == "[]"
    finally:
        python_layout.cache_clear()

"""What every environment gives its sessions: set-up code, files, packages; files in and out of a session."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from hypothesis import given as vary
from hypothesis import settings
from hypothesis import strategies as st

from rlm_dspy import RLM, environments
from rlm_dspy.environments import given, layers, packages, pool
from rlm_dspy.environments.base import Environment
from rlm_dspy.environments.conformance_files import make_wheel
from rlm_dspy.environments.place import Place
from rlm_dspy.errors import ConfigurationError, SandboxUnavailableError
from rlm_dspy.testing import ScriptedLM, code

NAMES = ("subprocess", "local")


def printed(place: Environment, code: str) -> str:
    with place() as session:
        return str(session.execute(code)).strip()


@pytest.fixture
def wheel(tmp_path: Path) -> Callable[..., Path]:
    """``wheel("tiny", {"tiny.py": "..."})``: a wheel made by hand, so that no network is needed."""
    return functools.partial(make_wheel, tmp_path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    if shutil.which("pip") is None and shutil.which("pip3") is None:
        pytest.importorskip("pip", reason="no pip: python -m ensurepip")
    monkeypatch.setenv("RLM_DSPY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "cache"


# ------------------------------------------------------------------------------------------------- set-up code


@pytest.mark.parametrize("name", [*NAMES, "inprocess"])
def test_setup_code_is_run_before_the_first_cell(name: str, no_leaks: None) -> None:
    place = environments.get(name, setup_code="import math\nbase = 41\ndef up(n): return n + 1\nprint('not shown')")
    assert printed(place, "print(up(base), math.floor(2.5))") == "42 2"


@pytest.mark.parametrize("name", [*NAMES, "inprocess"])
def test_setup_code_that_fails_is_told_with_its_output_and_traceback(name: str, no_leaks: None) -> None:
    place = environments.get(name, setup_code="print('loading')\n1 / 0")
    with pytest.raises(SandboxUnavailableError) as caught:
        place().start()
    text = str(caught.value)
    for part in ("setup_code", repr(name), "loading", 'setup>", line 2', "1 / 0", "ZeroDivisionError"):
        assert part in text, text


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('on'); import os, time; time.sleep(0.5); os._exit(3)", "exited with status 3"),
        ("while True: pass", "more than 0.3 seconds"),
        ("SUBMIT(1)", "calls SUBMIT"),
    ],
)
def test_setup_code_that_dies_hangs_or_submits_is_told(code: str, words: str, no_leaks: None) -> None:
    place = environments.subprocess(setup_code=code, timeout=0.3 if "while" in code else 60)
    with pytest.raises(SandboxUnavailableError, match=words) as caught:
        place().start()
    assert "print" not in code or "on" in str(caught.value)


def test_no_secret_of_setup_code_is_in_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "correct-horse-battery")
    with pytest.raises(SandboxUnavailableError) as caught:
        environments.subprocess(setup_code="raise ValueError('correct-horse-battery')")().start()
    assert "correct-horse" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_restarted_worker_is_set_up_again(name: str, no_leaks: None) -> None:
    place = environments.get(name, setup_code="base = 1", files={"a.txt": b"here"})

    async def drive() -> None:
        session = place()
        try:
            await session.run("made = 2")
            died = await session.run("import os; os._exit(1)")
            assert died.lost == ("made",)  # what the set-up code makes is there again
            again = await session.run("print(base, open('a.txt').read())")
            assert again.stdout == "1 here\n"
        finally:
            await session.close()

    asyncio.run(drive())


def test_spares_are_set_up_and_those_with_old_files_are_not_used(tmp_path: Path, no_leaks: None) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")
    place = environments.subprocess(setup_code="base = 7", files={"a.txt": file})
    environments.warm(place, 1)
    try:
        assert pool.spares(place) == 1
        assert printed(place, "print(base, open('a.txt').read())") == "7 old"
        environments.warm(place, 1)
        file.write_text("newer")
        assert printed(place, "print(base, open('a.txt').read())") == "7 newer"
    finally:
        environments.warm(place, 0)


# ------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", NAMES)
def test_files_and_folders_are_in_the_working_folder(name: str, tmp_path: Path, no_leaks: None) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "x.bin").write_bytes(b"\0" * 10)
    (folder / "run.sh").write_text("#!/bin/sh\necho ran")
    (folder / "run.sh").chmod(0o755)
    (tmp_path / "secret").write_text("secret")
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "in").symlink_to(folder / "run.sh")
    place = environments.get(name, files={"data/a.csv": b"1,2\n", "f": folder, "empty": b""})
    code = (
        "import os, subprocess\n"
        "sizes = [os.stat(name).st_size for name in ('f/deep/x.bin', 'empty')]\n"
        "print(open('data/a.csv').read(), sorted(os.listdir('f')), *sizes)\n"
        "r = os.system('./f/run.sh')"
    )
    assert printed(place, code) == "1,2\n ['deep', 'in', 'run.sh'] 10 0\nran"


@pytest.mark.parametrize(
    "name", ["/etc/x", "../x", "a/../../x", "a//b", "", ".", "a\\b", "nul\0", "a/./b", "~/../x\n/.."]
)
def test_names_that_lead_out_of_the_folder_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="files"):
        environments.subprocess(files={name: b"x"})
    with environments.subprocess()() as session:
        for move in (lambda: session.upload(name, b"x"), lambda: session.download(name)):
            with pytest.raises(ConfigurationError, match="load: "):
                move()


@vary(st.text(alphabet="ab./\\~ \0\n", max_size=12))
@settings(max_examples=300, deadline=None)
def test_no_accepted_name_leaves_its_folder(name: str) -> None:
    try:
        checked = given.checked_name(name)
    except ConfigurationError:
        return
    assert os.path.normpath(os.path.join("/base", checked)).startswith("/base/")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"files": {"a": "/does/not/exist"}}, "text is a path"),
        ({"files": {"a": 1}}, "path or bytes"),
        ({"files": ["a"]}, "mapping"),
        ({"setup_code": "def"}, "does not compile"),
        ({"setup_code": 1}, "Python text"),
        ({"packages": "numpy"}, r"packages=\['numpy'\]"),
        ({"packages": False}, "site_packages"),
        ({"packages": ["--index-url=x"]}, "PIP_INDEX_URL"),
        ({"packages": [""]}, "no requirement"),
    ],
)
def test_wrong_options_name_the_fix(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        environments.local(**options)


def test_in_this_process_there_is_no_place_for_files_and_packages() -> None:
    with pytest.raises(ConfigurationError, match="install them in this Python"):
        environments.inprocess(packages=["numpy"])
    with pytest.raises(ConfigurationError, match="no folder of its own"):
        environments.inprocess(files={"a": b""})


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(given, "MAX_BYTES", 100)
    with pytest.raises(ConfigurationError, match="the one too many"):
        environments.subprocess(files={"a": b"x" * 60, "b": b"y" * 60})().start()
    with environments.subprocess()() as session, pytest.raises(ConfigurationError, match="more than the 100"):
        session.upload("a", b"x" * 101)


def test_the_base_options_come_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    options = {
        "setup_code": "x = 1, 2", "packages": "numpy>=1,<3,pandas[excel,html]>2", "max_output": "5",
        "files": f"a.csv={tmp_path / 'a.csv'}",
    }  # fmt: skip
    for name in NAMES:
        place = environments.from_options(name, options)
        assert place.packages == ("numpy>=1,<3", "pandas[excel,html]>2")
        assert (place.setup_code, place.files, place.max_output) == ("x = 1, 2", {"a.csv": str(tmp_path / "a.csv")}, 5)
        assert hash(place) == hash(environments.from_options(name, options))
    with pytest.raises(ConfigurationError, match=r"'setup_cod'\. Did you mean 'setup_code'"):
        environments.from_options("local", {"setup_cod": "x"})
    with pytest.raises(ConfigurationError, match="name=value"):
        environments.from_options("local", {"files": "a.csv"})


# ------------------------------------------------------------------------------------------------- up and down


@vary(st.binary(max_size=40), st.integers(1, 50), st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_pieces_make_the_whole_again(data: bytes, size: int, from_disk: bool, executable: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = given.Source("d/x", data, len(data), executable)
        if from_disk:
            Path(folder, "source").write_bytes(data)
            source = given.Source("d/x", Path(folder, "source"), len(data), executable)
        place = Place()
        place.home = folder
        pieces = list(source.pieces(size))
        for number, piece in enumerate(pieces):
            assert not Path(folder, "d/x").exists() and len(piece["data"]) <= size
            assert piece["last"] == (number == len(pieces) - 1)
            place.write(**piece)
        assert Path(folder, "d/x").read_bytes() == data and os.listdir(Path(folder, "d")) == ["x"]
        assert os.access(Path(folder, "d/x"), os.X_OK) == executable


@pytest.mark.parametrize("name", NAMES)
def test_files_go_up_and_down_in_pieces(name: str, tmp_path: Path, no_leaks: None) -> None:
    data = bytes(range(256)) * 40_000
    (tmp_path / "big").write_bytes(data)
    with environments.get(name)() as session:
        session.upload("in/big", tmp_path / "big")
        session.execute("import os; os.mkdir('elsewhere'); os.chdir('elsewhere')")
        session.upload("in/small", b"")
        code = "d = open('../in/big', 'rb').read(); print(sorted(os.listdir('../in')), d == bytes(range(256)) * 40_000)"
        assert session.execute(code).strip() == "['big', 'small'] True"
        session.execute("_ = open('../out', 'wb').write(d[::-1])")
        assert session.download("out") == data[::-1] and session.download("in/small") == b""
        with pytest.raises(FileNotFoundError, match="nothing"):
            session.download("nothing")
        with pytest.raises(IsADirectoryError):
            session.download("in")
        with pytest.raises(OSError, match="1000 bytes allowed"):
            session.download("out", max_bytes=1000)
        session.execute("os.mkfifo('../pipe')")
        with pytest.raises(OSError, match="pipe"):
            session.download("pipe")
    with pytest.raises(dspy.CodeInterpreterError, match="closed"):
        session.download("out")


def test_a_tool_may_hand_over_a_file_while_the_cell_waits(no_leaks: None) -> None:
    session = environments.subprocess()()

    def fetch() -> str:
        session.upload("fetched", b"from the host")
        return session.download("fetched").decode()

    session.tools["fetch"] = fetch
    with session:
        assert session.execute("r = fetch(); print(r, open('fetched').read())").strip() == "from the host from the host"


def test_a_link_in_the_way_of_an_upload_is_not_followed(tmp_path: Path, no_leaks: None) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    with environments.subprocess()() as session:
        session.execute(f"import os; os.symlink({str(target)!r}, 'a'); os.symlink({str(target)!r}, 'b.rlm-part')")
        session.upload("a", b"new")
        with pytest.raises(OSError):
            session.upload("b", b"new")
        assert target.read_text() == "mine" and session.download("a") == b"new"


# ------------------------------------------------------------------------------------------------- packages


@pytest.mark.parametrize("name", NAMES)
def test_packages_can_be_imported(name: str, wheel: Any, cache: Path, no_leaks: None) -> None:
    path = wheel("tinywheel", {"tinywheel/__init__.py": "here = __file__", "tinywheel/data.txt": "d"})
    place = environments.get(name, packages=[str(path)])
    code = "import tinywheel, os; print(os.path.exists(os.path.dirname(tinywheel.here) + '/data.txt'))"
    assert printed(place, code) == "True"
    assert len([entry for entry in (cache / "packages").iterdir() if entry.is_dir()]) == 1


def test_packages_are_sent_where_the_folder_cannot_be_read(
    wheel: Any, cache: Path, monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    monkeypatch.setattr(layers, "_layout", lambda layer, o: layers.python_layout(o.packages, o.readable))
    path = wheel("tinywheel", {"tinywheel.py": "here = __file__"})
    place = environments.local(packages=[str(path)], max_value=1000)
    assert printed(place, "import tinywheel; print(tinywheel.here.endswith('/.packages/tinywheel.py'))") == "True"


def test_a_named_package_comes_before_an_installed_one(wheel: Any, cache: Path, no_leaks: None) -> None:
    path = wheel("packaging", {"packaging/__init__.py": "__version__ = '999.0'"}, version="999.0")
    place = environments.local(packages=[str(path)])
    assert printed(place, "import packaging; print(packaging.__version__)") == "999.0"


def test_an_error_of_pip_names_the_requirement(cache: Path, monkeypatch: pytest.MonkeyPatch, no_leaks: None) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    place = environments.subprocess(packages=["no-such-thing-at-all==1.0"])
    with pytest.raises(ConfigurationError, match=r"pip cannot install no-such-thing-at-all==1\.0.*No matching"):
        place().start()
    assert not [entry for entry in (cache / "packages").iterdir() if entry.is_dir()]


def test_many_processes_install_at_once(wheel: Any, cache: Path, tmp_path: Path) -> None:
    path = wheel("tinywheel", {"tinywheel.py": "x = 1"})
    script = f"from rlm_dspy.environments import packages\nprint(packages.install([{str(path)!r}]))"
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    folders = {process.communicate()[0].strip() for process in running}
    assert len(folders) == 1 and (Path(folders.pop()) / "tinywheel.py").read_text() == "x = 1"
    assert not list((cache / "packages").glob("*.tmp"))


def test_packages_for_another_python_are_wheels_for_it(wheel: Any, cache: Path) -> None:
    here = wheel("tinywheel", {"tinywheel.py": "x = 1"}, "cp39-abi3-manylinux_2_17_x86_64")
    other = {
        "version": [3, 9, 2], "implementation": "cpython", "soabi": "cpython-39-x86_64-linux-gnu",
        "platform": "linux-x86_64", "libc": "glibc", "libc_version": "2.31",
    }  # fmt: skip
    folder = packages.install([str(here)], other)
    assert (folder / "tinywheel.py").exists() and not list(folder.rglob("*.pyc"))
    with pytest.raises(ConfigurationError, match=r"for Python 3\.9 on linux-aarch64"):
        packages.install([str(here)], {**other, "platform": "linux-aarch64"})


def test_a_sandbox_that_lies_about_its_python_adds_no_option_to_pip() -> None:
    told = packages.this_python()
    for lie in ({**told, "platform": "--index-url=x y"}, {**told, "version": ["3"]}, {**told, "more": 1}, None):
        with pytest.raises(ConfigurationError, match="which Python"):
            packages.checked_python(lie)


def test_platforms_of_a_sandbox() -> None:
    told = {"platform": "linux-x86_64", "libc": "glibc", "libc_version": "2.18"}
    found = packages.platforms(told)
    assert found[:3] == ["manylinux_2_18_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]
    assert found[-1] == "linux_x86_64"
    assert packages.platforms({**told, "libc": ""})[0] == "musllinux_1_2_x86_64"
    assert packages.platforms({**told, "platform": "macosx-14.0-arm64"}) == ["macosx_14_0_arm64"]


OTHERS = sorted(
    python
    for python in Path(sys.base_prefix).parent.glob("3.*/bin/python")
    if python.parents[1] != Path(sys.base_prefix) and int(python.parents[1].name.split(".")[1]) >= 8
)


@pytest.mark.parametrize("python", OTHERS or [pytest.param(None, marks=pytest.mark.skip(reason="no other Python"))])
def test_another_python_imports_packages_made_for_it(python: Path, wheel: Any, cache: Path, no_leaks: None) -> None:
    path = wheel("tinywheel", {"tinywheel.py": "import sys\nversion = sys.version_info[:2]"})
    place = environments.subprocess(python=str(python), packages=[str(path)], files={"a": b"1"})
    assert printed(place, "import tinywheel; print(tinywheel.version, open('a').read())").endswith(") 1")


# ------------------------------------------------------------------------------------------------- what is told


def test_the_root_is_told_what_is_given() -> None:
    made = "import math as np, os.path\nfrom re import *\n_hidden = 1\ndef up(): pass\nfor i in (): j = [q for q in i]"
    place = environments.subprocess(setup_code=made, files={"data.csv": b"", **{f"f{i}": b"" for i in range(30)}})
    plain = environments.subprocess()
    assert plain.instructions == plain.execution_instructions == plain().execution_instructions
    told = place().execution_instructions.removeprefix(plain.instructions)
    assert told.startswith(" Defined beforehand: np, os, up, i, j. In the working directory: data.csv, f0, ")
    assert told.endswith("f18 and 11 more.")
    place = environments.subprocess(packages=["numpy>=2", "/wheels/x-1.0-py3-none-any.whl"])
    assert place.instructions.endswith("Installed: numpy>=2, x-1.0-py3-none-any.whl.")


def test_what_is_given_is_in_the_prompt_and_usable(no_leaks: None) -> None:
    lm = ScriptedLM([code("SUBMIT(answer=up(open('a.txt').read()))")])
    place = environments.subprocess(setup_code="def up(text): return text.upper()", files={"a.txt": b"ada"})
    with dspy.context(lm=lm):
        assert RLM("query -> answer", interpreter=place)(query="?").answer == "ADA"
    assert "Defined beforehand: up. In the working directory: a.txt." in lm.calls[0].prompt


def test_an_archive_that_does_not_fit_on_the_disk_leaves_nothing(
    wheel: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = packages.install([str(wheel("tiny", {"tiny.py": "x = 1"}))])
    before = set(folder.parent.iterdir())

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("zipfile.ZipFile.write", full)
        with pytest.raises(OSError, match="No space"):
            packages.archive(folder)
    assert set(folder.parent.iterdir()) <= before | {folder.with_name(folder.name + ".lock")}
    assert packages.archive(folder).exists()


def test_no_secret_of_a_requirement_is_in_an_error_or_told_to_a_model(cache: Path) -> None:
    address = "https://user:swordfish@127.0.0.1:1/tiny-1.0-py3-none-any.whl?key=swordfish#sha256=swordfish"
    for requirement in (address, f"tiny @ {address}", f"tiny[a]@{address}"):
        place = environments.subprocess(packages=[requirement])
        assert "swordfish" not in place.instructions and "tiny" in place.instructions
        with pytest.raises(ConfigurationError, match="packages: pip cannot install") as caught:
            printed(place, "1")
        assert "user:" not in str(caught.value) and ":swordfish" not in str(caught.value)


@pytest.mark.parametrize("requirement", ["a" * 5000, "x" * 300 + "/y"])
def test_a_requirement_that_is_no_possible_path_is_pips_error(requirement: str, cache: Path, no_leaks: None) -> None:
    with pytest.raises(ConfigurationError, match="packages: pip cannot install"):
        printed(environments.subprocess(packages=[requirement]), "1")


def test_a_spare_made_from_an_older_wheel_is_not_used(wheel: Any, cache: Path, no_leaks: None) -> None:
    place = environments.subprocess(packages=[str(wheel("tiny", {"tiny.py": "x = 1"}))])
    pool.warm(place, 1)
    try:
        wheel("tiny", {"tiny.py": "x = 'another'"})
        assert printed(place, "import tiny; print(tiny.x)") == "another"
    finally:
        pool.warm(place, 0)


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a"), ("./a", "a")])
def test_names_of_files_that_exclude_each_other_are_refused_at_once(names: tuple[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="cannot both be there"):
        environments.local(files=dict.fromkeys(names, b"x"))


def test_a_file_may_be_put_into_a_folder_that_is_given(tmp_path: Path, no_leaks: None) -> None:
    (tmp_path / "inner").write_text("1")
    place = environments.subprocess(files={"folder": tmp_path, "folder/more": b"2"})
    assert printed(place, "import os; print(sorted(os.listdir('folder')))") == "['inner', 'more']"


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="there is no /proc here")
def test_a_file_that_says_it_is_empty_and_is_not_is_refused(no_leaks: None) -> None:
    with pytest.raises(SandboxUnavailableError, match="does not say how large it is"):
        printed(environments.subprocess(files={"status": "/proc/self/status"}), "1")


@pytest.mark.parametrize("timeout", [float("inf"), 1e300])
def test_set_up_code_has_any_time_that_the_timeout_gives(timeout: float, no_leaks: None) -> None:
    assert printed(environments.subprocess(setup_code="x = 5", timeout=timeout), "print(x)") == "5"

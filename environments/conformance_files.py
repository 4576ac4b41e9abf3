"""Conformance checks: what an environment gives its sessions, and files in and out."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlm_dspy.environments.conformance_base import (
    Factory,
    Skip,
    back,
    check,
    environment_of,
    factory_check,
    method,
    ok,
    opened,
    prints,
)
from rlm_dspy.environments.scratch import CACHE_VARIABLE
from rlm_dspy.errors import ConfigurationError, SandboxUnavailableError


@check("files")
async def files_go_in_and_out(session: Any) -> None:
    """Any bytes, any size, into folders that did not exist; names with spaces and letters of all kinds."""
    up, down = method(session, "aupload"), method(session, "adownload")
    contents = {
        "plain.txt": b"text\n",
        "in/deep/er.bin": bytes(range(256)) * 30_000,
        "naïve 中.csv": b"",
        "b": b"\0" * 9,
    }
    for name, data in contents.items():
        await up(name, data)
    for name, data in contents.items():
        await prints(session, f"print(len(open({name!r}, 'rb').read()))", f"{len(data)}\n")
        assert await down(name) == data, name
    await ok(session, "with open('made', 'wb') as f: n = f.write(b'made here')")
    assert await down("made") == b"made here"
    await up("made", b"made there")
    await prints(session, "print(open('made').read())", "made there\n")


@check("files")
async def files_stay_with_the_session(session: Any) -> None:
    """The working folder is the same in every cell, and names mean it wherever code has moved."""
    await ok(session, "import os\nopen('a', 'w').write('1')\nos.mkdir('d')\nos.chdir('d')")
    assert await method(session, "adownload")("a") == b"1"
    await session.aupload("b", b"2")
    await prints(session, "print(open('../a').read(), open('../b').read())", "1 2\n")


@check("files")
async def missing_files_are_errors(session: Any) -> None:
    """A file that is not there, a folder, one that is too large: an OSError that says so; the session works on."""
    down = method(session, "adownload")
    await ok(session, "import os\nos.mkdir('folder')\nwith open('big', 'wb') as f: n = f.write(b'x' * 100_000)")
    for name, kind in (("nothing", FileNotFoundError), ("folder", OSError), ("big", OSError)):
        try:
            await down(name, max_bytes=1000)
        except kind as error:
            assert name in str(error), error
        else:
            raise AssertionError(f"{name!r} could be read")
    await prints(session, "print(1)", "1\n")


@check("files")
async def names_do_not_leave_the_folder(session: Any) -> None:
    """Absolute names and those with ``..`` are refused, in both directions, before anything is sent."""
    up, down = method(session, "aupload"), method(session, "adownload")
    for name in ("/etc/hostname", "../x", "a/../../x", "", "a\0b"):
        for move in (up(name, b"x"), down(name)):
            try:
                await move
            except ConfigurationError:
                continue
            raise AssertionError(f"{name!r} was taken for a name in the folder")


@check("files")
async def files_move_while_a_cell_waits(session: Any) -> None:
    """A host function may put a file there and take one, while the cell that called it waits."""
    up, down = method(session, "aupload"), method(session, "adownload")

    async def fetch() -> int:
        await up("fetched", b"from the host")
        return len(await down("made"))

    code = "with open('made', 'w') as f: n = f.write('12345')\nn = fetch()\nprint(n, open('fetched').read())"
    await prints(session, code, "5 from the host\n", {"fetch": fetch})


@factory_check("files")
async def given_files_are_there(factory: Factory) -> None:
    """``files=``: bytes, files and folders of the host, executable ones too; links out of a folder are left out."""
    environment = environment_of(factory)
    with tempfile.TemporaryDirectory(prefix="rlm-dspy-check-") as folder:
        tree = Path(folder, "tree")
        (tree / "sub").mkdir(parents=True)
        (tree / "sub" / "x").write_bytes(b"deep")
        (tree / "run").write_text("#!/bin/sh\n")
        (tree / "run").chmod(0o755)
        Path(folder, "outside").write_text("outside")
        (tree / "link").symlink_to(Path(folder, "outside"))
        given = environment.with_options(files={"data/a": b"1", "one": Path(folder, "outside"), "tree": tree})
        async with opened(given) as session:
            code = """
                import os
                print(sorted(name for _, _, names in os.walk("tree") for name in names))
                print(*(open(name).read() for name in ("data/a", "one", "tree/sub/x")), os.access("tree/run", os.X_OK))
            """
            await prints(session, code, "['run', 'x']\n1 outside deep True\n")


@factory_check("setup")
async def setup_code_comes_first(factory: Factory) -> None:
    """``setup_code=``: what it defines is there in the first cell and is listed; what it prints is not shown."""
    code = "import math\nbase = 41\nprint('quiet')\ndef up(n): return math.floor(n) + 1"
    async with opened(environment_of(factory).with_options(setup_code=code)) as session:
        await prints(session, "print(up(base))", "42\n")
        assert (await session.variables()) == {"base": "int", "up": "function"}


@factory_check("setup")
async def setup_code_that_fails_is_told(factory: Factory) -> None:
    """A session whose set-up code raises does not open; the error has the output and the traceback."""
    session = environment_of(factory).with_options(setup_code="print('loading')\n1 / 0")()
    try:
        await session.open()
    except SandboxUnavailableError as error:
        for part in ("setup_code", "loading", "line 2", "ZeroDivisionError"):
            assert part in str(error), error
    else:
        raise AssertionError("it opened")
    finally:
        await session.close()


@factory_check("setup", "files", "process")
async def a_restarted_worker_is_set_up_again(factory: Factory) -> None:
    """Files and set-up code are there again after a death, and not among what is said to be lost."""
    environment = environment_of(factory).with_options(setup_code="base = 1", files={"a.txt": b"here"})
    async with opened(environment) as session:
        await ok(session, "made = 2")
        died = await session.run("import os; os._exit(1)")
        assert died.lost == ("made",), died
        await prints(session, "print(base, open('a.txt').read(), 'made' in globals())", "1 here False\n")


@factory_check("packages")
async def packages_can_be_imported(factory: Factory) -> None:
    """``packages=``: a wheel of this host is importable there, data files too, in a fresh session and after a death."""
    environment = environment_of(factory)
    with tempfile.TemporaryDirectory(prefix="rlm-dspy-check-") as folder, _cache_in(folder):
        wheel = make_wheel(Path(folder), "rlmcheck", {"rlmcheck/__init__.py": "x = 7", "rlmcheck/data": "d"})
        try:
            async with opened(environment.with_options(packages=[str(wheel)])) as session:
                code = (
                    "import rlmcheck, os\nr = rlmcheck.x, os.path.exists(os.path.dirname(rlmcheck.__file__) + '/data')"
                )
                await ok(session, code)
                assert await back(session, "r") == (7, True)
        except ConfigurationError as error:
            if "there is no pip" in str(error):
                raise Skip(str(error)) from None
            raise


@factory_check("values", "setup")
async def values_beyond_the_cap_are_refused(factory: Factory) -> None:
    """A value larger than ``max_value`` is the code's error, naming the option or the size; the session lives on."""
    async with opened(environment_of(factory).with_options(max_value=1_000_000)) as session:
        await ok(session, "kept = 1")
        result = await session.run("SUBMIT('x' * 5_000_000)")
        assert result.error is not None and result.submission is None and not result.lost, result
        await prints(session, "print(kept)", "1\n")


def make_wheel(
    folder: Path, name: str, files: Mapping[str, str], tag: str = "py3-none-any", version: str = "1.0"
) -> Path:
    """A wheel of text files, written by hand: for checks and tests, which have no network."""
    info = f"{name}-{version}.dist-info"
    texts = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: rlm-dspy\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    rows = []
    for file, text in texts.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{file},sha256={digest},{len(text.encode())}")
    texts[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"])
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in texts.items():
            archive.writestr(file, text)
    return path


@contextlib.contextmanager
def _cache_in(folder: str) -> Iterator[None]:
    """Keep what the check installs out of the user's cache."""
    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ[CACHE_VARIABLE]
        else:
            os.environ[CACHE_VARIABLE] = before

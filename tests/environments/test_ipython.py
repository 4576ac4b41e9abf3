"""The ``ipython`` environment: what IPython adds to cells, in each of its places."""

from __future__ import annotations

import struct
import sys
import warnings
import zlib
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, ConfigurationError, MissingExtraError, environments, journal, replay
from rlm_dspy._aio import run_sync
from rlm_dspy.environments import CellResult, IPython
from rlm_dspy.testing import ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")

SHELLS: dict[str, dict[str, Any]] = {
    "local": {},
    "subprocess": {"within": "subprocess"},
    "inprocess": {"shell": "inprocess"},
    "kernel": {"shell": "kernel"},
}


def png(red: int) -> bytes:
    """A picture of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes([0, red, 0, 0]))) + chunk(b"IEND", b"")


@pytest.fixture(params=SHELLS)
def run(request: pytest.FixtureRequest) -> Any:
    session = environments.ipython(timeout=30, **SHELLS[request.param])()
    session.where = request.param

    def one(text: str, **options: Any) -> CellResult:
        result: CellResult = run_sync(session.run(text, **options))
        return result

    one.session = session  # type: ignore[attr-defined]
    yield one
    run_sync(session.close())


def test_magics_and_commands(run: Any) -> None:
    assert run("x = 3\n%timeit -n1 -r1 x").stdout.endswith("(mean ± std. dev. of 1 run, 1 loop each)\n")
    assert run("!echo out; echo err >&2; exit 3\n_exit_code").stdout == "out\nerr\n"
    assert run("_exit_code").value == "3"
    assert run("found = !printf 'a\\nb\\n'\nlist(found)").value == "['a', 'b']"
    assert run("word = 'hello'\n!echo {word} $x").stdout == "hello 3\n"
    assert run("%%bash\necho from bash").stdout == "from bash\n"
    assert "int" in run("x?").stdout
    error = run("%nosuch").error
    assert error is not None and "`%nosuch` not found" in error.message


def test_last_values_and_what_was_entered(run: Any) -> None:
    assert run("1 + 1").value == "2"
    assert run("_ + 1").value == "3"
    assert run("Out[1], _2, In[2].strip(), In[-1][:3]").value == "(2, 3, '_ + 1', 'Out')"
    # What IPython puts into the namespace is not the code's own.
    assert run("y = 1\nSHOW_VARS()").value == "{'y': 'int'}"
    assert run_sync(run.session.variables()) == {"y": "int"}


def test_cells_are_python_as_everywhere(run: Any) -> None:
    """Modules, functions that refer to each other, awaiting, asyncio.run, a string with a magic in it, SUBMIT."""
    assert run("import asyncio\nasync def f(): return 7\nawait f(), ").value == "(7,)"
    assert run("asyncio.run(f())").value == "7"
    assert run("text = '''\n%timeit\n!ls\n'''\nlen(text)").value == "13"
    result = run("print('before')\n1 / 0")
    assert result.stdout == "before\n" and result.error is not None and result.error.type == "ZeroDivisionError"
    assert "IPython" not in result.error.traceback and "1 / 0" in result.error.traceback
    submission = run("SUBMIT(answer=text[:2])").submission
    assert submission is not None and submission.kwargs == {"answer": "\n%"}
    error = run("exit()").error
    assert error is not None and error.type == "SystemExit"
    assert run("text[1]").value == "'%'"


def test_commands_and_loops_are_interrupted(run: Any) -> None:
    for text in ("!sleep 1000", "found = !sleep 1000\nprint('went on')", "while True: pass"):
        result = run(text, timeout=0.5)
        assert result.error is not None and result.error.kind == "timeout" and not result.lost
        assert "went on" not in result.stdout
    assert run("1").value == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
def test_an_interrupted_command_ends_with_all_that_it_has_started(run: Any) -> None:
    result = run("!sleep 1234 | cat | cat", timeout=0.5)
    assert result.error is not None and result.error.kind == "timeout"
    seen = """if True:
        import glob, pathlib
        found = []
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                found.append(pathlib.Path(path).read_bytes())
            except OSError:
                pass
"""
    run(seen)
    assert run("b'sleep\\x001234\\x00' in found").value == "False"


def test_a_command_left_in_the_background_is_not_waited_for(run: Any) -> None:
    assert run("!(sleep 20; echo late) & echo started; echo $! > pid", timeout=10).stdout == "started\n"
    assert run("import os\nos.kill(int(open('pid').read()), 9)\nos.unlink('pid')").error is None


def test_large_outputs_of_commands(run: Any) -> None:
    result = run("!head -c 30000000 /dev/zero | tr '\\0' x; echo; echo ü")
    assert result.error is None and len(result.stdout) < 1_100_000 and result.stdout.endswith("\nü\n")
    assert run("lines = !yes | head -n 200000\nlen(lines), lines.n[:3]").value == "(200000, 'y\\ny')"


def test_reset_leaves_what_ipython_offers(run: Any) -> None:
    run("x = 1\n%reset -f")
    assert run_sync(run.session.variables()) == {}
    assert run("display(5)").stdout.endswith("5\n")
    assert run("y = 2\nSHOW_VARS()").value == "{'y': 'int'}"


def test_a_shell_in_this_process_leaves_it_as_it_is(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a virtual environment is active that this Python is not of."""
    packages = tmp_path / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    before = list(sys.path), sys.displayhook, sys.excepthook
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with environments.ipython(shell="inprocess")() as session:
            assert session.execute("1 + 1") == 2
    assert (list(sys.path), sys.displayhook, sys.excepthook) == before


def test_the_error_of_a_cell_is_there_for_tb(run: Any) -> None:
    run("def f(): return 1 / 0\nf()")
    shown = run("%tb").stdout
    assert "return 1 / 0" in shown and "ZeroDivisionError" in shown and "_run" not in shown


def test_matplotlib_shows_figures_as_images(run: Any) -> None:
    assert run("get_ipython().enable_gui(None)").error is None
    if run.session.where == "inprocess":
        # There it is the shell of the host that figures go to.
        return
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    result = run("%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    assert result.error is None and [image.type for image in result.images] == ["image/png"]


def test_what_is_no_image_is_told_and_not_kept(run: Any) -> None:
    text = (
        "class P:\n    def _repr_mimebundle_(self, **_): return {'text/plain': 'P', 'image/png': %s}\ndisplay(P())\n1"
    )
    for bad in ("'!!!'", "5"):
        result = run(text % bad)
        assert (
            result.images == () and result.value == "1" and "[what should be an image/png is not kept" in result.stdout
        )


def test_images_that_do_not_cross_leave_the_rest_of_the_cell() -> None:
    with environments.ipython(max_value=100_000)() as session:
        text = "class P:\n    def _repr_png_(self): return b'x' * 40_000\nprint('first')\ndisplay(P(), P())\nx = 1"
        result = run_sync(session.run(text))
        assert result.error is None and len(result.images) == 1
        assert result.stdout.startswith("first\n") and "40000 bytes is not kept: max_value" in result.stdout
        assert run_sync(session.run("x")).value == "1"


def test_the_shells_own_folder_does_not_stand_among_the_files_of_the_code() -> None:
    with environments.ipython(files={"a.txt": b"a"})() as session:
        assert run_sync(session.run("import glob\nglob.glob('**', recursive=True)")).value == "['a.txt']"


@pytest.mark.parametrize("place", SHELLS)
def test_a_saved_session_has_what_was_defined_beside_magics_and_nothing_of_ipython(place: str, tmp_path: Any) -> None:
    rlm = RLM("context -> answer: int", interpreter=environments.ipython(**SHELLS[place]))
    first = (
        "%%time\nimport dataclasses\n!echo hi \\\n  there\n"
        "def double(n):\n    found = !echo {n + n}\n    return int(found[0])\n"
        "@dataclasses.dataclass\nclass Pair:\n    n: int = 1\n"
        "pair = Pair(4)\nlines = !echo a; echo b\nbig = 'x' * 1000"
    )
    with dspy.context(lm=ScriptedLM([code(first), code("big"), code("SUBMIT(answer=1)")])), rlm.session() as session:
        assert session(context="abc").outcome == "submitted"
        session.save(tmp_path / "s")
        assert session.unsaved == {}
    then = [code("Out, lines, pair"), code("7"), code("Out[max(Out)], In[-1], _"), code("SUBMIT(answer=double(21))")]
    with dspy.context(lm=ScriptedLM(then)), rlm.resume(tmp_path / "s") as session:
        assert session.report is not None and not session.report.unsaved
        pred = session(context="z")
    assert pred.answer == 42, pred.trajectory
    assert pred.trajectory[0].output == "({}, ['a', 'b'], Pair(n=4))"
    assert pred.trajectory[2].output == "(7, 'Out[max(Out)], In[-1], _\\n', 7)"


def test_what_is_displayed(run: Any) -> None:
    run(f"picture = {png(9)!r}\nfrom IPython.display import HTML, Image, Markdown, SVG")
    result = run("display({'a': 1}, Image(data=picture), Markdown('# title'), HTML('<b>bold</b>'))\nImage(picture)")
    assert [(image.type, image.data) for image in result.images] == [("image/png", png(9))] * 2
    lines = result.stdout.splitlines()
    assert lines[0] == "{'a': 1}" and lines[-2:] == ["# title", "<b>bold</b>"]
    result = run("display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))")
    assert result.images[0].type == "image/svg+xml" and result.images[0].data.startswith(b"<svg")
    # They are this cell's alone, and not without end.
    assert run("1").images == ()
    result = run("for _ in range(20): display(Image(data=picture))")
    assert len(result.images) == 8 and "is not kept" in result.stdout


def test_figures_of_matplotlib_are_pictures() -> None:
    """With and without ``%matplotlib inline``, shown, left open, and as the last value; as in a Jupyter notebook."""
    pytest.importorskip("matplotlib")
    session = environments.ipython(timeout=60)()

    def images(text: str) -> list[str]:
        result = run_sync(session.run(text))
        assert result.error is None, result.error
        return [image.type for image in result.images]

    assert images("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()") == ["image/png"]
    assert images("fig, ax = plt.subplots()\nax.plot([1, 2]);") == ["image/png"]
    assert images("fig") == ["image/png"]
    assert images("%matplotlib inline\nplt.plot([3, 4]);") == ["image/png"]
    assert images("1 + 1") == []
    run_sync(session.close())


@pytest.mark.parametrize("where", ["local", "inprocess"])
def test_there_are_no_windows(where: str) -> None:
    session = environments.ipython(**SHELLS[where])()
    assert run_sync(session.run("%gui inline")).error is None
    error = run_sync(session.run("get_ipython().enable_gui('qt')")).error
    assert error is not None and "%matplotlib inline keeps figures" in error.message
    run_sync(session.close())


def test_host_functions_work_in_magics(run: Any) -> None:
    async def tool(n: int) -> int:
        return n + 1

    assert run("%time tool(1)", functions={"tool": tool}).stdout.startswith("CPU times")
    assert run("%%capture held\nprint(tool(2))", functions={"tool": tool}).error is None
    assert run("held.stdout", functions={"tool": tool}).value == "'3\\n'"


def test_pictures_are_kept_in_the_trajectory_and_the_journal(tmp_path: Any) -> None:
    root = ScriptedLM(
        [
            code(f"from IPython.display import Image\ndisplay(Image(data={png(5)!r}))\n!echo seen"),
            code("SUBMIT(answer=len(context))"),
        ]
    )
    rlm = RLM("context -> answer: int", interpreter="ipython")
    with dspy.context(lm=root), journal(tmp_path / "run"):
        pred = rlm(context="abc")
    assert pred.answer == 3 and pred.outcome == "submitted"
    first = pred.trajectory[0]
    assert first.output.endswith("seen") and [image.data for image in first.images] == [png(5)]
    assert "data:image/png;base64," in pred.trajectory._repr_html_()
    again = replay(tmp_path / "run", rlm)
    assert again.trajectory[0].images == first.images and again.answer == 3


def test_the_same_program_gives_the_same_trajectory_in_plain_python_and_in_ipython() -> None:
    replies = [code("n = len(context)\nprint(n)"), code("n * 2"), code("1 / 0"), code("SUBMIT(answer=n)")]

    def outputs(environment: Any) -> Any:
        with dspy.context(lm=ScriptedLM(list(replies))):
            pred = RLM("context -> answer: int", interpreter=environment)(context="abcd")
        return pred.answer, [turn.output for turn in pred.trajectory]

    assert outputs("local") == outputs("ipython") == outputs(environments.ipython(within="subprocess"))


def test_options() -> None:
    made = environments.ipython(memory="1GiB", timeout=5)
    assert isinstance(made, IPython) and made.within == environments.local(memory="1GiB", timeout=5)
    assert made.timeout == 5 and made.describe().layers[-1] == "IPython" and made.describe().environment == "ipython"
    assert made == environments.ipython(memory="1GiB", timeout=5) != environments.ipython(timeout=5)
    assert hash(made) == hash(environments.ipython(memory="1GiB", timeout=5))
    assert made.describe().confined == made.within.describe().confined
    assert not environments.ipython(shell="kernel").describe().confined
    assert environments.from_options("ipython", {"within": "subprocess", "timeout": "7"}).timeout == 7


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"shell": "zsh"}, "shell must be one of 'worker', 'inprocess', 'kernel'"),
        ({"shell": "kernel", "within": "local"}, "within= goes with"),
        ({"kernel": "python3"}, "kernel= goes with"),
        ({"within": "nosuch"}, "there is no environment 'nosuch'"),
        ({"within": "inprocess"}, 'choose shell="inprocess"'),
        ({"memry": "1GiB"}, "Did you mean 'memory'?"),
    ],
)
def test_options_that_make_no_sense_name_the_fix(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told.replace("?", r"\?")):
        environments.ipython(**options)


def test_options_of_an_environment_that_is_made_already_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="is one already"):
        environments.ipython(within=environments.local(), memory="1GiB")
    with pytest.raises(ConfigurationError, match="an ipython environment already"):
        environments.ipython(within=environments.ipython())


def test_a_kernel_that_is_not_there_is_told_with_those_that_are() -> None:
    session = environments.ipython(shell="kernel", kernel="nosuch")()
    with pytest.raises(ConfigurationError, match=r"those of this machine are: .*python -m ipykernel install"):
        run_sync(session.open())


def test_without_ipython_the_error_names_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'rlm-dspy\[ipython\]'"):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        environments.ipython(shell="inprocess")


def test_where_the_sandbox_has_no_ipython_the_start_says_so() -> None:
    session = environments.ipython(within=environments.local(site_packages=False))()
    with pytest.raises(Exception, match=r"IPython does not start .* pip install 'rlm-dspy\[ipython\]'"):
        run_sync(session.open())


def test_what_an_environment_is_besides_its_options_is_that_of_the_one_inside() -> None:
    """Whatever `Environment` gets, IPython has to hand on or to answer itself."""
    answered = {"describe", "execution_instructions", "instructions", "name", "open", "shell", "with_options"}
    own = {"base_options", *answered}
    inside = environments.Environment
    public = {name for name in dir(inside) if not name.startswith("_")} - own

    class Inside(environments.Subprocess):
        pass

    for name in public - {"stamp"}:
        setattr(Inside, name, f"that of the one inside: {name}")
    made = environments.ipython(within=Inside())
    assert {name: getattr(made, name) for name in public - {"stamp"}} == {
        name: getattr(Inside, name) for name in public - {"stamp"}
    }
    assert made.stamp() == made.within.stamp()

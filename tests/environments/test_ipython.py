"""The ``ipython`` environment: what IPython adds to cells, in each of its places."""

from __future__ import annotations

import struct
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
    assert run("Out[0], _1, In[-1].strip()").value == "(2, 3, 'Out[0], _1, In[-1].strip()')"
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
    for text in ("!sleep 1000", "while True: pass"):
        if text.startswith("!") and run.session.where == "inprocess":
            # Only bytecode can be interrupted there.
            continue
        result = run(text, timeout=0.5)
        assert result.error is not None and result.error.kind == "timeout" and not result.lost
    assert run("1").value == "1"


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

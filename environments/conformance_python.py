"""Conformance checks: plain Python, output, errors."""

from __future__ import annotations

import textwrap
from typing import Any

from rlm_dspy.environments.conformance_base import check, ok, prints


@check()
async def state_persists(session: Any) -> None:
    """Variables, imports, functions and classes of one cell are there in the next."""
    await ok(session, "import math\nx = 1\ndef f(): return x\nclass A:\n    y = 2")
    await prints(session, "x = 5\nprint(f(), A.y, math.floor(2.5), A().__class__.__name__)", "5 2 2 A\n")


@check()
async def functions_call_later_functions(session: Any) -> None:
    """A function may call one that a later cell defines."""
    await ok(session, "def f(): return g() + 1")
    await ok(session, "def g(): return 41")
    await prints(session, "print(f())", "42\n")


@check()
async def global_and_nonlocal(session: Any) -> None:
    """``global`` and closures write where they should."""
    await ok(
        session,
        """
        n = 0
        def up():
            global n
            n += 1
        def counter():
            k = 0
            def step():
                nonlocal k
                k += 1
                return k
            return step
        """,
    )
    await prints(session, "up(); up(); c = counter(); c()\nprint(n, c(), [n + i for i in range(2)])", "2 2 [2, 3]\n")


@check()
async def assignments_before_an_error_stay(session: Any) -> None:
    """What a cell did before it failed is done; ``del`` deletes."""
    result = await session.run("a = 1\nb = 2\n1/0")
    assert result.error is not None and result.error.type == "ZeroDivisionError"
    await prints(session, "del b\nprint(a, 'b' in globals())", "1 False\n")


@check()
async def dataclasses_generators_decorators(session: Any) -> None:
    """The usual furniture of the language works, annotations as text included."""
    await prints(
        session,
        """
        from __future__ import annotations
        import dataclasses, typing, functools, contextlib, enum
        @dataclasses.dataclass
        class Point:
            x: int
            near: typing.Optional[Point] = None
        def gen():
            yield from range(3)
        @functools.lru_cache(None)
        def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
        @contextlib.contextmanager
        def cm():
            yield 7
        class Color(enum.Enum):
            RED = 1
        with cm() as v: pass
        try:
            raise ExceptionGroup("g", [ValueError(1)]) if "ExceptionGroup" in dir(__builtins__) else ValueError(1)
        except Exception:
            pass
        print(Point(1, Point(2)).near.x, list(gen()), fib(30), v, Color.RED.name, typing.get_type_hints(Point)["x"])
        """,
        "2 [0, 1, 2] 832040 7 RED <class 'int'>\n",
    )


@check("process")
async def module_is_main(session: Any) -> None:
    """Code lives in a real ``__main__``: pickling its classes and reading its source works."""
    await ok(session, "class P:\n    def __init__(self, x): self.x = x\ndef source(): return 'here'")
    await prints(
        session,
        "import pickle, inspect\nprint(pickle.loads(pickle.dumps(P(3))).x, inspect.getsource(source), end='')",
        "3 def source(): return 'here'\n",
    )


@check()
async def asyncio_works(session: Any) -> None:
    """``asyncio.run`` in a cell, ``await`` at its top level, tasks that outlive a cell."""
    await prints(
        session,
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x\nprint(asyncio.run(f(1)))",
        "1\n",
    )
    await prints(session, "print(await f(2), *await asyncio.gather(f(3), f(4)))", "2 3 4\n")
    await ok(session, "task = asyncio.get_running_loop().create_task(f(5)); await asyncio.sleep(0)")
    result = await ok(session, "await task")
    assert result.value == "5", result.value
    await prints(session, "async def g(): yield 1\nasync with asyncio.Lock(): print([x async for x in g()])", "[1]\n")


@check()
async def last_expression_is_shown(session: Any) -> None:
    """Also when it is falsy, also after prints; None is not."""
    for code, value in (("0", "0"), ("False", "False"), ("[]", "[]"), ("''", "''"), ("None", None), ("x = 1", None)):
        result = await ok(session, code)
        assert result.value == value, f"{code}: {result.value!r}"
    result = await ok(session, "print('p')\n6 * 7")
    assert (result.stdout, result.value) == ("p\n", "42")


@check()
async def bad_reprs_are_contained(session: Any) -> None:
    """An object whose repr raises is an output, not an error."""
    result = await ok(session, "class Bad:\n    def __repr__(self): raise SystemExit(1)\nBad()")
    assert result.value is not None and "Bad" in result.value


@check()
async def errors_are_described(session: Any) -> None:
    """Traceback from the code's own line on, with that line and the cause; what was printed before is kept."""
    code = """
        def f():
            return {}['key']
        print('before')
        try:
            f()
        except KeyError as e:
            raise ValueError('wrong') from e
        """
    result = await session.run(textwrap.dedent(code))
    error = result.error
    assert error is not None and (error.type, error.message, error.kind) == ("ValueError", "wrong", "runtime")
    assert result.stdout == "before\n"
    for part in ("return {}['key']", "KeyError: 'key'", "direct cause", "in f", "raise ValueError('wrong') from e"):
        assert part in error.traceback, error.traceback
    assert error.traceback.endswith("ValueError: wrong")
    assert error.traceback.count("File ") == 3, error.traceback


@check()
async def syntax_errors(session: Any) -> None:
    """A cell that does not compile does nothing, and is told apart."""
    result = await session.run("x_set = 1\ndef f(:")
    assert result.error is not None and (result.error.type, result.error.kind) == ("SyntaxError", "syntax")
    assert "line 2" in result.error.traceback
    await prints(session, "print('x_set' in globals())", "False\n")
    result = await session.run("compile('def', 'x', 'exec')")
    assert result.error is not None and result.error.kind == "runtime"


@check("values")
async def strange_sources_are_errors(session: Any) -> None:
    """Source text with lone surrogates, NUL, endless brackets, other line ends: an error at most."""
    for code in (
        "x = '\ud800'",
        "x = 1\0",
        "(" * 5000,
        "-" * 100_000 + "1",
        "\x0c\r\n",
        "\t x",
        "x" * 1_000_000,
        "\ufeffx = 1",
    ):
        result = await session.run(code)
        assert result.error is None or result.error.kind in ("syntax", "runtime"), result
        assert not result.lost, result.error
    await prints(session, "y = 1\r\nprint(y)\r\n", "1\n")


@check()
async def exits_are_errors(session: Any) -> None:
    """``sys.exit``, ``exit()``, KeyboardInterrupt, GeneratorExit, endless recursion: errors of the cell, no more."""
    for code, name in (
        ("import sys; sys.exit(3)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("def r(): return r()\nr()", "RecursionError"),
        ("class E(BaseException): pass\nraise E", "E"),
    ):
        result = await session.run(code)
        assert result.error is not None and result.error.type == name and result.error.kind == "runtime", result
    await prints(session, "print(1)", "1\n")


@check()
async def input_says_that_nobody_answers(session: Any) -> None:
    """``input()`` raises EOFError at once."""
    result = await session.run("input('name? ')")
    assert result.error is not None and result.error.type == "EOFError" and "input" in result.error.message


@check()
async def show_vars(session: Any) -> None:
    """``SHOW_VARS()`` and ``variables()`` list what was made, not what was installed."""

    async def tool() -> None: ...

    await session.set({"given": [1]})
    result = await ok(session, "import re\nx = 1.5\n_hidden = 2\ndef f(): pass\nSHOW_VARS()", {"tool": tool})
    assert result.value == repr({"given": "list", "x": "float", "f": "function"}), result.value
    assert await session.variables() == {"given": "list", "x": "float", "f": "function"}


@check()
async def inputs_may_be_rebound(session: Any) -> None:
    """Variables belong to the code once they are set."""
    await session.set({"context": "old"})
    await ok(session, "context = context + 'er'")
    await prints(session, "print(context)", "older\n")


@check()
async def host_functions_are_restored(session: Any) -> None:
    """A host function that code has rebound or deleted is back in the next cell, and that is said once."""

    async def tool(x: int) -> int:
        return x + 1

    await ok(session, "tool = None\ndel SUBMIT\nprint = 3", {"tool": tool})
    result = await ok(session, "tool(1)", {"tool": tool})
    assert result.value == "2" and "`tool` was reassigned" in result.stdout and "`SUBMIT`" in result.stdout
    result = await ok(session, "tool = 5", {"tool": tool})
    result = await ok(session, "print(tool(2))", {"tool": tool})
    assert result.stdout == "3\n", result.stdout


@check("process")
async def builtins_are_restored(session: Any) -> None:
    """A builtin that code has deleted or replaced is back in the next cell."""
    await ok(session, "import builtins\ndel builtins.len\nbuiltins.isinstance = None\nbuiltins.__import__ = None")
    result = await ok(session, "import json\nlen([1]), isinstance(1, int)")
    assert result.value == "(1, True)" and "`len`" in result.stdout


@check()
async def tracebacks_reach_over_cells(session: Any) -> None:
    """An error in a function of an earlier cell shows that function's line."""
    await ok(session, "def broken(d):\n    return d['no such key']")
    result = await session.run("broken({})")
    assert result.error is not None and "return d['no such key']" in result.error.traceback, result
    assert "broken({})" in result.error.traceback and result.error.type == "KeyError"


@check()
async def unprintable_exceptions_are_contained(session: Any) -> None:
    """An exception whose text cannot be made is an error of its type; the session goes on."""
    result = await session.run("class Bad(Exception):\n    def __str__(self): raise ValueError('no text')\nraise Bad")
    assert result.error is not None and result.error.type == "Bad", result
    await prints(session, "print(1)", "1\n")


@check()
async def names_are_seen_as_in_a_file(session: Any) -> None:
    """Comprehensions, lambdas, class bodies, ``exec``, ``eval`` see the globals; star imports and ``:=`` make some."""
    await prints(
        session,
        """
        from math import *
        n = 3
        class A:
            m = n
            rows = [n for _ in range(2)]
        exec("made = n + 1")
        if (later := eval("made + n")) > 5: pass
        print(A.m, A.rows, (lambda: n)(), made, later, floor(2.5), [n + i for i in range(2)])
        """,
        "3 [3, 3] 3 4 7 2 [3, 4]\n",
    )


@check()
async def deep_recursion_is_an_ordinary_thing(session: Any) -> None:
    """800 levels are fine, in the code and in ``repr``; too many are a RecursionError, again and again."""
    await prints(session, "def down(n): return 0 if n == 0 else 1 + down(n - 1)\nprint(down(800))", "800\n")
    for _ in range(3):
        result = await session.run("down(10 ** 6)")
        assert result.error is not None and result.error.type == "RecursionError", result
    await prints(session, "print(down(800))", "800\n")


@check()
async def statements_out_of_place_are_syntax_errors(session: Any) -> None:
    """``return`` and ``yield`` at the top level, as in a file."""
    for code in ("return 1", "yield 1", "break"):
        result = await session.run(code)
        assert result.error is not None and result.error.kind == "syntax", result


@check("process")
async def the_tools_of_a_process_work(session: Any) -> None:
    """Threads that print, child processes, temporary files, ``__main__``."""
    await prints(
        session,
        """
        import pathlib, subprocess, sys, tempfile, threading
        thread = threading.Thread(target=print, args=("from a thread",))
        thread.start(); thread.join()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "x")
            n = path.write_text("from a file")
            print(path.read_text())
        print(int(subprocess.run([sys.executable, "-I", "-c", "print(6 * 7)"], stdout=subprocess.PIPE).stdout))
        print(__name__)
        """,
        "from a thread\nfrom a file\n42\n__main__\n",
    )


# ------------------------------------------------------------------------------------------------- output


@check()
async def output_is_capped(session: Any) -> None:
    """The head and the tail of a flood of output are kept, with the number of characters left out between them."""
    result = await ok(session, "print('first')\nfor i in range(300_000): print('x' * 20)\nprint('last')")
    assert result.stdout.startswith("first\n") and result.stdout.endswith("last\n")
    assert "characters left out" in result.stdout and len(result.stdout) < 2_000_000


@check()
async def huge_values_are_capped(session: Any) -> None:
    """So is a last expression with a huge repr, and an exception with a huge message."""
    result = await ok(session, "'x' * 5_000_000")
    assert result.value is not None and len(result.value) < 2_000_000
    result = await session.run("raise ValueError('y' * 5_000_000)")
    assert result.error is not None and len(result.error.traceback) < 2_000_000


@check("output")
async def all_output_is_captured_in_order(session: Any) -> None:
    """stderr, raw descriptors, child processes and byte streams; in the order in which they were written."""
    await prints(
        session,
        """
        import os, subprocess, sys
        print("a")
        os.write(1, b"b\\n")
        print("c", file=sys.stderr)
        subprocess.run([sys.executable, "-I", "-c", "print('d')"])
        sys.stdout.buffer.write("é\\n".encode())
        os.system("echo f >&2")
        sys.stdout.flush()
        print("g")
        """,
        "a\nb\nc\nd\né\nf\ng\n",
    )


@check("output")
async def floods_of_child_processes_are_capped(session: Any) -> None:
    """100 MB from a child process neither block nor stay in memory."""
    code = (
        "import subprocess, sys\nsubprocess.run([sys.executable, '-I', '-c', 'print(\"z\" * 100_000_000)']).returncode"
    )
    result = await ok(session, code)
    assert result.value == "0" and 100_000 < len(result.stdout) < 2_000_000


@check("values")
async def any_text_can_be_printed(session: Any) -> None:
    """Letters of all kinds, control characters, lone surrogates: what is printed is what comes."""
    text = "é 中 \N{GRINNING FACE} \x1b[0m \ud800 tab\t bell\x07"
    await session.set({"text": text})
    result = await ok(session, "print(text, end='')")
    assert result.stdout == text, result.stdout

"""What is particular to the ``inprocess`` environment: threads of the host, references, no boundary."""

from __future__ import annotations

import asyncio
import linecache
import sys
import threading
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM
from rlm_dspy._aio import run_sync
from rlm_dspy.environments.inprocess import InProcess
from rlm_dspy.errors import SandboxUnavailableError
from rlm_dspy.testing import ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_it_says_that_it_confines_nothing() -> None:
    description = InProcess().describe()
    assert not description.confined and "host process" in description.missing[0]
    with pytest.raises(SandboxUnavailableError):
        InProcess().open()


def test_output_of_other_threads_stays_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    """Two sessions and a thread of the host print at once; each text goes where it belongs."""
    meet = threading.Barrier(3)

    async def wait() -> None:
        await asyncio.to_thread(meet.wait, 20)

    async def one(name: str) -> str:
        session = InProcess(timeout=20)()
        result = await session.run(
            f"import sys\nprint('{name} 1')\nwait()\nprint('{name} 2', file=sys.stderr)\nwait()", {"wait": wait}
        )
        await session.close()
        return result.stdout

    def host() -> None:
        meet.wait(20)
        print("host")
        meet.wait(20)

    thread = threading.Thread(target=host)
    thread.start()
    before = sys.stdout

    async def both() -> list[str]:
        return await asyncio.gather(one("a"), one("b"))

    assert run_sync(both()) == ["a 1\na 2\n", "b 1\nb 2\n"]
    thread.join()
    assert sys.stdout is before and capsys.readouterr().out == "host\n"


def test_inputs_are_the_objects_themselves() -> None:
    async def check() -> None:
        session = InProcess()()
        given: list[int] = []
        await session.set({"given": given})
        result = await session.run("given.append(1)\nSUBMIT(given)")
        assert given == [1] and result.submission is not None and result.submission.args[0] is not given
        await session.close()

    run_sync(check())


def test_sessions_share_no_names_and_leave_nothing() -> None:
    with InProcess()() as first, InProcess()() as second:
        first.execute("x = 1\ndel_me = len")
        assert second.execute("'x' in globals()") is False
        first.execute("import pickle\nclass P: pass")
        assert first.execute("type(pickle.loads(pickle.dumps(P()))) is P")
        assert first.execute("import builtins\n__builtins__ is not vars(builtins)")
    assert not [name for name in sys.modules if name.startswith("rlm_dspy_session")]
    assert not [name for name in linecache.cache if name.startswith("<session")]


def test_errors_read_as_in_a_process_of_its_own() -> None:
    """The second session of a process, too: the same program has the same trajectory in every environment."""
    replies = [
        code("def f(n):\n    return 1 // n\nf(0)"),
        code("class Odd(Exception): pass\nraise Odd('first') from ValueError('second')"),
        code("def ("),
        code("eval('1 +')"),
        code("f('')"),
        code("SUBMIT(answer=len(context))"),
    ]

    def turns(name: str) -> Any:
        with dspy.context(lm=ScriptedLM(list(replies))):
            return RLM("context -> answer: int", interpreter=name)(context="abcd").trajectory

    expected = turns("subprocess")
    assert "<cell 1>" in expected[0].output and "\nOdd: first" in expected[1].output
    assert turns("inprocess") == expected
    assert turns("inprocess") == expected


def test_an_interrupt_never_hits_another_cell() -> None:
    """Interrupts that race with the end of cells end that cell or nothing."""
    with InProcess(timeout=20)() as interpreter:
        stop = False

        def fire() -> None:
            while not stop:
                interpreter.interrupt()

        thread = threading.Thread(target=fire)
        thread.start()

        async def many() -> int:
            return sum([(await interpreter.run("sum(range(100))")).error is None for _ in range(300)])

        try:
            run_sync(many())
        finally:
            stop = True
            thread.join()
        assert interpreter.execute("1 + 1") == 2


def test_code_that_cannot_be_stopped_is_left_behind() -> None:
    async def check() -> Any:
        session = InProcess(timeout=1.0)()
        release = threading.Event()
        await session.set({"release": release, "x": 1})
        result = await session.run("print('before')\nrelease.wait()")
        release.set()
        after = await session.run("print('x' in globals())")
        await session.close()
        return result, after

    result, after = run_sync(check())
    assert result.error.kind == "timeout" and result.lost == ("release", "x") and result.stdout == "before\n"
    assert after.stdout == "False\n"


def test_a_cell_that_awaits_is_interrupted() -> None:
    """An interrupt of a thread strikes between bytecodes, so a sleeping event loop has to be woken for it."""

    async def check() -> Any:
        session = InProcess(timeout=1.0)()
        result = await session.run("kept = 1\nimport asyncio\nawait asyncio.sleep(1e6)")
        after = await session.run("kept")
        await session.close()
        return result, after

    result, after = run_sync(check())
    assert result.error.kind == "timeout" and not result.lost and after.value == "1"


def test_a_thread_that_outlives_its_cell_is_told_so_when_it_calls() -> None:
    """Also when the loop that ran the cell stands still, as between two synchronous calls."""
    go, seen = threading.Event(), []

    async def ask() -> str:
        return "answer"

    async def check() -> Any:
        session = InProcess()()
        await session.set({"go": go, "seen": seen})
        result = await session.run(
            "import threading\n"
            "def late():\n"
            "    go.wait(20)\n"
            "    try:\n        seen.append(ask())\n"
            "    except RuntimeError as error:\n        seen.append(str(error))\n"
            "thread = threading.Thread(target=late, daemon=True)\nthread.start()\nseen.append(thread)",
            {"ask": ask},
        )
        assert result.error is None
        return session

    session = run_sync(check())
    thread = seen.pop()
    go.set()
    thread.join(20)
    assert not thread.is_alive() and seen == ["the cell that made this call has ended"]
    run_sync(session.close())

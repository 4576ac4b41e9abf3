"""Code that breaks the worker it runs in: the host goes on, and the run with it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, environments
from rlm_dspy.environments import pool, session
from rlm_dspy.environments.interpreter import Interpreter
from rlm_dspy.testing import ScriptedLM, code

# Finds the worker's own object, through which any frame can be sent.
WORKER = """
import gc
worker = next(o for o in gc.get_objects() if type(o).__name__ == "Worker" and hasattr(o, "_sink"))
"""
LIAR = """
class Meta(type):
    __name__ = property(lambda self: 1 / 0)
class Liar(Exception, metaclass=Meta):
    pass
"""


def answer(*cells: str, **options: Any) -> Any:
    """Run ``cells`` as the turns of an RLM; its prediction."""
    rlm = RLM("q -> answer: str", interpreter=environments.local(timeout=5, site_packages=False), **options)
    with dspy.context(lm=ScriptedLM([code(cell) for cell in cells])):
        return rlm(q="x")


def local(**options: Any) -> Interpreter:
    return Interpreter(environments.local(site_packages=False, **options))


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param("globals()[5] = 1", id="a global that is no text"),
        pytest.param(LIAR + "x = Liar()", id="a variable whose type has no name"),
        pytest.param(LIAR + "raise Liar()", id="an exception whose type has no name"),
        pytest.param(LIAR + "Liar.__repr__ = lambda self: 1 / 0\nLiar()", id="a value without repr"),
        pytest.param(
            WORKER + "worker.send({'op': 'done', 'id': worker._running, 'failed': 'X'}, 'boo')", id="a forged failure"
        ),
    ],
)
@pytest.mark.parametrize("turn", [1, 2])
def test_whatever_a_cell_does_to_its_report_it_is_a_turn(cell: str, turn: int, no_leaks: None) -> None:
    before = ["y = 1"] * (turn - 1)
    # A forged report ends the worker where the real one follows it: one more turn.
    lines = [*before, cell, "print('next')", "SUBMIT('done')", "SUBMIT('done')"]
    prediction = answer(*lines)
    assert (prediction.outcome, prediction.answer) == ("submitted", "done")


def test_a_worker_that_cannot_run_cells_any_more_is_replaced(no_leaks: None) -> None:
    async def main() -> None:
        place = environments.local(timeout=5, site_packages=False)()
        await place.open()
        try:
            await place.run("kept = 1\nimport sys\ndef hook(*_): raise RuntimeError('no')\nsys.addaudithook(hook)")
            results = [await place.run("print('again')") for _ in range(3)]
        finally:
            await place.close()
        assert results[0].error is not None and not results[0].lost
        assert results[1].error is not None and results[1].error.type == "SandboxDied"
        assert results[1].lost == ("hook", "kept")
        assert results[2].stdout == "again\n"

    asyncio.run(main())


def test_a_worker_that_stands_still_does_not_hold_up_the_host(
    monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    monkeypatch.setattr(session, "REQUEST_SECONDS", 2.0)

    async def main() -> None:
        place = environments.local(timeout=2.0, site_packages=False)()
        await place.open()
        try:
            pid = place._channel._transport._transport.pid
            await place.run("x = 1")
            for worker in (pid, *descendants(pid)):
                os.kill(worker, signal.SIGSTOP)
            with pytest.raises(dspy.CodeInterpreterError, match="does not respond"):
                await asyncio.wait_for(place.set({"y": 2}), 20)
            assert (await place.run("print('again')")).stdout == "again\n"
        finally:
            await place.close()

    asyncio.run(main())


def test_calls_that_flood_the_host_between_cells_do_not_hold_it_up(
    monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    monkeypatch.setattr(session, "REQUEST_SECONDS", 2.0)

    async def main() -> None:
        place = environments.local(timeout=2.0, site_packages=False)()
        await place.open()
        try:
            flood = (
                "import threading, time\nended = threading.Event()\ndef flood():\n ended.wait(0.1)\n"
                " for i in range(10**9): worker.send({'op': 'call', 'id': 10**6 + i, 'name': 'f'}, [[], {}])\n"
                "threading.Thread(target=flood, daemon=True).start()"
            )
            await place.run(WORKER + flood)
            channel = place._channel
            deadline = asyncio.get_running_loop().time() + 20
            while len(channel._queued) < 1024:
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.01)
            with pytest.raises(dspy.CodeInterpreterError, match="does not respond"):
                await asyncio.wait_for(place.set({"y": 2}), 20)
            assert (await place.run("print('again')")).stdout == "again\n"
        finally:
            await place.close()

    asyncio.run(main())


def test_a_fresh_worker_that_was_killed_is_replaced_by_another(no_leaks: None) -> None:
    async def main() -> None:
        place = environments.local(timeout=5, site_packages=False)()
        await place.open()
        try:
            channel = place._channel
            channel._transport.kill()
            await place.set({"x": 41})
            assert (await place.run("print(x + 1)")).stdout == "42\n"
            # With variables in it the loss is told.
            place._channel._transport.kill()
            with pytest.raises(dspy.CodeInterpreterError, match="the sandbox ended"):
                await place.set({"y": 1})
        finally:
            await place.close()

    asyncio.run(main())


def test_an_input_larger_than_the_sandbox_says_so(no_leaks: None) -> None:
    with pytest.raises(dspy.CodeInterpreterError, match="no memory is left"):
        with local(memory="192MiB") as place:
            place.execute("print(len(x))", {"x": "x" * (300 << 20)})
    pool.close()


def descendants(pid: int) -> list[int]:
    """Process ids below ``pid``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == pid:
                found += [int(entry.name), *descendants(int(entry.name))]
    return found


def test_a_worker_that_dies_under_a_flood_of_its_calls_is_noticed(
    eventually: Callable[..., bool], no_leaks: None
) -> None:
    """The host has stopped reading, for too many calls are unanswered, and cannot write any more; no clock runs."""

    async def main() -> None:
        place = Interpreter(environments.Subprocess(timeout=None))
        gate = asyncio.Event()

        async def f() -> None:
            await gate.wait()

        flood = "import os\nfor i in range(1200): worker.send({'op': 'call', 'id': 10**6 + i, 'name': 'f'}, [[], {}])\n"
        await place.open()
        pid = place._channel._transport._transport.pid
        try:
            running = asyncio.ensure_future(place.run(WORKER + flood + "os._exit(3)", {"f": f}))
            state = Path(f"/proc/{pid}/stat")
            died = lambda: state.read_text().rpartition(")")[2].split()[0] == "Z"  # noqa: E731
            assert await asyncio.to_thread(eventually, died)
            gate.set()
            result = await asyncio.wait_for(running, 20)
            assert result.error is not None and result.error.type == "SandboxDied"
        finally:
            await place.close()

    asyncio.run(main())

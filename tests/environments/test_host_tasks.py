"""The tasks that answer a cell's host calls."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

from rlm_dspy.environments.channel import Call
from rlm_dspy.environments.host_tasks import HostTasks


class Answers:
    """Takes what a `HostTasks` replies."""

    def __init__(self) -> None:
        self.given: list[tuple[int, Any]] = []

    def reply(self, call: Call, value: Any = None) -> None:
        self.given.append((call.number, value))

    def error(self, call: Call, kind: str, message: str) -> None:
        self.given.append((call.number, f"{kind}: {message}"))

    def host(self, **functions: Any) -> HostTasks:
        return HostTasks(functions, self.reply, self.error)


def a_call(name: str, *args: Any, number: int = 1) -> Call:
    return Call(number, name, args, {})


@pytest.mark.parametrize("passes", range(4))
def test_every_call_is_answered_however_far_it_has_come_when_the_cell_ends(passes: int) -> None:
    async def main() -> Answers:
        answers = Answers()
        never = asyncio.Event()
        host = answers.host(wait=never.wait)
        for number in (1, 2):
            host.accept(a_call("wait", number=number))
        for _ in range(passes):
            await asyncio.sleep(0)
        await host.close()
        host.accept(a_call("wait", number=3))
        await asyncio.sleep(0)
        waited = host.waited()
        await asyncio.sleep(0.01)
        assert host.waited() == waited  # the clock of open calls has stopped
        return answers

    answers = asyncio.run(main())
    assert sorted(number for number, _ in answers.given) == [1, 2, 3]
    assert all("cancelled" in text or "has ended" in text for _, text in answers.given)


def test_calls_that_never_began_are_answered_also_where_the_waiting_for_others_is_cancelled() -> None:
    async def main() -> None:
        answers = Answers()

        async def resists() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.Event().wait()

        host = answers.host(resists=resists)
        host.accept(a_call("resists", number=1))
        for _ in range(3):
            await asyncio.sleep(0)
        host.accept(a_call("resists", number=2))
        await asyncio.sleep(0)  # it is a task by now, which has not taken its first step
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.01, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await host.close()
        task.uncancel()
        given = dict(answers.given)
        assert "has ended" in given[2] and "cancelled" in given[1]
        waited = host.waited()
        await asyncio.sleep(0.01)
        assert host.waited() == waited

    asyncio.run(main())


def test_the_time_that_calls_are_open_does_not_count() -> None:
    async def main() -> None:
        answers = Answers()

        async def slow(seconds: float) -> str:
            await asyncio.sleep(seconds)
            return "done"

        host = answers.host(slow=slow)
        cell: Future[None] = Future()
        host.accept(a_call("slow", 0.3))
        start = time.perf_counter()
        assert not await host.watch(cell, 0.1)
        assert time.perf_counter() - start >= 0.35 and host.waited() >= 0.3
        assert answers.given == [(1, "done")]
        threading.Timer(0.05, cell.set_result, (None,)).start()
        assert await host.watch(cell, None)
        assert await host.watch(cell, 0.0)  # it has ended: there is nothing to be late with
        await host.close()

    asyncio.run(main())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_a_program_ends_the_watching(error: BaseException) -> None:
    async def main() -> None:
        answers = Answers()

        async def fatal() -> None:
            raise error

        host = answers.host(fatal=fatal)
        host.accept(a_call("fatal"))
        with pytest.raises(type(error)) as raised:
            await host.watch(Future(), 10)
        assert raised.value is error and len(answers.given) == 1
        await host.close()

    asyncio.run(main())


def test_an_answer_to_a_loop_that_has_ended_is_no_error() -> None:
    cell: Future[None] = Future()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Answers().host().watch(cell, None), 0.01)

    asyncio.run(main())
    cell.set_result(None)


def test_calls_that_have_not_begun_when_a_cell_ends_wait_for_the_next() -> None:
    """A thread that outlives its cell may call in the very moment in which the cell ends."""
    answered: list[str] = []
    postponed: list[Call] = []

    async def note() -> None:
        answered.append("begun")

    async def check() -> None:
        tasks = HostTasks({"note": note}, lambda call, value: None, lambda call, *why: answered.append("refused"))
        early, late = Call(1, "note", (), {}), Call(2, "note", (), {})
        tasks._start(early)
        await tasks.close(postponed.append)
        tasks.accept(late)
        await asyncio.sleep(0)
        assert postponed == [early, late] and answered == []

    asyncio.run(check())

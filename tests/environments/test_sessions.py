"""The line for sandbox sessions: what waiting in it costs those who run."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from rlm_dspy.environments import Subprocess, sessions


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each garbage collection for the line's sake, in a line of one place."""
    found: list[int] = []
    monkeypatch.setenv(sessions.VARIABLE, "1")
    monkeypatch.setattr(sessions, "STALL_SECONDS", 0.2)
    monkeypatch.setattr(sessions, "slots", sessions.Slots())
    monkeypatch.setattr(sessions.gc, "collect", lambda: found.append(1))
    return found


def test_many_who_wait_in_a_line_that_moves_collect_no_garbage(
    collections: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_IDLE", 50)  # a machine with other work may stop the line itself for seconds

    async def hold() -> None:
        lease = await sessions.atake()
        await asyncio.sleep(0.01)
        lease.release()

    async def go() -> None:
        await asyncio.gather(*(asyncio.create_task(hold()) for _ in range(30)))

    asyncio.run(go())
    assert not collections


def test_waiting_for_sessions_that_are_in_use_collects_no_garbage(
    collections: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sessions, "_IDLE", 1_000)

    async def go() -> None:
        held = sessions.slots.request().result()
        waiting = asyncio.create_task(sessions.atake())
        async with asyncio.timeout(20):
            while "more wait" not in caplog.text:  # said after several looks
                await asyncio.sleep(0.01)
        held.release()
        (await waiting).release()

    asyncio.run(go())
    assert not collections


def test_of_many_who_wait_long_one_says_so(
    collections: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 0

    def looked() -> None:
        nonlocal looks
        looks += 1

    async def go() -> None:
        held = sessions.slots.request().result()
        monkeypatch.setattr(sessions.slots, "relieve", looked)
        for round_ in range(2):
            waiting = [asyncio.create_task(hold()) for _ in range(20)]
            before = looks
            async with asyncio.timeout(20):
                while looks < before + 20 * 6:  # each has looked more often than it takes
                    await asyncio.sleep(0.01)
            assert caplog.text.count("more wait") == round_ + 1
            held.release()
            await asyncio.gather(*waiting)
            held = sessions.slots.request().result()
        held.release()

    async def hold() -> None:
        (await sessions.atake()).release()

    asyncio.run(go())


def test_a_forgotten_session_is_found_by_who_waits_for_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sessions.VARIABLE, "1")
    monkeypatch.setattr(sessions, "STALL_SECONDS", 0.2)
    monkeypatch.setattr(sessions, "slots", sessions.Slots())
    gc.disable()  # Only the search finds it.
    try:
        for _ in range(3):
            interpreter: Any = Subprocess()()
            interpreter.execute("1")
            interpreter.itself = interpreter
            del interpreter
        with Subprocess()() as last:
            assert last.execute("print(2)")
    finally:
        gc.enable()


def test_where_nothing_moves_one_of_them_does(collections: list[int]) -> None:
    async def go() -> None:
        held = sessions.slots.request().result()
        waiting = [asyncio.create_task(sessions.atake()) for _ in range(30)]
        async with asyncio.timeout(20):
            while not collections:
                await asyncio.sleep(0.01)
        assert len(collections) <= 2
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        held.release()

    asyncio.run(go())

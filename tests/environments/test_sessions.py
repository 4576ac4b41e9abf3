"""The line for sandbox sessions: what waiting in it costs those who run."""

from __future__ import annotations

import asyncio

import pytest

from rlm_dspy.environments import sessions


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each garbage collection for the line's sake, in a line of one place."""
    found: list[int] = []
    monkeypatch.setenv(sessions.VARIABLE, "1")
    monkeypatch.setattr(sessions, "STALL_SECONDS", 0.2)
    monkeypatch.setattr(sessions, "slots", sessions.Slots())
    monkeypatch.setattr(sessions.gc, "collect", lambda: found.append(1))
    return found


def test_many_who_wait_in_a_line_that_moves_collect_no_garbage(collections: list[int]) -> None:
    async def hold() -> None:
        lease = await sessions.atake()
        await asyncio.sleep(0.01)
        lease.release()

    async def go() -> None:
        await asyncio.gather(*(asyncio.create_task(hold()) for _ in range(30)))

    asyncio.run(go())
    assert not collections


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

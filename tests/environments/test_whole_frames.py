"""A worker writes frames whole, or ends: half a frame would swallow the beginning of the next one."""

from __future__ import annotations

import asyncio
import textwrap
from typing import Any

import pytest

from rlm_dspy import environments

SHORT_OF_MEMORY = """
    import resource
    from concurrent.futures import ThreadPoolExecutor
    resource.setrlimit(resource.RLIMIT_AS, ({limit} << 20, {limit} << 20))
    texts = [c * 3_000_000 + "é" for c in "abcd"]
    with ThreadPoolExecutor(4) as pool:
        print(list(pool.map(turn, texts)) == [t[::-1] for t in texts])
"""


@pytest.mark.parametrize("limit", [96, 160, 200, 256, 300, 400])
def test_want_of_memory_while_calls_are_written_does_not_hang_the_cell(limit: int, no_leaks: None) -> None:
    async def turn(text: str) -> str:
        return text[::-1]

    async def drive() -> None:
        session = environments.subprocess(timeout=30)()
        try:
            await session.open()
            result = await session.run(textwrap.dedent(SHORT_OF_MEMORY.format(limit=limit)), {"turn": turn})
            assert result.error is None or result.error.kind == "runtime", result.error
            # So little memory may be left that the next cells fail, too; then there is a new worker.
            later = [await session.run("print('on')") for _ in range(3)]
            assert later[-1].stdout == "on\n", later
        finally:
            await session.close()

    asyncio.run(drive())


def test_an_interrupt_while_a_large_call_is_written_loses_nothing(no_leaks: None) -> None:
    async def take(text: str) -> int:
        return len(text)

    async def drive() -> None:
        session = environments.subprocess(timeout=30, max_value=1 << 30)()
        try:
            await session.run("kept = 1\nbig = 'x' * 60_000_000")
            for i in range(12):
                running: Any = asyncio.ensure_future(session.run("while True: take(big)", {"take": take}))
                await asyncio.sleep(0.05 + 0.013 * i)
                session.interrupt()
                result = await running
                assert result.error is not None and result.error.kind == "timeout" and not result.lost, (i, result)
            assert (await session.run("print(kept)")).stdout == "1\n"
        finally:
            await session.close()

    asyncio.run(drive())

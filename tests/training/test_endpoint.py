"""The LM of a seat: keys, retries, limits, failures, threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import ContextWindowExceededError, LMError, LMInvalidRequestError

from rlm_dspy.testing import Call
from rlm_dspy.training.endpoint import Address, EndpointFailed, Seat, Switchboard
from tests.training.conftest import eventually_in_loop


def echo(call: Call) -> str:
    return f"heard {call.prompt}"


async def asked(seat: Seat, prompt: str = "hello") -> str:
    (text,) = await seat.lm("m").acall(prompt)
    return str(text)


def seat_of(board: Switchboard, url: str, name: str = "agent") -> Seat:
    async def opening() -> Address:
        return Address("inner", url, "secret")

    return board.seat(name, opening)


def test_each_request_has_a_key_and_is_counted(serve: Any) -> None:
    server = serve(echo)

    async def go() -> Seat:
        async with Switchboard() as board:
            seat = seat_of(board, server.url)
            assert await asyncio.gather(*(asked(seat, f"{n}") for n in range(5))) == [f"heard {n}" for n in range(5)]
            return seat

    seat = asyncio.run(go())
    assert sorted(server.keys) == [f"agent-{n}" for n in range(1, 6)]
    assert {body["model"] for body in server.bodies} == {"inner"}, "the endpoint's name, not that of the accounts"
    assert (seat.calls, seat.output_tokens) == (5, 5) and 1 < seat.width <= 5


@pytest.mark.parametrize("failing", [[0], [503], [429, 0, 500], [408, 529, 520]])
def test_a_request_that_is_sent_again_has_the_same_key(serve: Any, failing: list[int]) -> None:
    server = serve(echo)
    server.failing = list(failing)

    async def go() -> None:
        async with Switchboard(pauses=(0.0, 0.0, 0.0)) as board:
            assert await asked(seat_of(board, server.url)) == "heard hello"
            assert not board.failure.done()

    asyncio.run(go())
    assert set(server.keys) == {"agent-1"} and len(server.keys) == len(failing) + 1


@pytest.mark.parametrize("status", [0, 500, 400, 404])
def test_a_failure_that_stays_is_that_of_the_rollout(serve: Any, status: int) -> None:
    server = serve(echo)
    server.failing = [status] * 9

    async def go() -> EndpointFailed:
        async with Switchboard(pauses=(0.0,)) as board:
            # Nothing above tries it again: that has been done.
            with pytest.raises(LMInvalidRequestError):
                await asked(seat_of(board, server.url, "sub"))
            return board.failure.result()

    failure = asyncio.run(go())
    assert failure.seat == "sub" and "sub" in str(failure) and "secret" not in str(failure)
    assert len(server.keys) == (1 if status in (400, 404) else 2)


def test_a_limit_of_the_seat_is_no_failure(serve: Any) -> None:
    server = serve(echo)
    server.failing, server.saying = [400], "rollout stopped: max_turns"

    async def go() -> Seat:
        async with Switchboard(pauses=()) as board:
            seat = seat_of(board, server.url)
            with pytest.raises(LMError, match="reached its limit: max_turns"):
                await asked(seat)
            assert not board.failure.done()
            return seat

    assert asyncio.run(go()).stopped == "max_turns"


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 4096 tokens, however you requested 5000",
        "Prompt of 70000 tokens exceeds the model's context window",
    ],
)
def test_a_prompt_that_is_too_long_is_no_failure(serve: Any, said: str) -> None:
    server = serve(echo)
    server.failing, server.saying = [400], said

    async def go() -> None:
        async with Switchboard(pauses=()) as board:
            with pytest.raises(ContextWindowExceededError):
                await asked(seat_of(board, server.url))
            assert not board.failure.done()

    asyncio.run(go())


def test_a_seat_that_cannot_be_opened_is_a_failure() -> None:
    async def go() -> EndpointFailed:
        async with Switchboard() as board:

            async def opening() -> Address:
                raise RuntimeError("no room")

            with pytest.raises(LMError):
                await asked(board.seat("sub", opening))
            return board.failure.result()

    assert "no room" in str(asyncio.run(go()))


def test_threads_and_other_loops_may_ask(serve: Any) -> None:
    server = serve(echo)

    async def go() -> list[str]:
        async with Switchboard() as board:
            lm = seat_of(board, server.url).lm("m")
            in_thread = asyncio.to_thread(lambda: lm("in a thread")[0])
            in_loop = asyncio.to_thread(lambda: asyncio.run(lm.acall("in another loop"))[0])
            return list(await asyncio.gather(in_thread, in_loop))

    assert asyncio.run(go()) == ["heard in a thread", "heard in another loop"]


def test_asking_synchronously_on_the_loop_is_refused_instead_of_waiting_for_ever(serve: Any) -> None:
    server = serve(echo)

    async def go() -> None:
        async with Switchboard() as board:
            with pytest.raises(LMError, match="aforward"):
                seat_of(board, server.url).lm("m")("now")

    asyncio.run(go())
    assert not server.bodies


def test_closing_lets_go_of_threads_that_wait(serve: Any) -> None:
    release = threading.Event()

    def slow(call: Call) -> str:
        release.wait(20)
        return "late"

    server = serve(slow)
    errors: list[Exception] = []

    def ask(lm: dspy.LM) -> None:
        try:
            lm("anyone?")
        except Exception as error:
            errors.append(error)

    async def go() -> threading.Thread:
        async with Switchboard() as board:
            thread = threading.Thread(target=ask, args=(seat_of(board, server.url).lm("m"),))
            thread.start()
            await eventually_in_loop(lambda: server.bodies)
        return thread

    try:
        thread = asyncio.run(go())
        thread.join(20)
        assert not thread.is_alive() and len(errors) == 1
    finally:
        release.set()

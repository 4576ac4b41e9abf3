"""How seats lend their endpoints to the program.

verifiers gives each run of a seat an endpoint of its own, with that seat's model, sampling and limits, and records its
calls as that seat's trace. The program runs on the root's seat; for a sub-call it needs the endpoint of another. So the
environment starts a run of that seat when it is first asked for, which does nothing but lend its endpoint until the
program has ended. A seat that is asked for nothing leaves no trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import verifiers.v1 as vf

from rlm_dspy.training.endpoint import Address
from rlm_dspy.training.programs import Programs

__all__ = ["Desk", "LentTask", "Loan", "Turnstile", "current_desk", "current_loan"]


class Turnstile:
    """Lets one through in each round of the event loop.

    To start a seat's run costs verifiers some ten milliseconds at once (a client with certificates of its own), and a
    hundred that start in one round would hold up everyone else for seconds.
    """

    def __init__(self) -> None:
        self._line: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def passing(self) -> None:
        """Wait for one's turn."""
        if self._line is None or self._loop is not asyncio.get_running_loop():
            self._line, self._loop = asyncio.Lock(), asyncio.get_running_loop()
        async with self._line:
            await asyncio.sleep(0)


class LentData(vf.TaskData):
    """The task of a seat that lends its endpoint."""

    seat: str


class LentTask(vf.Task[LentData]):
    """Scored by nothing of its own; the environment gives it the reward of the root."""


class Loan:
    """One seat's endpoint, while it is lent.

    Args:
        seat: Its name.
    """

    def __init__(self, seat: str) -> None:
        self.seat = seat
        self.address: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
        self._over: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    async def serve(self, address: Address) -> None:
        """What the seat's own run does: lend, and wait.

        Raises:
            RuntimeError: The rollout that it was lent to is void, and so are its calls.
        """
        if not self.address.done():
            self.address.set_result(address)
        error = await asyncio.shield(self._over)
        if error is not None:
            raise RuntimeError(f"the root's rollout is void: {type(error).__name__}: {error}")

    def end(self, error: BaseException | None) -> None:
        """Give it back."""
        if not self._over.done():
            self._over.set_result(error)


class Desk:
    """Where the program of one episode borrows endpoints.

    Args:
        runs: For each seat, what starts a run of it on a task.
        children: The seat that plays the roots of children.
        turnstile, programs: Of the environment.
        hidden: Files that the program's code must not read.
    """

    def __init__(
        self,
        runs: dict[str, Callable[[vf.Task], Awaitable[Any]]],
        children: str,
        turnstile: Turnstile,
        programs: Programs,
        hidden: tuple[str, ...] = (),
    ) -> None:
        self.children = children
        self.programs = programs
        self.hidden = hidden
        self._turnstile = turnstile
        self._runs = runs
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextlib.asynccontextmanager
    async def borrowing(self) -> AsyncIterator[Callable[[str], Awaitable[Address]]]:
        """A function from the name of a seat to its address; what was borrowed is given back at the end."""
        loans: dict[str, Loan] = {}

        async def borrow(seat: str) -> Address:
            loan = loans[seat] = Loan(seat)
            task = asyncio.create_task(self._lend(loan))
            self._tasks.add(task)
            task.add_done_callback(lambda done: _refused(loan, done))
            return await asyncio.shield(loan.address)

        error: BaseException | None = None
        try:
            yield borrow
        except BaseException as raised:
            error = raised
            raise
        finally:
            for loan in loans.values():
                loan.end(error)

    async def _lend(self, loan: Loan) -> None:
        token = current_loan.set(loan)
        try:
            await self._turnstile.passing()
            await self._runs[loan.seat](LentTask(LentData(prompt=f"calls of the seat {loan.seat}", seat=loan.seat)))
        finally:
            current_loan.reset(token)

    async def close(self, cancel: bool) -> None:
        """Wait for the runs of the seats that lent, or end them."""
        for task in self._tasks if cancel else ():
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _refused(loan: Loan, done: asyncio.Task[Any]) -> None:
    """A seat whose run ended before it lent anything has no endpoint."""
    error = None if done.cancelled() else done.exception()
    if not loan.address.done():
        loan.address.set_exception(error or RuntimeError(f"the seat {loan.seat!r} could not be opened"))
        # Whoever asked may be gone.
        loan.address.exception()


current_desk: contextvars.ContextVar[Desk | None] = contextvars.ContextVar("rlm_dspy_training_desk", default=None)
"""Of the episode that the running code is of."""

current_loan: contextvars.ContextVar[Loan | None] = contextvars.ContextVar("rlm_dspy_training_loan", default=None)
"""Set in the run of a seat that lends."""

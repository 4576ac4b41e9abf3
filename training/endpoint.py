"""The LM of a seat: every request goes to the rollout's endpoint, which records it as tokens and their probabilities.

A `SeatLM` is a ``dspy.LM`` on DSPy's public engine surface. Requests and replies are written and read by DSPy's own
code for vLLM's dialect, the one that serves the trained model later; what is ours is the way they travel. Each has an
idempotency key, so that one that is sent again after its connection broke is answered from what the first came to, and
never counts as a second turn. A failure of the endpoint ends the rollout as an error, at once, because what the
policy made of it is none of its doing; a seat's own limit ends the seat.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
import dspy
from dspy.lm15 import (
    AsyncOpenAIChatLM,
    ContextLengthError,
    InvalidRequestError,
    LM15Error,
    Request,
    Response,
    TransportError,
)
from dspy.utils.exceptions import LMInvalidRequestError

from rlm_dspy._signals import result_of
from rlm_dspy.errors import RLMError
from rlm_dspy.window import overflowed

T = TypeVar("T")

DIALECT = "vllm"
"""How requests are written: as DSPy writes them for ``dspy.LM("hosted_vllm/NAME")``."""
PAUSES = (0.5, 2.0, 8.0)
"""Seconds before a request is sent again, after a lost connection or one of these statuses."""
RETRIED = frozenset({408, 425, 429, *range(500, 600)} - {501, 505})
_STOPPED = re.compile(r"rollout stopped: (\w+)")
_CONCLUDED = frozenset({401, 409})


class EndpointFailed(RLMError, RuntimeError):
    """The endpoint of a rollout failed, and went on failing when asked again: the rollout is void.

    Attributes:
        seat: Whose request it was.
        status: The HTTP status, or None.
    """

    def __init__(self, message: str, seat: str, status: int | None) -> None:
        super().__init__(message)
        self.seat = seat
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.seat, self.status)


@dataclass(frozen=True)
class Address:
    """Where a seat's requests go.

    Attributes:
        model: Its name there.
        url: Up to and including ``/v1``.
        secret: The rollout's bearer token.
    """

    model: str
    url: str
    secret: str = field(repr=False)


@dataclass
class Reply:
    """An answer over HTTP, whole; what DSPy's provider code reads."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes
    http_version: str = "HTTP/1.1"

    async def read(self) -> bytes:
        """The body."""
        return self.body


class Switchboard:
    """The seats of one rollout. Made, used and closed on one event loop; its LMs may be called from any thread.

    Args:
        pauses: Seconds before each further try; None for `PAUSES`.
    """

    def __init__(self, pauses: tuple[float, ...] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.pauses = PAUSES if pauses is None else pauses
        self.failure: asyncio.Future[EndpointFailed] = self.loop.create_future()
        self.seats: dict[str, Seat] = {}
        self._http = aiohttp.ClientSession(
            # No limit on connections, and none on time: rollouts have limits of their own.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
        )
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._closed = False

    def seat(self, name: str, opening: Callable[[], Awaitable[Address]]) -> Seat:
        """A seat, whose address is asked for with its first request."""
        return self.seats.setdefault(name, Seat(name, self, opening))

    def fail(self, error: EndpointFailed) -> None:
        """The rollout is void; the first reason counts."""
        if not self.failure.done():
            self.failure.set_result(error)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the rollout's loop, from another thread."""
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is self.loop:
                work.close()
                raise InvalidRequestError(
                    "an LM was called synchronously on the event loop of the rollouts, which would wait for itself: "
                    "give the module an aforward, or call it from a thread"
                )
        if self._closed:
            work.close()
            raise InvalidRequestError("the rollout is over")
        waiting = asyncio.run_coroutine_threadsafe(work, self.loop)
        self._waiting.add(waiting)
        try:
            return result_of(waiting)
        except concurrent.futures.CancelledError:
            raise InvalidRequestError("the rollout is over") from None
        finally:
            self._waiting.discard(waiting)

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> Reply:
        """One request, sent again where that may help.

        Raises:
            TransportError: No connection came to an answer.
        """
        for pause in (*self.pauses, None):
            try:
                async with self._http.post(url, data=body, headers=headers) as answer:
                    reply = Reply(answer.status, answer.reason or "", list(answer.headers.items()), await answer.read())
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                if pause is None or self._closed:
                    raise TransportError(f"no answer of the endpoint: {type(error).__name__}: {error}") from error
            else:
                if pause is None or reply.status not in RETRIED:
                    return reply
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Let go of whoever waits, and of the connections."""
        self._closed = True
        for waiting in tuple(self._waiting):
            waiting.cancel()
        await self._http.close()

    async def __aenter__(self) -> Switchboard:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Seat:
    """One seat of a rollout: its LM, and what was asked of it.

    Attributes:
        calls: Requests that were answered.
        input_tokens, output_tokens: Of these, as reported.
        width: Most requests at once.
        stopped: Why the endpoint takes no more of this seat, such as ``"max_turns"``, or None.
    """

    def __init__(self, name: str, board: Switchboard, opening: Callable[[], Awaitable[Address]]) -> None:
        self.name = name
        self.board = board
        self.calls = self.input_tokens = self.output_tokens = self.width = 0
        self.stopped: str | None = None
        self._opening = opening
        self._opened: asyncio.Task[tuple[Address, AsyncOpenAIChatLM]] | None = None
        self._numbers = itertools.count(1)
        self._under_way = 0

    def lm(self, model: str) -> SeatLM:
        """The LM that asks this seat."""
        return SeatLM(model, self)

    async def _open(self) -> tuple[Address, AsyncOpenAIChatLM]:
        address = await self._opening()
        wire: Any = self
        return address, AsyncOpenAIChatLM(api_key=address.secret, base_url=address.url, compat=DIALECT, transport=wire)

    @contextlib.asynccontextmanager
    async def stream(self, request: Any) -> AsyncIterator[Reply]:
        """The transport of DSPy's provider code: one request of it, one answer."""
        key = f"{self.name}-{next(self._numbers)}"
        headers = {**dict(request.headers), "Idempotency-Key": key, "X-ACP-Model-Request-ID": key}
        yield await self.board.post(str(request.url), headers, request.body or b"")

    async def complete(self, request: Request) -> Response:
        """One reply of the seat's model.

        Raises:
            LM15Error: There is none. Where that voids the rollout, its `Switchboard.failure` is set.
        """
        self._under_way += 1
        self.width = max(self.width, self._under_way)
        try:
            if self._opened is None:
                self._opened = asyncio.ensure_future(self._open())
            address, provider = await asyncio.shield(self._opened)
            response = await provider.complete(dataclasses.replace(request, model=address.model))
        except LM15Error as error:
            raise self._explained(error) from error
        except Exception as error:
            self.board.fail(EndpointFailed(f"the seat {self.name!r} has no endpoint: {error}", self.name, None))
            raise
        finally:
            self._under_way -= 1
        self.calls += 1
        self.input_tokens += response.usage.input_tokens or 0
        self.output_tokens += response.usage.output_tokens or 0
        return response

    def _explained(self, error: LM15Error) -> LM15Error:
        """``error`` as the program gets it: one that it does not try again, because that has been done."""
        status, text = getattr(error, "status", None), str(error)
        if (stop := _STOPPED.search(text)) is not None:
            self.stopped = self.stopped or stop[1]
            return InvalidRequestError(f"the seat {self.name!r} has reached its limit: {stop[1]}")
        if isinstance(error, ContextLengthError):
            return error
        if overflowed(LMInvalidRequestError(message=text, status=status)):
            return ContextLengthError(text)
        if status not in _CONCLUDED:
            self.board.fail(EndpointFailed(f"the endpoint of the seat {self.name!r}: {text}", self.name, status))
        return InvalidRequestError(text)


class SeatLM(dspy.LM):
    """The ``dspy.LM`` of a seat, for one rollout.

    DSPy's cache is off, because an answer from there is recorded nowhere, and so are its retries, which would ask under
    another key.

    Args:
        model: The name it goes by in usage and prices.
        seat: Whose.
    """

    def __init__(self, model: str, seat: Seat) -> None:
        self.seat = seat
        super().__init__(model, engine=_Engine(seat), async_engine=_AsyncEngine(seat), cache=False, num_retries=0)

    def __deepcopy__(self, memo: dict[int, Any]) -> SeatLM:
        # A copied program of the rollout is the rollout's too.
        return self


class _Engine:
    replays_reasoning = False

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def complete(self, request: Request) -> Response:
        return self._seat.board.wait(self._seat.complete(request))

    def close(self) -> None:
        """The rollout closes it."""


class _AsyncEngine:
    replays_reasoning = False

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    async def complete(self, request: Request) -> Response:
        if asyncio.get_running_loop() is self._seat.board.loop:
            return await self._seat.complete(request)
        # A program that runs a loop of its own in a thread.
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._seat.complete(request), self._seat.board.loop)
        )

    async def aclose(self) -> None:
        """The rollout closes it."""

"""A ``dspy.LM`` that answers from a policy, and what policies are made of; see `rlm_dspy.testing`."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.lm15 import (
    Message,
    Request,
    Response,
    StreamDeltaEvent,
    StreamEndEvent,
    StreamStartEvent,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    Usage,
)

from rlm_dspy.signatures.demonstration import FRESH

__all__ = ["Call", "Policy", "Reply", "ScriptedLM", "code", "oracle", "outputs"]


def code(source: str, plan: str = "") -> str:
    """A root's reply in the plain dialect: ``plan``, then ``source`` as one Python block."""
    block = f"```python\n{source}\n```"
    return f"{plan}\n\n{block}" if plan else block


def outputs(**values: Any) -> str:
    """A reply that gives these outputs in the form of ``dspy.ChatAdapter``, as predictors and ``extract`` ask for it.

    Args:
        **values: By output field: a text as it is, all else as JSON.
    """
    given = "\n\n".join(
        f"[[ ## {name} ## ]]\n{value if isinstance(value, str) else json.dumps(value)}"
        for name, value in values.items()
    )
    return f"{given}\n\n[[ ## completed ## ]]"


@dataclass(frozen=True)
class Reply:
    """One answer of a scripted LM.

    Attributes:
        text: What it says; ``""`` for an empty reply.
        reasoning: Separate reasoning text, as reasoning models give it, or None.
        delay: Seconds before it answers.
        error: Raised in place of an answer, such as ``dspy.lm15.RateLimitError("slow down")``.
    """

    text: str = ""
    reasoning: str | None = None
    delay: float = 0.0
    error: Exception | None = None


@dataclass(frozen=True)
class Call:
    """One request as the scripted LM sees it.

    Attributes:
        number: From 0, over the LM's life.
        messages: ``{"role", "content"}`` each, the system message first where there is one.
        request: The request itself, with its settings.
    """

    number: int
    messages: list[dict[str, str]]
    request: Request

    @property
    def prompt(self) -> str:
        """The text of the last user message."""
        return next((m["content"] for m in reversed(self.messages) if m["role"] == "user"), "")

    @property
    def system(self) -> str:
        """The system message, ``""`` if there is none."""
        return next((m["content"] for m in self.messages if m["role"] == "system"), "")

    @property
    def observations(self) -> int:
        """How many outputs the root has been shown in this run, demonstrations not counted."""
        return sum(1 for message in self.own if message["role"] == "user") - 1

    @property
    def turn(self) -> int:
        """How many replies the conversation holds already, demonstrations not counted."""
        return sum(1 for message in self.own if message["role"] == "assistant")

    @property
    def own(self) -> list[dict[str, str]]:
        """The messages of the run itself: its first one, with the task, and all that follow."""
        users = [number for number, message in enumerate(self.messages) if message["role"] == "user"]
        begins = ("# Task\n", FRESH)
        first = max((n for n in users if self.messages[n]["content"].startswith(begins)), default=min(users, default=0))
        return self.messages[first:]


Policy = Iterable["str | Reply"] | Callable[[Call], "str | Reply"]


def oracle(*steps: str | Callable[[Call], str], answer: Mapping[str, Any] | None = None) -> Callable[[Call], str]:
    """The policy of a root that knows what to do: step k is the code of its turn k, in every run alike.

    Args:
        *steps: Python source each, or a function of the `Call` that returns it.
        answer: What it says where it is asked for more than the steps, as ``extract`` does at a limit: a value for each
            output field. None makes that an AssertionError.

    Returns:
        A policy without state, for any number of runs at once.
    """

    def policy(call: Call) -> str:
        turn = call.observations
        if turn < len(steps):
            step = steps[turn]
            return code(step(call) if callable(step) else step)
        if answer is None:
            raise AssertionError(
                f"the oracle has {len(steps)} step{'s' if len(steps) != 1 else ''}, and was asked for more: an answer "
                "was not taken, a step failed, or a run is extracted; add a step, or answer={...} for what is asked "
                f"after the last one. What it was asked ends with {call.prompt[-300:]!r}"
            )
        return outputs(**answer)

    return policy


class _Engine:
    """The synchronous engine: one request, one reply. Thread-safe."""

    def __init__(self, policy: Policy) -> None:
        if isinstance(policy, (str, Reply)):
            raise TypeError("a policy is a list of replies or a function; for one reply write ScriptedLM([reply])")
        self._answer = policy if callable(policy) else None
        self._replies = None if callable(policy) else iter(list(policy))
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.calls: list[Call] = []

    def __getstate__(self) -> dict[str, Any]:
        # The script goes along with a program that is pickled, what was asked of it does not.
        return {**vars(self), "_lock": None, "_numbers": None, "calls": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._numbers, self._lock = itertools.count(), threading.Lock()

    def reply(self, request: Request) -> tuple[Call, Reply]:
        with self._lock:
            call = Call(next(self._numbers), _messages(request), request)
            self.calls.append(call)
            if self._replies is not None:
                answer: str | Reply | None = next(self._replies, None)
                if answer is None:
                    raise AssertionError(
                        f"the scripted LM has no reply left for call {call.number}; the last message was: "
                        f"{call.prompt[-300:]!r}"
                    )
        if self._replies is None:
            assert self._answer is not None
            answer = self._answer(call)
        return call, answer if isinstance(answer, Reply) else Reply(str(answer))

    def complete(self, request: Request) -> Response:
        call, reply = self.reply(request)
        if reply.delay:
            time.sleep(reply.delay)
        return _response(call, reply)

    def stream(self, request: Request) -> Iterator[Any]:
        yield from _events(self.complete(request))


class _AsyncEngine:
    """The same policy, awaited."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    async def complete(self, request: Request) -> Response:
        call, reply = self._engine.reply(request)
        if reply.delay:
            await asyncio.sleep(reply.delay)
        return _response(call, reply)

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        for event in _events(await self.complete(request)):
            yield event


class ScriptedLM(dspy.LM):
    """A ``dspy.LM`` that answers from a policy.

    Args:
        policy: Replies in order (text or `Reply`; asking for more is an AssertionError), or a function of the `Call`,
            which may be called from several threads.
        model: The name it goes by.
        sync_only: Leave out the async engine, as a user's own synchronous LM would.
        cache: DSPy's response cache; off, so that a list of replies is used up in order.
        **kwargs: As for ``dspy.LM``.

    Attributes:
        calls: All requests so far, as `Call`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        model: str = "scripted/lm",
        sync_only: bool = False,
        cache: bool = False,
        num_retries: int = 0,
        **kwargs: Any,
    ) -> None:
        engine = _Engine(policy)
        super().__init__(
            model,
            engine=engine,
            async_engine=None if sync_only else _AsyncEngine(engine),
            cache=cache,
            num_retries=num_retries,
            **kwargs,
        )
        self._scripted = engine

    @property
    def calls(self) -> list[Call]:
        """All requests so far."""
        return list(self._scripted.calls)

    def __deepcopy__(self, memo: dict[int, Any]) -> ScriptedLM:
        # A copied program goes on with the same script, as it would go on with the same server.
        return self

    def dump_state(self) -> dict[str, Any]:
        """Only the name: a script is not saved."""
        return {"model": self.model, "model_type": self.model_type}


def _messages(request: Request) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = []
    if request.system is not None:
        system = request.system
        messages.append(
            {"role": "system", "content": system if isinstance(system, str) else "".join(p.text for p in system)}
        )
    messages += [{"role": str(m.role), "content": m.text or ""} for m in request.messages]
    return messages


def _response(call: Call, reply: Reply) -> Response:
    if reply.error is not None:
        raise reply.error
    parts: list[Any] = [ThinkingPart(reply.reasoning)] if reply.reasoning else []
    parts.append(TextPart(reply.text))
    tokens_in, tokens_out = tokens(call, reply)
    return Response(
        id=None,
        model=call.request.model,
        message=Message.assistant(parts),
        finish_reason="stop",
        usage=Usage(input_tokens=tokens_in, output_tokens=tokens_out, total_tokens=tokens_in + tokens_out),
    )


def tokens(call: Call, reply: Reply) -> tuple[int, int]:
    """Of a request and its reply. A rough count (four characters a token) is enough to see budgets and usage work."""
    return sum(len(message["content"]) for message in call.messages) // 4, len(reply.text) // 4


def _events(response: Response) -> Iterator[Any]:
    """A reply as a provider streams it: reasoning and text, a word an event."""
    yield StreamStartEvent(id=response.id, model=response.model)
    for index, part in enumerate(response.message.parts):
        kind = ThinkingDelta if isinstance(part, ThinkingPart) else TextDelta
        for piece in re.findall(r"\S+\s*|\s+", part.text):
            yield StreamDeltaEvent(kind(piece, index))
    yield StreamEndEvent(response.finish_reason, response.usage)

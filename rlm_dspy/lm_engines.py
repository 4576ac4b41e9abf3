"""What answers the requests to an LM that stands for an RLM: DSPy's engine surface over an RLM and the LM behind it.

An engine gets one ``dspy.lm15.Request`` and gives one ``Response``. A request that fits goes to the LM as it is, any
longer one is taken apart (`rlm_dspy.chat`) and answered by a run.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import dspy
from dspy.lm15 import (
    Config,
    Message,
    Request,
    Response,
    StreamDeltaEvent,
    TextDelta,
    TextPart,
    Usage,
    response_to_events,
)
from dspy.utils.exceptions import ContextWindowExceededError, LMError

from rlm_dspy import _compat, chat, router
from rlm_dspy._aio import run_sync, threads
from rlm_dspy.errors import ReplyFailed, RLMError
from rlm_dspy.redact import error_text

if TYPE_CHECKING:
    from rlm_dspy.rlm import RLM

_PASSED = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
"""Settings of a request that hold for the root of its run. Those on the length and the form of the reply do not."""


@dataclass
class Call:
    """One call of the LM from outside: what DSPy does not hand on to an engine, and what has come of it.

    Attributes:
        rollout_id, cache: As the call says, None where it does not.
        requests: How many requests have been made for it; ``n=3`` makes three.
        usage: Tokens in and out of all of them.
        runs: The predictions of the runs that answered.
    """

    rollout_id: int | None = None
    cache: bool | None = None
    requests: int = 0
    usage: list[int] = field(default_factory=lambda: [0, 0])
    runs: list[dspy.Prediction] = field(default_factory=list)

    @property
    def total(self) -> dict[str, int]:
        """Tokens, in DSPy's words."""
        given, made = self.usage
        return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


current_call: contextvars.ContextVar[Call | None] = contextvars.ContextVar("rlm_dspy_lm_call", default=None)


@contextlib.contextmanager
def calling(call: Call) -> Iterator[Call]:
    """Make ``call`` the one that the requests made inside are of."""
    token = current_call.set(call)
    try:
        yield call
    finally:
        current_call.reset(token)


class Backend:
    """What answers: a frozen RLM and the LM behind it.

    Args:
        program: An RLM that nobody else changes.
        lm: The LM of short requests and of the root.
        direct_below: Tokens below which a request goes straight to ``lm``; None for never.
    """

    def __init__(self, program: RLM, lm: dspy.BaseLM, direct_below: int | None) -> None:
        self.program = program
        self.lm = lm
        self.direct_below = direct_below

    def straight(self, request: Request) -> bool:
        """Whether ``request`` goes to the LM as it is: it is short, or only the LM itself can answer it."""
        if only_lm(request) is not None:
            return True
        if self.direct_below is None:
            return False
        texts = _texts(request)
        # By the length first: to count the bytes of 100 MB takes a while, and not only on the caller's event loop.
        return sum(map(len, texts)) // router.BYTES_A_TOKEN < self.direct_below and (
            sum(map(router.tokens, texts)) < self.direct_below
        )

    def asked(self, request: Request) -> tuple[Request, dict[str, Any]]:
        """The request as the LM behind gets it, and the options of that call."""
        own = _compat.generation_config(self.lm)
        given = {f.name: getattr(request.config, f.name) for f in fields(Config)}
        config = replace(own, **{name: value for name, value in given.items() if value not in (None, ())})
        options = {"rollout_id": self._rollout(request), "cache": call.cache if (call := current_call.get()) else None}
        options = {name: value for name, value in options.items() if value is not None}
        return replace(request, model=self.lm.model, config=config), options

    def told(self, request: Request) -> tuple[chat.Brief, RLM]:
        """What the RLM is told of ``request``, and the program to call."""
        messages = [chat.Message(message.role, _text(message)) for message in request.messages]
        if request.system is not None:
            messages.insert(0, chat.Message("system", _system(request)))
        taken = {*self.program.tools, *(name for call in self.program.sub_calls for name in (call, f"{call}_batched"))}
        brief = chat.brief(messages, taken)
        if request.config.response_format is not None:
            brief = chat.in_schema(brief, request.config.response_format)
        program = brief.program(self.program)
        # What has become of it is decided here, with the prediction at hand.
        program.on_limit = "extract"
        return brief, program

    @contextlib.contextmanager
    def running(self, request: Request, program: RLM) -> Iterator[RLM]:
        """``program`` in the settings that it is to run under for ``request``."""
        changes = {name: getattr(request.config, name) for name in _PASSED}
        call = current_call.get()
        changes |= {"rollout_id": self._rollout(request), "cache": call.cache if call else None}
        changes = {name: value for name, value in changes.items() if value is not None}
        lm = self.lm.copy(**changes) if changes else self.lm
        if "cache" in changes and program.sub_lm is not None:
            program.sub_lm = program.sub_lm.copy(cache=changes["cache"])
        # An LM leaves no traces of its own in the caller's program, and its steps are no part of what is streamed.
        with dspy.context(lm=lm, trace=None, send_stream=None):
            yield program

    def _rollout(self, request: Request) -> int | None:
        """What tells this request from equal ones in the caches of the LMs behind it."""
        call = current_call.get()
        if call is None:
            return None
        number, call.requests = call.requests, call.requests + 1
        if number == 0:
            return call.rollout_id
        temperature = request.config.temperature
        temperature = self.lm.kwargs.get("temperature") if temperature is None else temperature
        return None if temperature == 0 else (call.rollout_id or 0) * 1_000 + number

    def response(self, request: Request, brief: chat.Brief, prediction: dspy.Prediction) -> Response:
        """The reply that a run has come to.

        Raises:
            ReplyFailed: It came to none, or at a limit where the program says ``on_limit="raise"``.
        """
        outcome, usage = prediction["outcome"], prediction["usage"]
        call = current_call.get()
        given, made = usage.get("input_tokens") or 0, usage.get("output_tokens") or 0
        if call is not None:
            call.usage[0] += given
            call.usage[1] += made
            call.runs.append(prediction)
        if outcome == "failed" or (outcome == "extracted" and self.program.on_limit == "raise"):
            why = f"stopped at {outcome.limit}" if outcome.limit else "was ended by an error"
            raise ReplyFailed(
                f"the run that was to write the reply {why}{f': {outcome.error}' if outcome.error else ''}",
                prediction,
                outcome.limit,
            )
        text = brief.form.render({name: prediction[name] for name in brief.form.fields})
        stops = [at for stop in request.config.stop if (at := text.find(stop)) >= 0]
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant([TextPart(text[: min(stops)] if stops else text)]),
            finish_reason="stop",
            usage=Usage() if call is not None else Usage(input_tokens=given, output_tokens=made),
            provider_data={"rlm_dspy": {"outcome": str(outcome), "limit": outcome.limit}},
        )

    def passed_on(self, request: Request, response: Response) -> Response:
        """A response of the LM behind, as this one's. Its usage has been reported already."""
        call = current_call.get()
        if call is None:
            return replace(response, model=request.model)
        call.usage[0] += response.usage.input_tokens or 0
        call.usage[1] += response.usage.output_tokens or 0
        return replace(response, model=request.model, usage=Usage())

    def too_long(self, request: Request, error: ContextWindowExceededError) -> None:
        """What to do where the LM behind refuses a request as too long: nothing, so that the RLM takes over.

        Raises:
            ContextWindowExceededError: ``error``, where the RLM cannot.
        """
        reason = only_lm(request)
        if reason is not None:
            error.add_note(f"An RLM cannot take this request over: {reason} is answered by {self.lm.model} alone.")
            raise error

    def __deepcopy__(self, memo: dict[int, Any]) -> Backend:
        # Frozen, and with connections and sandboxes behind it: copies of a program go on with the same one.
        return self


class Engine:
    """DSPy's synchronous engine surface over a `Backend`."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def complete(self, request: Request) -> Response:
        """One reply."""
        backend = self.backend
        if backend.straight(request):
            passed, options = backend.asked(request)
            try:
                return backend.passed_on(request, self._ask(passed, options))
            except ContextWindowExceededError as error:
                backend.too_long(request, error)
        with _translated():
            brief, program = backend.told(request)
            with backend.running(request, program):
                return backend.response(request, brief, program(**brief.variables))

    def _ask(self, request: Request, options: dict[str, Any]) -> Response:
        lm = self.backend.lm
        with dspy.context(send_stream=None):
            if "sync" in _compat.ways_to_call(lm):
                response: Response = lm(request, **options)
                return response
            return run_sync(lm.acall(request, **options))

    def stream(self, request: Request) -> Iterator[Any]:
        """The whole reply as a stream: what a run submits is there all at once."""
        yield from _events(self.complete(request))

    def close(self) -> None:
        """Nothing is held open."""


class AsyncEngine:
    """DSPy's asynchronous engine surface over a `Backend`; never blocks the event loop."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def complete(self, request: Request) -> Response:
        """One reply."""
        backend = self.backend
        if backend.straight(request):
            passed, options = backend.asked(request)
            try:
                return backend.passed_on(request, await self._ask(passed, options))
            except ContextWindowExceededError as error:
                backend.too_long(request, error)
        with _translated():
            # In a thread: to take 100 MB apart, and to read JSON of that size, takes a while.
            brief, program = await threads.run(backend.told, request)
            with backend.running(request, program):
                return backend.response(request, brief, await program.acall(**brief.variables))

    async def _ask(self, request: Request, options: dict[str, Any]) -> Response:
        lm = self.backend.lm
        with dspy.context(send_stream=None):
            if "async" in _compat.ways_to_call(lm):
                response: Response = await lm.acall(request, **options)
                return response
            return await threads.run(lm, request, **options)

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """The whole reply as a stream."""
        for event in _events(await self.complete(request)):
            yield event

    async def aclose(self) -> None:
        """Nothing is held open."""


def only_lm(request: Request) -> str | None:
    """What ``request`` has that an RLM cannot answer, so that it goes to the LM as it is; None if there is nothing."""
    if request.tools:
        return "a request with tools"
    if request.config.logprobs is not None or request.config.probabilities is not None:
        return "a request for probabilities"
    parts = [part for message in request.messages for part in message.parts]
    parts += () if request.system is None or isinstance(request.system, str) else request.system
    other = sorted({part.type for part in parts if part.type not in ("text", "thinking")})
    return f"a request with {', '.join(other)}" if other else None


def _events(response: Response) -> Iterator[Any]:
    """A reply as it would be streamed. By words, because DSPy's listeners look for a field's end between two pieces."""
    for event in response_to_events(response):
        delta = getattr(event, "delta", None)
        if isinstance(delta, TextDelta) and not delta.logprobs:
            for piece in re.findall(r"\S+\s*|\s+", delta.text):
                yield StreamDeltaEvent(replace(delta, text=piece))
        else:
            yield event


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Errors of the project as ones of an LM: DSPy would call them unexpected."""
    try:
        yield
    except LMError:
        raise
    except RLMError as error:
        raise ReplyFailed(error_text(error)) from error


def _text(message: Message) -> str:
    return "".join(part.text for part in message.parts if part.type == "text")


def _system(request: Request) -> str:
    system = request.system or ""
    return system if isinstance(system, str) else "".join(part.text for part in system if part.type == "text")


def _texts(request: Request) -> list[str]:
    return [_system(request), *map(_text, request.messages)]

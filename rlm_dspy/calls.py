"""Calling predictors from a run: through its ledger and the tree's gate, once more where an LM failed for a moment.

A call is made on the event loop where the LM can only be awaited, and in a thread where it can be called.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dspy
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import is_retryable_lm_error

from rlm_dspy import _compat
from rlm_dspy import events as ev
from rlm_dspy._aio import threads
from rlm_dspy.deltas import writing
from rlm_dspy.ledger import Spender, spending
from rlm_dspy.redact import error_text
from rlm_dspy.signatures.conversation import current

if TYPE_CHECKING:
    from rlm_dspy.run import Run


class ReplyKeeper(BaseCallback):
    """Keeps the root's reply as the LM gave it, with the reasoning text that came in a field of its own.

    Active only for calls of the root that need it: DSPy's callbacks cost a tenth of a millisecond at each of a call's
    stages.
    """

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Put text and reasoning into the current conversation."""
        conversation = current()
        if conversation is None or exception is not None or not isinstance(outputs, list) or not outputs:
            return
        first = outputs[0]
        fields = first if isinstance(first, dict) else {"text": first}
        text, reasoning = fields.get("text"), fields.get("reasoning_content")
        conversation.reply = text if isinstance(text, str) else ""
        conversation.reasoning_content = reasoning if isinstance(reasoning, str) else None


def keeping_replies() -> Any:
    """A ``dspy.context`` in which `ReplyKeeper` is active."""
    return dspy.context(callbacks=[*(dspy.settings.callbacks or []), ReplyKeeper()])


_WAYS = {"sync": "forward", "async": "aforward"}

MAX_THREADS = 512
"""Calls of the whole process that may wait in threads at once; beyond it they wait on the event loop instead."""


async def call(module: dspy.Module, adapter: dspy.Adapter | None, lm: Any = None, /, **inputs: Any) -> dspy.Prediction:
    """Call ``module(**inputs)`` without blocking the event loop.

    An LM that DSPy can call synchronously is called in a thread: DSPy's asynchronous path crosses between loop and
    threads four times a call, which costs as much again as the call itself. Streaming, an LM that can only be awaited,
    and more than `MAX_THREADS` calls at once go through ``module.acall``. Cancelling stops the waiting; a request that
    is under way in a thread ends by itself, and what it answers is dropped.

    Args:
        module: A predictor or any module.
        adapter: The adapter in force for this call; the configured one if None.
        lm: Overrides the LM for this call; None leaves the choice to the module and ``dspy.settings.lm``.
        **inputs: Of the module, by whatever names.
    """
    chosen = lm or getattr(module, "lm", None) or dspy.settings.lm
    context: dict[str, Any] = {"adapter": adapter} if adapter is not None else {}
    if lm is not None:
        context["lm"] = lm
        if isinstance(module, dspy.Predict):
            inputs = {**inputs, "lm": lm}
    streaming = dspy.settings.send_stream is not None
    ways = _compat.ways_to_call(chosen)
    if not isinstance(module, dspy.Predict):
        # A module of the user's own may have one of the two alone.
        names = {*vars(module), *dir(type(module))}
        own = frozenset(way for way, name in _WAYS.items() if name in names)
        ways = ways & own or own or ways
    if "sync" in ways and ("async" not in ways or (not streaming and threads.busy < MAX_THREADS)):
        # A thread of ours cannot reach the loop that consumes a stream.
        with dspy.context(**context, send_stream=None):
            return await threads.run(module, **inputs)
    with dspy.context(**context):
        return await module.acall(**inputs)


VARIED = 0.7
"""Temperature of a call that is to be answered in another way than before, at least."""


def rollout_of(lm: Any) -> int | None:
    """The rollout that ``lm`` was set to, as optimisers set it to have an example run again; None for none."""
    rollout = getattr(lm, "kwargs", {}).get("rollout_id")
    return rollout if isinstance(rollout, int) else None


def varied(lm: Any, predictor: dspy.Predict, number: int, within: int | None = None) -> dict[str, Any]:
    """The configuration with which ``predictor`` gets another answer to the same prompt from ``lm``.

    Another rollout, because a cached reply would be the same again, and a temperature of at least `VARIED`, because
    at 0 the next one would be; without a temperature where the LM has none set, as some take none.

    Args:
        lm: That will be called.
        predictor: Its own configuration goes before the LM's.
        number: Of the rollout; within the caller's own one, where there is one.
        within: The caller's own one where ``lm`` says none.
    """
    settings = {**getattr(lm, "kwargs", {}), **predictor.config}
    temperature, rollout = settings.get("temperature"), settings.get("rollout_id", within)
    config: dict[str, Any] = {"rollout_id": rollout * 1_000 + number if isinstance(rollout, int) else number}
    if isinstance(temperature, (int, float)) and not isinstance(temperature, bool):
        config["temperature"] = max(temperature, VARIED)
    return config


RETRY_SECONDS = (2.0, 8.0, 20.0)
"""Pauses before a call is made again that failed for a moment (busy, not reached, an error of the server). DSPy's own
LMs have tried several times within seconds before they report such a failure."""
MAX_RETRY_SECONDS = 120.0
"""The longest pause that a provider may ask for."""


def _may_pass(error: Exception) -> bool:
    """Whether the same request may be answered later."""
    if is_retryable_lm_error(error):
        return True
    from rlm_dspy.providers.failures import failure_of

    # LiteLLM with openai 2 tells some errors of a server as errors of the request.
    failure = failure_of(error)
    return failure is not None and failure.kind == "server"


async def spend(
    run: Run,
    role: str,
    module: dspy.Module,
    adapter: dspy.Adapter | None,
    lm: Any = None,
    *,
    chars: int = 0,
    most: int | None = None,
    least: bool = False,
    last: bool = False,
    counted: bool = False,
    begun: Callable[[], Any] | None = None,
    inputs: dict[str, Any],
) -> dspy.Prediction:
    """`call` ``module`` for ``run``: admitted by its ledger, counted for ``role``, at most so many at once in the tree.

    Args:
        run: Whose ledger pays.
        role: See `rlm_dspy.usage.Key`.
        module: A predictor or any module.
        adapter: See `call`.
        lm: See `call`.
        chars: Characters of the prompt, from which tokens and money are estimated.
        most: Output tokens that the call may have, or None.
        least: The run's first turn, see `rlm_dspy.ledger.Ledger.admitted`.
        last: The run's last call, likewise.
        counted: It is the root's: in a child's run it is one of the calls that the parent's code makes.
        begun: Called when it has been admitted and is being made.
        inputs: Of the module.

    Raises:
        CallRefused: A limit leaves no room for it.
    """
    if counted and run.counted_by is not None:
        run.counted_by.reserve_calls(1)
        made = False

        def begin() -> None:
            nonlocal made
            made = True
            if begun is not None:
                begun()

        try:
            bounds: dict[str, Any] = {"chars": chars, "most": most, "least": least, "last": last}
            return await spend(run, role, module, adapter, lm, **bounds, begun=begin, inputs=inputs)
        finally:
            run.counted_by.settle_call(made=made)
    ledger = run.ledger
    chosen = lm or getattr(module, "lm", None) or dspy.settings.lm
    price = ledger.prices.of(str(getattr(chosen, "model", "")), chosen) if ledger.estimates else None
    plain = isinstance(module, dspy.Predict)
    async with run.tree.calls.place(ledger.count_in_flight):
        estimate = ledger.estimate(role, chars, price, most)
        with (
            ledger.admitted(estimate, least=least, last=last),
            spending(Spender(role, ledger, chars if plain else 0, estimate)),
        ):
            if begun is not None:
                begun()
            # What has been streamed cannot be taken back.
            pauses = RETRY_SECONDS if plain and dspy.settings.send_stream is None else ()
            for pause in (*pauses, None):
                try:
                    async with writing(run, role, module, chosen):
                        return await call(module, adapter, lm, **inputs)
                except Exception as error:
                    if pause is None or not _may_pass(error):
                        raise
                    asked = getattr(error, "retry_after", None)
                    wait = max(pause * random.uniform(0.75, 1.25), asked if isinstance(asked, (int, float)) else 0.0)
                    left = ledger.seconds_left
                    if wait > MAX_RETRY_SECONDS or (left is not None and wait >= left):
                        raise
                    run.events.emit(ev.Note(message=f"{role} is tried again in {wait:.0f} s: {error_text(error)}"))
                await asyncio.sleep(wait)
    raise AssertionError("unreachable")

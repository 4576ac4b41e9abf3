"""One call of a program of any sort, measured: what it gave, what it used, how it ended, and whose fault that was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dspy

from rlm_dspy import events as ev
from rlm_dspy._aio import run_sync
from rlm_dspy.evaluation.account import Account, Budget
from rlm_dspy.evaluation.faults import FailedRequests, infrastructure, overflow
from rlm_dspy.evaluation.work import Stop
from rlm_dspy.prices import Prices
from rlm_dspy.redact import error_text, redact
from rlm_dspy.run import Run
from rlm_dspy.usage import Tally

__all__ = ["Called", "InARow", "call"]

MAX_ERRORS = 10
"""Errors in a row of what programs run on, after which a job stops."""
JOB_MONEY = "max_cost of the job"
"""The limit that an RLM is stopped by when the money of its job is spent."""


@dataclass(frozen=True)
class Called:
    """What came of one call.

    Attributes:
        status: ``"answered"``; ``"failed"`` where the program gave no answer, by its own fault; ``"error"`` where what
            it runs on failed, see `rlm_dspy.evaluation.faults`; ``"stopped"`` where the job was given up or its money
            spent meanwhile.
        prediction: What it returned, or the partial answer that its exception carries; None if there is none.
        outcome: How it ended: that of an RLM; ``submitted`` or ``extracted`` also for ``dspy.RLM``; ``answered`` for
            others; ``overflow`` where the prompt did not fit the window; ``failed``; ``error``.
        limit: The limit that struck, if one did.
        error: Redacted text of the error, if there was one.
        seconds: Wall time.
        turns: Of an RLM's root and its children; None for programs without turns.
        usage: LM calls, tokens and money.
        lm_errors: LM requests that failed by no fault of the program's, those included that did not end it.
    """

    status: str
    prediction: Any
    outcome: str
    limit: str | None
    error: str | None
    seconds: float
    turns: int | None
    usage: Tally
    lm_errors: int

    def figures(self) -> dict[str, Any]:
        """All but the prediction, as plain data."""
        usage = self.usage.to_dict()
        return {
            "status": self.status,
            "outcome": self.outcome,
            "limit": self.limit,
            "error": self.error,
            "seconds": round(self.seconds, 3),
            "turns": self.turns,
            **usage,
            "lm_errors": self.lm_errors,
        }


def call(program: Any, inputs: Mapping[str, Any], *, prices: Prices, budget: Budget, stop: Stop) -> Called:
    """Call ``program`` once, in this thread. Exceptions of the program are part of the result.

    Args:
        program: A ``dspy.Module``, or any callable that takes the inputs by keyword.
        inputs: Its inputs.
        prices: What models cost.
        budget: The job's money; an RLM under way is stopped when it is spent.
        stop: The job's; a program that can be awaited is cancelled when it is given up.
    """
    account = Account(prices, dspy.settings.usage_tracker, budget.spend)
    failed = FailedRequests()
    runs = _Runs(stop)
    prediction, error = None, None
    began = time.monotonic()
    callbacks = [*(dspy.settings.callbacks or []), failed]
    with dspy.context(usage_tracker=account, callbacks=callbacks), ev.subscribe(runs), runs.stopping():
        try:
            prediction = _called(program, inputs, stop)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # a cancellation too, and the SystemExit of a program that ends itself
            error = raised
    seconds = time.monotonic() - began
    outcome, limit, text = _ended(prediction, error)
    if error is not None and prediction is None:
        prediction = getattr(error, "prediction", None)
    if limit == JOB_MONEY or (stop.given_up and error is not None):
        status = "stopped"
    elif error is not None:
        status = "error" if infrastructure(error) else "failed"
    elif outcome == "failed":
        status = "error" if failed.caused(text) else "failed"
    else:
        # An answer that could only be extracted because the provider or the sandbox failed says nothing of the program.
        status = "error" if outcome == "extracted" and limit is None and failed.caused(text) else "answered"
    if status == "error":
        outcome = "error"
    return Called(status, prediction, outcome, limit, text, seconds, _turns(prediction), account.total, failed.count)


def _called(program: Any, inputs: Mapping[str, Any], stop: Stop) -> Any:
    if not hasattr(program, "aforward"):
        return program(**inputs)

    async def awaited() -> Any:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        with stop.cancelling(lambda: loop.call_soon_threadsafe(task.cancel)):
            return await program.acall(**inputs)

    return run_sync(awaited())


class _Runs:
    """A subscriber that knows the RLMs under way in one call, so that the end of the job's money stops them."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._runs: list[Run] = []

    def __call__(self, event: ev.Event, run: Run) -> None:
        if event.depth == 0 and isinstance(event, ev.RunStarted):
            self._runs.append(run)
            if self._stop.out_of_money:
                self._strike()
        elif event.depth == 0 and isinstance(event, ev.RunEnded) and run in self._runs:
            self._runs.remove(run)

    def stopping(self) -> Any:
        """A context in which `_strike` is called when the money is spent."""
        return self._stop.striking(self._strike)

    def _strike(self) -> None:
        for run in list(self._runs):
            run.request_stop(JOB_MONEY)


def _ended(prediction: Any, error: BaseException | None) -> tuple[str, str | None, str | None]:
    """Outcome, limit and error text."""
    if error is not None:
        return ("overflow" if overflow(error) else "failed"), getattr(error, "limit", None), error_text(error)
    outcome = _get(prediction, "outcome")
    if outcome is not None and hasattr(outcome, "limit"):
        return str(outcome), outcome.limit, None if outcome.error is None else redact(str(outcome.error))
    # dspy.RLM says so in the reasoning alone.
    reasoning = _get(prediction, "final_reasoning")
    if reasoning is not None and _get(prediction, "trajectory") is not None:
        return ("extracted" if str(reasoning).startswith("Extract forced") else "submitted"), None, None
    return "answered", None, None


def _turns(prediction: Any) -> int | None:
    usage = _get(prediction, "usage")
    if isinstance(usage, Mapping) and isinstance(usage.get("turns"), int):
        return int(usage["turns"])
    trajectory = _get(prediction, "trajectory")
    return len(trajectory) if isinstance(trajectory, (list, tuple)) else None


def _get(prediction: Any, name: str) -> Any:
    return prediction.get(name) if isinstance(prediction, (Mapping, dspy.Example)) else None


class InARow:
    """Stops a job whose calls fail one after another by no fault of the program's: the rest would fail as well.

    Args:
        most: How many; None for never.
        stop: The job's.
    """

    def __init__(self, most: int | None, stop: Stop) -> None:
        self._most = most
        self._stop = stop
        self._errors = 0

    def see(self, called: Called) -> None:
        """Take note of a call that has ended."""
        self._errors = self._errors + 1 if called.status == "error" else 0
        if self._most is not None and self._errors >= self._most:
            self._stop.ask(f"{self._errors} calls in a row failed, the last one by {called.error}")

"""Counting LM requests where their usage is recorded, whoever makes them."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dspy.utils.usage_tracker import UsageTracker

from rlm_dspy.errors import CallRefused
from rlm_dspy.ledger import Estimate, Ledger, spender
from rlm_dspy.prices import PICO
from rlm_dspy.usage import STAND_IN, Tally, reported

TOOL = "tool"
"""The role of LM calls that tools and sub-agents make by themselves."""


@dataclass(frozen=True)
class Metered:
    """One LM request as a `Meter` counted it.

    Attributes:
        lm: The model's name.
        tally: Tokens and money, exactly what was added to the account.
        output_picodollars: The part of the money that the output cost; None where only the sum is known.
    """

    lm: str
    tally: Tally
    output_picodollars: int | None = None


metered: contextvars.ContextVar[list[Metered] | None] = contextvars.ContextVar("rlm_dspy_metered", default=None)
"""Where a list is set around an LM call, what is counted for that very call is put into it. For whoever shows calls
one by one: DSPy tells its callbacks nothing of usage."""


class Meter(UsageTracker):
    """Sees every LM request of a run where its usage is recorded, whoever made it: predictors, tools, sub-agents.

    It stands in for DSPy's own usage tracker for the time of a run, and passes everything on to the one it replaces.
    Answers from a cache report no usage to DSPy, and so are not counted.

    Args:
        ledger: Gets each request with its tokens and price at once.
        outer: The tracker that is in force around the run, or None.
        run: The run; DSPy hands its settings on to threads of its own, which know nothing else of the run.
    """

    def __init__(self, ledger: Ledger, outer: UsageTracker | None, run: Any = None) -> None:
        super().__init__()
        self.usage_data = _ByModel(self)
        self.ledger = ledger
        self.run = run
        self._outer = outer
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Meter:
        """Itself: ``dspy.Parallel`` copies the tracker for each thread, whose calls are the run's all the same."""
        return self

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        """One request of the model ``lm``.

        Raises:
            CallRefused: A tool or sub-agent goes on calling LMs where tokens or money have been used up; it is how a
                limit reaches calls that nobody asked the ledger for. Or money is limited, and what the request cost is
                unknown.
        """
        overrun = self.count(lm, usage_entry)
        if overrun is not None:
            raise CallRefused(*overrun)

    def count(self, lm: str, usage_entry: dict[str, Any]) -> tuple[str, str] | None:
        """Count one request.

        Returns:
            Why no more are to follow, and the limit: where a tool made it, and tokens or money had been used up before;
            where money is limited, and what it cost is unknown. Else None.
        """
        who = spender()
        own = who is not None and who.ledger is self.ledger
        overrun = None if own else self.ledger.overrun()
        self._keep(lm, usage_entry)
        inputs, outputs, cached, written, cost = reported(usage_entry)
        silent = not inputs and not outputs and cost is None
        if silent and lm.startswith(STAND_IN):
            return None
        price = self.ledger.prices.of(lm)
        tally = Tally(calls=1, input_tokens=inputs, output_tokens=outputs, cached_tokens=cached)
        estimate = who.estimate if who is not None and own else Estimate()
        if silent:
            tally.input_tokens, tally.output_tokens = estimate.tokens - estimate.outputs, estimate.outputs
        if cost is not None:
            tally.picodollars = round(cost * PICO)
        elif price is None or (silent and not estimate.tokens and price.cost(1, 1)):
            tally.unpriced = 1
        else:
            tally.picodollars = price.cost(tally.input_tokens, tally.output_tokens, cached, written)
        if (seen := metered.get()) is not None:
            split = cost is None and price is not None and not tally.unpriced
            output = price.cost(0, tally.output_tokens) if split and price is not None else None
            seen.append(Metered(lm, tally, output))
        role, chars = (who.role, who.chars) if own and who is not None else (TOOL, 0)
        self.ledger.record(role, lm, tally, chars=chars, upward=self._outer is None or isinstance(self._outer, Meter))
        if tally.unpriced and self.ledger.max_cost is not None:
            return self.ledger.unkept(), "max_cost"
        return None if overrun is None else (f"the LM call was the last one: {overrun} is used up", overrun)

    def _keep(self, lm: str, usage_entry: dict[str, Any]) -> None:
        """Keep an entry in DSPy's own form, here and further out."""
        with self._lock:
            super().add_usage(lm, usage_entry)
        if isinstance(self._outer, Meter):
            self._outer._keep(lm, usage_entry)
        elif self._outer is not None:
            self._outer.add_usage(lm, usage_entry)


class _ByModel(dict[str, "_Entries"]):
    """A `Meter`'s entries by model name."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def __missing__(self, lm: str) -> _Entries:
        return self.setdefault(lm, _Entries(self._meter, lm))


class _Entries(list[dict[str, Any]]):
    """The entries of one model. A ``dspy.track_usage`` inside of the run hands its own over by ``extend``."""

    def __init__(self, meter: Meter, lm: str) -> None:
        super().__init__()
        self._meter = meter
        self._lm = lm

    def extend(self, entries: Iterable[dict[str, Any]]) -> None:
        for entry in entries:
            self._meter.count(self._lm, entry)

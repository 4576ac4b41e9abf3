"""What programs of any sort use: every LM request of a call, priced as it is made; and the money of a whole job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from dspy.utils.usage_tracker import UsageTracker

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.ledger import Ledger
from rlm_dspy.limits import Limits
from rlm_dspy.metering import Meter
from rlm_dspy.prices import PICO, Prices
from rlm_dspy.usage import STAND_IN, Tally, reported

__all__ = ["Account", "Budget"]


class Account(Meter):
    """Sees each LM request of one call of a program: that of an RLM, of ``dspy.RLM``, of any module.

    It stands where DSPy's usage tracker stands (``dspy.context(usage_tracker=Account(...))``), round the meters of
    RLMs, which hand on what they see. Answers from a cache use nothing and are not counted.

    Args:
        prices: What models cost.
        outer: The tracker that was in force, or None.
        spent: Called with each request's tokens and money.
    """

    def __init__(
        self, prices: Prices, outer: UsageTracker | None = None, spent: Callable[[Tally], Any] | None = None
    ) -> None:
        super().__init__(Ledger(Limits(), prices=prices), outer)
        self._total = Tally()
        self._spent = spent

    @property
    def total(self) -> Tally:
        """What was used so far."""
        with self._lock:
            copy = Tally()
            copy.add(self._total)
            return copy

    def count(self, lm: str, usage_entry: dict[str, Any]) -> None:
        """Count one request."""
        self._keep(lm, usage_entry)

    def _keep(self, lm: str, usage_entry: dict[str, Any]) -> None:
        super()._keep(lm, usage_entry)
        inputs, outputs, cached, written, cost = reported(usage_entry)
        silent = not inputs and not outputs and cost is None
        if silent and lm.startswith(STAND_IN):
            return
        tally = Tally(calls=1, input_tokens=inputs, output_tokens=outputs, cached_tokens=cached)
        price = self.ledger.prices.of(lm)
        if cost is not None:
            tally.picodollars = round(cost * PICO)
        elif price is None or (silent and price.cost(1, 1)):
            tally.unpriced = 1
        else:
            tally.picodollars = price.cost(inputs, outputs, cached, written)
        with self._lock:
            self._total.add(tally)
        if self._spent is not None:
            self._spent(tally)


class Budget:
    """The money of a whole job, over all its calls and all the times it was taken up. Thread-safe.

    Args:
        max_cost: US dollars; None for no limit.
        spent: Picodollars of earlier times.
        struck: Called once, with the reason, when the limit is reached or cannot be kept any more.

    Raises:
        ConfigurationError: ``max_cost`` is no positive number.
    """

    def __init__(self, max_cost: float | None, spent: int = 0, struck: Callable[[str], Any] | None = None) -> None:
        number = isinstance(max_cost, (int, float)) and not isinstance(max_cost, bool)
        if max_cost is not None and not (number and max_cost > 0):
            raise ConfigurationError(f"max_cost must be a positive number of US dollars, not {max_cost!r}")
        self.max_cost = max_cost
        self._picodollars = spent
        self._struck = struck
        self._reason: str | None = None
        self._lock = threading.Lock()

    def check(self, prices: Prices, lms: Iterable[Any]) -> None:
        """Refuse a limit that could not be kept because the price of one of ``lms`` is unknown.

        Raises:
            ConfigurationError: It could not; the message says how to give the price.
        """
        named = [(str(lm.model), lm) for lm in lms if getattr(lm, "model", None) is not None]
        for name, lm in named:
            # Usage is reported by name alone; here the LM itself can be asked.
            prices.of(name, lm)
        if self.max_cost is not None:
            prices.check(named, self.max_cost)

    def spend(self, tally: Tally) -> None:
        """Count what one request used."""
        with self._lock:
            self._picodollars += tally.picodollars
            if self.max_cost is None or self._reason is not None:
                return
            if tally.unpriced:
                self._reason = (
                    "max_cost cannot be kept any more: what an LM call costs is unknown. Give its price, in US dollars "
                    "for a million tokens: prices={'MODEL': (input, output)}"
                )
            elif self._picodollars >= self.max_cost * PICO:
                self._reason = f"max_cost={self.max_cost:g} is spent"
            reason = self._reason
        if reason is not None and self._struck is not None:
            self._struck(reason)

    @property
    def spent(self) -> float:
        """US dollars so far, of the calls whose price is known."""
        return self._picodollars / PICO

"""What a call of a model costs: prices given by the user, else the published ones; an unknown price stays unknown.

Money is counted in whole picodollars (1e-12 US dollars), so that sums over roles, models and depths are equal to the
total and not only close to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlm_dspy import _compat
from rlm_dspy._aio import threads
from rlm_dspy.errors import ConfigurationError

PICO = 10**12
_PER_MILLION = PICO // 10**6


@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens, as providers publish them.

    Attributes:
        input: Of input that is not read from a provider's prompt cache.
        output: Of output, reasoning included.
        cached: Of input read from the cache; None for the same as `input`.
        written: Of input written to the cache, where that has a price of its own; None for the same as `input`.
    """

    input: float
    output: float
    cached: float | None = None
    written: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None and name in ("cached", "written"):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ConfigurationError(f"a price must be a number of US dollars for a million tokens, not {value!r}")

    def cost(self, input_tokens: int, output_tokens: int, cached: int = 0, written: int = 0) -> int:
        """Picodollars of one call; ``cached`` and ``written`` are part of ``input_tokens``."""
        plain = max(0, input_tokens - cached - written)
        read = self.input if self.cached is None else self.cached
        write = self.input if self.written is None else self.written
        total = plain * self.input + cached * read + written * write + output_tokens * self.output
        return round(total * _PER_MILLION)


class Prices:
    """Prices by model name.

    Args:
        given: The user's: model name, with or without its provider, to a `Price`, or to ``(input, output)`` or
            ``(input, output, cached)`` in US dollars for a million tokens. They go before the published ones.
        outer: Those of the run around, for what is not among `given`.

    Raises:
        ConfigurationError: One of them is no price.
    """

    def __init__(self, given: Mapping[str, Any] | None = None, outer: Prices | None = None) -> None:
        self._given: dict[str, Price] = dict(outer._given) if outer else {}
        self._known: dict[str, Price | None] = dict(outer._known) if outer else {}
        if given is not None and not isinstance(given, Mapping):
            raise ConfigurationError(f"prices must map model names to prices, not {given!r}")
        for model, price in (given or {}).items():
            if isinstance(price, Price):
                self._given[str(model)] = price
                continue
            if not isinstance(price, (tuple, list)) or len(price) not in (2, 3, 4):
                raise ConfigurationError(
                    f"the price of {model!r} must be (input, output) or (input, output, cached), in US dollars for a "
                    f"million tokens, not {price!r}"
                )
            self._given[str(model)] = Price(*price)

    def of(self, model: str, lm: Any = None) -> Price | None:
        """The price of ``model``, or None where it is unknown; a model that runs on this machine costs nothing.

        Args:
            model: As the LM is called, such as ``"openai/gpt-4o-mini"``.
            lm: The LM itself, if at hand; one with an attribute ``price`` (a `Price`) says its own.
        """
        for name in (model, model.split("/", 1)[-1]):
            if name in self._given:
                return self._given[name]
        own = getattr(lm, "price", None)
        if isinstance(own, Price):
            # Usage is reported by the name alone.
            self._known[model] = own
            return own
        if model not in self._known:
            # The published prices are many; DSPy reads them for its own engines' models and no others.
            self._known[model] = _published(model) if lm is None or _compat.has_provider(lm) else None
        return self._known[model]

    def check(self, models: Iterable[tuple[str, Any]], max_cost: float) -> None:
        """Refuse a limit on money where it could not be kept.

        Args:
            models: Name and LM each, of those that are to be paid.
            max_cost: The limit.

        Raises:
            ConfigurationError: The price of one is unknown.
        """
        unknown = sorted({model for model, lm in models if self.of(model, lm) is None})
        if unknown:
            raise ConfigurationError(
                f"max_cost={max_cost:g} cannot be kept: the price of {', '.join(unknown)} is unknown. Give it, in "
                f"US dollars for a million tokens: prices={{{unknown[0]!r}: (input, output)}}"
            )


async def fetched(lms: Iterable[Any]) -> None:
    """Have what is published about the models of ``lms`` at hand.

    DSPy fetches the list once a process, when it is first asked; here that happens in a thread, not in the event loop.
    """
    if not _compat.facts_at_hand():
        for lm in lms:
            if _compat.has_provider(lm):
                await threads.run(_compat.model_facts, str(lm.model))
                return


def _published(model: str) -> Price | None:
    facts = _compat.model_facts(model)
    rates: list[Any] = [facts.get(f"{name}_cost_per_token") for name in ("input", "output")]
    if any(isinstance(rate, bool) or not isinstance(rate, (int, float)) for rate in rates):
        return None
    optional = [facts.get("cache_read_input_token_cost"), facts.get("cache_creation_input_token_cost")]
    plain = [rate * 1e6 if isinstance(rate, (int, float)) else None for rate in optional]
    return Price(rates[0] * 1e6, rates[1] * 1e6, *plain)

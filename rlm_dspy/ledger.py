"""The account of one run: reserve before the work, settle after it.

A reservation is refused when what is spent plus what is reserved would pass the limit, so that under any interleaving
no limit on a count is ever overrun. Turns, sub-calls, consecutive errors and seconds have limits; tokens are recorded.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from rlm_dspy.errors import ConfigurationError, RLMError


class CallRefused(RLMError, RuntimeError):
    """Raised into the code that asked for more sub-calls than are left; nothing was spent."""


@dataclass(frozen=True)
class Limits:
    """What one run may use. None means no limit.

    Attributes:
        max_iters: Turns.
        max_llm_calls: Sub-calls made by code: ``llm_query``, each prompt of ``llm_query_batched``, and LM calls of
            sub-agents. The root's own calls are counted as turns instead.
        max_seconds: Wall time of the turns. ``extract`` has `extract_seconds` beyond it.
        max_errors: Consecutive turns that end in an error.
        max_concurrency: Sub-calls in flight at once; more are queued.
        extract_seconds: Wall time that ``extract`` may take once a limit has struck.
    """

    max_iters: int = 20
    max_llm_calls: int | None = 50
    max_seconds: float | None = None
    max_errors: int | None = None
    max_concurrency: int = 32
    extract_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("max_iters", "max_concurrency"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{name} must be a whole number of at least 1, not {value!r}")
        for name, least in (("max_llm_calls", 0), ("max_errors", 1)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ConfigurationError(f"{name} must be a whole number of at least {least}, or None, not {value!r}")
        for name in ("max_seconds", "extract_seconds"):
            value = getattr(self, name)
            if value is None and name == "max_seconds":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ConfigurationError(f"{name} must be a positive number of seconds, not {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in the order of the fields."""
        return asdict(self)

    @classmethod
    def names(cls) -> frozenset[str]:
        """The names of all limits."""
        return frozenset(f.name for f in fields(cls))


@dataclass
class Usage:
    """What a run has used so far.

    Attributes:
        turns: Actions the root was asked for.
        calls: Sub-calls that were made, failed ones included.
        tool_calls: Calls of the user's tools.
        lm_calls: LM requests of every kind, as seen where LMs are called; answers from DSPy's cache count nowhere.
        errors: Turns that ended in an error.
        input_tokens, output_tokens: As the LMs reported them; 0 where they did not.
        seconds: Wall time.
        peak_width: Most sub-calls in flight at once.
    """

    turns: int = 0
    calls: int = 0
    tool_calls: int = 0
    lm_calls: int = 0
    errors: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    peak_width: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class Ledger:
    """Thread-safe account of one run against its `Limits`."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._usage = Usage()
        self._reserved_calls = 0
        self._in_flight = 0
        self._consecutive_errors = 0
        self._lock = threading.Lock()
        self._started = time.monotonic()

    def usage(self) -> Usage:
        """A copy of the account as it stands."""
        with self._lock:
            return replace(self._usage, seconds=round(time.monotonic() - self._started, 6))

    @property
    def seconds_left(self) -> float | None:
        """Until `Limits.max_seconds`; None without that limit, never below 0."""
        if self.limits.max_seconds is None:
            return None
        return max(0.0, self.limits.max_seconds - (time.monotonic() - self._started))

    @property
    def calls_left(self) -> int | None:
        """Sub-calls that may still be reserved; None without a limit."""
        if self.limits.max_llm_calls is None:
            return None
        with self._lock:
            return max(0, self.limits.max_llm_calls - self._usage.calls - self._reserved_calls)

    @property
    def errors_left(self) -> int | None:
        """Turns in a row that may still end in an error, the one that ends the run counted; None without a limit."""
        if self.limits.max_errors is None:
            return None
        with self._lock:
            return max(0, self.limits.max_errors - self._consecutive_errors)

    def exceeded(self) -> str | None:
        """The name of a limit that forbids another turn, or None."""
        with self._lock:
            if self.limits.max_errors is not None and self._consecutive_errors >= self.limits.max_errors:
                return "max_errors"
            if self._usage.turns >= self.limits.max_iters:
                return "max_iters"
        if self.seconds_left == 0.0:
            return "max_seconds"
        return None

    def begin_turn(self) -> int:
        """Count one more turn and return its number, from 1."""
        with self._lock:
            self._usage.turns += 1
            return self._usage.turns

    def end_turn(self, *, error: bool) -> None:
        """Settle a turn: an error adds to the consecutive ones, anything else ends their row."""
        with self._lock:
            self._consecutive_errors = self._consecutive_errors + 1 if error else 0
            self._usage.errors += int(error)

    def reserve_calls(self, count: int = 1) -> None:
        """Set ``count`` sub-calls aside, all or none.

        Raises:
            CallRefused: Fewer are left; the message says how many.
        """
        limit = self.limits.max_llm_calls
        with self._lock:
            used = self._usage.calls + self._reserved_calls
            if limit is not None and used + count > limit:
                raise CallRefused(
                    f"{count} sub-LM call{'s' if count != 1 else ''} asked for, {max(0, limit - used)} of {limit} left "
                    "(max_llm_calls). Aggregate in Python, or send fewer and longer prompts."
                )
            self._reserved_calls += count

    def settle_call(self, *, made: bool = True) -> None:
        """Turn one reserved sub-call into a spent one, or give it back if it was never made."""
        with self._lock:
            self._reserved_calls -= 1
            self._usage.calls += int(made)

    @contextlib.contextmanager
    def in_flight(self) -> Iterator[None]:
        """Count one sub-call as being in flight."""
        with self._lock:
            self._in_flight += 1
            self._usage.peak_width = max(self._usage.peak_width, self._in_flight)
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= 1

    def count_tool_call(self) -> None:
        """Count one call of a user's tool."""
        with self._lock:
            self._usage.tool_calls += 1

    def count_lm_call(self, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Count one LM request and the tokens it reported."""
        with self._lock:
            self._usage.lm_calls += 1
            self._usage.input_tokens += input_tokens
            self._usage.output_tokens += output_tokens

    def left(self) -> dict[str, int | float | None]:
        """What is left of each limit, for ``budget()`` in the REPL; None where there is no limit."""
        with self._lock:
            turns = self.limits.max_iters - self._usage.turns
        seconds = self.seconds_left
        return {
            "turns": turns,
            "llm_calls": self.calls_left,
            "seconds": None if seconds is None else round(seconds, 1),
        }

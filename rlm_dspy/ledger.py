"""The account of a tree of runs: reserve before the work, settle after it.

Every run has a `Ledger`, a child's is linked to its parent's, and whatever is reserved or spent is so in all ledgers
up to the root's. A reservation is refused when what is spent plus what is reserved would pass a limit of any of them,
so no count is ever overrun, whatever is interleaved with what. Tokens and money are known only after a call: they are
reserved by an estimate, and can be overrun by the calls that are under way, never by a call begun after that.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlm_dspy.errors import CallRefused
from rlm_dspy.limits import Limits
from rlm_dspy.prices import PICO, Price, Prices
from rlm_dspy.usage import Key, Tally, Usage, read_row

__all__ = ["CallRefused", "Estimate", "Ledger", "Spender", "spending"]

FIRST_OUTPUT = 200
"""Output tokens expected of a role that has not answered yet."""
CHARS_A_TOKEN = 4.0


@dataclass(frozen=True)
class Estimate:
    """What one LM call will presumably use: tokens in all, those of its reply among them, and picodollars (0 where the
    price is unknown)."""

    tokens: int = 0
    picodollars: int = 0
    outputs: int = 0


@dataclass(frozen=True)
class Spender:
    """Who the LM call in this context is made for: a role in the run of a ledger."""

    role: str
    ledger: Ledger
    chars: int = 0
    """Characters of its prompt, where known."""
    estimate: Estimate = Estimate()
    """What is reserved for it; it stands for what was used where the LM does not report that."""


_spender: contextvars.ContextVar[Spender | None] = contextvars.ContextVar("rlm_dspy_spender", default=None)


def spender() -> Spender | None:
    """Who LM calls of this context are made for; None for a tool's own."""
    return _spender.get()


@contextlib.contextmanager
def spending(who: Spender | None) -> Iterator[None]:
    """LM calls made inside are made for ``who``; None for a tool."""
    token = _spender.set(who)
    try:
        yield
    finally:
        _spender.reset(token)


class Ledger:
    """Thread-safe account of one run and of all below it, against the run's `Limits`.

    Args:
        limits: Those of the run.
        parent: The ledger of the run that started this one.
        prices: What models cost; the parent's if None.
        counts: The run is a child: its LM calls are sub-calls of its parent. Those of a run that a tool starts are not,
            as a tool's own are not; their tokens, money and time are.
        deeper: The run is one level below the parent's; not so for the calls of a session below the session's account.

    Attributes:
        depth: 0 for the root of a tree.
    """

    def __init__(
        self,
        limits: Limits,
        parent: Ledger | None = None,
        prices: Prices | None = None,
        *,
        counts: bool = True,
        deeper: bool = True,
    ) -> None:
        self.limits = limits
        self.parent = parent
        self.depth: int = parent.depth + deeper if parent else 0
        self.prices: Prices = prices or (parent.prices if parent else Prices())
        # One lock a tree: a reservation is made in several ledgers or in none.
        self._lock: Any = parent._lock if parent else threading.RLock()
        self._chain: tuple[Ledger, ...] = (self, *(parent._chain if parent else ()))
        self._counted: tuple[Ledger, ...] = (self, *(parent._counted if parent and counts else ()))
        self._estimated = any(ledger.limits.max_tokens or ledger.limits.max_cost for ledger in self._chain)
        self._usage = Usage()
        self._turns = 0
        self._reserved_calls = 0
        self._reserved = Estimate()
        self._held = Estimate()
        self._in_flight = 0
        self._consecutive_errors = 0
        self._outputs: dict[str, tuple[int, int]] = parent._outputs if parent else {}
        self._seen: list[int] = parent._seen if parent else [0, 0]
        self._started = time.monotonic()
        for ledger in self._chain:
            ledger._usage.deepest = max(ledger._usage.deepest, self.depth)

    @property
    def estimates(self) -> bool:
        """Whether tokens or money have a limit here or above, so that calls have to be estimated."""
        return self._estimated

    # ---------------------------------------------------------------------------------------------- what there is

    def usage(self) -> Usage:
        """A copy of the account as it stands."""
        with self._lock:
            table = {key: replace(tally) for key, tally in self._usage.table.items()}
            return replace(self._usage, seconds=round(time.monotonic() - self._started, 6), table=table)

    @property
    def seconds_left(self) -> float | None:
        """Until `Limits.max_seconds` of this run or of one above it; None without that limit, never below 0."""
        ends = [
            ledger._started + ledger.limits.max_seconds
            for ledger in self._chain
            if ledger.limits.max_seconds is not None
        ]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    @property
    def calls_left(self) -> int | None:
        """LM calls that may still be reserved for code; None without a limit."""
        with self._lock:
            left = [
                ledger.limits.max_llm_calls - ledger._usage.calls - ledger._reserved_calls
                for ledger in self._counted
                if ledger.limits.max_llm_calls is not None
            ]
        return max(0, min(left)) if left else None

    @property
    def tokens_left(self) -> int | None:
        """Tokens that are neither spent nor reserved; None without a limit, never below 0."""
        with self._lock:
            left = [
                ledger.limits.max_tokens - ledger._used().tokens
                for ledger in self._chain
                if ledger.limits.max_tokens is not None
            ]
        return max(0, min(left)) if left else None

    @property
    def cost_left(self) -> float | None:
        """US dollars that are neither spent nor reserved; None without a limit, never below 0."""
        with self._lock:
            left = [
                0.0 if ledger._unkept else ledger.limits.max_cost - ledger._used().picodollars / PICO
                for ledger in self._chain
                if ledger.limits.max_cost is not None
            ]
        return max(0.0, min(left)) if left else None

    @property
    def errors_left(self) -> int | None:
        """Turns in a row that may still end in an error, the one that ends the run counted; None without a limit."""
        if self.limits.max_errors is None:
            return None
        with self._lock:
            return max(0, self.limits.max_errors - self._consecutive_errors)

    def left(self) -> dict[str, int | float | None]:
        """What is left of each limit, for ``budget()`` in the REPL; None where there is no limit."""
        seconds, cost = self.seconds_left, self.cost_left
        with self._lock:
            turns = self.limits.max_iters - self._turns
        return {
            "turns": turns,
            "llm_calls": self.calls_left,
            "tokens": self.tokens_left,
            "cost": None if cost is None else round(cost, 6),
            "seconds": None if seconds is None else round(seconds, 1),
        }

    def exceeded(self) -> str | None:
        """The name of a limit that forbids another turn, or None."""
        with self._lock:
            if self.limits.max_errors is not None and self._consecutive_errors >= self.limits.max_errors:
                return "max_errors"
            if self._turns >= self.limits.max_iters:
                return "max_iters"
        return "max_seconds" if self.seconds_left == 0.0 else None

    # --------------------------------------------------------------------------------------------------- turns

    def begin_turn(self) -> int:
        """Count one more turn and return its number in this run, from 1."""
        with self._lock:
            self._turns += 1
            for ledger in self._chain:
                ledger._usage.turns += 1
            return self._turns

    def end_turn(self, *, error: bool) -> None:
        """Settle a turn: an error adds to the consecutive ones, anything else ends their row."""
        with self._lock:
            self._consecutive_errors = self._consecutive_errors + 1 if error else 0
            for ledger in self._chain:
                ledger._usage.errors += int(error)

    # ------------------------------------------------------------------------------------------ counts of calls

    def reserve_calls(self, count: int = 1) -> None:
        """Set ``count`` LM calls aside in this ledger and all above it, all or none.

        Raises:
            CallRefused: Fewer are left; the message says how many.
        """
        with self._lock:
            for ledger in self._counted:
                limit = ledger.limits.max_llm_calls
                used = ledger._usage.calls + ledger._reserved_calls
                if limit is not None and used + count > limit:
                    raise CallRefused(
                        f"{count} sub-LM call{'s' if count != 1 else ''} asked for, {max(0, limit - used)} of {limit} "
                        "left (max_llm_calls). Aggregate in Python, or send fewer and longer prompts.",
                        "max_llm_calls",
                    )
            for ledger in self._counted:
                ledger._reserved_calls += count

    def settle_call(self, *, made: bool = True) -> None:
        """Turn one reserved call into a spent one, or give it back if it was never made."""
        with self._lock:
            for ledger in self._counted:
                ledger._reserved_calls -= 1
                ledger._usage.calls += int(made)

    @contextlib.contextmanager
    def in_flight(self) -> Iterator[None]:
        """Count one LM call as being in flight."""
        self.count_in_flight(1)
        try:
            yield
        finally:
            self.count_in_flight(-1)

    def count_in_flight(self, change: int) -> None:
        """So many LM calls more, or less, are in flight."""
        with self._lock:
            for ledger in self._chain:
                ledger._in_flight += change
                ledger._usage.peak_width = max(ledger._usage.peak_width, ledger._in_flight)

    def count_tool_call(self) -> None:
        """Count one call of a user's tool."""
        with self._lock:
            for ledger in self._chain:
                ledger._usage.tool_calls += 1

    def count_child(self) -> None:
        """Count one child that this run starts."""
        with self._lock:
            for ledger in self._chain:
                ledger._usage.children += 1

    # ---------------------------------------------------------------------------------------- tokens and money

    def estimate(self, role: str, chars: int, price: Price | None, most: int | None = None) -> Estimate:
        """What a call of ``role`` with a prompt of ``chars`` characters will presumably use.

        Args:
            role: Its mean output so far is expected again.
            chars: Of all messages.
            price: Of the model, or None.
            most: Output tokens that the call may have at most, or None.
        """
        if not self._estimated:
            return Estimate()
        with self._lock:
            tokens, seen_chars = self._seen
            ratio = min(1.0, max(0.1, tokens / seen_chars)) if seen_chars else 1 / CHARS_A_TOKEN
            count, output = self._outputs.get(role, (0, 0))
        expected = output // count if count else FIRST_OUTPUT
        expected = expected if most is None else min(expected, most)
        inputs = int(chars * ratio) + 1
        return Estimate(inputs + expected, price.cost(inputs, expected) if price else 0, expected)

    @contextlib.contextmanager
    def admitted(self, estimate: Estimate, *, least: bool = False, last: bool = False) -> Iterator[None]:
        """Keep ``estimate`` reserved in this ledger and all above it while an LM call is made.

        Args:
            estimate: See `estimate`.
            least: Admit the call as long as anything is left at all: for a run's first turn, without which it would
                have no answer.
            last: Admit it in any case, in place of what is held back for it (`hold`): for ``extract``.

        Raises:
            CallRefused: What is spent, reserved and held back leaves no room for it; ``.limit`` names the limit.
        """
        if not self._estimated:
            yield
            return
        with self._lock:
            if last:
                self._hold(Estimate())
            else:
                for ledger in self._chain:
                    ledger._check(estimate, least)
            self._reserve(estimate, 1)
        try:
            yield
        finally:
            with self._lock:
                self._reserve(estimate, -1)

    def hold(self, estimate: Estimate) -> None:
        """Hold ``estimate`` back, in place of what was before, for this run's last call, which is to be possible when a
        limit is reached; until `close`."""
        if self._estimated:
            with self._lock:
                self._hold(estimate)

    def close(self) -> None:
        """The run is over: what was held back for its last call is there for others again."""
        self.hold(Estimate())

    def _hold(self, estimate: Estimate) -> None:
        change = Estimate(estimate.tokens - self._held.tokens, estimate.picodollars - self._held.picodollars)
        self._held = estimate
        self._reserve(change, 1)

    def _reserve(self, estimate: Estimate, sign: int) -> None:
        for ledger in self._chain:
            before = ledger._reserved
            ledger._reserved = Estimate(
                before.tokens + sign * estimate.tokens, before.picodollars + sign * estimate.picodollars
            )

    def _used(self) -> Estimate:
        total = self._usage.total
        return Estimate(
            total.input_tokens + total.output_tokens + self._reserved.tokens,
            total.picodollars + self._reserved.picodollars,
        )

    def _check(self, estimate: Estimate, least: bool) -> None:
        used = self._used()
        limit, cost = self.limits.max_tokens, self.limits.max_cost
        if self._unkept:
            raise CallRefused(self.unkept(), "max_cost")
        more = Estimate(1, 1) if least else estimate
        if limit is not None and used.tokens + max(1, more.tokens) > limit:
            raise CallRefused(
                f"an LM call of about {estimate.tokens:,} tokens asked for, {max(0, limit - used.tokens):,} of "
                f"{limit:,} left (max_tokens). Compute in Python, send shorter prompts, or SUBMIT what there is.",
                "max_tokens",
            )
        if cost is not None and used.picodollars + max(1, more.picodollars) > cost * PICO:
            left = max(0.0, cost - used.picodollars / PICO)
            raise CallRefused(
                f"an LM call of about ${estimate.picodollars / PICO:.6f} asked for, ${left:.6f} of ${cost:g} left "
                "(max_cost). Compute in Python, send shorter prompts, or SUBMIT what there is.",
                "max_cost",
            )

    def carry(self, usage: Mapping[str, Any], *, turns: bool = True) -> None:
        """Count what was used before, as `Usage.to_dict` gave it.

        Args:
            usage: Plain data.
            turns: Its turns and errors as well; False where these are counted anew.
        """
        with self._lock:
            for ledger in self._chain:
                mine = ledger._usage
                names = ("calls", "tool_calls", "children", *(("turns", "errors") if turns else ()))
                for name in names:
                    setattr(mine, name, getattr(mine, name) + int(usage.get(name) or 0))
                mine.deepest = max(mine.deepest, int(usage.get("deepest") or 0))
                for row in usage.get("table") or ():
                    mine.record(*read_row(row))

    def overrun(self) -> str | None:
        """The limit on tokens or money that what is spent has reached, here or above; None if there is none."""
        if not self._estimated:
            return None
        with self._lock:
            for ledger in self._chain:
                total, limits = ledger._usage.total, ledger.limits
                if limits.max_tokens is not None and total.input_tokens + total.output_tokens >= limits.max_tokens:
                    return "max_tokens"
                if limits.max_cost is not None and (total.picodollars >= limits.max_cost * PICO or ledger._unkept):
                    return "max_cost"
        return None

    @property
    def max_cost(self) -> float | None:
        """The lowest limit on money here and above, in US dollars, or None. With one the cost of every call matters."""
        limits = [ledger.limits.max_cost for ledger in self._chain if ledger.limits.max_cost is not None]
        return min(limits) if limits else None

    @property
    def _unkept(self) -> bool:
        return self.limits.max_cost is not None and any(tally.unpriced for tally in self._usage.table.values())

    def unkept(self) -> str:
        """What to tell where an LM call of unknown cost was made under a limit on money."""
        with self._lock:
            tables = [ledger._usage.table for ledger in self._chain if ledger.limits.max_cost is not None]
            models = sorted({key.model for table in tables for key, tally in table.items() if tally.unpriced})
        return (
            f"max_cost cannot be kept any more: what a call of {', '.join(models) or 'an LM'} costs is unknown. Give "
            "its price, in US dollars for a million tokens: RLM(..., prices={'MODEL': (input, output)})"
        )

    def record(self, role: str, model: str, tally: Tally, *, chars: int = 0, upward: bool = True) -> None:
        """Count what LM requests have used.

        Args:
            role: Who made them, see `rlm_dspy.usage.Key`.
            model: The LM's name.
            tally: What they used.
            chars: Characters of their prompts, where known; estimates learn from it.
            upward: Count it in the ledgers above as well.
        """
        with self._lock:
            key = Key(role, model, self.depth)
            for ledger in self._chain if upward else (self,):
                ledger._usage.record(key, tally)
            count, output = self._outputs.get(role, (0, 0))
            self._outputs[role] = (count + tally.calls, output + tally.output_tokens)
            if chars:
                self._seen[0] += tally.input_tokens
                self._seen[1] += chars

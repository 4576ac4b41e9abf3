"""The accounts of a tree as a state machine: whatever is done in whatever order, they agree with plain arithmetic."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rlm_dspy.errors import CallRefused
from rlm_dspy.ledger import Estimate, Ledger
from rlm_dspy.limits import Limits
from rlm_dspy.usage import Tally

NUMBERS = st.integers(0, 100)


@dataclass
class Account:
    """A ledger, and what is known of it without it."""

    ledger: Ledger
    above: Account | None
    counts: bool
    most_calls: int | None
    most_tokens: int | None
    reserved: int = 0
    made: int = 0
    spent: int = 0
    held: int = 0
    under_way: list[tuple[contextlib.ExitStack, int]] = field(default_factory=list)
    closed: bool = False

    def chain(self, counted: bool = False) -> list[Account]:
        """This account and those above; with ``counted`` those in which its sub-calls count."""
        chain, account = [self], self
        while account.above is not None and (account.counts or not counted):
            account = account.above
            chain.append(account)
        return chain


class Accounts(RuleBasedStateMachine):
    """A tree of runs: children, runs of tools, calls that are reserved, admitted, cut off, and paid."""

    def __init__(self) -> None:
        super().__init__()
        self.accounts: list[Account] = []

    def _of(self, number: int) -> Account:
        return self.accounts[number % len(self.accounts)]

    def _open(self, number: int) -> Account:
        account = self._of(number)
        while account.closed and account.above is not None:
            account = account.above
        return account

    def _below(self, account: Account) -> list[Account]:
        return [other for other in self.accounts if account in other.chain()]

    @rule(
        number=NUMBERS,
        counts=st.booleans(),
        calls=st.none() | st.integers(0, 12),
        tokens=st.none() | st.integers(1, 900),
    )
    def start(self, number: int, counts: bool, calls: int | None, tokens: int | None) -> None:
        above = self._open(number) if self.accounts else None
        if len(self.accounts) > 8:
            return
        limits = Limits(max_llm_calls=calls, max_tokens=tokens)
        ledger = Ledger(limits, above.ledger if above else None, counts=counts)
        self.accounts.append(Account(ledger, above, counts, calls, tokens))

    @precondition(lambda self: self.accounts)
    @rule(number=NUMBERS, count=st.integers(1, 5))
    def reserve(self, number: int, count: int) -> None:
        account = self._open(number)
        chain = account.chain(counted=True)
        fits = all(a.most_calls is None or a.made + a.reserved + count <= a.most_calls for a in chain)
        try:
            account.ledger.reserve_calls(count)
        except CallRefused as refused:
            assert not fits and refused.limit == "max_llm_calls"
        else:
            assert fits
            for a in chain:
                a.reserved += count

    @precondition(lambda self: any(a.reserved for a in self.accounts))
    @rule(number=NUMBERS, made=st.booleans())
    def settle(self, number: int, made: bool) -> None:
        account = self._of(number)
        chain = account.chain(counted=True)
        if all(a.reserved for a in chain):
            account.ledger.settle_call(made=made)
            for a in chain:
                a.reserved, a.made = a.reserved - 1, a.made + made

    @precondition(lambda self: self.accounts)
    @rule(number=NUMBERS, tokens=st.integers(0, 300), least=st.booleans(), last=st.booleans())
    def begin(self, number: int, tokens: int, least: bool, last: bool) -> None:
        account = self._open(number)
        limited = any(a.most_tokens is not None for a in account.chain())
        more = 1 if least else max(1, tokens)
        fits = last or all(
            a.most_tokens is None or self._used(a) + more <= a.most_tokens for a in account.chain()
        )
        stack = contextlib.ExitStack()
        try:
            stack.enter_context(account.ledger.admitted(Estimate(tokens, 0), least=least, last=last))
        except CallRefused as refused:
            assert not fits and refused.limit == "max_tokens"
            return
        assert fits or not limited
        if last and limited:
            account.held = 0
        account.under_way.append((stack, tokens if limited else 0))

    @precondition(lambda self: any(a.under_way for a in self.accounts))
    @rule(number=NUMBERS, used=st.integers(0, 400), answered=st.booleans())
    def end(self, number: int, used: int, answered: bool) -> None:
        for account in self.accounts[number % len(self.accounts) :]:
            if account.under_way:
                stack, _ = account.under_way.pop()
                if answered:
                    account.ledger.record("sub", "m", Tally(calls=1, input_tokens=used))
                    for a in account.chain():
                        a.spent += used
                stack.close()
                return

    @precondition(lambda self: self.accounts)
    @rule(number=NUMBERS, tokens=st.integers(0, 200))
    def hold(self, number: int, tokens: int) -> None:
        account = self._open(number)
        account.ledger.hold(Estimate(tokens, 0))
        account.held = tokens if any(a.most_tokens is not None for a in account.chain()) else 0

    @precondition(lambda self: self.accounts)
    @rule(number=NUMBERS)
    def close(self, number: int) -> None:
        account = self._of(number)
        if account.above is not None and not account.under_way:
            account.ledger.close()
            account.closed, account.held = True, 0

    def _used(self, account: Account) -> int:
        below = self._below(account)
        return account.spent + sum(a.held + sum(tokens for _, tokens in a.under_way) for a in below)

    @invariant()
    def the_accounts_agree(self) -> None:
        for account in self.accounts:
            usage, ledger = account.ledger.usage(), account.ledger
            assert usage.calls == account.made and usage.total.input_tokens == account.spent
            calls = [a.most_calls - a.made - a.reserved for a in account.chain(True) if a.most_calls is not None]
            assert ledger.calls_left == (max(0, min(calls)) if calls else None)
            assert all(left >= 0 for left in calls), "a count is never overrun"
            tokens = [a.most_tokens - self._used(a) for a in account.chain() if a.most_tokens is not None]
            assert ledger.tokens_left == (max(0, min(tokens)) if tokens else None)

    def teardown(self) -> None:
        for account in self.accounts:
            while account.under_way:
                account.under_way.pop()[0].close()


TestAccounts: Any = Accounts.TestCase
TestAccounts.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)

"""Where a run comes from: a user's call, the code of another run, a tool or module of one, a session.

A run that is started inside another one knows that run, and what it uses counts there as well. One that code asked for
is its child: it shares the tree's gates, answers and events, and its LM calls are sub-calls of the code. One that a
tool or module starts is a tree of its own within.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import dspy

from rlm_dspy.ledger import Ledger
from rlm_dspy.limits import Limits
from rlm_dspy.prices import Prices
from rlm_dspy.tree import Tree

if TYPE_CHECKING:
    from rlm_dspy.rlm import RLM
    from rlm_dspy.run import Run
    from rlm_dspy.sessions import RLMSession


@dataclass
class Start:
    """How the next run in a context is started: as a child of ``parent``.

    Attributes:
        parent: The run whose code asks for it.
        lm: Plays its root, where it is not the one that would.
        begun: Called with the run when there is one.
        run: The run.
    """

    parent: Run
    lm: Any = None
    begun: Callable[[Run], None] | None = None
    run: Run | None = None


_starting: contextvars.ContextVar[Start | None] = contextvars.ContextVar("rlm_dspy_start", default=None)
_current: contextvars.ContextVar[Run | None] = contextvars.ContextVar("rlm_dspy_run", default=None)
_within: contextvars.ContextVar[RLMSession | None] = contextvars.ContextVar("rlm_dspy_session", default=None)

TIME_SHARE = 0.9
"""Share of the time left to its parent that a child may take, so that its answer is of use before that time is up."""


@contextlib.contextmanager
def starting(start: Start) -> Iterator[None]:
    """The next RLM that is called inside is started as ``start`` says."""
    token = _starting.set(start)
    try:
        yield
    finally:
        _starting.reset(token)


@contextlib.contextmanager
def within(session: RLMSession) -> Iterator[None]:
    """The next RLM that is called inside is a call of ``session``."""
    token = _within.set(session)
    try:
        yield
    finally:
        _within.reset(token)


@dataclass(frozen=True)
class Origin:
    """Where a run comes from; that decides what it shares with the runs around it.

    Attributes:
        parent: The run that it is started inside of, by code, a tool or a module of it; None for a root.
        start: How code of ``parent`` asked for it, which makes it a child; None for any other run.
        session: The session that it is a call of, or None.
    """

    parent: Run | None
    start: Start | None
    session: RLMSession | None

    @classmethod
    def here(cls) -> Origin:
        """That of the run that is being made in this context. What was said of the next run is said of no other."""
        start, session = _starting.get(), _within.get()
        _starting.set(None)
        _within.set(None)
        # In threads of DSPy's own (``dspy.Parallel``) only its settings are there.
        parent: Run | None = _current.get() or getattr(dspy.settings.usage_tracker, "run", None)
        return cls(parent, start if start is not None and start.parent is parent else None, session)

    @property
    def asker(self) -> Run | None:
        """The run whose code asked for this one, as for its child."""
        return None if self.start is None else self.start.parent

    def same_program(self, program: RLM) -> Run | None:
        """`asker`, where its child is the same program one level deeper, not another one that counts for itself."""
        return self.asker if self.asker is not None and self.asker.program.act is program.act else None

    def limits(self, limits: Limits) -> Limits:
        """``limits``, with less time where the one that waits for the answer would have none left for it."""
        left = None if self.asker is None else self.asker.ledger.seconds_left
        if left is None:
            return limits
        most = max(0.001, left * TIME_SHARE)
        return replace(limits, max_seconds=most if limits.max_seconds is None else min(limits.max_seconds, most))

    def ledger(self, limits: Limits, prices: Any) -> Ledger:
        """The account of the run, below its session's or else its parent's; it knows the prices of that one too."""
        around = self.session or self.parent
        above = None if around is None else around.ledger
        return Ledger(
            limits,
            above,
            Prices(prices, None if above is None else above.prices) if above is None or prices else None,
            counts=self.asker is not None or self.session is not None,
            deeper=self.session is None,
        )

    def tree(self, limits: Limits) -> Tree:
        """A child shares its parent's; the tree of any other run has the gates of the one around it behind its own."""
        if self.asker is not None:
            return self.asker.tree
        return Tree(limits, None if self.parent is None else self.parent.tree)


def current() -> Run | None:
    """The run that this context belongs to, as the context of a tool does; None outside of runs."""
    return _current.get()


@contextlib.contextmanager
def running(run: Run) -> Iterator[None]:
    """What is called inside belongs to ``run``."""
    token, started = _current.set(run), _starting.set(None)
    try:
        yield
    finally:
        _starting.reset(started)
        _current.reset(token)

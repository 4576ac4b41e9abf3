"""What happens in a run, as an append-only log of typed events.

There is no second way to learn what a run did: the trajectory on the result, the live console and the command line's
``--json`` are all made from these events. Every event is immutable, numbered and stamped with seconds since the run
began; ``to_dict`` gives plain JSON-able data.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import dataclasses
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from rlm_dspy._aio import threads

if TYPE_CHECKING:
    from rlm_dspy.kept import Kept
    from rlm_dspy.run import Run

logger = logging.getLogger(__name__)

ALL_IN_MEMORY = 64 << 20
"""Bytes of all values of a tree of runs, or of the calls of a session, that are kept in memory."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events.

    Attributes:
        seq: Position in the log, from 0.
        at: Seconds since the run began.
        depth: 0 for the root, 1 for its children, and so on.
        run: The id of its run, for whoever sees the events of several; not in `to_dict`, and not compared.
    """

    kind: ClassVar[str] = "event"
    seq: int = -1
    at: float = 0.0
    depth: int = 0
    run: str = field(default="", repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """``kind`` and the fields, JSON-able; a copy, so that the event stays what it is."""
        told = [f.name for f in dataclasses.fields(self) if f.name != "run"]
        return {"kind": self.kind} | {name: _plain(getattr(self, name)) for name in told}


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """``variables`` maps each input to its one-line summary, never to its content; ``limits`` are those in force.
    ``parent_id`` is the run that this one was started inside of, or None.

    To run it again: ``inputs`` are the values that were ``given`` by name (all but those that a session has from an
    earlier call), ``outputs`` the types of the output fields, ``options`` those that shape what the root is shown,
    ``call`` the number of the call in its session, from 0."""

    kind: ClassVar[str] = "run_started"
    run_id: str
    parent_id: str | None = None
    signature: str
    variables: dict[str, str]
    limits: dict[str, Any]
    environment: str
    inputs: dict[str, Kept] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    outputs: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    call: int = 0


@dataclass(frozen=True, kw_only=True)
class SessionOpened(Event):
    """The interpreter is up and holds the inputs. ``confined`` is None for an interpreter that cannot say."""

    kind: ClassVar[str] = "session_opened"
    environment: str
    confined: bool | None
    layers: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TurnStarted(Event):
    """The root is being asked for its next action. ``turn`` counts from 1."""

    kind: ClassVar[str] = "turn_started"
    turn: int


@dataclass(frozen=True, kw_only=True)
class TextDelta(Event):
    """A piece of what a root's LM is writing. It is in no event log: what was written is in `Acted`, or the outputs.

    Only subscribers with a true attribute ``deltas`` see it, and only where the LM streams: not from a cache, nor where
    it can only be called synchronously. ``role`` is who writes: "act", "extract" or "direct". ``request`` counts the
    requests of a run, from 1: what another one writes takes the place of what an earlier one of the same turn wrote.
    ``reasoning`` is True for what a provider sends as reasoning, in a field of its own.
    """

    kind: ClassVar[str] = "text_delta"
    turn: int
    role: str
    request: int
    text: str
    reasoning: bool = False


@dataclass(frozen=True, kw_only=True)
class Acted(Event):
    """The root replied. ``reply`` is its text, byte for byte; ``error`` says why no code could be taken from it."""

    kind: ClassVar[str] = "acted"
    turn: int
    reply: str
    reasoning: str = ""
    code: str = ""
    error: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CallStarted(Event):
    """Code called a host function (a sub-call or a tool). One batched call starts one `CallStarted` per slot."""

    kind: ClassVar[str] = "call_started"
    turn: int
    call: int
    name: str
    preview: str = ""


@dataclass(frozen=True, kw_only=True)
class CallEnded(Event):
    """The call with the number ``call`` ended; ``error`` is set where it failed. One that is ``reused`` was answered by
    what an equal call had been answered."""

    kind: ClassVar[str] = "call_ended"
    turn: int
    call: int
    name: str
    seconds: float
    error: str | None = None
    preview: str = ""
    reused: bool = False


@dataclass(frozen=True, kw_only=True)
class Returned(Event):
    """A host function gave ``result`` to the code that called it, or raised ``error`` there (class and message).

    One for each call as code makes it, a batch and a child being one, whatever `CallEnded` tells of what was done for
    it. ``number`` counts the calls of a run, from 1; ``arguments`` is a digest of what it was called with.
    """

    kind: ClassVar[str] = "returned"
    turn: int
    number: int
    name: str
    arguments: str = ""
    result: Kept | None = None
    error: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class ChildStarted(Event):
    """Code started a child by the function ``name``; ``run_id`` is the child's, ``at_depth`` its depth in the tree."""

    kind: ClassVar[str] = "child_started"
    turn: int
    name: str
    run_id: str
    at_depth: int


@dataclass(frozen=True, kw_only=True)
class ChildEnded(Event):
    """A child ended; ``outcome`` may also be ``"cancelled"``. ``events`` is its whole event log."""

    kind: ClassVar[str] = "child_ended"
    turn: int
    name: str
    run_id: str
    outcome: str
    limit: str | None = None
    error: str | None = None
    seconds: float = 0.0
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Executed(Event):
    """The turn's code ran. ``output`` is all it gave (before truncation for the prompt), ``lost`` the variables that
    a restart of the session cost, ``notices`` what the root is told of its calls besides, ``images`` what was
    displayed, each a media type and base64 text."""

    kind: ClassVar[str] = "executed"
    turn: int
    output: str
    error: str | None = None
    submitted: bool = False
    lost: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    images: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    host_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Aided(Event):
    """An aid of `rlm_dspy.Guidance` did something in this turn: ``aid`` is its name.

    Of the aids that wait for a reason; those that shape every prompt (contract, dialect, demonstration, first look,
    repeated task) act in every run that they are on in.
    """

    kind: ClassVar[str] = "aided"
    turn: int
    aid: str


@dataclass(frozen=True, kw_only=True)
class TurnEnded(Event):
    """``observation`` is exactly what the root is shown of the turn, truncated, without the status line.

    ``used`` is what the run and all below it have used up to here: LM calls, tokens and ``cost`` in US dollars (None
    where a price is unknown), as `rlm_dspy.usage.Tally.to_dict` has it.
    """

    kind: ClassVar[str] = "turn_ended"
    turn: int
    observation: str
    error: bool = False
    used: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Compacted(Event):
    """The root's conversation was made shorter after ``turn`` turns. ``summary`` is what the root wrote of it, ``""``
    where the oldest outputs were left out instead; the tokens are those of the root's next request, as estimated;
    ``note``, ``since``, ``short`` and ``most`` are those of the `rlm_dspy.signatures.conversation.Branch`, and
    ``history`` is the variable that holds all turns.

    The turns before it are in the event log and the trajectory as ever; but what the root is sent from here on is a new
    branch, and so a new training sample: it does not begin with the requests before.
    """

    kind: ClassVar[str] = "compacted"
    turn: int
    tokens_before: int
    tokens_after: int
    summary: str = ""
    note: str = ""
    since: int = 0
    short: int = 0
    most: int | None = None
    history: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LimitStruck(Event):
    """A limit ended the turns; ``where`` is what was going on: "open" (of the session), "compact" (of the root's
    conversation), "act", "execute" or "turns". ``used`` is as in `TurnEnded`."""

    kind: ClassVar[str] = "limit_struck"
    limit: str
    where: str
    used: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Extracted(Event):
    """``extract`` was asked for the best answer from what had been done, and gave ``outputs``."""

    kind: ClassVar[str] = "extracted"
    outputs: Kept | None = None
    error: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Note(Event):
    """Something worth knowing that is neither an error of the code nor a limit."""

    kind: ClassVar[str] = "note"
    message: str


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event):
    """The last event of a run. ``outputs`` are shown in short, ``values`` is the dict of them."""

    kind: ClassVar[str] = "run_ended"
    outcome: str
    limit: str | None = None
    error: str | None = None
    outputs: dict[str, str] = field(default_factory=dict)
    values: Kept | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


Subscriber = Callable[[Event, "Run"], None]
"""``subscriber(event, run)``, called in order on the run's thread; ``run.request_stop()`` may be called from it."""

_subscribers: contextvars.ContextVar[tuple[Subscriber, ...]] = contextvars.ContextVar("subscribers", default=())


@contextlib.contextmanager
def subscribe(subscriber: Subscriber) -> Iterator[None]:
    """See the events of every run started in this context, as they happen.

    Args:
        subscriber: Called as ``subscriber(event, run)``. It must be quick; what it raises is logged, never propagated.

    Raises:
        TypeError: It cannot be called so.

    Example:
        >>> with rlm_dspy.subscribe(lambda event, run: print(event.kind)):  # doctest: +SKIP
        ...     rlm(context=text, query="…")
    """
    try:
        inspect.signature(subscriber).bind(None, None)
    except ValueError:
        pass  # written in C, and says nothing of its parameters
    except TypeError as error:
        raise TypeError(f"a subscriber is called as subscriber(event, run), which {subscriber!r} is not for") from error
    token = _subscribers.set((*_subscribers.get(), subscriber))
    try:
        yield
    finally:
        _subscribers.reset(token)


class EventLog:
    """The events of one run, in order. Appending is thread-safe; nothing is ever changed or removed.

    Args:
        run: Its run.
        parent: The log of the run that started it as a child; its subscribers see these events too.
    """

    def __init__(self, run: Run, parent: EventLog | None = None) -> None:
        self._run = run
        self._events: list[Event] = []
        self._lock = threading.RLock()
        self._started = time.monotonic()
        # Whoever watches a run watches its children.
        self._subscribers: tuple[Subscriber, ...] = parent._subscribers if parent else _subscribers.get()
        # Of the whole tree, or of all calls of a session, which keeps their logs.
        self._room: list[int] = (
            parent._room if parent else run.within.room if run.within is not None else [ALL_IN_MEMORY]
        )

    def __iter__(self) -> Iterator[Event]:
        return iter(tuple(self._events))

    def __len__(self) -> int:
        return len(self._events)

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._started

    def add(self, subscriber: Subscriber) -> None:
        """Let one more subscriber see the events from here on."""
        with self._lock:
            self._subscribers = (*self._subscribers, subscriber)

    async def keep(self, value: Any, *, exact: bool = False) -> Kept:
        """``value`` for an event: in memory where it is small, in a file where a subscriber has a ``store`` for it.

        Args:
            value: Anything.
            exact: It is the user's own and goes to a file as it is; all else without secrets.

        Raises:
            TypeError, ValueError: The codec does not carry it.
        """
        # Here, because whoever only watches runs needs nothing that carries values.
        from rlm_dspy import kept

        if not kept.oversized(value):
            made = kept.pack(value)
            with self._lock:
                if made.size <= min(kept.IN_MEMORY, self._room[0]):
                    self._room[0] -= made.size
                    return made
        for subscriber in self._subscribers:
            if (store := getattr(subscriber, "store", None)) is not None:
                found: Kept = await threads.run(store, value, exact)
                return found
        why = "it is too large to be kept in memory; record the run by: with rlm_dspy.journal(folder)"
        return kept.Kept(why=why)

    def emit(self, event: Event) -> Event:
        """Number and stamp ``event``, append it, and hand it to the subscribers.

        Args:
            event: A new one; what was emitted before, in this log or another, is copied.
        """
        with self._lock:
            if event.seq >= 0:
                event = copy.copy(event)
            # It is in nobody else's hands yet; a copy of a frozen object for each event would be most of the cost.
            self._stamp(event, len(self._events))
            self._events.append(event)
            self._tell(event, self._subscribers)
        return event

    def pass_on(self, event: Event) -> None:
        """Hand a new ``event`` that is not kept to the subscribers that asked for such, with -1 for a number."""
        with self._lock:
            self._stamp(event, -1)
            self._tell(event, [some for some in self._subscribers if getattr(some, "deltas", False)])

    @property
    def passes_on(self) -> bool:
        """Whether any subscriber asked for what is not kept, by an attribute ``deltas``."""
        return any(getattr(some, "deltas", False) for some in self._subscribers)

    @property
    def subscribers(self) -> tuple[Subscriber, ...]:
        """Who sees the events."""
        return self._subscribers

    def _stamp(self, event: Event, seq: int) -> None:
        fields = vars(event)
        fields["seq"], fields["at"], fields["depth"] = seq, round(self.elapsed, 6), self._run.depth
        fields["run"] = self._run.id

    def _tell(self, event: Event, subscribers: Iterable[Subscriber]) -> None:
        for subscriber in subscribers:
            try:
                subscriber(event, self._run)
            except Exception:
                logger.exception("an event subscriber failed on %s", event.kind)

"""Sessions: calls of one program that go on with what earlier calls made.

One interpreter stays open over the calls, so variables, functions and imports persist; the conversation goes on, so
that earlier turns and answers are in view and what has been sent stays a prefix of what is sent. Each call has its own
turns, limits and prediction; what it uses also counts in the session's account.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dspy

from rlm_dspy import engine, origin, watched
from rlm_dspy import events as ev
from rlm_dspy import inputs as inputs_
from rlm_dspy._aio import run_sync
from rlm_dspy.environments.base import Session
from rlm_dspy.errors import ConfigurationError, SessionError
from rlm_dspy.journals import Journal
from rlm_dspy.ledger import Ledger
from rlm_dspy.limits import Limits
from rlm_dspy.observation import final_text
from rlm_dspy.own_cells import TOLD, own_cell, told
from rlm_dspy.prices import Prices
from rlm_dspy.redact import error_text
from rlm_dspy.signatures.contract import SHORT
from rlm_dspy.signatures.conversation import Conversation
from rlm_dspy.trajectory import Outcome, Trajectory

if TYPE_CHECKING:
    from rlm_dspy.rlm import RLM
    from rlm_dspy.run import Run
    from rlm_dspy.stream import RunStream

_MARK = "_rlm_session"
GONE: Any = object()
"""Stands for the value of an input that could not be saved."""
_LOOK = f"""
held = names.get({_MARK!r})
print({TOLD!r} + (' '.join(['True'] + [n for n in wanted if n in held]) if type(held) is dict else 'False'))
"""
# The current values under a name of ours too: what code makes of the names is not to change what was given.
_NAME = f"""
held = names.get({_MARK!r})
if type(held) is not dict:
    held = {{}}
kept = {{}}
for name, numbered in current.items():
    value = names[numbered] if numbered in sent or numbered not in held else held[numbered]
    names[name] = names[numbered] = kept[numbered] = value
names[{_MARK!r}] = kept
"""


@dataclass(frozen=True)
class SessionCall:
    """One call of a session, as its history has it.

    Attributes:
        number: From 0.
        inputs: The inputs that were given in it: short texts as they are, all else as type and size.
        outputs: By name; None each where there are none.
        outcome: How it ended.
        trajectory: Its own turns.
    """

    number: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, Any]
    outcome: Outcome
    trajectory: Trajectory


@dataclass(frozen=True)
class ResumeReport:
    """What became of a session that was resumed.

    Attributes:
        restored: Names of variables, functions, classes and imports that are there again.
        unsaved: Names of those that are not, and why.
        differences: What the recorded code gave otherwise when it was run again, see `rlm_dspy.Difference`.
    """

    restored: tuple[str, ...] = ()
    unsaved: Mapping[str, str] | None = None
    differences: tuple[Any, ...] = ()


class RLMSession:
    """Calls that go on with what earlier ones made. Made by ``rlm.session()``, for one caller at a time.

    An input of the last call has its own name in the REPL; every value that was ever given also has a numbered one:
    ``context_0``, ``context_1``, … An input that is not given again keeps its value, as it was given.

    The limits of the program hold for each call. ``max_llm_calls``, ``max_tokens`` and ``max_cost`` given to
    ``rlm.session(...)`` hold for all calls together.

    Args:
        program: The RLM.
        path: The folder of a journal, from which the session can be resumed after the process was killed; None for no
            journal.
        limits: Limits of the whole session: ``max_llm_calls``, ``max_tokens``, ``max_cost``.

    Attributes:
        program: The RLM.
        ledger: The account of all calls.
        report: What became of it when it was resumed; None for a fresh one.
        room: Bytes that values in the event logs of its calls may still take in memory.

    Example:
        >>> with rlm.session() as session:  # doctest: +SKIP
        ...     session(context=text, query="Who signed?").answer
        ...     session(query="And when?").answer
    """

    def __init__(self, program: RLM, path: str | PathLike[str] | None = None, **limits: Any) -> None:
        self.program = program
        self.conversation = Conversation("")
        outer = origin.current()
        prices = Prices(program.prices, outer.ledger.prices if outer else None)
        self.ledger = Ledger(_limits(limits), outer.ledger if outer else None, prices, counts=False)
        program.check_prices(program.lms(), self.ledger.limits.max_cost, prices)
        self.report: ResumeReport | None = None
        self.room: list[int] = [ev.ALL_IN_MEMORY]
        self.number = 0
        self.given: tuple[str, ...] = ()
        self._busy = threading.Lock()
        self._process = os.getpid()
        self._interpreter: Session | None = None
        self._factory: Callable[[], Any] | None = None
        self._current: dict[str, Any] = {}
        self._versions: dict[str, list[Any]] = {}
        self._sent: frozenset[str] = frozenset()
        self._history: list[SessionCall] = []
        self._unsaved: dict[str, str] = {}
        self._told_unsaved = True
        self._lost = False
        self._closed = False
        _check_names(program)
        self._journal = Journal(path) if path is not None else None
        if self._journal is not None:
            if Path(self._journal.path, "events.jsonl").exists():
                raise SessionError(f"{path} holds a session already; go on with it by rlm.resume({str(path)!r})")
            self._journal.open()

    # ------------------------------------------------------------------------------------------------- use

    def __call__(self, **inputs: Any) -> dspy.Prediction:
        """The next call: inputs by keyword; those that are left out keep their value.

        Raises:
            SessionError: The session is busy or closed, or an input was never given.
            Exception: What a call of the program raises; the session stays usable.
        """
        with self._call(inputs) as (values, done):
            return done(self.program(**values))

    async def acall(self, **inputs: Any) -> dspy.Prediction:
        """`__call__`, without ever blocking the event loop."""
        with self._call(inputs) as (values, done):
            return done(await self.program.acall(**values))

    def stream(self, **inputs: Any) -> RunStream:
        """The next call, whose events come as they happen: see `rlm_dspy.stream.RunStream`."""
        from rlm_dspy.stream import RunStream

        return RunStream(self, inputs)

    @property
    def history(self) -> tuple[SessionCall, ...]:
        """The calls so far, failed ones included."""
        return tuple(self._history)

    @property
    def usage(self) -> dict[str, Any]:
        """What all calls together have used, as ``prediction.usage`` has it."""
        return self.ledger.usage().to_dict()

    @property
    def unsaved(self) -> dict[str, str]:
        """Names of what the last `save`, or the one that this was resumed from, could not keep, and why."""
        return dict(self._unsaved)

    def to_history(self) -> dspy.History:
        """The answered calls as a ``dspy.History``: inputs in short, outputs as they are."""
        return dspy.History(
            messages=[{**call.inputs, **call.outputs} for call in self._history if call.outcome != "failed"]
        )

    def save(self, path: str | PathLike[str]) -> dict[str, str]:
        """Save the session to a file, without pickle, to be resumed by ``rlm.resume(path)``.

        Functions, classes and imports are saved as the source that made them, all other variables as values, as they
        are; what was said is saved without secrets. The file is readable by its owner alone.
        Running the source again evaluates default arguments and class bodies again, and two names of one object
        become two objects.

        Returns:
            `unsaved`.

        Raises:
            SessionError: The session is busy or closed.
            OSError: The file cannot be written; one that was there is left as it was.
        """
        return run_sync(self.asave(path))

    async def asave(self, path: str | PathLike[str]) -> dict[str, str]:
        """`save`, without ever blocking the event loop."""
        from rlm_dspy import snapshot

        with self._taken():
            self._unsaved = await snapshot.save(self, Path(path))
        return self.unsaved

    def close(self) -> None:
        """End the interpreter and the journal. Idempotent."""
        run_sync(self.aclose())

    async def aclose(self) -> None:
        """`close`, without ever blocking the event loop."""
        self._closed = True
        interpreter, self._interpreter = self._interpreter, None
        if self._process != os.getpid():
            return  # the parent's, which goes on with it
        try:
            if interpreter is not None:
                await watched.close_session(interpreter)
        finally:
            if self._journal is not None:
                self._journal.close()

    def __enter__(self) -> RLMSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> RLMSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<RLMSession of {self.program.signature.signature!r}, {self.number} calls, {state}>"

    # ------------------------------------------------------------------------------------------------- calls

    @contextlib.contextmanager
    def _taken(self) -> Iterator[None]:
        if self._closed:
            raise SessionError("the session is closed; make a new one by rlm.session(), or resume it")
        if self._process != os.getpid():
            raise SessionError(
                "the session belongs to the process that this one was forked from; save it there, and resume it here"
            )
        if not self._busy.acquire(blocking=False):
            raise SessionError("the session is busy with another call; make one call after the other")
        try:
            yield
        finally:
            self._busy.release()

    @contextlib.contextmanager
    def _call(self, inputs: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Callable[[Any], Any]]]:
        """One call: its inputs, and what is to be told of its prediction."""
        with self._taken():
            values = self.bind(inputs)
            before = {name: len(versions) for name, versions in self._versions.items()}, dict(self._current)
            self._give(values, inputs)

            def done(prediction: dspy.Prediction) -> dspy.Prediction:
                self.note(prediction)
                return prediction

            try:
                with origin.within(self), ev.subscribe(self._journal) if self._journal else contextlib.nullcontext():
                    yield values, done
            except inputs_.InputError:
                # Never arrived: later calls do not have to do with it.
                counts, self._current = before
                self._versions = {name: self._versions[name][:count] for name, count in counts.items()}
                raise
            except BaseException as error:
                self.note(getattr(error, "prediction", None), error)
                raise

    def bind(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """All inputs of a call: those given, read where they are paths, and the others as they were last.

        Raises:
            SessionError: One was never given.
        """
        fields = self.program.signature.input_fields
        needed = [name for name, field in fields.items() if field.is_required()]
        never = [name for name in needed if name not in inputs and name not in self._current]
        if never:
            raise SessionError(
                f"the inputs {never} were never given in this session; pass them: session({never[0]}=...)"
            )
        return inputs_.bind(self.program.signature, {**self._current, **inputs})

    def _give(self, values: dict[str, Any], inputs: Mapping[str, Any]) -> None:
        self.given = tuple(name for name in values if name in inputs or name not in self._current)
        for name in self.given:
            self._versions.setdefault(name, []).append(values[name])
        self._current = dict(values)

    def note(self, prediction: dspy.Prediction | None, error: BaseException | None = None) -> None:
        """Put a call that has ended into the history."""
        names = list(self.program.signature.output_fields)
        if prediction is not None:
            outputs = {name: prediction[name] for name in names}
            outcome, trajectory = prediction.outcome, prediction.trajectory
        else:
            outputs = dict.fromkeys(names)
            outcome = Outcome("failed", error=error_text(error) if error is not None else None)
            trajectory = getattr(error, "trajectory", None) or Trajectory()
        given = {name: _brief(name, self._current[name]) for name in self.given}
        self._history.append(SessionCall(self.number, given, outputs, outcome, trajectory))
        self.number += 1

    # ------------------------------------------------------------------------------------------------- for a run

    def interpreter(self, run: Run) -> Session:
        """The interpreter of all calls."""
        if self._interpreter is None:
            self._interpreter = engine.session_of(run)
            self._factory = run.factory
        return self._interpreter

    async def prepare(self, run: Run) -> None:
        """Learn whether the interpreter still holds what earlier calls made, before the root is told so."""
        if self.number:
            await watched.open_session(run.session)
            self._lost = not await self._held(run.session)

    async def _held(self, session: Session) -> set[str]:
        """Which of the last call's inputs are there, and the mark of an interpreter that earlier calls used."""
        names = [name for name, _ in self.numbered()]
        result = await session.run(own_cell(_LOOK, wanted=names))
        marked, *found = " ".join(told(result.stdout)).split() or ["False"]
        return {_MARK, *found} if marked == "True" else set()

    def numbered(self) -> Iterator[tuple[str, Any]]:
        """Every value that was ever given, under its numbered name."""
        for name, versions in self._versions.items():
            for number, value in enumerate(versions):
                if value is not GONE:
                    yield f"{name}_{number}", value

    async def missing(self, run: Run) -> dict[str, Any]:
        """The values that the interpreter has to be sent, by their numbered names."""
        held = await self._held(run.session)
        values = dict(self.numbered())
        if held:
            # What code has deleted of earlier calls stays deleted; and it may have variables of these names.
            given = {self._last(name) for name in self.given}
            current = {self._last(name) for name in self._current}
            values = {n: value for n, value in values.items() if n in given or (n in current and n not in held)}
        self._sent = frozenset(values)
        return values

    async def name_current(self, run: Run) -> None:
        """Give the current inputs their own names."""
        current = {name: self._last(name) for name in self._current}
        await run.session.run(own_cell(_NAME, current=current, sent=sorted(self._sent)))

    def notes(self) -> tuple[str, ...]:
        """What the root is told of the session."""
        if not self.number:
            return ()
        told = []
        if self._lost:
            told.append(
                "The interpreter had to be started anew: of earlier calls the inputs are there, variables, functions "
                "and imports are not."
            )
        else:
            told.append("Variables, functions and imports made before are still there.")
        last = self._history[-1] if self._history else None
        if last is not None and last.outcome == "extracted":
            # What was submitted stands in the conversation.
            told.append(f"The answer that was taken for the last task: {final_text(dict(last.outputs), SHORT)}")
        elif last is not None and last.outcome == "failed":
            told.append("The last task has been left without an answer.")
        older = [f"`{name}`" for name, _ in self.numbered() if not self._is_current(name)]
        if older:
            told.append(f"Inputs of earlier calls: {', '.join(older)}.")
        if self._unsaved and not self._told_unsaved and not self._lost:
            gone = ", ".join(f"`{name}` ({why})" for name, why in sorted(self._unsaved.items()))
            told.append(f"These could not be kept and are gone: {gone}.")
            self._told_unsaved = True
        return (" ".join(told),)

    # ------------------------------------------------------------------------------------------------- resuming

    @property
    def opened(self) -> Session | None:
        """The interpreter, if there is one already."""
        return self._interpreter

    @property
    def versions(self) -> dict[str, list[Any]]:
        """The values that each input was given, in order."""
        return {name: list(values) for name, values in self._versions.items()}

    def names(self) -> list[str]:
        """The names in the REPL that are the session's own."""
        return [_MARK, *self.program.signature.input_fields, *(name for name, _ in self.numbered())]

    def restore(self, versions: dict[str, list[Any]], history: list[SessionCall], unsaved: dict[str, str]) -> None:
        """Take over what was saved."""
        self._versions, self._history = versions, history
        self._current = {name: values[-1] for name, values in versions.items() if values and values[-1] is not GONE}
        self.number = len(history)
        self._unsaved = dict(unsaved)

    def placeholders(self) -> dict[str, Any]:
        """A value for each input, for a run that is none."""
        return {name: self._current.get(name) for name in self.program.signature.input_fields}

    def again(self, values: dict[str, Any]) -> dict[str, Any]:
        """A recorded call is run again with ``values``; gives all its inputs."""
        bound = {**self._current, **values}
        self._give(bound, values)
        return bound

    def go_on_in(self, journal: Journal) -> None:
        """Record the calls from here on."""
        self._journal = journal

    def resumed(self, report: ResumeReport) -> None:
        """Tell the user, and the root in its next task, what is not there again."""
        self.report = report
        self._unsaved = dict(report.unsaved or {})
        self._told_unsaved = not self._unsaved

    def _last(self, name: str) -> str:
        """The numbered name of the current value of the input ``name``."""
        return f"{name}_{len(self._versions[name]) - 1}"

    def _is_current(self, numbered: str) -> bool:
        name, _, number = numbered.rpartition("_")
        return int(number) == len(self._versions[name]) - 1


def _brief(name: str, value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= SHORT else inputs_.describe(name, value).summary()


def _limits(given: Mapping[str, Any]) -> Limits:
    allowed = ("max_llm_calls", "max_tokens", "max_cost")
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise ConfigurationError(
            f"a session has no {', '.join(unknown)} of its own; for all its calls together there are "
            f"{', '.join(allowed)}, for each call what the program says: rlm.with_options(...).session()"
        )
    return Limits(**{"max_llm_calls": None, **given})


def _check_names(program: RLM) -> None:
    """Refuse names that the numbered ones of inputs would collide with."""
    inputs = set(program.signature.input_fields)
    taken = {*inputs, *program.tools, *program.sub_calls}
    for name in sorted(taken):
        stem, _, number = name.rpartition("_")
        if stem in inputs and number.isdecimal():
            raise ConfigurationError(
                f"{name!r} is the name that a session gives to a value of the input {stem!r}; rename one of them"
            )

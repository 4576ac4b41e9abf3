"""Going on with a session whose process was killed: its recorded calls are run again, with no language model."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlm_dspy import engine, origin, submit
from rlm_dspy.environments.base import Submission
from rlm_dspy.errors import ConfigurationError, RecordingError
from rlm_dspy.journals import Journal
from rlm_dspy.reading import reading
from rlm_dspy.recording import Recording
from rlm_dspy.replaying import Difference, as_recorded, compared
from rlm_dspy.sessions import ResumeReport, RLMSession

if TYPE_CHECKING:
    from rlm_dspy.rlm import RLM


async def from_journal(program: RLM, path: Path, limits: dict[str, Any]) -> RLMSession:
    """The session that was recorded into the folder ``path``; it goes on there.

    Turns that were finished are run again; of one that was not, nothing is known that could be relied on.
    """
    writing = Journal(path).open()
    session = RLMSession(program, None, **limits)
    differences: list[Difference] = []
    try:
        for events, usage in writing.accounts():
            differences += await _again(session, Recording(events))
            with reading(f"{writing.path}: what a call had used"):
                session.ledger.carry(usage, turns=False)
        session.go_on_in(writing)
    except BaseException:
        writing.close()
        await session.aclose()
        raise
    names = tuple(sorted(await session.opened.variables())) if session.opened is not None else ()
    session.resumed(ResumeReport(names, {}, tuple(differences)))
    return session


async def _again(session: RLMSession, recording: Recording) -> list[Difference]:
    """One recorded call."""
    started = recording.started
    check_signature(session.program, started.signature)
    values = {}
    for name in started.given:
        stored = started.inputs.get(name)
        if stored is None or stored.why:
            if recording.ended is not None and not recording.turns:
                return []  # a call that failed because of it, and left nothing behind
            why = stored.why if stored is not None else "it is not there"
            raise RecordingError(f"the input {name!r} of call {started.call} was not recorded: {why}")
        values[name] = stored.value()
    bound = session.again(values)
    with origin.within(session):
        run = as_recorded(session.program, started)._run(bound, None)
    run.recording, recording.run = recording, run
    try:
        session.note(await engine.execute(run, None))
    except RecordingError as error:
        # It ended so the first time.
        session.note(None, error)
    with contextlib.suppress(ValueError):
        return compared(recording, run)
    return []


def check_signature(program: RLM, signature: str) -> None:
    """Refuse a session of another signature.

    Raises:
        ConfigurationError: It is one.
    """
    if program.signature.signature != signature:
        raise ConfigurationError(
            f"the session is of the signature {signature!r}, the program's is {program.signature.signature!r}"
        )


def typed(program: RLM, outputs: dict[str, Any]) -> dict[str, Any]:
    """``outputs`` in the types of the program's fields, where they have these."""
    given = {name: value for name, value in outputs.items() if value is not None}
    try:
        found = submit.validate(Submission((), given), program.signature)
    except submit.Refused:
        found = given
    return {name: found.get(name) for name in program.signature.output_fields}

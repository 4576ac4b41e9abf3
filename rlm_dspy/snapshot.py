"""Saving a session to a file and going on with it, without pickle.

The file is a zip archive: ``session.json`` (what was said, what was used, what is defined) and one member for each
value, in the codec that carries values into sandboxes. It is written whole or not at all.
"""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pydantic

from rlm_dspy import events as ev
from rlm_dspy import kept, origin, resuming, watched
from rlm_dspy import snapshot_code as cells
from rlm_dspy._aio import threads
from rlm_dspy.definitions import definitions
from rlm_dspy.environments.foreign import ForeignSession
from rlm_dspy.errors import RecordingError
from rlm_dspy.journals import event_of
from rlm_dspy.own_cells import told
from rlm_dspy.reading import made, reading
from rlm_dspy.redact import redactor
from rlm_dspy.sessions import GONE, ResumeReport, RLMSession, SessionCall
from rlm_dspy.signatures.conversation import Branch, Conversation, Exchange
from rlm_dspy.trajectory import Outcome, Trajectory

if TYPE_CHECKING:
    from rlm_dspy.rlm import RLM

FORMAT = "rlm-dspy session"
SCHEMA = 1
_MAIN = "session.json"


async def save(session: RLMSession, path: Path) -> dict[str, str]:
    """Write ``session`` to ``path``; gives the names of what could not be saved, and why."""
    found = await _look(session)
    return await threads.run(_write, session, path, found)


@dataclasses.dataclass
class _Found:
    """What is in an interpreter."""

    values: dict[str, tuple[Any, bool]] = dataclasses.field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    defined: dict[str, str] = dataclasses.field(default_factory=dict)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)


async def _look(session: RLMSession) -> _Found:
    found, interpreter = _Found(), session.opened
    if interpreter is None:
        return found

    async def keep(name: str, value: Any, marked: bool) -> None:
        # Whatever comes from there is only trusted to be some value.
        found.values[str(name)] = (value, marked is True)

    async def tell(what: str, name: str, kind: str, more: str) -> None:
        if what == "import":
            found.imports[str(name)] = (str(kind), str(more))
        elif what == "source":
            found.defined[str(name)] = str(more)
        else:
            found.failed[str(name)] = str(more)

    skip = [*session.names(), *session.program.tools, *session.program.sub_calls]
    skip += ["SUBMIT", "SHOW_VARS", *_OURS, *(f"{name}_batched" for name in session.program.sub_calls)]
    cell = cells.save_cell(skip, not isinstance(interpreter, ForeignSession))
    result = await interpreter.run(cell, {"_rlm_keep": keep, "_rlm_tell": tell})
    if result.error is not None:
        raise RecordingError(f"the variables could not be saved: {result.error.type}: {result.error.message}")
    return found


_OURS = ("llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched", "predict", "predict_batched", "budget")


def _write(session: RLMSession, path: Path, found: _Found) -> dict[str, str]:
    hide = redactor()
    source = definitions(turn.code for call in session.history for turn in call.trajectory)
    unsaved: dict[str, str] = {}
    needed = {}
    for name, why in {**found.defined, **found.failed}.items():
        if (there := source.get(name)) is not None and (name in found.defined or there.defining):
            needed[name] = there
        else:
            unsaved[name] = hide(why)

    def content(file: Any) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            numbers = iter(range(1_000_000_000))

            def put(name: str, value: Any) -> str | None:
                try:
                    text, blobs = kept.encode(value)
                except (TypeError, ValueError) as error:
                    unsaved[name] = str(error)
                    return None
                member = f"values/{next(numbers)}"
                with archive.open(member, "w", force_zip64=True) as to:
                    kept.dump(to.write, text, blobs)
                return member

            data = _head(session, hide)
            data["versions"] = {
                name: [put(f"{name}_{n}", value) for n, value in enumerate(versions)]
                for name, versions in session.versions.items()
            }
            variables = {name: (put(name, value), marked) for name, (value, marked) in found.values.items()}
            data["variables"] = {name: entry for name, entry in variables.items() if entry[0] is not None}
            data["imports"] = found.imports
            data["source"] = [[d.name, d.source] for d in sorted(needed.values(), key=lambda d: d.order)]
            data["history"] = [_call_out(call, put, hide) for call in session.history]
            data["unsaved"] = unsaved
            archive.writestr(_MAIN, json.dumps(data))

    kept.atomically(path, content, durable=True)
    return unsaved


def _head(session: RLMSession, hide: Any) -> dict[str, Any]:
    said = session.conversation
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "signature": session.program.signature.signature,
        "number": session.number,
        "usage": session.usage,
        "conversation": {
            "contract": hide(said.contract),
            "demonstration": said.demonstration,
            "exchanges": [
                {name: hide(text) if text else text for name, text in dataclasses.asdict(exchange).items()}
                for exchange in said.exchanges
            ],
            "branch": {**dataclasses.asdict(said.branch), "note": hide(said.branch.note)},
            "summary": hide(said.summary),
            "history": said.history,
        },
    }


def _call_out(call: SessionCall, put: Any, hide: Any) -> dict[str, Any]:
    return {
        "number": call.number,
        "inputs": {name: hide(text) for name, text in call.inputs.items()},
        "outputs": put(f"the outputs of call {call.number}", dict(call.outputs)),
        "outcome": [str(call.outcome), call.outcome.limit, call.outcome.error],
        "events": [_event_out(event, hide) for event in call.trajectory.events],
    }


def _event_out(event: ev.Event, hide: Any) -> dict[str, Any]:
    data: dict[str, Any] = _without(event.to_dict(), hide)
    if isinstance(event, ev.ChildEnded):
        data["events"] = [_event_out(inner, hide) for inner in event.events]
    # What kind it is of is the project's own word, also where somebody's key happens to be the same.
    return data | {"kind": event.kind}


def _without(data: Any, hide: Any) -> Any:
    if isinstance(data, str):
        return hide(data)
    if isinstance(data, dict):
        return {str(name): _without(item, hide) for name, item in data.items()}
    return [_without(item, hide) for item in data] if isinstance(data, list) else data


# --------------------------------------------------------------------------------------------------------- resuming


async def resume(program: RLM, path: str | PathLike[str], limits: dict[str, Any]) -> RLMSession:
    """The session of a file of `save`, or of a journal."""
    path = Path(path)
    if path.is_dir():
        return await resuming.from_journal(program, path, limits)
    data, values = await threads.run(_read, path)
    resuming.check_signature(program, data["signature"])
    session = RLMSession(program, None, **limits)
    try:
        with reading(f"the saved session in {path}"):
            _fill(session, data, values)
        await _restore(session, data, values)
    except BaseException:
        await session.aclose()
        raise
    return session


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"there is no saved session in {path}: {error.strerror}") from None
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            data = json.loads(archive.read(_MAIN))
            if not isinstance(data, dict) or data.get("format") != FORMAT:
                raise ValueError("it is something else")
            if int(data["schema"]) > SCHEMA:
                raise RecordingError(
                    f"this session has schema {data['schema']}, this rlm-dspy reads up to {SCHEMA}: upgrade it"
                )
            data = _Saved.model_validate(data).model_dump()
            names = [name for name in archive.namelist() if name.startswith("values/")]
            return data, {name: kept.load(io.BytesIO(archive.read(name)), name, records=True) for name in names}
    except (zipfile.BadZipFile, LookupError, ValueError, TypeError, EOFError, OverflowError, RecursionError) as error:
        if isinstance(error, RecordingError):
            raise
        if isinstance(error, pydantic.ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise RecordingError(f"{path} is not a whole saved session: {place}: {first['msg']}") from None
        raise RecordingError(f"{path} is not a whole saved session: {error}") from None


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)


class _SavedConversation(_Strict):
    """See `_head`."""

    contract: str
    demonstration: list[dict[str, Any]]
    exchanges: list[dict[str, Any]]
    branch: dict[str, Any] = {}
    summary: str = ""
    history: str = ""


class _SavedCall(_Strict):
    """See `_call_out`."""

    number: int
    inputs: dict[str, str]
    outputs: str | None
    outcome: Annotated[tuple[str, str | None, str | None], pydantic.Strict(False)]
    events: list[dict[str, Any]]


class _Saved(_Strict):
    """What `_write` puts into the file, but for the values."""

    signature: str
    usage: dict[str, Any]
    conversation: _SavedConversation
    versions: dict[str, list[str | None]]
    variables: dict[str, Annotated[tuple[str, bool], pydantic.Strict(False)]]
    imports: dict[str, Annotated[tuple[str, str], pydantic.Strict(False)]]
    source: list[Annotated[tuple[str, str], pydantic.Strict(False)]]
    history: list[_SavedCall]
    unsaved: dict[str, str]


def _fill(session: RLMSession, data: dict[str, Any], values: dict[str, Any]) -> None:
    """All but the interpreter."""
    said = data["conversation"]
    session.conversation = Conversation(
        said["contract"],
        exchanges=[made(Exchange, exchange) for exchange in said["exchanges"]],
        demonstration=said["demonstration"],
        branch=made(Branch, said.get("branch", {})),
        summary=said.get("summary", ""),
        history=said.get("history", ""),
    )
    versions = {
        name: [values[member] if member is not None else GONE for member in members]
        for name, members in data["versions"].items()
    }
    history = [_call_in(call, values, session) for call in data["history"]]
    session.restore(versions, history, data["unsaved"])
    session.ledger.carry(data["usage"])


def _call_in(data: dict[str, Any], values: dict[str, Any], session: RLMSession) -> SessionCall:
    outputs = resuming.typed(session.program, values.get(data["outputs"]) or {})
    status, limit, error = data["outcome"]
    events: list[ev.Event] = [event_of(line, lambda given: kept.Kept(why=_NO_RESULTS)) for line in data["events"]]
    trajectory = Trajectory.from_events(events)
    return SessionCall(data["number"], data["inputs"], outputs, Outcome(status, limit=limit, error=error), trajectory)


_NO_RESULTS = "a saved session keeps variables, not results; only a journal can be replayed"


async def _restore(session: RLMSession, data: dict[str, Any], values: dict[str, Any]) -> None:
    with origin.within(session):
        run = session.program._run(session.placeholders(), None)
    interpreter = session.interpreter(run)
    await watched.open_session(interpreter)
    failed: dict[str, str] = dict(data["unsaved"])
    inputs = dict(session.numbered())
    await interpreter.set(inputs)
    run.session = interpreter
    await session.name_current(run)
    imports = {name: (module, inner) for name, (module, inner) in data["imports"].items()}
    failed |= _failures(await interpreter.run(cells.import_cell(imports)))
    with reading("the saved session"):
        variables: dict[str, Any] = {name: values[member] for name, (member, _) in data["variables"].items()}
    for name, value in variables.items():
        try:
            await interpreter.set({name: value})
        except (TypeError, ValueError) as error:
            failed[name] = str(error)
    source = dict(data["source"])
    while source:
        # One may need another that comes later, where a name was defined again.
        reasons = {}
        for name, text in source.items():
            result = await interpreter.run(text)
            if result.error is not None:
                reasons[name] = f"its source failed: {result.error.type}: {result.error.message}"
        if len(reasons) == len(source):
            failed |= reasons
            break
        source = {name: text for name, text in source.items() if name in reasons}
    marked = [name for name, (_, mark) in data["variables"].items() if mark and name not in failed]
    failed |= _failures(await interpreter.run(cells.unpack_cell(marked)))
    names = {*inputs, *variables, *imports, *(name for name, _ in data["source"])}
    session.resumed(ResumeReport(tuple(sorted(names - failed.keys())), failed))


def _failures(result: Any) -> dict[str, str]:
    if result.error is not None:
        raise RecordingError(f"the session could not be restored: {result.error.type}: {result.error.message}")
    found = (line.partition(": ") for line in told(result.stdout))
    return {name: why for name, _, why in found}

"""From a call to its result: open a session, drive the loop, make the best of how it ended, leave nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy

from rlm_dspy import events as ev
from rlm_dspy import inputs as inputs_
from rlm_dspy import router, submit, watched
from rlm_dspy._aio import threads
from rlm_dspy.callbacks import calling
from rlm_dspy.environments.base import Environment, Session
from rlm_dspy.errors import LimitReached, PromptTooLongError, RunFailed
from rlm_dspy.kept import Kept
from rlm_dspy.ledger import spending
from rlm_dspy.loop import Ending, Loop, kept_outputs
from rlm_dspy.metering import Meter
from rlm_dspy.options import lms_of
from rlm_dspy.origin import running
from rlm_dspy.prices import fetched
from rlm_dspy.providers import diagnose, secrets
from rlm_dspy.recording import Replayed
from rlm_dspy.redact import error_text, hide
from rlm_dspy.render import one_line
from rlm_dspy.run import Run
from rlm_dspy.status import report
from rlm_dspy.streaming import Home, bridged
from rlm_dspy.trajectory import Outcome, Trajectory
from rlm_dspy.tree import lent
from rlm_dspy.window import shown_chars

_FIX = "Fix: "


async def execute(run: Run, home: Home | None) -> dspy.Prediction:
    """Drive ``run`` to its end.

    Args:
        run: Fresh, not started.
        home: Where what is streamed is consumed, see `rlm_dspy.streaming.find_home`.

    Returns:
        The outputs with ``trajectory``, ``final_reasoning``, ``outcome`` and ``usage``.

    Raises:
        LimitReached, RunFailed: No answer was submitted and the program says ``on_limit="raise"``.
        Exception: Whatever ended the run before its first turn was finished. Every exception that leaves here has the
            trajectory so far as its attribute ``trajectory``.
    """
    run.attach()
    lms = (*lms_of(dspy.settings.lm), *run.program.lms())
    await fetched(lms)
    for lm in lms:
        for secret in secrets(lm):
            hide(secret)
        if (model := getattr(lm, "model", None)) is not None:
            # Usage is reported by name alone; here the LM itself can be asked.
            run.ledger.prices.of(str(model), lm)
    meter = Meter(run.ledger, dspy.settings.usage_tracker, run)
    async with bridged(home), lent(), calling(run):
        report(run)
        with dspy.context(usage_tracker=meter), running(run), spending(None):
            try:
                return await _explaining(run, meter)
            except BaseException as error:
                if not isinstance(error, (LimitReached, RunFailed)):
                    run.events.emit(
                        ev.RunEnded(
                            outcome="failed",
                            error=_told(error),
                            usage=run.ledger.usage().to_dict(),
                            seconds=run.events.elapsed,
                        )
                    )
                    attach_trajectory(error, run)
                raise
            finally:
                run.ledger.close()


def predictors_of(program: dspy.Module) -> list[dspy.Predict]:
    """All predictors in ``program``.

    Unlike ``program.predictors()`` it does not go through histories of LM calls, which have thousands of entries, and
    finds those of compiled modules too.
    """
    return [module for module in modules_of(program) if isinstance(module, dspy.Predict)]


def modules_of(program: dspy.Module) -> list[dspy.Module]:
    """``program`` and all modules in it, those inside of other RLMs and of compiled ones too."""
    found: dict[int, dspy.Module] = {}
    todo: list[Any] = [program]
    while todo:
        module = todo.pop()
        if not isinstance(module, dspy.Module) or id(module) in found:
            continue
        found[id(module)] = module
        if not isinstance(module, dspy.Predict):
            for name, value in vars(module).items():
                if isinstance(value, dict):
                    todo += value.values()
                elif name != "history":
                    todo += value if isinstance(value, (list, tuple)) else [value]
    return list(found.values())


def attach_trajectory(error: BaseException, run: Run) -> None:
    """Give ``error`` the turns of ``run`` so far as its attribute ``trajectory``."""
    try:
        error.trajectory = Trajectory.from_events(run.events)  # type: ignore[attr-defined]
    except AttributeError:
        pass  # an exception class with __slots__ carries no more than it declares


async def _explaining(run: Run, meter: Meter) -> dspy.Prediction:
    """`_execute`, whose errors tell the fix. Here, so that a cancellation meanwhile is recorded like any other."""
    try:
        return await _execute(run, meter)
    except (LimitReached, RunFailed):
        raise
    except Exception as error:
        await explained(error, run.program.act)
        raise


async def explained(error: BaseException, predictor: Any) -> str:
    """The text of ``error``, with the fix where it is a known one of an LM; ``error`` gets that as a note too.

    Args:
        error: Why the run ended.
        predictor: Whose LM was called last.
    """
    if isinstance(error, Replayed):
        return str(error)
    if isinstance(error, PromptTooLongError):
        # It tells the fix itself.
        return _told(error)
    lm = getattr(predictor, "lm", None) or dspy.settings.lm
    # In a thread, because a local server may be asked for its models.
    fix = await threads.run(diagnose, error, lm)
    note = f"{_FIX}{fix}"
    if fix is not None and note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return _told(error)


def _told(error: BaseException) -> str:
    """The text of ``error`` with what `explained` noted on it."""
    if isinstance(error, Replayed):
        return str(error)
    notes = getattr(error, "__notes__", ())
    return "\n".join([error_text(error), *(note for note in notes if note.startswith(_FIX))])


async def _execute(run: Run, meter: Meter) -> dspy.Prediction:
    program = run.program
    run.output_chars = shown_chars(run)
    fields = run.signature.input_fields
    variables = [
        inputs_.describe(name, value, str((fields[name].json_schema_extra or {}).get("desc") or ""))
        for name, value in run.inputs.items()
    ]
    run.events.emit(
        ev.RunStarted(
            run_id=run.id,
            parent_id=run.parent.id if run.parent is not None else None,
            signature=run.signature.signature,
            variables={variable.name: variable.summary() for variable in variables},
            limits=run.limits.to_dict(),
            environment=_name(run.factory),
            **await _to_run_again(run),
        )
    )
    # A cancellation that came before this strikes here.
    await asyncio.sleep(0)
    if (answer := await router.direct(run)) is not None:
        return await _result(run, answer, Outcome("direct"), "", meter)
    loop = Loop(run, variables)
    run.session = session_of(run) if run.within is None else run.within.interpreter(run)
    try:
        ending = await loop.open() or await loop.turns()
        if ending.outputs is None:
            await loop.leftovers.look()
    finally:
        if run.within is None:
            await _closed(run)
    return await _finish(run, loop, ending, program.on_limit, meter)


async def _closed(run: Run) -> None:
    """Close the session of ``run``; cancelling stops the waiting, not the closing."""
    begun = False

    async def close() -> None:
        nonlocal begun
        begun = True
        await _close(run)

    try:
        await asyncio.shield(asyncio.ensure_future(close()))
    except asyncio.CancelledError:
        if not begun:
            # Cancelled before its first step, as by an event loop that ends: it is done here.
            await _close(run)
        raise


async def _close(run: Run) -> None:
    try:
        await watched.close_session(run.session)
    except Exception as error:
        # An interpreter of somebody else's that fails at its end must not cost the answer, nor hide an error.
        run.events.emit(ev.Note(message=f"the session did not close: {error_text(error)}"))


async def _finish(run: Run, loop: Loop, ending: Ending, on_limit: str, meter: Meter) -> dspy.Prediction:
    outputs = ending.outputs
    final_reasoning = loop.final_reasoning
    error = ending.error
    if outputs is not None:
        outcome = Outcome("submitted")
    else:
        if error is not None and not any(isinstance(event, ev.TurnEnded) for event in run.events):
            raise error
        try:
            outputs = await loop.extract()
            text = await explained(error, run.program.act) if error else None
            outcome = Outcome("extracted", limit=ending.limit, error=text)
            final_reasoning = f"extracted after {ending.limit or 'an error'}"
        except Exception as extract_error:
            text = await explained(error or extract_error, run.program.act if error else run.program.extract)
            error = error or extract_error
            outcome = Outcome("failed", limit=ending.limit, error=text)
            outputs = await loop.leftovers.best()
            if any(value is not None for value in outputs.values()):
                final_reasoning = "no answer was extracted; this is what was submitted, stored or printed last"
    prediction = await _result(run, outputs, outcome, final_reasoning, meter)
    if outcome != "submitted" and on_limit == "raise":
        if error is not None:
            limit = f"stopped at {outcome.limit}, and no answer could be extracted"
            how = "ended by an error" if ending.error else limit
            raise RunFailed(f"the run {how}: {outcome.error}", prediction, outcome.limit) from error
        raise LimitReached(
            f"the run stopped at {outcome.limit} before it submitted an answer; the best answer so far is on "
            "this exception's .prediction",
            prediction,
            outcome.limit,
        )
    return prediction


async def _result(
    run: Run, outputs: dict[str, Any], outcome: Outcome, final_reasoning: str, meter: Meter
) -> dspy.Prediction:
    """Record how the run ended, and what the caller gets of it."""
    usage = run.ledger.usage().to_dict()
    usage["by_model"] = meter.get_total_tokens()
    run.events.emit(
        ev.RunEnded(
            outcome=str(outcome),
            limit=outcome.limit,
            error=outcome.error,
            outputs={name: _shown(value) for name, value in outputs.items()},
            values=await kept_outputs(run, outputs),
            usage=usage,
            seconds=round(run.events.elapsed, 6),
        )
    )
    prediction = dspy.Prediction()
    # By key: the constructor's own parameter would swallow an output of the name "base".
    for name, value in outputs.items():
        prediction[name] = value
    prediction["trajectory"] = Trajectory.from_events(run.events)
    prediction["final_reasoning"] = final_reasoning
    prediction["outcome"] = outcome
    prediction["usage"] = usage
    return prediction


async def _to_run_again(run: Run) -> dict[str, Any]:
    """What `rlm_dspy.events.RunStarted` says besides, so that the run can be run again."""
    given = tuple(run.inputs) if run.within is None else run.within.given
    inputs: dict[str, Kept] = {}
    for name in given:
        try:
            inputs[name] = await run.events.keep(run.inputs[name], exact=True)
        except (TypeError, ValueError) as error:
            inputs[name] = Kept(why=error_text(error))
    program = run.program
    return {
        "inputs": inputs,
        "given": given,
        "outputs": {n: submit.type_text(f.annotation) for n, f in run.signature.output_fields.items()},
        "options": {
            "max_output_chars": program.max_output_chars,
            "output_chars": run.output_chars,
            "guidance": program.guidance.to_dict(),
        },
        "call": 0 if run.within is None else run.within.number,
    }


def _shown(value: Any) -> str:
    return one_line(value if isinstance(value, str) else inputs_.short_repr(value), 200)


def session_of(run: Run) -> Session:
    """One session from any factory: ours as they are, a foreign ``dspy.CodeInterpreter`` behind the same interface."""
    made = run.factory()
    if isinstance(made, Session):
        return made
    if not isinstance(made, dspy.CodeInterpreter):
        raise TypeError(f"the interpreter factory must return a dspy.CodeInterpreter, not {type(made).__name__}")
    from rlm_dspy.environments.foreign import ForeignSession

    first = [made]
    # A session that has to be restarted needs a fresh interpreter, and so the factory itself.
    place = run.factory if isinstance(run.factory, Environment) else None
    session = ForeignSession(
        lambda: first.pop() if first else run.factory(),
        timeout=None if place is None else place.timeout,
        environment=place,
    )
    # Without them a foreign SUBMIT takes one value and no keywords. Types stay ours to check.
    session.output_fields = [{"name": name} for name in run.signature.output_fields]
    return session


def _name(factory: Any) -> str:
    return str(getattr(factory, "name", None) or getattr(factory, "__name__", None) or type(factory).__name__)

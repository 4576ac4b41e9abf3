"""`replay`: the recorded actions of a run once more, in a real environment, with no language model at all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import dspy

from rlm_dspy import adhoc, engine, environments
from rlm_dspy import events as ev
from rlm_dspy._aio import run_sync
from rlm_dspy.errors import ConfigurationError, RecordingError, ReplayDiffers
from rlm_dspy.journals import Journal
from rlm_dspy.kept import digest
from rlm_dspy.recording import Recording
from rlm_dspy.render import one_line
from rlm_dspy.trajectory import Trajectory

if TYPE_CHECKING:
    from rlm_dspy.rlm import RLM
    from rlm_dspy.run import Run

_CELL = re.compile(r"<(?:session \d+ )?cell \d+>")


@dataclass(frozen=True)
class Difference:
    """What a second run gave otherwise than the first.

    Attributes:
        turn: The turn's number; 0 for the run as a whole.
        about: ``"output"``, ``"outcome"``, ``"outputs"``, ``"input NAME"``, ``"turns"``, or a host function's name.
        text: One sentence.
        recorded, replayed: What there was and what there is, where these can be shown.
    """

    turn: int
    about: str
    text: str
    recorded: str = ""
    replayed: str = ""

    def __str__(self) -> str:
        where = f"turn {self.turn}: " if self.turn else ""
        shown = f"\n  recorded: {one_line(self.recorded, 300)}\n  replayed: {one_line(self.replayed, 300)}"
        return f"{where}{self.text}{shown if self.recorded or self.replayed else ''}"


def replay(
    recorded: Trajectory | Journal | str | PathLike[str] | Iterable[ev.Event],
    program: RLM | None = None,
    *,
    on_difference: Literal["raise", "return"] = "raise",
    **inputs: Any,
) -> dspy.Prediction:
    """Run recorded actions again: their code for real, what host functions gave as it was recorded.

    No language model, tool or child is called; a child answers what it had answered. Outputs and observations are the
    same as before unless code used the time, chance, or something else from outside; then that is reported.

    Args:
        recorded: The ``trajectory`` of a prediction, its events, or a journal (`rlm_dspy.journal`) of one run.
        program: The program that was run; its environment is where the code runs. None makes one of what was recorded,
            without tools, for signatures of plain types.
        on_difference: ``"raise"``, or ``"return"`` the prediction with them.
        **inputs: Values of inputs that were too large to be recorded in memory.

    Returns:
        As the run did, with one attribute more: ``differences``, a tuple of `Difference`.

    Raises:
        ReplayDiffers: Something was different; it carries the differences and the prediction.
        RecordingError: Something that is needed was not recorded; the message says what, and the fix. Also the text of
            the error that the run ended with, where it raised one.
        ConfigurationError: `program` has another signature than the recorded one.
        TypeError: The run had no such input.
    """
    recording = Recording(_events(recorded))
    if recording.started.call:
        raise RecordingError(
            f"this is call {recording.started.call} of a session and uses what earlier calls made; "
            "resume the session from its journal: rlm.resume(folder)"
        )
    program = program if program is not None else program_of(recording.started)
    run, differences = _prepared(recording, program, inputs)
    prediction = run_sync(engine.execute(run, None))
    differences += compared(recording, run)
    prediction["differences"] = tuple(differences)
    if differences and on_difference == "raise":
        shown = "\n".join(f"- {difference}" for difference in differences[:10])
        more = f"\n- and {len(differences) - 10} more" if len(differences) > 10 else ""
        raise ReplayDiffers(f"running it again was different:\n{shown}{more}", differences, prediction)
    return prediction


def _events(recorded: Any) -> Iterable[ev.Event]:
    if isinstance(recorded, Trajectory):
        if not recorded.events:
            raise RecordingError("a part of a trajectory has no events; give the whole one")
        return recorded.events
    if isinstance(recorded, (str, PathLike)):
        recorded = Journal.read(recorded)
    if isinstance(recorded, Journal):
        runs = recorded.runs()
        if len(runs) != 1:
            raise RecordingError(
                f"this journal has {len(runs)} runs; replay one of them: replay(Journal.read(folder).runs()[0])"
            )
        return runs[0]
    events = tuple(recorded)
    if any(not isinstance(event, ev.Event) for event in events):
        raise TypeError("replay takes a trajectory, the folder of a journal, or events")
    return events


def program_of(started: ev.RunStarted) -> RLM:
    """A program as was recorded, without tools.

    Raises:
        RecordingError: Its types are known to the user's code alone.
    """
    from rlm_dspy.rlm import RLM

    text = f"{', '.join(started.variables)} -> {', '.join(f'{n}: {t}' for n, t in started.outputs.items())}"
    try:
        return RLM(
            adhoc.signature(text),
            interpreter=environments.get(started.environment),
            max_output_chars=started.options.get("max_output_chars", 10_000),
            guidance=started.options.get("guidance", True),
        )
    except (ConfigurationError, ValueError, TypeError) as error:
        raise RecordingError(
            f"no program can be made of what was recorded ({error}); pass it: replay(..., rlm)"
        ) from None


def as_recorded(program: RLM, started: ev.RunStarted) -> RLM:
    """``program`` without limits that depend on clocks and prices.

    Raises:
        ConfigurationError: It has another signature.
    """
    if program.signature.signature != started.signature:
        raise ConfigurationError(
            f"the recorded run is of the signature {started.signature!r}, the program's is "
            f"{program.signature.signature!r}"
        )
    return program.with_options(max_seconds=None, max_cost=None, max_tokens=None, on_limit="extract", verbose=False)


def _prepared(recording: Recording, program: RLM, inputs: dict[str, Any]) -> tuple[Run, list[Difference]]:
    started, differences = recording.started, []
    values: dict[str, Any] = {}
    if unknown := sorted(inputs.keys() - set(started.given)):
        known = ", ".join(started.given)
        raise TypeError(f"replay got {unknown[0]!r}, which is no input of the run; these are {known}")
    for name in started.given:
        kept = started.inputs.get(name)
        if name in inputs:
            values[name] = inputs[name]
        elif kept is None or kept.why:
            why = kept.why if kept is not None else "it was not recorded"
            raise RecordingError(f"the input {name!r} has to be given, replay(..., {name}=...): {why}")
        else:
            values[name] = kept.value()
        if kept is not None and kept.digest and digest(values[name]) != kept.digest:
            differences.append(Difference(0, f"input {name}", f"the input {name!r} is another one"))
    run = as_recorded(program, started)._run(values, None)
    run.recording, recording.run = recording, run
    return run, differences


def compared(recording: Recording, run: Run) -> list[Difference]:
    """What ``run``, which has run ``recording`` again, did otherwise."""
    again = Recording(run.events)
    found = [Difference(*difference) for difference in recording.differences]
    for number, turn in recording.turns.items():
        other = again.turns.get(number)
        if other is None:
            found.append(Difference(number, "turns", "there was no such turn any more"))
            continue
        for about, text, first, second in (
            ("output", "the code gave another output", turn.executed, other.executed),
            ("observation", "the root would be shown something else", turn.ended, other.ended),
        ):
            old, new = _shown(first), _shown(second)
            if old is not None and old != new:
                found.append(Difference(number, about, text, *_apart(old, new or "")))
                break
    if more := sorted(again.turns.keys() - recording.turns.keys()):
        found.append(Difference(more[0], "turns", "there were more turns than before"))
    old_end, new_end = recording.ended, again.ended
    if old_end is not None and new_end is not None:
        if (old_end.outcome, old_end.limit) != (new_end.outcome, new_end.limit):
            how = [f"{end.outcome} {end.limit or ''}".strip() for end in (old_end, new_end)]
            found.append(Difference(0, "outcome", "it ended in another way", *how))
        elif _outputs(old_end) != _outputs(new_end):
            found.append(Difference(0, "outputs", "the outputs are others", str(old_end.outputs), str(new_end.outputs)))
    return found


def _shown(event: Any) -> str | None:
    if event is None:
        return None
    text = event.output if isinstance(event, ev.Executed) else event.observation
    # Cells are numbered in each session anew, and sessions in a process.
    return _CELL.sub("<cell>", text)


def _apart(old: str, new: str) -> tuple[str, str]:
    """Both from shortly before the place where they part."""
    same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    start = max(0, same - 40)
    lead = "…" if start else ""
    return lead + old[start : start + 300], lead + new[start : start + 300]


def _outputs(ended: ev.RunEnded) -> Any:
    return ended.values.digest if ended.values is not None and ended.values.digest else ended.outputs

"""Tracked runs as training data: examples for optimisers, conversations for fine-tuning."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Unpack

import dspy

from rlm_dspy import events as ev
from rlm_dspy import rows
from rlm_dspy.errors import RecordingError
from rlm_dspy.traces.reading import TracedRun
from rlm_dspy.traces.store import Which, runs

logger = logging.getLogger(__name__)

Message = dict[str, str]
Missing = Literal["skip", "raise"]
_ANSWERED = ("submitted", "direct")
_KNOWN = re.compile(r"\[[\d,]+ characters, sha256 ([0-9a-f]{64})\]")
_CUT = re.compile(r"\n… \[[\d,]+ characters, sha256 [0-9a-f]{64}\] …\n")


def trainset_from_traces(
    filter: str | None = None,
    *,
    fill: Callable[[TracedRun], Mapping[str, Any]] | None = None,
    missing: Missing = "skip",
    **which: Unpack[Which],
) -> list[dspy.Example]:
    """A training set of what RLMs were asked and answered, for any DSPy optimiser or ``dspy.Evaluate``.

    Where an *expectation* was logged to the trace under the name of an output (``mlflow.log_expectation``), it takes
    the place of what the run had answered; one named ``expected_response`` takes that of an only output.

    Args:
        filter: Which traces, as MLflow writes it, such as ``"attributes.status = 'OK' AND tags.split = 'train'"``.
        fill: Gives the inputs that a trace does not have whole, by name, because they are too large for it; called with
            the run, whose ``missing`` says which, and whose ``tags`` may say where they are.
        missing: What happens where inputs or outputs are missing still: the run is left out and a warning says how many
            were, or an error is raised.
        **which: Which runs, see `rlm_dspy.traces.Which`; by default those that were submitted or answered directly.

    Returns:
        An example a run, the newest first, its inputs marked as such.

    Raises:
        RecordingError: Something is missing, if that is to be raised; or a trace is damaged.
        ConfigurationError, MissingExtraError: As for `rlm_dspy.traces.find`.
    """
    which.setdefault("outcomes", _ANSWERED)
    return list(_made(runs(filter, **which), lambda run: _example(run, fill), missing))


def sft_from_traces(
    filter: str | None = None, *, missing: Missing = "skip", failed_turns: bool = False, **which: Unpack[Which]
) -> list[dict[str, Any]]:
    """The root's conversations, as supervised fine-tuning takes them.

    A run is one row: its requests only ever grow, so the last of them and the reply to it hold all turns. Where the
    conversation was compacted it goes on as another row. Conversations of children are not included. Each message of
    the assistant has a ``weight``: 1 for a reply of this run, 0 for what stood in its prompt, such as a demonstration,
    and for a turn that failed; `rlm_dspy.rows.formed` gives the forms that trainers read.

    Args:
        filter, **which: As for `trainset_from_traces`.
        missing: What happens where the trace has a message in part only: the run is left out and a warning says how
            many were, or an error is raised. Tracking without a cap (``cap=None``) keeps all of them.
        failed_turns: Train on replies without code, and on code that ended in an error, too.

    Returns:
        Rows of ``{"messages": [{"role", "content", "weight"}, …], "start", "trace_id", "run_id", "outcome", "turns",
        "assessments"}``: ``start`` is the place of the task, behind demonstrations, and ``turns`` counts the replies
        that are trained on.

    Raises:
        RecordingError: Something is missing, if that is to be raised; or a trace is damaged.
        ConfigurationError, MissingExtraError: As for `rlm_dspy.traces.find`.
    """
    which.setdefault("outcomes", _ANSWERED)
    found = _made(runs(filter, **which), lambda run: rows_of(run, failed_turns), missing)
    return [row for made in found for row in made]


class _Incomplete(Exception):
    """The trace does not have all of it; says what is missing."""


def _made(found: Iterator[TracedRun], make: Callable[[TracedRun], Any], missing: Missing) -> Iterator[Any]:
    if missing not in ("skip", "raise"):
        raise ValueError(f"missing is 'skip' or 'raise', not {missing!r}")
    why: Counter[str] = Counter()
    for run in found:
        try:
            made = make(run)
        except _Incomplete as error:
            if missing == "raise":
                raise RecordingError(f"the trace {run.trace_id} does not have all of the run: {error}") from None
            why[str(error)] += 1
            continue
        yield made
    if why:
        told = "; ".join(f"{number} because {reason}" for reason, number in why.most_common(5))
        logger.warning("%d runs were left out: %s", sum(why.values()), told)


def _example(run: TracedRun, fill: Callable[[TracedRun], Mapping[str, Any]] | None) -> dspy.Example:
    inputs = dict(run.inputs)
    if run.missing and fill is not None:
        given = dict(fill(run))
        inputs.update({name: given[name] for name in run.missing if name in given})
    names = (*run.inputs, *run.missing)
    if lacking := sorted(name for name in names if name not in inputs):
        raise _Incomplete(f"the input {lacking[0]!r} is not in it whole; pass fill=")
    outputs = dict(run.outputs)
    wanted = _output_names(run)
    for name, assessment in run.assessments.items():
        value = getattr(assessment, "expectation", None)
        if value is not None:
            if name in wanted:
                outputs[name] = value.value
            elif name == "expected_response" and len(wanted) == 1:
                outputs[wanted[0]] = value.value
    if lacking := [name for name in wanted if name not in outputs]:
        raise _Incomplete(f"the output {lacking[0]!r} is not in it whole")
    return dspy.Example(**inputs, **outputs).with_inputs(*inputs)


def _output_names(run: TracedRun) -> list[str]:
    started, ended = run.started, run.ended
    return list((started.outputs if started is not None else None) or (ended.outputs if ended is not None else ()))


def rows_of(run: TracedRun, failed_turns: bool = False) -> list[dict[str, Any]]:
    """The rows of one run, see `sft_from_traces`."""
    wrong = set() if failed_turns else {turn.number for turn in run.trajectory if turn.error}
    requests = [rows.Request(m, reply, trained=turn not in wrong) for m, reply, turn in _requests(run)]
    return [
        {
            "messages": rows.marked(chain),
            "start": chain.start,
            "trace_id": run.trace_id,
            "run_id": run.run_id,
            "outcome": str(run.outcome),
            "turns": chain.trained,
            "assessments": {name: assessment.value for name, assessment in run.assessments.items()},
        }
        for chain in rows.chains(requests)
    ]


def _requests(run: TracedRun) -> Iterator[tuple[list[Message], str, int]]:
    """Each request of the root, the reply to it and its turn, by the spans of the LM calls that gave these replies."""
    calls = [(_messages(span.inputs), _said(span.outputs)) for span in run.spans]
    acted = [event for event in run.trajectory.events if isinstance(event, ev.Acted)]
    if not acted:
        raise _Incomplete("it was answered without a turn")
    before: list[Message] = []
    for event in acted:
        place = next((n for n, (found, said) in enumerate(calls) if found and said == event.reply), None)
        if place is None:
            raise _Incomplete("a request of the root is not in it whole; track with cap=None")
        messages = [_whole(n, message, before) for n, message in enumerate(calls[place][0] or ())]
        yield messages, event.reply, event.turn
        before, calls = messages, calls[place + 1 :]


def _messages(inputs: Any) -> list[dict[str, Any]] | None:
    found = inputs.get("messages") if isinstance(inputs, dict) else None
    if not isinstance(found, list) or not all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in found):
        return None
    return found


def _whole(number: int, message: dict[str, Any], before: list[Message]) -> Message:
    """A message as it was sent. Of one that was sent before, tracking may store the hash alone."""
    content = message["content"]
    if isinstance(content, str):
        known = _KNOWN.fullmatch(content)
        if known and number < len(before) and _sha256(before[number]["content"]) == known[1]:
            return before[number]
        if known is None and not _CUT.search(content):
            return {"role": str(message["role"]), "content": content}
    raise _Incomplete("a message of the root is not in it whole; track with cap=None")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _said(outputs: Any) -> str | None:
    """The text of a language model's reply, in the forms in which DSPy hands it to callbacks."""
    if isinstance(outputs, list):
        outputs = outputs[0] if outputs else None
    if isinstance(outputs, dict):
        outputs = outputs.get("text")
    return outputs if isinstance(outputs, str) else None

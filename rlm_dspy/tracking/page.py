"""The page of a run's trajectory as an artefact of the MLflow run that its trace is part of.

It shows what the trace has, no more: texts above the cap as head and tail, no secret, and what ``redact=`` leaves.
Where no MLflow run is under way nothing is stored, and ``rlm-dspy traces show ID --html FILE`` makes it of the trace.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlm_dspy import events as ev
from rlm_dspy import kept
from rlm_dspy.kept import Kept
from rlm_dspy.traces.reading import event_of_trace
from rlm_dspy.tracking.capped import Clip
from rlm_dspy.tracking.record import Record
from rlm_dspy.trajectory import Trajectory

logger = logging.getLogger("rlm_dspy.tracking")

MOST = 50
"""Pages of one MLflow run; as many more are for runs that failed or struck a limit, however late these come."""
LARGEST = 5_000_000
"""Characters of a page up to which it is stored."""
TAG = "rlm_dspy.page"
"""The tag of a trace that says where its page is, as an artefact URI."""


def place(record: Record, run_id: str, ended: ev.RunEnded) -> str | None:
    """The artefact that the page of the run is to be, or None where there are enough."""
    plain = ended.outcome in ("submitted", "direct")
    if record.pages >= (MOST if plain else 2 * MOST):
        return None
    record.pages += 1
    return f"trajectories/{record.pages:03d}-{ended.outcome}-{run_id[:8]}.html"


def log(record: Record, file: str, events: Sequence[ev.Event], clip: Clip) -> None:
    """Have the page made and stored, beside the program; nothing that goes wrong with it is of any consequence."""

    def work(to: Any) -> None:
        try:
            page = html(events, clip)
            if len(page) <= LARGEST:
                to.client.log_text(record.run_id, page, file)
            else:
                logger.debug("the page of a run has %s characters, and is not stored", f"{len(page):,}")
        except Exception:
            logger.debug("the page of a run could not be stored", exc_info=True)

    record.do(work)


def html(events: Iterable[ev.Event], clip: Clip) -> str:
    """The page of what a trace would have of these events."""
    return Trajectory.from_events(_stored(events, clip)).to_html()


def _stored(events: Iterable[ev.Event], clip: Clip) -> Iterable[ev.Event]:
    for event in events:
        inner: tuple[ev.Event, ...] = ()
        if isinstance(event, ev.ChildEnded):
            inner = tuple(_stored(event.events, clip))
            event = dataclasses.replace(event, events=())
        made = event_of_trace(clip.event(event.to_dict()), event.run)
        if isinstance(event, ev.RunStarted) and isinstance(made, ev.RunStarted):
            made = dataclasses.replace(made, inputs=made.inputs | dict(_short(event.inputs, clip)))
        if made is not None:
            yield dataclasses.replace(made, events=inner) if isinstance(made, ev.ChildEnded) else made


def _short(inputs: Mapping[str, Kept], clip: Clip) -> Iterator[tuple[str, Kept]]:
    """Short texts among the inputs, such as the question, which the span of the run has."""
    for name, value in inputs.items():
        if not value.why and value.size <= (clip.cap or LARGEST):
            text = value.value()
            if isinstance(text, str):
                yield name, kept.pack(clip.clean(text))

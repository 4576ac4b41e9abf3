"""What went wrong in a run, read off its events: `diagnose` gives `Finding`s, each for who can change it.

Nothing here is a guess of a language model. A finding is something that the event log shows: a turn that failed, an
input that no code read, calls that waited for one another, tokens and where they went. What the answer was worth is for
a metric to say (`rlm_dspy.optimizers.feedback`).
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rlm_dspy import events as ev
from rlm_dspy.render import brief, one_line
from rlm_dspy.trajectory import Trajectory

SERIAL = 3
"""Calls of one function in one turn, one after the other, from which on a batched call would have been better."""
WHOLE = 1.2
"""An output this many times as long as what the root was shown of it was printed for nothing."""
_REFUSED = "SUBMIT was refused"


@dataclass(frozen=True)
class Finding:
    """One thing that went wrong, or was wasted.

    Attributes:
        role: The predictor whose instructions can change it: ``"act"``, ``"sub"``, the name of a typed sub-call,
            ``"extract"`` or ``"compact"``.
        kind: A short name for counting, such as ``"error"`` or ``"unread_input"``.
        text: One sentence for a reader who sees nothing else of the run.
        turn: Of its run, from 1; None for the run as a whole.
        depth: 0 for the root, 1 for its children, and so on.
    """

    role: str
    kind: str
    text: str
    turn: int | None = None
    depth: int = 0

    def __str__(self) -> str:
        where = f"Turn {self.turn}: " if self.turn is not None else ""
        return f"{'In a child: ' if self.depth else ''}{where}{self.text}"


def diagnose(trajectory: Trajectory, *, children: bool = True) -> list[Finding]:
    """What went wrong in the run of ``trajectory``, in the order of its turns, the run as a whole last.

    Args:
        trajectory: A whole one, with its events. A plain list of turns gives what can be seen without them.
        children: Go through its children too.
    """
    events = tuple(getattr(trajectory, "events", ()) or ())
    if not events:
        events = tuple(_events_of(trajectory))
    return list(_of(events, children))


def _events_of(turns: Iterable[Any]) -> Iterator[ev.Event]:
    """The events that a list of turns without any stands for."""
    for number, turn in enumerate(turns, 1):
        output, failed = str(turn.get("output") or ""), bool(getattr(turn, "error", False))
        code = str(turn.get("code") or "")
        yield ev.Acted(turn=number, reply=code, code=code, error=None if code else output or "no code")
        if code:
            yield ev.Executed(turn=number, output=output, error=output if failed else None)


def _of(events: tuple[ev.Event, ...], children: bool) -> Iterator[Finding]:
    depth = events[0].depth if events else 0
    codes: dict[int, str] = {}
    outputs: dict[int, str] = {}
    seen_code: dict[str, int] = {}
    seen_error: dict[str, int] = {}
    returned: dict[int, Counter[str]] = {}
    at_work: dict[tuple[int, str], set[int]] = {}
    overlapped: set[tuple[int, str]] = set()
    compacted_at: int | None = None
    read_any = False
    # Tools have no batched twin.
    called = {"sub", "act", *_roles(events)}

    def found(role: str, kind: str, text: str, turn: int | None = None) -> Finding:
        return Finding(role, kind, text, turn, depth)

    for event in events:
        match event:
            case ev.Acted():
                codes[event.turn] = event.code
                if event.error is not None:
                    yield found("act", "no_code", "the reply held no code that could be run.", event.turn)
                elif (plain := "\n".join(line.strip() for line in event.code.splitlines() if line.strip())) != "":
                    if plain in seen_code:
                        earlier = seen_code[plain]
                        text = f"the code of turn {earlier} was run again, unchanged."
                        yield found("act", "repeated_code", text, event.turn)
                    seen_code.setdefault(plain, event.turn)
            case ev.CallStarted():
                place = event.turn, event.name
                if at_work.setdefault(place, set()):
                    overlapped.add(place)
                at_work[place].add(event.call)
            case ev.CallEnded():
                at_work.get((event.turn, event.name), set()).discard(event.call)
                if event.error is not None and not event.name.startswith("rlm_query"):
                    asked = f"`{event.name}` failed: {brief(event.error, 200)}"
                    refused = "CallRefused" in event.error
                    kind, role = ("refused_call", "act") if refused else ("failed_call", role_of_function(event.name))
                    yield found(role, kind, asked, event.turn)
            case ev.Returned():
                returned.setdefault(event.turn, Counter())[event.name] += 1
            case ev.Executed():
                outputs[event.turn] = event.output
                yield from (
                    Finding(f.role, f.kind, f.text, f.turn, depth) for f in _execution(event, seen_error, compacted_at)
                )
                names = _names(codes.get(event.turn, ""))
                before, read_any = read_any, read_any or bool(names & _inputs(events))
                if event.submitted and not before:
                    how = (
                        "the answer was submitted in the first turn that touched the data, before any output was seen."
                        if read_any
                        else "the answer was submitted without any code having read the inputs."
                    )
                    yield found("act", "blind_submit", how, event.turn)
                for name, count in sorted(returned.get(event.turn, {}).items()):
                    alone = (event.turn, name) not in overlapped and not name.endswith("_batched")
                    if count >= SERIAL and alone and role_of_function(name) in called:
                        text = f"{count} calls of `{name}` waited for one another; `{name}_batched` makes them at once."
                        yield found("act", "serial_calls", text, event.turn)
                if event.lost:
                    text = (
                        f"the session had to be restarted, and these variables were gone: {', '.join(event.lost[:8])}."
                    )
                    yield found("act", "lost_variables", text, event.turn)
            case ev.TurnEnded():
                output = outputs.get(event.turn, "")
                if len(output) > WHOLE * max(1, len(event.observation)):
                    text = f"{len(output):,} characters were printed, of which {len(event.observation):,} were shown."
                    yield found("act", "printed_whole", text, event.turn)
            case ev.Compacted():
                compacted_at = event.turn
            case ev.ChildEnded() if children:
                yield from _of(event.events, children)
            case ev.LimitStruck():
                text = f"the limit {event.limit} ended the run before an answer was submitted."
                yield found("act", "limit", text)
            case ev.Extracted() if event.error is not None:
                yield found("extract", "extract_failed", f"no answer could be extracted: {brief(event.error, 200)}")
            case ev.RunEnded():
                if event.error is not None:
                    yield found("act", "run_failed", f"the run ended in an error: {brief(event.error, 300)}")
                if depth == 0 and (where := _spent(event.usage)):
                    yield found("act", "budget", where)
    read = set().union(*(_names(code) for code in codes.values())) if codes else set()
    if codes and any(not isinstance(e, ev.RunEnded) or e.outcome != "direct" for e in events):
        for name in sorted(_inputs(events) - read):
            # A question is in the prompt already; it need not be read by code.
            if _large(events, name):
                yield found("act", "unread_input", f"no code ever read the input `{name}`.")


def _execution(event: ev.Executed, seen: dict[str, int], compacted_at: int | None) -> Iterator[Finding]:
    """What the end of one cell says."""
    if event.error is None:
        return
    if _REFUSED in event.error:
        why = one_line(event.error.partition(f"{_REFUSED}: ")[2] or event.error, 300)
        yield Finding("act", "wrong_submit", f"SUBMIT was refused: {why}", event.turn)
        return
    last = next((line for line in reversed(event.error.strip().splitlines()) if line.strip()), "an error")
    last = one_line(last, 300)
    if last in seen:
        text = f"the error of turn {seen[last]} again: {last}"
        yield Finding("act", "repeated_error", text, event.turn)
    elif compacted_at is not None and last.startswith("NameError"):
        text = f"a name that the summary after turn {compacted_at} did not keep was used: {last}"
        yield Finding("compact", "forgotten_name", text, event.turn)
    else:
        yield Finding("act", "error", f"the code failed: {last}", event.turn)
    seen.setdefault(last, event.turn)


def role_of_function(name: str) -> str:
    """The role of the predictor behind a function of the REPL: ``"sub"`` for ``llm_query``, else its own name."""
    plain = name.removesuffix("_batched")
    return {"llm_query": "sub", "rlm_query": "act"}.get(plain, plain)


def role_of_predictor(name: str) -> str:
    """The role of a predictor by its name in ``named_predictors()``, such as ``"rlm.sub_calls['classify']"``."""
    if found := re.search(r"sub_calls\[['\"](.+?)['\"]\]", name):
        return found[1]
    last = name.rpartition(".")[2]
    return "extract" if last == "extract_child" else last


def _names(code: str) -> set[str]:
    try:
        return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    except (SyntaxError, ValueError, RecursionError):
        # Top-level ``await`` and magics are no plain Python.
        return set(re.findall(r"[^\W\d]\w*", code))


def _started(events: tuple[ev.Event, ...]) -> ev.RunStarted | None:
    return next((event for event in events if isinstance(event, ev.RunStarted)), None)


def _inputs(events: tuple[ev.Event, ...]) -> set[str]:
    started = _started(events)
    return set(started.variables) if started is not None else set()


def _roles(events: tuple[ev.Event, ...]) -> set[str]:
    """The roles whose LM calls the run paid for."""
    ended = next((event for event in reversed(events) if isinstance(event, ev.RunEnded)), None)
    return set(ended.usage.get("by_role") or {}) if ended is not None else set()


def _large(events: tuple[ev.Event, ...], name: str) -> bool:
    started = _started(events)
    kept = started.inputs.get(name) if started is not None else None
    return kept is None or bool(kept.why) or kept.size > 500


def _spent(usage: dict[str, Any]) -> str:
    """Where the tokens went, ``""`` where there is nothing to say."""
    roles = usage.get("by_role") or {}
    tokens = {role: row.get("input_tokens", 0) + row.get("output_tokens", 0) for role, row in roles.items()}
    total = sum(tokens.values())
    if not total:
        return ""
    shares = sorted(tokens.items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{role} {count / total:.0%} in {roles[role].get('lm_calls', 0)} calls" for role, count in shares)
    return f"{total:,} tokens were used: {parts}."

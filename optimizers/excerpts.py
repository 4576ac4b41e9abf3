"""A run as a text of bounded length that a language model, or a person, can read: `excerpt`.

Plan, code, shortened outputs, what was asked of sub-LMs and what they said, children, what it cost and how it ended.
Where there is not enough room, texts are cut in their middle, and turns in the middle of the run are told in one line
each, those that failed last. Known secrets are hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlm_dspy import events as ev
from rlm_dspy.pages.parts import Call, Parts, parts_of
from rlm_dspy.redact import redact
from rlm_dspy.render import one_line, shorten
from rlm_dspy.trajectory import Trajectory, Turn

CHARS = 6_000
"""Characters of an excerpt unless told otherwise."""
_CALLS = 4
_LADDER = (
    *((2_000, 99), (1_000, 99), (500, 99), (500, 12), (500, 8), (300, 8), (500, 4), (300, 4)),
    *((200, 4), (120, 4), (120, 2), (120, 0)),
)
"""Characters of each text, and how many turns are told whole; the first that fits is taken."""


def excerpt(trajectory: Trajectory, *, chars: int = CHARS) -> str:
    """The run of ``trajectory`` in at most ``chars`` characters.

    Args:
        trajectory: With its events; a plain list of turns is shown without calls, costs and its end.
        chars: At least 400.

    Raises:
        ValueError: ``chars`` is less.
    """
    if chars < 400:
        raise ValueError(f"an excerpt takes at least 400 characters, not {chars}")
    if not isinstance(trajectory, Trajectory):
        trajectory = Trajectory(
            Turn(**{k: str(t.get(k) or "") for k in ("reasoning", "code", "output")}) for t in trajectory
        )
        for number, turn in enumerate(trajectory, 1):
            turn.number = number
    parts = parts_of(trajectory)
    text = ""
    for each, whole in _LADDER:
        text = redact(_run(parts, each, whole))
        if len(text) <= chars:
            return text
    return shorten(text, chars - 60)[:chars]


def _run(parts: Parts, each: int, whole: int, child: bool = False) -> str:
    """One run.

    Args:
        parts: What is known of it.
        each: Characters of each of its texts.
        whole: How many of its turns are told whole: the first and the last, and half as many that failed.
        child: It is told in another run.
    """
    lines = [] if child else _head(parts)
    turns = parts.trajectory
    first, last = -(-whole // 2), len(turns) - whole // 2
    middle = range(first, last)
    failed = [position for position in middle if turns[position].error][: whole // 2]
    for position, turn in enumerate(turns):
        if position in middle and position not in failed:
            lines.append(f"Turn {turn.number}: {_brief(turn)}")
        else:
            lines += _turn(turn, parts, each)
    if parts.extracted is not None:
        said = parts.extracted.error or "an answer was extracted from the turns above"
        lines.append(f"No answer was submitted; {one_line(said, 200)}")
    lines.append(_end(parts))
    return "\n".join(line for line in lines if line)


def _head(parts: Parts) -> list[str]:
    started = parts.started
    if started is None:
        return []
    question = parts.question()
    lines = [f"Task: {started.signature}{f' | {one_line(question, 300)}' if question else ''}"]
    lines.append("Inputs: " + "; ".join(f"{name}: {told}" for name, told in started.variables.items()))
    return lines


def _brief(turn: Turn) -> str:
    what = one_line(turn["reasoning"] or turn["code"] or "no code", 80)
    return f"{what}{' (failed)' if turn.error else ''}"


def _turn(turn: Turn, parts: Parts, each: int) -> list[str]:
    lines = [f"--- Turn {turn.number}{' (failed)' if turn.error else ''}, {turn.seconds:.1f} s"]
    if turn["reasoning"] and turn["reasoning"] != turn["output"]:
        lines.append(f"Plan: {shorten(turn['reasoning'].strip(), each)}")
    if turn["code"]:
        # Indented, because fences of code within fences of a prompt cannot be told apart.
        lines.append("Code:")
        lines += [f"    {line}" for line in shorten(turn["code"].strip(), each).splitlines()]
    for name, made in _by_name(parts.calls.get(turn.number, ())).items():
        lines += _called(name, made, each)
    for kid in parts.children.get(turn.number, ()):
        asked = f" asked {one_line(kid.parts.question(), 160)!r}"
        inner = _run(kid.parts, min(each, 250), 4, child=True)
        lines.append(f"Child (depth {kid.started.at_depth}){asked}:")
        lines += [f"    {line}" for line in inner.splitlines()]
    for told in parts.compacted.get(turn.number, ()):
        lines.append(f"The conversation was summed up: {shorten(told.summary, each)}" if told.summary else "")
    output = turn["output"]
    size = f" ({len(output):,} characters)" if len(output) > each else ""
    lines.append(f"Output{size}:")
    lines += [f"    {line}" for line in shorten(output.strip() or "(none)", each).splitlines()]
    return lines


def _by_name(calls: Sequence[Call]) -> dict[str, list[Call]]:
    made: dict[str, list[Call]] = {}
    for call in calls:
        if not call.name.startswith("rlm_query"):
            made.setdefault(call.name, []).append(call)
    return made


def _called(name: str, calls: list[Call], each: int) -> list[str]:
    failed = sum(call.error is not None for call in calls)
    lines = [f"Calls of {name}: {len(calls)}{f', {failed} failed' if failed else ''}"]
    # Failed ones first: they are what there is to learn from.
    shown = sorted(calls, key=lambda call: call.error is None)[:_CALLS]
    for call in shown:
        said = f"failed: {one_line(call.error, 120)}" if call.error else repr(one_line(call.answered, min(each, 160)))
        lines.append(f"    {one_line(call.asked, min(each, 200))!r} -> {said}")
    if len(calls) > len(shown):
        lines.append(f"    … {len(calls) - len(shown)} more")
    return lines


def _end(parts: Parts) -> str:
    ended = parts.ended
    if ended is None:
        return ""
    how = ended.outcome + (f" at the limit {ended.limit}" if ended.limit else "")
    how += f" ({one_line(ended.error, 300)})" if ended.error else ""
    given = "; ".join(f"{name} = {one_line(value, 300)}" for name, value in ended.outputs.items())
    return f"--- Ended: {how}, {_used(ended)}\nAnswer: {given or 'none'}"


def _used(ended: ev.RunEnded) -> str:
    usage: dict[str, Any] = ended.usage
    tokens = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
    cost = usage.get("cost")
    money = "" if cost is None else f", ${cost:.4f}"
    calls = f"{usage.get('lm_calls', 0)} LM calls, {tokens:,} tokens{money}"
    return f"{usage.get('turns', 0)} turns, {calls}, {ended.seconds:.1f} s"

"""Demonstrations out of attempts: of the root whole short runs, of sub-calls what they were asked and answered.

A demonstration only shows what happened. A run is shortened by leaving the middle out of long outputs, with a mark that
says how much is missing, and by passing over replies that had no code in them, after which nothing had changed; no
output is made up and no code is cut. It holds the question and the turns, never the contract of the run: what is
variable, function or limit is told anew by every run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlm_dspy.optimizers.attempts import Attempt
from rlm_dspy.optimizers.watching import Asked, Ran
from rlm_dspy.signatures.conversation import cut, sendable
from rlm_dspy.signatures.demonstration import reply
from rlm_dspy.signatures.guidance import Guidance
from rlm_dspy.trajectory import Turn

CHARS_A_TOKEN = 4
"""Characters that are counted as one token."""
OUTPUTS = (800, 400, 200, 100)
"""Characters of one output of a run that is shown; the first that fits is taken."""
REASONING = 400
"""Characters of a turn's reasoning that are shown."""
_FAILED = "[ERROR]"
_WORD = re.compile(r"\w+")


@dataclass
class Candidate:
    """A demonstration that may be taken.

    Attributes:
        demo: What a predictor's ``demos`` would hold.
        tokens: About how many it comes to.
        faults: Turns in it that ended in an error or were refused; a submission before any output was seen is one.
        answer: Its outputs as text; a set of demonstrations should show several.
        words: What it says, as a set; alike ones say the same.
    """

    demo: dict[str, Any]
    tokens: int
    faults: int = 0
    answer: str = ""
    words: frozenset[str] = field(default_factory=frozenset)


def candidates(
    attempts: Iterable[Attempt], max_tokens: int, guidance: Callable[[str], Guidance]
) -> dict[str, list[Candidate]]:
    """What demonstrations there could be, by the name of the predictor.

    Args:
        attempts: Those that succeeded.
        max_tokens: Of one demonstration.
        guidance: Of the student's RLM that has the predictor of a name: how its root writes replies.
    """
    found: dict[str, list[Candidate]] = {}
    for attempt in attempts:
        names = attempt.names()
        acting: dict[tuple[str, str], list[Asked]] = {}
        for one in attempt.asked:
            name = names.get(id(one.predictor))
            if name is None or one.outputs is None:
                continue
            if _acts(one):
                acting.setdefault((name, one.run), []).append(one)
            elif (made := _called(one, max_tokens)) is not None:
                found.setdefault(name, []).append(made)
        # Children share their parent's predictor; whether one of them did well nobody has said.
        top: dict[str, int] = {}
        for (name, _), asked in acting.items():
            top[name] = min(top.get(name, asked[0].depth), asked[0].depth)
        for (name, run), asked in acting.items():
            ran = attempt.ran.get(run)
            if ran is None or ran.outcome != "submitted" or ran.depth != top[name]:
                continue
            if (made := _run(str(asked[0].inputs.get("task") or ""), ran, max_tokens, guidance(name))) is not None:
                found.setdefault(name, []).append(made)
    return found


def _acts(one: Asked) -> bool:
    return getattr(one.predictor, "role", "") == "act"


def _run(task: str, ran: Ran, max_tokens: int, guidance: Guidance) -> Candidate | None:
    """A run as one demonstration, shortened until it fits; None where that cannot be."""
    # A session's later call begins in the middle of what was said.
    turns = [turn for turn in ran.trajectory if turn.code.strip()]
    if not turns or turns[-1].error:
        return None
    *before, last = turns
    for most in OUTPUTS:
        demo = {
            "task": task,
            "turns": [{"reply": _reply(turn, guidance), "output": cut(turn.shown, most)} for turn in before],
            "reasoning": cut(last.reasoning.strip(), REASONING),
            "code": last.code,
            "augmented": True,
        }
        made = _candidate(demo, [task, *(turn.code for turn in turns)])
        if made.tokens <= max_tokens:
            # What was submitted before any output was seen shows nothing of how an answer is found.
            made.faults = sum(turn.error for turn in ran.trajectory) + (not before)
            return made
    return None


def _reply(turn: Turn, guidance: Guidance) -> str:
    # In the dialect of the student, also where the teacher's reply had to be salvaged.
    return reply(cut(turn.reasoning.strip(), REASONING), turn.code.strip(), guidance)


def _called(one: Asked, max_tokens: int) -> Candidate | None:
    """What a predictor was asked and answered, as it was; None where it is too long, or is no answer."""
    assert one.outputs is not None
    outputs = dict(one.outputs)
    if any(value is None or (isinstance(value, str) and _empty(value)) for value in outputs.values()):
        return None
    # Of what ``extract`` was given only the task is shown.
    inputs = {
        n: v for n, v in one.inputs.items() if n not in ("turns", "turns_") or _role(one) not in ("extract", "compact")
    }
    made = _candidate({**inputs, **outputs, "augmented": True}, [str(value) for value in inputs.values()])
    made.answer = " ".join(str(value) for value in outputs.values()).strip().casefold()
    return made if made.tokens <= max_tokens and inputs else None


def _empty(text: str) -> bool:
    return not text.strip() or text.startswith(_FAILED)


def _role(one: Asked) -> str:
    return str(getattr(one.predictor, "role", ""))


def _sendable(value: Any) -> Any:
    """A value whose texts can be sent and saved: as a model was sent them."""
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, dict):
        return {name: _sendable(item) for name, item in value.items()}
    return [_sendable(item) for item in value] if isinstance(value, list) else value


def _candidate(demo: dict[str, Any], said: Sequence[str]) -> Candidate:
    demo = _sendable(demo)
    chars = sum(len(text) for text in _texts({n: v for n, v in demo.items() if n != "augmented"}))
    words = frozenset(word.casefold() for word in itertools.chain.from_iterable(_WORD.findall(text) for text in said))
    return Candidate(demo, -(-chars // CHARS_A_TOKEN), words=words)


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    else:
        yield value if isinstance(value, str) else str(value)


def chosen(found: Sequence[Candidate], max_demos: int, max_tokens: int) -> list[Candidate]:
    """Of ``found`` those that show most in the least space.

    The first is the shortest without a fault (`Candidate.faults`). Each other one is the one that is least like those
    before it, an answer that none of them has before one that is there already, and short before long where two are as
    good. What is said twice is taken once, and all together come to no more than ``max_tokens``.

    Args:
        found: In any order; the same choice comes of any.
        max_demos: At most.
        max_tokens: Of all of them.
    """
    # Sorted by what they say, because attempts end in any order.
    left = sorted(found, key=lambda c: (c.faults, c.tokens, c.answer, sorted(c.words), repr(c.demo)))
    taken: list[Candidate] = []
    room = max_tokens
    while len(taken) < max_demos:
        left = [c for c in left if c.tokens <= room and all(_unlike(c, t) > 0 for t in taken)]
        if not left:
            break
        best = max(left, key=lambda c: _worth(c, taken, max_tokens))
        left.remove(best)
        taken.append(best)
        room -= best.tokens
    return taken


def _worth(one: Candidate, taken: Sequence[Candidate], max_tokens: int) -> float:
    brevity = -one.tokens / max(1, max_tokens) - one.faults
    if not taken:
        return brevity
    new = bool(one.answer) and all(one.answer != other.answer for other in taken)
    return min(_unlike(one, other) for other in taken) + new + brevity / 2


def _unlike(one: Candidate, other: Candidate) -> float:
    """0 for the same words, 1 for none in common (Jaccard distance)."""
    both = one.words | other.words
    return 1 - len(one.words & other.words) / len(both) if both else 0.0

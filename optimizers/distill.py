"""Training rows out of attempts: what a strong language model did right, to fine-tune another one on it.

    attempts = collect(rlm, trainset, metric, lm=strong)
    rows = sft_rows(attempts, max_turns=8, max_cost=0.05)
    write_rows("sft.jsonl", rows, form="completion")

One run of a root is one row, a sub-call is one, a child's run is one; what is trained on in a row, and the forms that
trainers read, is told by `rlm_dspy.rows`, which `rlm_dspy.traces.sft_from_traces` uses too.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from rlm_dspy import kept
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.optimizers.attempts import Attempt
from rlm_dspy.optimizers.watching import Asked
from rlm_dspy.redact import redacted, redactor
from rlm_dspy.rows import FORMS, Chain, Form, Request, chains, formed, marked

logger = logging.getLogger(__name__)


def sft_rows(
    attempts: Iterable[Attempt],
    *,
    roles: Sequence[str] | None = None,
    min_score: float = 1.0,
    max_cost: float | None = None,
    max_turns: int | None = None,
    outcomes: Sequence[str] | None = ("submitted", "direct"),
    children: bool = True,
    failed_turns: bool = False,
    max_chars: int | None = None,
) -> list[dict[str, Any]]:
    """Rows for supervised fine-tuning, of the attempts that are good enough; what is there twice is given once.

    Args:
        attempts: Of `rlm_dspy.optimizers.collect`, or `BootstrapTrajectories.attempts`.
        roles: Names of predictors, such as ``["act"]`` for the root alone or ``["sub", "sub_calls['classify']"]`` for
            sub-calls; None for all of them together.
        min_score: Of the attempt. Sub-calls are not scored apart: they count as the attempt that they were made in.
        max_cost: US dollars of the attempt; one whose cost is unknown is then left out.
        max_turns: Of the attempt's roots.
        outcomes: How a run at the top has to have ended; None for any way.
        children: Rows of runs that code started too; only those that submitted.
        failed_turns: Train on replies without code, and on code that ended in an error, too. Otherwise they are in the
            row, with weight 0.
        max_chars: Of all messages of a row; longer ones are left out.

    Returns:
        Rows of ``{"messages": [{"role", "content", "weight"}, …], "start", "role", "depth", "run_id", "score", "cost",
        "turns", "outcome"}``: ``role`` is the predictor's name, ``turns`` counts the replies that are trained
        on.

    Raises:
        ConfigurationError: No predictor has one of the names in ``roles``.
    """
    found: list[dict[str, Any]] = []
    seen: set[bytes] = set()
    known: set[str] = set()
    left_out = 0
    for attempt in attempts:
        names = attempt.names()
        known.update(names.values())
        if not _good(attempt, min_score, max_cost, max_turns, outcomes):
            left_out += 1
            continue
        for name, depth, run, chain in _chains(attempt, names, children, failed_turns):
            if (roles is not None and name not in roles) or not chain.trained:
                continue
            if max_chars is not None and sum(len(m["content"]) for m in chain.messages) > max_chars:
                continue
            messages = marked(chain)
            digest = hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).digest()
            if digest in seen:
                continue
            seen.add(digest)
            ran = attempt.ran.get(run)
            found.append(
                {
                    "messages": messages,
                    "start": chain.start,
                    "role": name,
                    "depth": depth,
                    "run_id": run,
                    "score": attempt.score,
                    "cost": attempt.cost,
                    "turns": chain.trained,
                    "outcome": None if ran is None else str(ran.outcome),
                }
            )
    if roles is not None and known and (unknown := sorted(set(roles) - known)):
        raise ConfigurationError(f"no predictor is named {', '.join(unknown)}; there are: {', '.join(sorted(known))}")
    if left_out:
        logger.info("%d attempts were not good enough for training rows", left_out)
    return found


def _good(
    attempt: Attempt, score: float, cost: float | None, turns: int | None, outcomes: Sequence[str] | None
) -> bool:
    if attempt.error is not None or attempt.score < score:
        return False
    if cost is not None and (attempt.cost is None or attempt.cost > cost):
        return False
    if turns is not None and attempt.turns > turns:
        return False
    return outcomes is None or all(run.outcome in outcomes for run in attempt.ran.values() if run.depth == 0)


def _chains(
    attempt: Attempt, names: dict[int, str], children: bool, failed_turns: bool
) -> Iterable[tuple[str, int, str, Chain]]:
    """Predictor, depth, run and chain; the requests of a run's root in one series, every other call by itself."""
    acting: dict[tuple[str, str], list[Asked]] = {}
    for one in attempt.asked:
        name = names.get(id(one.predictor))
        if name is None or (one.depth and not children):
            continue
        ran = attempt.ran.get(one.run)
        if one.depth and (ran is None or ran.outcome not in ("submitted", "direct")):
            continue
        if getattr(one.predictor, "role", "") == "act":
            acting.setdefault((name, one.run), []).append(one)
        elif one.outputs is not None and len(one.requests) == 1:
            # What had to be asked for twice is no example of how it is answered.
            yield from ((name, one.depth, one.run, chain) for chain in chains(one.requests))
    for (name, run), asked in acting.items():
        ran = attempt.ran.get(run)
        wrong = (
            {turn.number for turn in ran.trajectory if turn.error} if ran is not None and not failed_turns else set()
        )
        for chain in chains(_with_marks(asked, wrong)):
            yield name, asked[0].depth, run, chain


def _with_marks(asked: Iterable[Asked], wrong: set[int]) -> Iterable[Request]:
    for one in sorted(asked, key=lambda a: a.turn):
        for request in one.requests[-1:]:
            trained = one.turn not in wrong
            yield Request(request.messages, request.reply, request.reasoning, trained, request.start)


def write_rows(
    path: str | PathLike[str], rows: Iterable[dict[str, Any]], *, form: Form = "weight", force: bool = False
) -> int:
    """Write rows as JSON Lines, in the form that a trainer reads (`rlm_dspy.rows`); the file is there whole or not at
    all. Secrets that are known are hidden.

    Args:
        path: The file.
        rows: Of `sft_rows` or `rlm_dspy.traces.sft_from_traces`.
        form: ``"weight"``, ``"train"``, ``"completion"``, ``"turns"`` or ``"roles"``.
        force: Replace a file that is there.

    Returns:
        How many lines were written. In some forms a row may be several, or none; how many had none is logged.

    Raises:
        ConfigurationError: There is such a file already, or no such form.
        OSError: It cannot be written.
    """
    if form not in FORMS:
        raise ConfigurationError(f"no form of rows {form!r}; there are: {', '.join(FORMS)}")
    target = Path(path)
    if target.exists() and not force:
        raise ConfigurationError(f"{target} is there already; another name, or force=True to replace it")
    hide = redactor()
    made = [formed(row, form) for row in rows]
    if none := sum(not lines for lines in made):
        logger.warning("%d rows have no form %r: a reply in them is not to be trained on", none, form)
    lines = [redacted(line, hide) for row in made for line in row]

    def content(file: Any) -> None:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")

    kept.atomically(target, content)
    return len(lines)

"""What a compile by `RLMGEPA` tried, and what came of it: `CompileResult`, as data and as a page."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from rlm_dspy.optimizers.front import svg
from rlm_dspy.optimizers.measured import Measured, costs_of
from rlm_dspy.optimizers.promotion import Promotion


@dataclass(frozen=True, kw_only=True)
class CandidateResult(Measured):
    """A candidate that was measured on the whole validation set; 0 is the student as it was given.

    Attributes:
        instructions: Of every predictor, by name.
        changed: Names of those whose instruction is not the student's.
        parents: Numbers of the candidates it was made of.
        found_after: Metric calls until it was measured, its own included.
        leaks: Predictor to labels of examples that stand in its instruction and did not in the student's.
    """

    instructions: dict[str, str]
    changed: tuple[str, ...]
    parents: tuple[int, ...]
    found_after: int
    leaks: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Proposal:
    """A proposal, tried on a few training examples.

    Attributes:
        parent: The number of the candidate that it was made of.
        texts: The new instructions, by predictor.
        before, after: Scores of parent and proposal on the same examples, summed.
        accepted: It was measured on the whole validation set.
    """

    parent: int
    texts: dict[str, str]
    before: float
    after: float
    accepted: bool


@dataclass(frozen=True)
class CompileResult:
    """What was tried.

    Attributes:
        candidates: All that were measured on the whole validation set.
        proposals: All of them, the rejected ones too.
        best: The number of the candidate with the best score; of equal ones the cheapest, then the quickest.
        front: The numbers of those that none is better than in score, cost and seconds at once. Tokens stand for the
            cost where a price is unknown.
        promotion: Whether the best took the student's place, and why.
        metric_calls: Rollouts that the search used, whether they were run or looked up in the folder.
        gate_calls: Rollouts of the gate, beyond these.
        rollouts_run: Rollouts that were run by this call of ``compile``.
        reflection_calls: Requests to the reflecting model by this call.
        stopped: Why the search ended.
        seconds: Wall time of this call.
        folder: Where it is kept, or None.
    """

    candidates: tuple[CandidateResult, ...]
    proposals: tuple[Proposal, ...]
    best: int
    front: tuple[int, ...]
    promotion: Promotion
    metric_calls: int
    gate_calls: int
    rollouts_run: int
    reflection_calls: int
    stopped: str
    seconds: float
    folder: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), indent=2)

    def to_svg(self) -> str:
        """The candidates by score and cost, with the front."""
        costs, unit = costs_of(self.candidates)
        return svg(
            [candidate.score for candidate in self.candidates],
            costs,
            self.front,
            unit=unit,
            chosen=self.best if self.promotion.promoted else 0,
            title=f"{len(self.candidates)} candidates, {self.metric_calls} metric calls",
        )

    def to_html(self) -> str:
        """A page that is whole in itself: the front, all candidates with their instructions, all attempts."""
        return _page(self)

    def _repr_html_(self) -> str:
        return f"<div>{self.to_svg()}<p>{escape(self.promotion.why)}</p></div>"

    def __str__(self) -> str:
        kept = "promoted" if self.promotion.promoted else "the student stays"
        scores = ", ".join(f"{c.number}: {c.score:.3f}" for c in self.candidates)
        return (
            f"{kept}: {self.promotion.why}; {self.metric_calls} metric calls; candidates {scores}; "
            f"the search ended: {self.stopped}"
        )


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2rem auto;padding:0 1rem;color:#1a1a1a}"
    "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ddd;padding:.3rem .5rem;text-align:left}"
    "pre{white-space:pre-wrap;background:#f5f6f8;padding:.6rem;border-radius:6px}svg{max-width:100%;height:auto}"
)


def _page(result: CompileResult) -> str:
    rows = []
    for c in result.candidates:
        cost = "unknown" if c.cost is None else f"${c.cost:.4f}"
        marks = " ".join(
            [*(["front"] if c.number in result.front else []), *(["best"] if c.number == result.best else [])]
        )
        parents = ", ".join(map(str, c.parents)) or "the student"
        told = (c.number, f"{c.score:.3f}", cost, f"{c.tokens:,.0f}", f"{c.seconds:.1f}", parents, c.found_after, marks)
        rows.append("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in told) + "</tr>")
    heads = ("", "score", "cost a run", "tokens", "seconds", "made of", "found after", "")
    head = "".join(f"<th>{name}</th>" for name in heads)
    texts = "".join(
        f"<details{' open' if c.number == result.best else ''}><summary>Candidate {c.number}: {c.score:.3f}</summary>"
        + "".join(f"<h3>{escape(name)}</h3><pre>{escape(c.instructions[name])}</pre>" for name in c.changed)
        + "".join(f"<p>Holds labels of examples: {escape(', '.join(found))}</p>" for found in c.leaks.values())
        + ("" if c.changed else "<p>The instructions of the student.</p>")
        + "</details>"
        for c in result.candidates
    )
    attempts = "".join(
        f"<details><summary>Of candidate {a.parent}: {a.before:g} -> {a.after:g}, "
        f"{'accepted' if a.accepted else 'rejected'}</summary>"
        + "".join(f"<h3>{escape(name)}</h3><pre>{escape(text)}</pre>" for name, text in a.texts.items())
        + "</details>"
        for a in result.proposals
    )
    verdict = "Promoted" if result.promotion.promoted else "Not promoted"
    biased = "" if result.promotion.held_out else " The gate used the examples that candidates were chosen by."
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Compile</title>'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{_STYLE}</style></head><body><h1>Compile</h1>"
        f"<p><b>{verdict}:</b> {escape(result.promotion.why)}.{biased}</p>{result.to_svg()}"
        f"<table><tr>{head}</tr>{''.join(rows)}</table><h2>Candidates</h2>{texts}"
        f"<h2>Attempts</h2>{attempts or '<p>None.</p>'}"
        f"<p>{result.metric_calls} metric calls, {result.gate_calls} of the gate. The search ended: "
        f"{escape(result.stopped)}.</p>"
        "</body></html>\n"
    )

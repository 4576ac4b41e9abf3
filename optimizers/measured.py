"""What something was worth on a set of examples, and what it took: `Measured`, shared by candidates and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlm_dspy.optimizers.front import pareto_front
from rlm_dspy.optimizers.rollouts import Rollout


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Figures over a set of examples.

    Attributes:
        number: Its place among those that it is compared with.
        score: Mean over the examples.
        scores: By example, in their order.
        cost: US dollars a run; None where a price is unknown.
        tokens, seconds: A run, means.
    """

    number: int
    score: float
    scores: tuple[float, ...]
    cost: float | None
    tokens: float
    seconds: float


def figures(groups: Sequence[Sequence[Rollout]]) -> dict[str, Any]:
    """The fields of `Measured`, but its number, by the rollouts of each example."""
    means = objectives([rollout for group in groups for rollout in group])
    return {
        "score": means["score"],
        "scores": tuple(objectives(group)["score"] for group in groups),
        "cost": -means["cost"] if "cost" in means else None,
        "tokens": -means["tokens"],
        "seconds": -means["seconds"],
    }


def objectives(group: Sequence[Rollout]) -> dict[str, float]:
    """The score, and what it took as negative numbers, of which more is better too; the cost where it is known."""
    costs = [rollout.cost for rollout in group]
    made = {
        "score": mean([rollout.score for rollout in group]),
        "tokens": -mean([float(rollout.tokens) for rollout in group]),
        "seconds": -mean([rollout.seconds for rollout in group]),
    }
    if None not in costs:
        made["cost"] = -mean([cost for cost in costs if cost is not None])
    return made


def costs_of(measured: Sequence[Measured]) -> tuple[list[float], str]:
    """What each took, and in which unit: dollars where all prices are known, else tokens."""
    costs = [one.cost for one in measured]
    if None in costs:
        return [one.tokens for one in measured], "tokens a run"
    return [float(cost or 0.0) for cost in costs], "US dollars a run"


def front_of(measured: Sequence[Measured]) -> tuple[int, ...]:
    """The numbers of those that none is better than in score, cost and seconds at once."""
    costs, _ = costs_of(measured)
    points = [{"score": m.score, "cost": -c, "seconds": -m.seconds} for m, c in zip(measured, costs, strict=True)]
    return tuple(measured[at].number for at in pareto_front(points))


def cheapest(measured: Sequence[Measured], within: float = 0.0) -> int:
    """The number of the one that takes least, of those whose score is within so much of the best; then the quickest."""
    costs, _ = costs_of(measured)
    least = max(one.score for one in measured) - within - 1e-9
    good = [(cost, m.seconds, m.number) for m, cost in zip(measured, costs, strict=True) if m.score >= least]
    return min(good)[-1]


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)

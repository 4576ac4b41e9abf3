"""Whether a candidate takes the student's place: a paired test on the same examples.

The scores of both on each example are subtracted. If the candidate were no better, each difference could as well have
the other sign: `paired_p` is the share of all sign patterns whose sum is at least as large as the one that was seen
(Fisher's randomisation test; R. A. Fisher, The Design of Experiments, 1935). It assumes no distribution, and with n
examples that differ it cannot go below 2 ** -n: five that all improve give 0.031.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

ALPHA = 0.1
"""Greatest p at which a candidate is promoted unless told otherwise."""
_EXACT = 16
_SAMPLES = 20_000


@dataclass(frozen=True)
class Promotion:
    """What the gate found.

    Attributes:
        promoted: The candidate takes the student's place.
        why: In one sentence.
        before, after: Mean scores of the student and of the candidate on the gate's examples.
        better, worse, equal: On how many examples the candidate was so.
        p: Of the paired test, one-sided; None where there was none.
        held_out: The examples were not those that the candidate was chosen by. If False, ``after`` is optimistic.
    """

    promoted: bool
    why: str
    before: float
    after: float
    better: int = 0
    worse: int = 0
    equal: int = 0
    p: float | None = None
    held_out: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def paired_p(differences: Sequence[float], seed: int = 0) -> float:
    """The one-sided p of a paired randomisation test that ``differences`` are larger than 0.

    Exact for up to 16 that are not 0; else from 20,000 sign patterns.

    Args:
        differences: Candidate less student, by example.
        seed: Of the patterns.

    Raises:
        ValueError: One of them is no finite number.
    """
    if not all(map(math.isfinite, differences)):
        raise ValueError("differences must be finite numbers")
    told = [value for value in differences if value]
    if not told:
        return 1.0
    # Sums of floats that should be equal may differ in the last places, in proportion to what was added.
    seen = sum(told) - 1e-12 * sum(map(abs, told))
    if len(told) <= _EXACT:
        patterns = 1 << len(told)
        hits = sum(
            sum(abs(v) if bits >> n & 1 else -abs(v) for n, v in enumerate(told)) >= seen for bits in range(patterns)
        )
        return hits / patterns
    rng = random.Random(seed)
    hits = sum(sum(v if rng.random() < 0.5 else -v for v in told) >= seen for _ in range(_SAMPLES))
    # The pattern that was seen is one of them.
    return (hits + 1) / (_SAMPLES + 1)


def decide(
    before: Sequence[float], after: Sequence[float], *, alpha: float | None, held_out: bool, seed: int = 0
) -> Promotion:
    """Whether a candidate is promoted.

    Args:
        before, after: Scores of the student and of the candidate, by example.
        alpha: Greatest p; None to ask for a better mean alone.
        held_out: See `Promotion`.
        seed: For `paired_p`.
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    means = sum(before) / len(before), sum(after) / len(after)
    counts = {
        "better": sum(d > 0 for d in differences),
        "worse": sum(d < 0 for d in differences),
        "equal": sum(d == 0 for d in differences),
    }
    p = paired_p(differences, seed)
    told = f"{means[0]:.3f} -> {means[1]:.3f} on {len(before)} examples, p = {p:.3f}"
    if means[1] <= means[0]:
        why, promoted = f"it is no better than the student ({told})", False
    elif alpha is not None and p > alpha:
        why, promoted = f"it may be better by chance ({told}, asked for at most {alpha:g}); give more examples", False
    else:
        why, promoted = f"it is better ({told})", True
    return Promotion(promoted, why, *means, **counts, p=p, held_out=held_out)

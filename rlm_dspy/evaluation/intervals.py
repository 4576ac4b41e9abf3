"""How sure a figure is: 95 % intervals of shares and of means. Standard library alone, the same figures everywhere."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

__all__ = ["bootstrap", "interval", "wilson"]

Z = 1.96
RESAMPLES = 2_000


def wilson(right: int, n: int, z: float = Z) -> tuple[float, float]:
    """The Wilson score interval of a proportion (Wilson, JASA 22, 1927), as shares of 1; 0 to 1 where n is 0."""
    if n == 0:
        return 0.0, 1.0
    share = right / n
    middle = share + z * z / (2 * n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = (middle - reach) / (1 + z * z / n), (middle + reach) / (1 + z * z / n)
    # At the ends the formula gives the end itself, but for rounding.
    return (0.0 if right == 0 else max(0.0, low)), (1.0 if right == n else min(1.0, high))


def bootstrap(scores: Sequence[float], resamples: int = RESAMPLES) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean (Efron and Tibshirani 1993, chapter 13).

    The draws are the same each time. Equal scores have no spread to draw from; of n of them in [0, 1] the interval is
    that of Wilson, scaled to the side where the others could lie. Of others nobody knows where: it is their mean.
    """
    n = len(scores)
    if n == 0:
        return 0.0, 1.0
    first = scores[0]
    if all(score == first for score in scores):
        if not 0 <= first <= 1:
            return first, first
        reach_down, reach_up = 1 - wilson(n, n)[0], wilson(0, n)[1]
        return first * (1 - reach_down), first + (1 - first) * reach_up
    draw = random.Random(20_260_101).random
    means = sorted(sum(scores[int(draw() * n)] for _ in range(n)) / n for _ in range(resamples))
    return means[int(0.025 * resamples)], means[min(resamples - 1, int(0.975 * resamples))]


def interval(scores: Sequence[float]) -> tuple[float, float, str]:
    """The 95 % interval of the mean of ``scores``, and its name: ``"wilson"`` where all are 0 or 1, else
    ``"bootstrap"``."""
    if all(score in (0, 1) for score in scores):
        return (*wilson(sum(score == 1 for score in scores), len(scores)), "wilson")
    return (*bootstrap(scores), "bootstrap")

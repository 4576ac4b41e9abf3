"""`evaluating`: what DSPy's evaluation does to long runs, turned off for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rlm_dspy import _compat


@contextlib.contextmanager
def evaluating() -> Iterator[None]:
    """Evaluate and compile RLMs without starting slow runs a second time.

    ``dspy.Evaluate``, and so every optimiser that scores programs, starts an example again once it has run for 120
    seconds and at most three are left, takes whichever ends first, and lets the other one go on. Runs of an RLM live
    longer than that. Inside, an example is run once however long it takes; ``max_seconds`` of the program is what
    bounds it. A timeout that was set to anything but DSPy's default, as in ``dspy.Parallel(timeout=30)``, stays.

    It holds for evaluations begun in this context: those of other threads, tasks and of the caller's own later code are
    not touched. Nothing else changes, and nothing is cached or merged: rollouts of one example stay apart, because an
    RLM hands the ``rollout_id`` of its root's LM on to sub-calls.

    Example:
        >>> with evaluating():  # doctest: +SKIP
        ...     compiled = dspy.GEPA(metric=metric, auto="light", reflection_lm=lm).compile(rlm, trainset=trainset)
    """
    with _compat.without_stragglers():
        yield

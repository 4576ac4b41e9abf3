"""LM requests that no run of an RLM accounts for: those of plain modules beside it, of optimisers, of judges."""

from __future__ import annotations

from typing import Any

from dspy.utils.usage_tracker import UsageTracker

from rlm_dspy import origin
from rlm_dspy.tracking.record import Record
from rlm_dspy.usage import STAND_IN


class Outside(UsageTracker):
    """Stands in for DSPy's usage tracker during one LM request, and passes everything on to it.

    Args:
        record: Is told of the request.
        lm: The LM that is asked.
        outer: The tracker in whose place it is, or None.
    """

    def __init__(self, record: Record, lm: Any, outer: UsageTracker | None) -> None:
        super().__init__()
        self._record = record
        self._lm = lm
        self._outer = outer

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        """One request of the model ``lm``; what a run of an RLM inside of it takes is in the account of that run."""
        if self._outer is not None:
            self._outer.add_usage(lm, usage_entry)
        if origin.current() is None and not lm.startswith(STAND_IN):
            self._record.requested(lm, self._lm, dict(usage_entry or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> Outside:
        return self

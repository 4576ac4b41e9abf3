"""What a tree of runs may use: `Limits`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from rlm_dspy.errors import ConfigurationError

_WHOLE = {
    "max_iters": (1, False),
    "max_concurrency": (1, False),
    "max_children": (1, False),
    "max_depth": (1, False),
    "max_llm_calls": (0, True),
    "max_errors": (1, True),
    "max_tokens": (1, True),
    "sub_max_tokens": (1, True),
}
"""The limits that are whole numbers: the least value, and whether None (no limit) is one."""

_POSITIVE = {"max_seconds": True, "max_cost": True, "extract_seconds": False}
"""The limits that are positive numbers, and whether None is one."""


@dataclass(frozen=True)
class Limits:
    """What one run and all that it starts may use. None means no limit.

    Turns and consecutive errors are each run's own. All else holds over the whole tree: what a child uses counts for
    its parent, and a child never has more left than its parent.

    Attributes:
        max_iters: Turns.
        max_llm_calls: LM calls made by code: each ``llm_query`` and typed sub-call, each prompt of a batch, the LM
            calls of sub-agents, and every LM call of a child, its root's included. The root's own calls are counted as
            turns instead.
        max_tokens: Input and output tokens of all LM calls, the root's included, as the LMs report them.
        max_cost: US dollars of all LM calls.
        max_seconds: Wall time of the turns. ``extract`` has `extract_seconds` beyond it.
        max_errors: Consecutive turns that end in an error.
        max_concurrency: LM calls in flight at once in the whole tree; more are queued.
        max_depth: Levels of RLMs: 1 is the root alone, 2 lets it start children, and so on.
        max_children: Children that run at once at each depth of the tree; more are queued.
        sub_max_tokens: Output tokens of one sub-call.
        extract_seconds: Wall time that ``extract`` may take once a limit has struck.
    """

    max_iters: int = 20
    max_llm_calls: int | None = 50
    max_tokens: int | None = None
    max_cost: float | None = None
    max_seconds: float | None = None
    max_errors: int | None = None
    max_concurrency: int = 32
    max_depth: int = 1
    max_children: int = 16
    sub_max_tokens: int | None = None
    extract_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name, (least, optional) in _WHOLE.items():
            value = getattr(self, name)
            if optional and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                none = ", or None" if optional else ""
                raise ConfigurationError(f"{name} must be a whole number of at least {least}{none}, not {value!r}")
        for name, optional in _POSITIVE.items():
            value = getattr(self, name)
            if optional and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) or not value > 0:
                unit = "of US dollars" if name == "max_cost" else "of seconds"
                raise ConfigurationError(f"{name} must be a positive number {unit}, not {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in the order of the fields."""
        return asdict(self)

    @classmethod
    def names(cls) -> frozenset[str]:
        """The names of all limits."""
        return frozenset(f.name for f in fields(cls))

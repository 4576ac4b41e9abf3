"""`Job`: a root's signature with those of its sub-calls, a scorer and an example; and what scorers share."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dspy

Metric = Callable[..., float]
_ROUND = " \t\n.,:;!?\"'`()[]{}“”‘’"


@dataclass(frozen=True)
class Job:
    """One common job.

    Attributes:
        name: Such as ``"citations"``.
        signature: What the root is asked; its docstring is the task.
        sub_calls: What its code may ask a sub-LM: the name of a function to a signature.
        score: A DSPy metric for it, 0.0 to 1.0.
        example: One small example with its gold, which ``score`` can score.
    """

    name: str
    signature: type[dspy.Signature]
    sub_calls: Mapping[str, type[dspy.Signature]]
    score: Metric
    example: dspy.Example = field(repr=False)

    def program(self) -> dict[str, Any]:
        """The arguments that make an RLM of it: ``RLM(**job.program(), max_cost=0.50)``."""
        return {"signature": self.signature, "sub_calls": dict(self.sub_calls)}


def metric(score: Callable[[Any, Any], float]) -> Metric:
    """``score(example, prediction)`` as a DSPy metric that gives 0.0 for whatever it cannot read."""

    @functools.wraps(score)
    def scored(
        example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> float:
        try:
            return min(1.0, max(0.0, float(score(example, prediction))))
        except Exception:  # a prediction may hold anything, its own methods failing included
            return 0.0

    return scored


def value(holder: Any, name: str) -> Any:
    """The field ``name`` of a prediction, an example, a model or a mapping; None where it has none."""
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def normalised(text: Any) -> str:
    """A text as it is compared: NFKC, case folded, runs of whitespace made one, without punctuation round it.

    Raises:
        TypeError: It is neither text nor number.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise TypeError(f"not a text: {text!r:.100}")
    return " ".join(unicodedata.normalize("NFKC", str(text)).casefold().split()).strip(_ROUND)


def spaced(text: str) -> str:
    """``text`` with every run of whitespace as one space: quotes may break their lines elsewhere."""
    return " ".join(text.split())


def covered(wanted: Any, given: set[Any]) -> float:
    """The share of ``wanted`` that is in ``given``; 1.0 where nothing is wanted."""
    asked = set(wanted or ())
    return len(asked & given) / len(asked) if asked else 1.0

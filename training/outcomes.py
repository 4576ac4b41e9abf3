"""One call of the program: what came of it, and whose fault it was where nothing did.

What a policy gets wrong (no code, broken code, no answer, a limit, a sandbox that its code killed) is its result, and
is scored. What is no doing of it (an endpoint that fails, a sandbox that does not start, a wrong configuration) is
raised, so that the rollout counts for nothing: as a zero it would teach something that is not so.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dspy
import pydantic_core
from dspy.utils.exceptions import AdapterParseError

from rlm_dspy.errors import CallRefused, LimitReached, PromptTooLongError, RunFailed
from rlm_dspy.redact import error_text
from rlm_dspy.training.endpoint import Switchboard
from rlm_dspy.training.programs import called
from rlm_dspy.window import overflowed

__all__ = ["Result", "play"]

SUBMITTED = ("submitted", "direct")


@dataclass
class Result:
    """What one call came to.

    Attributes:
        outputs: By name, as JSON has them; empty where there are none.
        outcome: As of `rlm_dspy.Outcome`; ``"answered"`` of a program that is no RLM.
        limit, error: What ended it, or None.
        usage: As ``prediction.usage`` has it.
    """

    outputs: dict[str, Any] = field(default_factory=dict)
    outcome: str = "failed"
    limit: str | None = None
    error: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def formed(self) -> bool:
        """The program itself gave an answer of the types that were asked for."""
        return self.outcome in (*SUBMITTED, "answered")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the trace."""
        return {
            "prediction": self.outputs,
            "outcome": self.outcome,
            "formed": self.formed,
            "limit": self.limit,
            "error": self.error,
            "usage": self.usage,
        }


async def play(
    program: dspy.Module, inputs: Mapping[str, Any], board: Switchboard, stopped: Callable[[], str | None]
) -> Result:
    """Call ``program`` once, and stop it at once where the rollout has become void.

    Args:
        program: On its seats, under the settings of the rollout.
        inputs: Of the task.
        board: Of the rollout.
        stopped: Why the root's seat takes no more requests, or None.

    Raises:
        EndpointFailed: The endpoint did.
        Exception: Anything else that is no fault of the policy.
    """
    run = asyncio.ensure_future(called(program, inputs))
    try:
        await asyncio.wait({run, board.failure}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not run.done():
            # Its sandbox is closed before this is over.
            run.cancel()
            await asyncio.wait({run})
        if board.failure.done() and not run.cancelled():
            run.exception()
    if board.failure.done():
        raise board.failure.result()
    try:
        return _of(run.result(), program)
    except LimitReached as reached:
        return _of(reached.prediction, program)
    except RunFailed as failed:
        if failed.limit is None and stopped() is None and not _of_the_policy(failed.__cause__):
            raise (failed.__cause__ or failed) from failed
        result = _of(failed.prediction, program)
        result.limit = result.limit or stopped()
        return result
    except Exception as error:
        if stopped() is None and not _of_the_policy(error):
            raise
        return Result(limit=stopped(), error=error_text(error))


def _of_the_policy(error: BaseException | None) -> bool:
    if isinstance(error, PromptTooLongError):
        return False  # no policy could have answered
    policy = (AdapterParseError, CallRefused, dspy.CodeExecutionError)
    return isinstance(error, policy) or (error is not None and overflowed(error))


def _of(prediction: Any, program: dspy.Module) -> Result:
    signature = getattr(program, "signature", None)
    ours = {"trajectory", "final_reasoning", "outcome", "usage"}
    names = list(signature.output_fields) if signature is not None else [n for n in prediction.keys() if n not in ours]
    outcome = prediction.get("outcome")
    usage = prediction.get("usage") if isinstance(prediction.get("usage"), dict) else {}
    return Result(
        outputs={name: plain(prediction.get(name)) for name in names},
        outcome="answered" if outcome is None else str(outcome),
        limit=getattr(outcome, "limit", None),
        error=getattr(outcome, "error", None),
        usage={name: plain(value) for name, value in usage.items() if name not in ("table", "by_model")},
    )


def plain(value: Any) -> Any:
    """``value`` as JSON has it; what JSON has no word for becomes text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        return pydantic_core.to_jsonable_python(value, fallback=str, inf_nan_mode="strings")
    except Exception:  # whatever a value's own methods do
        return None

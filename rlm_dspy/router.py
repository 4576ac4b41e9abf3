"""The router: inputs that fit are answered by one direct call, without a sandbox and without turns.

On short inputs an RLM takes more calls and is no better: in the paper (arXiv 2512.24601, figure 1) it is ahead of a
plain call from 2**14 tokens on. ``RLM(direct_below=N)`` lets the predictor ``direct``, of the task's own signature,
answer what is below N tokens. Where it gives no answer, the RLM runs as if it had never been asked.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import math
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dspy
import pydantic
from dspy.utils.exceptions import AdapterParseError, LMError, LMInvalidRequestError, LMUnexpectedError

from rlm_dspy import events as ev
from rlm_dspy.calls import spend
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.redact import error_text
from rlm_dspy.render import one_line
from rlm_dspy.run import Stopped
from rlm_dspy.signatures.predictor import RolePredict
from rlm_dspy.tools import PREDICT_NAMES

if TYPE_CHECKING:
    from rlm_dspy.rlm import RLM
    from rlm_dspy.run import Run

BYTES_A_TOKEN = 4
"""UTF-8 bytes that a token is taken for: four characters of English, one or two of Chinese."""

_SCALARS = (
    *(bool, float, complex, type(None), datetime.date, datetime.time, datetime.timedelta),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID, enum.Enum),
)


def check(direct_below: Any) -> None:
    """Refuse what is no number of tokens.

    Raises:
        ConfigurationError: It is neither None nor a whole number of at least 1.
    """
    if direct_below is not None and (
        isinstance(direct_below, bool) or not isinstance(direct_below, int) or direct_below < 1
    ):
        raise ConfigurationError(
            f"direct_below must be a whole number of tokens of at least 1, or None, not {direct_below!r}"
        )


def equip(program: RLM) -> None:
    """Give ``program`` the predictor ``direct`` where ``direct_below`` is set, and take it away where it is not."""
    check(program.direct_below)
    if program.direct_below is None:
        program.__dict__.pop("direct", None)
    elif "direct" not in vars(program):
        program.direct = RolePredict(program.signature, role="direct")


async def direct(run: Run) -> dict[str, Any] | None:
    """The outputs of one direct call, or None where the RLM is to run.

    It is to run where the option is not set, the inputs are too large or not plain data, the program has tools, as a
    direct call has none, it is a call of a session, or an input has a name that predictors take for themselves. It is
    also to run where the call gave nothing: the reply cannot be read, the request was refused or too long for the LM's
    window, a limit struck. A note in the event log then says why.

    Raises:
        Exception: The LM failed in a way that it would again: wrong key, not reached, still busy after retries.
    """
    program = run.program
    if program.direct_below is None:
        return None
    if run.recording is not None:
        return run.recording.direct()
    tokens = size(run.inputs, program.direct_below)
    # A call of a session has more to answer from than its inputs.
    if run.tools or run.within is not None or tokens >= program.direct_below or PREDICT_NAMES & run.inputs.keys():
        return None
    demos, demo_tokens = _demos(program.direct, program.direct_below)
    adapter, chars = _single(dspy.settings.adapter), int((tokens + demo_tokens) * BYTES_A_TOKEN)
    inputs = {**run.inputs, "demos": demos} if demos is not None else run.inputs
    try:
        work = spend(run, "direct", program.direct, adapter, run.root_lm, chars=chars, counted=True, inputs=inputs)
        prediction = await run.bounded(work)
        return {name: prediction[name] for name in run.signature.output_fields}
    except Stopped as stopped:
        why = stopped.limit
    except AdapterParseError as error:
        why = f"its reply cannot be read: {one_line(str(error.lm_response), 200)}"
    except LMError as error:
        if not isinstance(error, (LMInvalidRequestError, LMUnexpectedError)):
            raise
        why = error_text(error)
    except Exception as error:
        # Of an adapter or module of the user's own. The RLM needs neither.
        why = error_text(error)
    run.events.emit(ev.Note(message=f"no direct answer, the turns begin: {why}"))
    return None


def _demos(predictor: Any, most: int) -> tuple[list[dict[str, Any]] | None, float]:
    """The demonstrations of a direct call that together stay below ``most`` tokens, and how many tokens they are.

    Raw examples among them may hold inputs of any size. None where the module takes none.
    """
    if not isinstance(predictor, RolePredict):
        return None, 0.0
    kept, total = [], 0.0
    for demo in predictor.fitting_demos():
        total += (tokens := size(demo, most))
        if total >= most:
            total -= tokens
            continue
        kept.append(demo)
    return kept, total


def _single(adapter: dspy.Adapter | None) -> dspy.Adapter:
    """``adapter`` without its second call in another form."""
    if adapter is None:
        return dspy.ChatAdapter(use_json_adapter_fallback=False)
    if getattr(adapter, "use_json_adapter_fallback", False):
        adapter = copy.copy(adapter)
        adapter.use_json_adapter_fallback = False
    return adapter


def size(inputs: Mapping[str, Any], limit: int) -> float:
    """About how many tokens ``inputs`` are in a prompt; once it is above ``limit`` it may be any number above it.

    Text counts as it is and other plain data as Python writes it, without writing it. What would not be in the prompt
    as a whole, such as a data frame, is infinitely large.
    """
    left = limit * BYTES_A_TOKEN
    total, todo = 0, list(inputs.values())
    while todo and total <= left:
        value = todo.pop()
        total += 2
        if isinstance(value, str):
            total += len(value) if len(value) > left or value.isascii() else len(value.encode("utf-8", "replace"))
        elif isinstance(value, int) and not isinstance(value, (bool, enum.Enum)):
            total += value.bit_length() // 3 + 1
        elif isinstance(value, _SCALARS):
            total += 10
        elif isinstance(value, Mapping):
            total += 4 * len(value)
            if total <= left:
                todo += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            total += 2 * len(value)
            if total <= left:
                todo += value
        elif isinstance(value, pydantic.BaseModel):
            todo += [*value.__dict__, *value.__dict__.values()]
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            todo += [part for f in dataclasses.fields(value) for part in (f.name, getattr(value, f.name, None))]
        else:
            return math.inf
    return total / BYTES_A_TOKEN


def tokens(text: str) -> int:
    """About how many tokens ``text`` is."""
    return (len(text) if text.isascii() else len(text.encode("utf-8", "replace"))) // BYTES_A_TOKEN

"""Whose fault it is that a program gave no answer: its own, which is worth 0, or that of what it runs on.

A wrong answer, no answer in the time or turns that there were, a reply that cannot be read, a context that does not fit
the window: all of these say something about the program. A provider that is down, a wrong key or a sandbox that does
not start do not: such a run is kept apart, counted nowhere, and made again when the job is taken up again.
"""

from __future__ import annotations

from typing import Any

import dspy
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import AdapterParseError, ContextWindowExceededError, LMInvalidRequestError

from rlm_dspy.errors import CallRefused, ConfigurationError, LocalModelError, RunStopped, SandboxUnavailableError
from rlm_dspy.providers.failures import chain, failure_of, is_of_an_lm, was_filtered
from rlm_dspy.redact import error_text

__all__ = ["FailedRequests", "infrastructure", "overflow"]

_KEPT = 50
_PLACE = (SandboxUnavailableError, ConfigurationError, LocalModelError, OSError, MemoryError, ImportError)


def overflow(error: BaseException) -> bool:
    """Whether a prompt was too long for the LM's window."""
    if any(isinstance(one, ContextWindowExceededError) for one in chain(error)):
        return True
    failure = failure_of(error)
    return failure is not None and failure.kind == "context"


def infrastructure(error: BaseException) -> bool:
    """Whether ``error``, which ended a call of a program, is none of the program's doing."""
    if overflow(error) or was_filtered(error):
        return False
    errors = list(chain(error))
    for one in errors:
        if isinstance(one, (AdapterParseError, CallRefused, dspy.CodeExecutionError)):
            return False
        if isinstance(one, RunStopped):
            continue
        if is_of_an_lm(one):
            # A request that is malformed in itself is what the program asked; those of a kind (keys, models) are not.
            return not (type(one) is LMInvalidRequestError and failure_of(error) is None)
        if isinstance(one, (dspy.CodeInterpreterError, *_PLACE)):
            return True
    return failure_of(error) is not None


class FailedRequests(BaseCallback):
    """A DSPy callback that keeps what LM requests of one call of a program failed with.

    A run that ends by an error and still gives a prediction has only the text of that error; `caused` finds the error.

    Attributes:
        count: How many failed for reasons that are none of the program's, retries not counted.
    """

    def __init__(self) -> None:
        self.count = 0
        self._errors: list[BaseException] = []

    def on_lm_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        """See ``BaseCallback``."""
        if exception is not None:
            self.count += infrastructure(exception)
            self._errors = [*self._errors[1 - _KEPT :], exception]

    def caused(self, text: str | None) -> bool:
        """Whether ``text``, the error that a prediction's outcome tells, is that of infrastructure."""
        if not text:
            return False
        if text.startswith(("SandboxUnavailableError", "CodeInterpreterError", "ConfigurationError", "OSError")):
            return True
        return any(
            infrastructure(error) and text.startswith(error_text(one)[:160])
            for error in self._errors
            for one in chain(error)
        )

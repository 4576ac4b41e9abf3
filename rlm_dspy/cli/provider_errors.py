"""The fix for an error of a language model's provider, where it is known."""

from __future__ import annotations

import contextlib
from typing import Any

from dspy.utils.callback import BaseCallback


class LastError(BaseCallback):
    """A DSPy callback that remembers the last request that failed, and which LM made it."""

    def __init__(self) -> None:
        self._calls: dict[str, Any] = {}
        self._error: BaseException | None = None
        self._lm: Any = None

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """See ``BaseCallback``."""
        self._calls[call_id] = instance

    def on_lm_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        """See ``BaseCallback``."""
        instance = self._calls.pop(call_id, None)
        if exception is not None:
            self._error, self._lm = exception, instance

    def fix(self, error: BaseException | None = None) -> str | None:
        """One sentence that says what to do about ``error``, or about the last request that failed; or None.

        Args:
            error: What ended the run, if it is known; the error of the request may be its cause.
        """
        for one in (error, self._error):
            if one is None:
                continue
            # An explanation that fails must not take the place of the error itself.
            with contextlib.suppress(Exception):
                from rlm_dspy import providers

                if found := providers.diagnose(one, self._lm):
                    return found
        return None

"""The root's context window: how many tokens it has, how many the next request will take, and when it was too long.

The window is never guessed from a model's name: it is what the user says, what the LM says of itself, what is published
for the model, or unknown. Unknown, nothing is done until a request is refused as too long.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import dspy

from rlm_dspy import _compat
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.providers.failures import chain, failure_of

if TYPE_CHECKING:
    from rlm_dspy.ledger import Ledger
    from rlm_dspy.run import Run

OUTPUT_TOKENS = 4_096
"""Tokens of a reply, where its LM sets no limit."""
CHARS_A_TOKEN = 4.0
MOST_CHARS_A_TOKEN = 6.0
"""No text of more than a few words has more characters in a token."""
LEAST_WINDOW = 256
LEAST_OUTPUT = 500
"""Characters of an output that are shown in the smallest window."""


def check_options(compaction: Any, context_window: Any) -> None:
    """Refuse values of the options ``compaction`` and ``context_window`` that make no sense.

    Raises:
        ConfigurationError: One of them; the message says what it takes.
    """
    share = isinstance(compaction, float) and 0.1 <= compaction <= 0.95
    if not isinstance(compaction, bool) and not share:
        raise ConfigurationError(
            "compaction must be True, False, or the share of the context window at which the conversation is "
            f"summarised, from 0.1 to 0.95, not {compaction!r}"
        )
    whole = isinstance(context_window, int) and not isinstance(context_window, bool)
    if context_window is not None and not (whole and context_window >= LEAST_WINDOW):
        raise ConfigurationError(
            f"context_window must be a whole number of tokens, at least {LEAST_WINDOW}, or None, not {context_window!r}"
        )


def own_window(lm: Any, given: int | None = None) -> int | None:
    """Tokens of prompt and reply that ``lm`` takes as the user (``given``) or the LM itself says, or None.

    Args:
        lm: One that knows has them in its attribute ``context_window``, as those of `rlm_dspy.models.local_lm` do.
        given: Goes before it.
    """
    if given is not None:
        return given
    own = getattr(lm, "context_window", None)
    return own if isinstance(own, int) and not isinstance(own, bool) and own > 0 else None


def window_of(lm: Any, given: int | None = None) -> int | None:
    """As `own_window`; where that says nothing and a provider is called, what is published for its model."""
    known = own_window(lm, given)
    if known is not None or not _compat.has_provider(lm):
        return known
    return _published(str(lm.model))


@functools.lru_cache(maxsize=256)
def _published(model: str) -> int | None:
    found = _compat.model_facts(model).get("max_input_tokens")
    return int(found) if isinstance(found, (int, float)) and not isinstance(found, bool) and found > 0 else None


def given_window(run: Run) -> int | None:
    """The option ``context_window``, where it is about the LM that plays the root of ``run``.

    It is about the LM of the program's own root; a child that another LM plays has that one's window.
    """
    own = run.generation == 0 or run.root_lm is None
    return run.program.context_window if own else None


def root_lm(run: Run) -> Any:
    """The LM that plays the root of ``run``."""
    return run.root_lm or getattr(run.program.act, "lm", None) or dspy.settings.lm


def shown_chars(run: Run) -> int:
    """Characters of one output that the root of ``run`` is shown; of a recorded run, as many as it was shown."""
    most = run.program.max_output_chars
    if run.recording is not None:
        recorded = run.recording.started.options.get("output_chars")
        return min(most, recorded) if isinstance(recorded, int) else most
    return output_chars(most, own_window(root_lm(run), given_window(run)))


def room_for_output(lm: Any, window: int) -> int:
    """Tokens of ``window`` that are kept free for a reply: its limit, and a quarter of the window at most."""
    settings = getattr(lm, "kwargs", None) or {}
    limits = (settings.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"))
    limit = next((most for most in limits if isinstance(most, int) and most > 0), OUTPUT_TOKENS)
    return min(limit, window // 4)


def output_chars(most: int, window: int | None) -> int:
    """Characters of one output that are shown: ``most``, but no more than fill about a quarter of ``window``."""
    return most if window is None else min(most, max(LEAST_OUTPUT, int(window * CHARS_A_TOKEN / 4)))


def overflowed(error: BaseException) -> bool:
    """Whether ``error`` says that a request was longer than the LM's context window, whatever library raised it."""
    if any(type(one).__name__ == "ContextWindowExceededError" for one in chain(error)):
        return True
    failure = failure_of(error)
    return failure is not None and failure.kind == "context"


class Gauge:
    """How many tokens so many characters are, as the root's requests so far have shown.

    Args:
        ledger: Of the run; it has what was reported.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ratio = 1 / CHARS_A_TOKEN
        self._chars = 0
        self._seen = (0, 0)

    def asking(self, chars: int) -> None:
        """The root is being asked with ``chars`` characters."""
        self._chars = chars

    def measure(self) -> None:
        """Learn from what the last request was reported to have used. Answers from a cache report nothing."""
        calls = tokens = 0
        for key, tally in self._ledger.usage().table.items():
            if key.role == "act" and key.depth == self._ledger.depth:
                calls, tokens = calls + tally.calls, tokens + tally.input_tokens
        more_calls, more_tokens = calls - self._seen[0], tokens - self._seen[1]
        self._seen = calls, tokens
        if more_calls > 0 and more_tokens > 0 and self._chars > 0:
            self._ratio = min(1.5, max(1 / MOST_CHARS_A_TOKEN, more_tokens / more_calls / self._chars))

    def tokens(self, chars: int) -> int:
        """Tokens of a request of ``chars`` characters."""
        return int(chars * self._ratio) + 1

    def chars(self, tokens: float) -> int:
        """Characters that fit into ``tokens``."""
        return max(0, int(tokens / self._ratio))

"""Every exception the project raises on purpose, in one tree.

    dspy.DSPyError
    └── RLMError                      anything raised by rlm_dspy on purpose
        ├── ConfigurationError        the program is set up wrongly; also a ValueError
        │   └── MissingExtraError     an optional dependency is not installed; also an ImportError
        ├── LocalModelError           a model of this machine cannot be fetched or served
        ├── SandboxUnavailableError   the environment cannot start as asked on this machine
        ├── PromptTooLongError        a run's first message fits into no window; also DSPy's ContextWindowExceededError
        ├── CallFailed                a host function failed; raised into the code that called it
        ├── CallRefused               a limit leaves no room for the call that code asked for
        ├── RecordingError            a recorded run cannot be read, or not be run again; also a ValueError
        │   └── ReplayDiffers         running it again gave something else; ``.differences`` says what
        ├── SessionError              a session is busy or closed, or an input was never given
        ├── ValueTooLargeError        a value does not fit the channel's cap; also a ValueError
        └── RunStopped                a run ended without SUBMIT and ``on_limit="raise"`` was asked for
            ├── LimitReached          a limit struck; ``.limit`` names it
            ├── RunFailed             an error ended the run; ``.__cause__`` is that error
            └── ReplyFailed           an RLM that stands in for an LM has no reply; also a dspy LMError

Errors of the code that runs in a sandbox are DSPy's own, so that our interpreters fit DSPy's modules:
``dspy.CodeExecutionError`` is the code's fault and the session lives on, ``dspy.CodeInterpreterError`` means that
the session is over. Importing this module does not import DSPy's heavy parts; it is the leaf of the project.
"""

from __future__ import annotations

from typing import Any

from dspy.utils.exceptions import ContextWindowExceededError, DSPyError, LMError


class RLMError(DSPyError):
    """Base class of the project's own exceptions."""


class ConfigurationError(RLMError, ValueError):
    """The program was put together wrongly; the message names the fix."""


class MissingExtraError(ConfigurationError, ImportError):
    """An optional dependency is missing.

    Args:
        feature: What needs it, in the user's words, such as ``"the docker environment"``.
        extra: The extra that brings it, such as ``"docker"``.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional dependency. Install it with: pip install 'rlm-dspy[{extra}]'")
        self.feature = feature
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.feature, self.extra)


class SandboxUnavailableError(RLMError, RuntimeError):
    """The environment cannot be opened as asked on this machine; the message says which layer is missing."""


class PromptTooLongError(RLMError, ContextWindowExceededError):
    """What a run has to tell its root before the first turn is longer than the LM's context window.

    The message says what is in it and how to make it shorter.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message=message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self),)


class LocalModelError(RLMError, RuntimeError):
    """A model cannot be fetched, verified or served on this machine; the message says what to do."""


class CallFailed(RLMError, RuntimeError):
    """A host function failed; the text is the redacted ``Type: message`` of what went wrong."""


class CallRefused(RLMError, RuntimeError):
    """A limit leaves no room for an LM call; nothing was spent. Raised into the code that asked for it.

    Attributes:
        limit: The name of the limit, such as ``"max_llm_calls"``.
    """

    def __init__(self, message: str, limit: str = "max_llm_calls") -> None:
        super().__init__(message)
        self.limit = limit

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.limit)


class ValueTooLargeError(RLMError, ValueError):
    """A value is larger than the channel between host and sandbox carries; the message names the option."""


class RecordingError(RLMError, ValueError):
    """A recorded run cannot be read, or holds too little to be run again; the message says what is missing."""


class ReplayDiffers(RecordingError):
    """Running recorded actions again gave something else than was recorded.

    Attributes:
        differences: One `rlm_dspy.Difference` each, in order.
        prediction: What the second run returned.
    """

    def __init__(self, message: str, differences: Any = (), prediction: Any = None) -> None:
        super().__init__(message)
        self.differences = tuple(differences)
        self.prediction = prediction

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.differences, self.prediction)


class SessionError(RLMError, RuntimeError):
    """A session cannot take this call: it is busy or closed, or an input was never given; the message says which."""


class RunStopped(RLMError, RuntimeError):
    """A run ended without a submitted answer, and ``on_limit="raise"`` was asked for.

    Attributes:
        prediction: The ``dspy.Prediction`` the run would have returned: the best answer that ``extract`` could make
            (fields are None where it could not), ``outcome``, ``trajectory``, ``usage``.
        limit: The name of the limit that struck, or None.
    """

    def __init__(self, message: str, prediction: Any = None, limit: str | None = None) -> None:
        super().__init__(message)
        self.prediction = prediction
        self.limit = limit

    @property
    def trajectory(self) -> Any:
        """The turns up to the stop, as on the prediction."""
        return getattr(self.prediction, "trajectory", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.prediction, self.limit)


class LimitReached(RunStopped):
    """A limit struck; ``.limit`` names it, ``.prediction`` holds the best answer."""


class RunFailed(RunStopped):
    """An error ended the run; ``__cause__`` is that error, ``.prediction`` holds what there is."""


class ReplyFailed(RunStopped, LMError):
    """A request to an LM made by ``rlm.as_lm()`` has no reply, because the run behind it ended without an answer.

    Also an ``LMError``, so that programs deal with it as with any other failure of their LM; DSPy does not try again.
    """

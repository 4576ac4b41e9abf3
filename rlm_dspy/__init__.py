"""Recursive Language Models as a declarative DSPy module.

    from rlm_dspy import RLM

    rlm = RLM("context, query -> answer: str")
    pred = rlm(context=open("huge.txt").read(), query="Which clauses changed?")
    pred.answer, pred.outcome, pred.trajectory, pred.usage

Everything public is an attribute of this module or of one of its rooms, and is imported when first used:

    rlm_dspy.signatures     what language models are told
    rlm_dspy.environments   where code runs
    rlm_dspy.testing        scripted language models for tests
    rlm_dspy.tasks          tasks with known answers over contexts of any size
    rlm_dspy.models         a language model on this machine
    rlm_dspy.providers      key variables of providers, and the fix for their errors
    rlm_dspy.events         what happens in a run
    rlm_dspy.tracking       runs as MLflow traces
    rlm_dspy.traces         what MLflow has of runs, read back
    rlm_dspy.evaluation     programs measured and compared, and run on every row of a file
    rlm_dspy.optimizers     a program improved by its prompts
    rlm_dspy.presets        what was learned for a model, as files
    rlm_dspy.training       a program improved by its weights
    rlm_dspy.errors         the exception tree
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlm_dspy import (
        environments,
        errors,
        evaluation,
        events,
        models,
        optimizers,
        presets,
        providers,
        signatures,
        tasks,
        testing,
        traces,
        tracking,
        training,
    )
    from rlm_dspy.callbacks import Callbacks
    from rlm_dspy.completions import acompletion, completion
    from rlm_dspy.errors import (
        CallFailed,
        CallRefused,
        ConfigurationError,
        LimitReached,
        MissingExtraError,
        RecordingError,
        ReplayDiffers,
        ReplyFailed,
        RLMError,
        RunFailed,
        RunStopped,
        SandboxUnavailableError,
        SessionError,
        ValueTooLargeError,
    )
    from rlm_dspy.events import Event, subscribe
    from rlm_dspy.journals import Journal, journal
    from rlm_dspy.limits import Limits
    from rlm_dspy.models import local_lm
    from rlm_dspy.prices import Price
    from rlm_dspy.replaying import Difference, replay
    from rlm_dspy.rlm import RLM
    from rlm_dspy.run import Run
    from rlm_dspy.sessions import RLMSession
    from rlm_dspy.signatures.guidance import Guidance
    from rlm_dspy.status import listeners
    from rlm_dspy.trajectory import ChildRun, Outcome, Trajectory, Turn

__version__ = "0.1.0"

_HOMES = {
    "RLM": "rlm_dspy.rlm",
    "Run": "rlm_dspy.run",
    "Callbacks": "rlm_dspy.callbacks",
    "listeners": "rlm_dspy.status",
    "Limits": "rlm_dspy.limits",
    "Event": "rlm_dspy.events",
    "Difference": "rlm_dspy.replaying",
    "Journal": "rlm_dspy.journals",
    "RLMSession": "rlm_dspy.sessions",
    "RecordingError": "rlm_dspy.errors",
    "ReplayDiffers": "rlm_dspy.errors",
    "SessionError": "rlm_dspy.errors",
    "journal": "rlm_dspy.journals",
    "replay": "rlm_dspy.replaying",
    "Guidance": "rlm_dspy.signatures.guidance",
    "local_lm": "rlm_dspy.models",
    "subscribe": "rlm_dspy.events",
    "Price": "rlm_dspy.prices",
    "Outcome": "rlm_dspy.trajectory",
    "acompletion": "rlm_dspy.completions",
    "completion": "rlm_dspy.completions",
    "Trajectory": "rlm_dspy.trajectory",
    "Turn": "rlm_dspy.trajectory",
    "ChildRun": "rlm_dspy.trajectory",
    "CallFailed": "rlm_dspy.errors",
    "CallRefused": "rlm_dspy.errors",
    "ReplyFailed": "rlm_dspy.errors",
    "ConfigurationError": "rlm_dspy.errors",
    "LimitReached": "rlm_dspy.errors",
    "MissingExtraError": "rlm_dspy.errors",
    "RLMError": "rlm_dspy.errors",
    "RunFailed": "rlm_dspy.errors",
    "RunStopped": "rlm_dspy.errors",
    "SandboxUnavailableError": "rlm_dspy.errors",
    "ValueTooLargeError": "rlm_dspy.errors",
}
_MODULES = (
    "environments",
    "errors",
    "evaluation",
    "events",
    "models",
    "optimizers",
    "presets",
    "providers",
    "signatures",
    "tasks",
    "testing",
    "traces",
    "tracking",
    "training",
)

# Written out, because type checkers and editors read no expressions; tests/test_layout.py keeps it equal to the above.
__all__ = [
    "RLM",
    "CallFailed",
    "CallRefused",
    "Callbacks",
    "ChildRun",
    "ConfigurationError",
    "Difference",
    "Event",
    "Guidance",
    "Journal",
    "LimitReached",
    "Limits",
    "MissingExtraError",
    "Outcome",
    "Price",
    "RLMError",
    "RLMSession",
    "RecordingError",
    "ReplayDiffers",
    "ReplyFailed",
    "Run",
    "RunFailed",
    "RunStopped",
    "SandboxUnavailableError",
    "SessionError",
    "Trajectory",
    "Turn",
    "ValueTooLargeError",
    "__version__",
    "acompletion",
    "completion",
    "environments",
    "errors",
    "evaluation",
    "events",
    "journal",
    "listeners",
    "local_lm",
    "models",
    "optimizers",
    "presets",
    "providers",
    "replay",
    "signatures",
    "subscribe",
    "tasks",
    "testing",
    "traces",
    "tracking",
    "training",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"rlm_dspy.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

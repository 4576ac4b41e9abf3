"""Improving an RLM by its weights: the same program as a verifiers environment, for `prime-rl` and `vf-eval`.

    endpoint.py        the LM of a seat: requests go to the rollout's endpoint, which records them
    programs.py        the program that is trained, and putting it on the seats of a rollout
    hiding.py          the task's source, hidden from the model's code
    outcomes.py        one call of it: what came of it, and whose fault it was where nothing did
    harness.py         the harness of verifiers: a rollout is one call of the program
    seats.py           how seats lend their endpoints to the program
    env.py             the environment of verifiers, with the seats of root, sub-calls and children
    collecting.py      garbage collection that does not stop the rollouts
    cases.py           what a task gives the program, made again from a few numbers wherever it is needed
    factory.py         families of tasks as task sets, all from one factory: rewards, metrics
    samples.py         good rollouts as rows to fine-tune on
    sequences.py       rows and rollouts as tokens, and which of them are learned
    sft.py, grpo.py    fine-tuning, and reinforcement, on one GPU or the CPU; commands
    updates.py         one update of a policy by what it sampled
    local_model.py     a model of transformers: loading it, LoRA, saving it
    sampling.py        replies of such a model, many at once, with their probabilities
    serve.py           such a model as an OpenAI-compatible server; a command
    provider.py        DSPy's way to fine-tune, by these means
    tiny.py            a model of random weights, made here, to try all this on
    oolong.py          the published OOLONG data as a task set
    oolong_scores.py   its official scores, and strict ones
    tasksets/          the modules that verifiers finds by their names
    configs/           files for prime-rl and vf-eval; README.md says how to start them

A rollout has seats, each with a model, sampling, limits, a weight and a switch of its own: ``agent`` is the root,
``sub`` answers the sub-calls, ``child`` plays the roots of children where that is asked for. What is trained is what
runs: the messages that the endpoint sees are those of an ordinary call, byte for byte, and a root's turns are one
growing conversation, so that they are one training sample.

This needs ``pip install 'rlm-dspy[train]'``, for which nothing is imported before one of the names is used. What trains
on this machine needs ``pip install 'rlm-dspy[trl]'`` too.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if __name__ != "rlm_dspy.training":
    raise ImportError(
        "this folder is the package rlm_dspy.training and cannot be imported as "
        f"{__name__!r}: install the project first (pip install -e .) and import rlm_dspy.training"
    )

if TYPE_CHECKING:
    from rlm_dspy.training.cases import Case, CaseData, InputsData
    from rlm_dspy.training.env import RLMEnv, RLMEnvConfig
    from rlm_dspy.training.factory import CaseTask, taskset
    from rlm_dspy.training.harness import RLMHarness, RLMHarnessConfig

__all__ = [
    "Case",
    "CaseData",
    "CaseTask",
    "InputsData",
    "RLMEnv",
    "RLMEnvConfig",
    "RLMHarness",
    "RLMHarnessConfig",
    "taskset",
]

_HOMES = {
    "Case": "cases",
    "CaseData": "cases",
    "CaseTask": "factory",
    "InputsData": "cases",
    "RLMEnv": "env",
    "RLMEnvConfig": "env",
    "RLMHarness": "harness",
    "RLMHarnessConfig": "harness",
    "taskset": "factory",
}


def __getattr__(name: str) -> Any:
    """Names of this room, each imported when it is first used.

    Raises:
        MissingExtraError: verifiers is not installed.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need()
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def need() -> None:
    """Say what to install where verifiers, or what comes with it, is missing.

    Raises:
        MissingExtraError: It is.
    """
    for module in ("verifiers", "aiohttp"):
        if importlib.util.find_spec(module) is None:
            from rlm_dspy.errors import MissingExtraError

            raise MissingExtraError("training", "train")

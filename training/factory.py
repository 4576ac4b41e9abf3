"""Families of tasks as task sets of verifiers, all from one factory, and how their answers are scored.

A task set of one's own is a `CaseTask` with data that says what its case is (`rlm_dspy.training.cases.CaseData`), in
a package that exports it together with `RLMHarness` and `RLMEnv`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dspy
import verifiers.v1 as vf
from pydantic import Field

from rlm_dspy import tasks
from rlm_dspy._aio import threads
from rlm_dspy.training.cases import Case, FamilyData, case_of
from rlm_dspy.training.harness import INFO

__all__ = ["CaseTask", "FamilyConfig", "FamilyTask", "FamilyTaskset", "figures", "taskset"]


class CaseTask(vf.Task):
    """A task whose answer is judged by its case.

    The reward is ``correct``. ``format`` is a reward of no weight, to be given one in a configuration:
    ``[env.taskset.task.rewards.format]`` with ``weight = 0.1``.
    """

    def judge(self, case: Case, prediction: dspy.Prediction) -> float:
        """How right a prediction is, 0.0 to 1.0. By default by the metric of the family of the example."""
        return tasks.score(case.example, prediction)

    @vf.reward(weight=1.0)
    async def correct(self, trace: Any) -> float:
        """How right the answer is; what was answered at a limit counts as well."""
        told = trace.info.get(INFO) or {}
        prediction = dspy.Prediction()
        for name, value in (told.get("prediction") or {}).items():
            prediction[name] = value
        case = await case_of(self.data)
        return float(await threads.run(self.judge, case, prediction))

    @vf.reward(weight=0.0)
    async def format(self, trace: Any) -> float:
        """1.0 where the program itself submitted an answer of the right types."""
        return float(bool((trace.info.get(INFO) or {}).get("formed")))

    @vf.metric
    async def rlm(self, trace: Any) -> dict[str, float]:
        """Turns, errors, cost, and who did the work; see `figures`."""
        return figures(trace.info.get(INFO) or {})


def figures(told: dict[str, Any]) -> dict[str, float]:
    """The metrics of one rollout.

    Args:
        told: What the harness said in ``trace.info["rlm"]``.

    Returns:
        ``turns`` and ``sandbox_errors`` of all roots of the tree, ``children``; ``sub_calls`` and ``sub_width`` (most
        at once); for each seat ``<seat>/calls``, ``<seat>/input_tokens``, ``<seat>/output_tokens``; ``delegated``, the
        share of all tokens that were not the agent's; ``cost`` in US dollars, only where the price is known.
    """
    usage, seats = told.get("usage") or {}, told.get("seats") or {}
    found = {
        "turns": usage.get("turns", 0),
        "sandbox_errors": usage.get("errors", 0),
        "children": usage.get("children", 0),
        "sub_calls": (seats.get("sub") or {}).get("calls", 0),
        "sub_width": (seats.get("sub") or {}).get("width", 0),
    }
    tokens = dict.fromkeys(seats, 0)
    for name, seat in seats.items():
        for what in ("calls", "input_tokens", "output_tokens"):
            found[f"{name}/{what}"] = seat[what]
        tokens[name] = seat["input_tokens"] + seat["output_tokens"]
    total = sum(tokens.values())
    found["delegated"] = (total - tokens.get("agent", 0)) / total if total else 0.0
    if usage.get("cost") is not None and usage.get("lm_calls"):
        found["cost"] = usage["cost"]
    return {name: float(value) for name, value in found.items()}


class FamilyTask(CaseTask, vf.Task[FamilyData]):
    """An example of a family of `rlm_dspy.tasks`."""


class FamilyConfig(vf.TasksetConfig):
    """Which examples: the same that ``rlm_dspy.tasks.generate(num_tasks, tokens, seed, family, kinds)`` makes.

    Attributes:
        family: Of `rlm_dspy.tasks`; the task set of one family has it already.
        num_tasks: How many.
        tokens: Size of each context, four characters a token.
        seed: Take another one to evaluate than to train.
        kinds: Kinds of questions; all of the family if None.
    """

    family: str = ""
    num_tasks: int = Field(100, ge=1)
    tokens: int = Field(4_000, ge=1_000)
    seed: int = 0
    kinds: list[str] | None = None


class FamilyTaskset(vf.Taskset[FamilyTask, FamilyConfig]):
    """The examples of one family, each made where it is needed."""

    FAMILY: str = ""

    def load(self) -> Iterable[FamilyTask]:
        """The tasks, without their contexts."""
        config = self.config
        family = config.family or self.FAMILY
        # A wrong argument is told here, once, and not by every rollout.
        tasks.generate(0, config.tokens, config.seed, family, config.kinds)
        for number in range(config.num_tasks):
            name = f"{family} {number} (seed {config.seed}, {config.tokens} tokens)"
            data = FamilyData(
                prompt=name,
                name=name,
                family=family,
                number=number,
                seed=config.seed,
                tokens=config.tokens,
                kinds=config.kinds,
            )
            yield FamilyTask(data, config.task)


def taskset(family: str) -> type[FamilyTaskset]:
    """The task set of a family, as a class for a module that verifiers is to find.

    Args:
        family: Of ``rlm_dspy.tasks.families()``.

    Raises:
        ConfigurationError: There is no such family; the message lists them.
    """
    tasks.get(family)
    name = "".join(part.title() for part in family.split("_")) + "Taskset"
    about = {"FAMILY": family, "__module__": f"rlm_dspy_{family}", "__doc__": f"Tasks of the family {family!r}."}
    return type(name, (FamilyTaskset,), about)

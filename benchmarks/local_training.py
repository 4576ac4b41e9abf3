"""Whether reinforcement learns here: a tiny model, the real harness, several seeds, on the CPU.

    python -m benchmarks.local_training             # the setting below, seeds 0 to 3
    python -m benchmarks.local_training --write     # and keep it in local_training.json

A model of random weights is tuned until it says six programs about as often: all six look up numbers in a text, by a
right or a wrong pattern, and submit one, two or all of what they found. Which of them are good it is not told, and no
answer is in them. Then rollouts are played by verifiers, what the model writes runs in the confined sandbox, the family
of the tasks scores the answers (the share of the numbers that are right), and the weights are changed. Printed are the
mean rewards of all steps of every seed.

It needs ``pip install 'rlm-dspy[train,trl]'`` and about a minute a seed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dspy

from rlm_dspy import RLM, tasks
from rlm_dspy.testing import ScriptedLM

KEPT = Path(__file__).parent / "local_training.json"
FAMILY, KINDS, TOKENS = "haystack", ["multi_value"], 1_000
TASKS, TASK_SEED = 4, 3
T95 = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t of 95 per cent, by degrees of freedom."""
OPTIONS: dict[str, Any] = {"guidance": False, "max_iters": 1}
SILENT = {"enable_thinking": False}
PARTS = (
    ("```python\nimport re\nSUBMIT(answer=re.findall(query",),
    ("[-9:-1]", "[:-1]"),
    (' + r" is (\\d+)", context)[:',),
    ("1", "2", "9"),
    ("])\n```",),
)
PROGRAMS = tuple("".join(parts) for parts in itertools.product(*PARTS))
"""The third finds all, the first two some, and the others nothing, because the whole question stands nowhere."""


@dataclass(frozen=True)
class Setting:
    """Of the reinforcement. Chosen on seeds 100 and 101, which are not among those that are reported, from three: with
    groups of 8 a learning rate of 3e-4 was slow and one of 1e-3 rose, but often unlearned the form of a reply.
    """

    steps: int = 16
    group: int = 16
    learning_rate: float = 6e-4


@dataclass
class Seed:
    """What came of one.

    Attributes:
        rewards: Of the steps, each the mean of its group.
        gap: Largest difference between the trainer's and the sampler's logarithms of a token's probability.
        seconds: Processor time of this process, with the tuning.
    """

    seed: int
    rewards: list[float] = field(default_factory=list)
    gap: float = 0.0
    seconds: float = 0.0

    @property
    def first(self) -> float:
        """Mean of the first steps: one of each task."""
        return statistics.fmean(self.rewards[:TASKS])

    @property
    def last(self) -> float:
        """Of the last steps, as many."""
        return statistics.fmean(self.rewards[-TASKS:])


def torn(folder: Path, seed: int) -> Path:
    """A model that says each of the `PROGRAMS` about as often, whatever the task of this kind.

    Args:
        folder: Where to; it is in ``tuned`` there.
        seed: Of its first weights and of the order of rows.
    """
    from rlm_dspy.training.sft import sft
    from rlm_dspy.training.tiny import make_tiny_model

    rows: list[dict[str, Any]] = []
    for example in tasks.generate(TASKS, TOKENS, TASK_SEED, FAMILY, KINDS):
        lm = ScriptedLM(lambda call: PROGRAMS[0])
        with dspy.context(lm=lm):
            RLM(example.signature, **OPTIONS)(**example.inputs())
        asked = lm.calls[0].messages
        rows += [{"prompt": asked, "completion": [{"role": "assistant", "content": one}]} for one in PROGRAMS]
    # What is chosen between shall be tokens of their own.
    texts = [message["content"] for row in rows for message in row["prompt"]]
    texts += [part for parts in PARTS for part in parts] * len(rows)
    make_tiny_model(folder / "fresh", texts, vocabulary=2_500, hidden=128, lines=True, seed=seed)
    options: dict[str, Any] = {"learning_rate": 5e-3, "batch": 6, "accumulate": 1, "template": SILENT}
    quiet = {"logging_strategy": "no"}
    sft(rows, folder / "fresh", folder / "tuned", steps=80, seed=seed, trainer_options=quiet, **options)
    return folder / "tuned"


def env() -> dict[str, Any]:
    """The environment: these tasks, played in the confined sandbox."""
    subset = {"id": f"rlm-dspy-{FAMILY}", "num_tasks": TASKS, "tokens": TOKENS, "seed": TASK_SEED, "kinds": KINDS}
    return {"taskset": subset, "agent": {"harness": {"environment": "local", "options": OPTIONS}}}


def reinforced(model: Path, out: Path, seed: int, setting: Setting) -> Seed:
    """Train it."""
    from rlm_dspy.training.grpo import grpo

    done = grpo(
        env(),
        model,
        out,
        steps=setting.steps,
        tasks=1,
        group=setting.group,
        learning_rate=setting.learning_rate,
        max_tokens=24,
        renderer={"name": "qwen3", **SILENT},
        seed=seed,
        device="cpu",
    )
    return Seed(seed, done.rewards, gap=max(step.update.gap for step in done.steps))


def learned(seed: int, folder: Path, setting: Setting) -> Seed:
    """One seed, from its first weights on. Its processor time is counted.

    Args:
        folder: Where to work, empty.
    """
    started = time.process_time()
    found = reinforced(torn(folder, seed), folder / "out", seed, setting)
    found.seconds = round(time.process_time() - started, 1)
    return found


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and the ends of its interval of 95 per cent by Student's t."""
    mean = statistics.fmean(values)
    half = T95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def shown(seed: Seed) -> str:
    """One line."""
    rewards = " ".join(f"{reward:.2f}" for reward in seed.rewards)
    return (
        f"seed {seed.seed}: {rewards}   first {seed.first:.2f}, last {seed.last:.2f}   "
        f"gap {seed.gap:.0e}   {seed.seconds:.0f} s"
    )


def summary(seeds: Sequence[Seed]) -> dict[str, tuple[float, float, float]]:
    """Mean and interval over the seeds, of the first and last steps' rewards and of their difference."""
    columns = {
        "first": [seed.first for seed in seeds],
        "last": [seed.last for seed in seeds],
        "rise": [seed.last - seed.first for seed in seeds],
    }
    return {name: interval(values) for name, values in columns.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line a seed, then the means."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local_training", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", default="0,1,2,3", help="at least two, at most ten (0,1,2,3)")
    parser.add_argument("--write", action="store_true", help=f"keep it in {KEPT.name}")
    given = parser.parse_args(arguments)
    import torch

    # What is drawn is the same again, but for rounding; on several threads that is not.
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    setting, found = Setting(), []
    for seed in map(int, given.seeds.split(",")):
        with tempfile.TemporaryDirectory() as name:
            found.append(learned(seed, Path(name), setting))
        print(shown(found[-1]), flush=True)
    means = summary(found)
    for name, (mean, low, high) in means.items():
        print(f"{name:5}: mean {mean:.2f}, 95 % interval {low:.2f} to {high:.2f}")
    print(f"it rose in {sum(seed.last > seed.first for seed in found)} of {len(found)} seeds")
    if given.write:
        kept = {"setting": asdict(setting), "means": means, "seeds": [asdict(seed) for seed in found]}
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Whether reinforcement learns here: a tiny model, the real harness, several seeds, on the CPU.

    python -m benchmarks.local_training --seeds 3

A model of random weights is tuned until it answers one task rightly and wrongly as often. Then rollouts are played by
verifiers, code runs in a sandbox, the family of the task judges, and the weights are changed. Printed are the mean
rewards of all steps. It needs ``pip install 'rlm-dspy[train,trl]'`` and about a minute a seed.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import dspy

from rlm_dspy import RLM, tasks
from rlm_dspy.testing import ScriptedLM, code

SUBSET = {"id": "rlm-dspy-needles", "num_tasks": 1, "tokens": 1_000, "seed": 3, "kinds": ["count"]}
OPTIONS: dict[str, Any] = {"guidance": False, "max_iters": 1}
SILENT = {"enable_thinking": False}


def torn(folder: Path, seed: int) -> Path:
    """A model that says the right answer of the task and a wrong one as often."""
    from rlm_dspy.training.sft import sft
    from rlm_dspy.training.tiny import make_tiny_model

    example = tasks.example(0, 1_000, 3, "needles", ["count"])
    right, wrong = (code(f"SUBMIT(answer={example.answer + more})") for more in (0, 1))
    lm = ScriptedLM(lambda call: right)
    with dspy.context(lm=lm):
        RLM(example.signature, interpreter="subprocess", **OPTIONS)(**example.inputs())
    asked = lm.calls[0].messages
    rows = [{"prompt": asked, "completion": [{"role": "assistant", "content": reply}]} for reply in (right, wrong)]
    texts = [message["content"] for row in rows for message in row["prompt"] + row["completion"]]
    make_tiny_model(folder / "fresh", texts, seed=seed)
    quiet = {"logging_strategy": "no"}
    options: dict[str, Any] = {"learning_rate": 1e-2, "batch": 2, "accumulate": 1, "template": SILENT}
    sft(rows, folder / "fresh", folder / "tuned", steps=70, seed=seed, trainer_options=quiet, **options)
    return folder / "tuned"


def learned(seed: int, steps: int, group: int, rate: float) -> tuple[list[float], float]:
    """Mean rewards of the steps of one seed, and the largest gap between trainer and sampler."""
    from rlm_dspy.training.grpo import grpo

    env = {"taskset": SUBSET, "agent": {"harness": {"environment": "subprocess", "options": OPTIONS}}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        renderer = {"name": "qwen3", **SILENT}
        options: dict[str, Any] = {"steps": steps, "tasks": 1, "group": group, "renderer": renderer, "seed": seed}
        done = grpo(env, torn(folder, seed), folder / "out", learning_rate=rate, max_tokens=24, **options)
    return done.rewards, max(step.update.gap for step in done.steps)


def main() -> None:
    """Print one line a seed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local_training", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    given = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    logging.getLogger("dspy").setLevel(logging.ERROR)
    firsts, lasts = [], []
    for seed in range(given.seeds):
        started = time.perf_counter()
        rewards, gap = learned(seed, given.steps, given.group, given.learning_rate)
        firsts.append(statistics.fmean(rewards[:2]))
        lasts.append(statistics.fmean(rewards[-3:]))
        shown = " ".join(f"{reward:.2f}" for reward in rewards)
        print(f"seed {seed}: {shown}   gap {gap:.0e}   {time.perf_counter() - started:.0f} s", flush=True)
    first, last = statistics.fmean(firsts), statistics.fmean(lasts)
    print(f"mean reward of the first two steps {first:.2f}, of the last three {last:.2f}")


if __name__ == "__main__":
    main()

"""GRPO without a cluster: rollouts through the harness, updates of the same weights, on one GPU or the CPU.

    python -m rlm_dspy.training.grpo vf_eval.toml --model tuned --out better --steps 100 --renderer qwen3

One process holds one model. In each step it plays a group of rollouts of some tasks each, by verifiers, as prime-rl
does: the same environment, seats, rewards and renderers, described by the ``[env]`` table of a file for ``vf-eval``.
The model itself answers (`rlm_dspy.training.serve`), so that nothing has to be copied to a server. Then the weights are
changed once, by what each seat that is trained has said; root, sub-calls and children are compared with their own kind.

This needs ``pip install 'rlm-dspy[train,trl]'``. For more than one GPU, and for models whose rollouts want vLLM, take
prime-rl (training/README.md).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Several
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from rlm_dspy._aio import run_sync
from rlm_dspy.errors import ConfigurationError, RLMError
from rlm_dspy.training import need
from rlm_dspy.training.local_model import LocalModel, Lora, load, need_torch, new_folder
from rlm_dspy.training.sequences import Sequence, of_trace
from rlm_dspy.training.serve import Server
from rlm_dspy.training.updates import Update, advantages, update

__all__ = ["Learned", "Step", "grpo", "learnable", "main"]

LOG = "steps.jsonl"
REFUSALS = 3
"""Steps in a row whose gradient is no number, before training ends."""
NO_KEY = "RLM_DSPY_NO_KEY"


@dataclass
class Step:
    """One step.

    Attributes:
        number: From 1.
        reward: Mean of the roots.
        rollouts, void: That counted; that ended in an error, or with a reward that is no number, and count for nothing.
        why: Of the last that is void, what made it so; None where none is.
        sequences: Learned from, by seat.
        metrics: Means over the roots' traces, such as ``"turns"``.
        update: What it did to the weights.
    """

    number: int
    reward: float = 0.0
    rollouts: int = 0
    void: int = 0
    why: str | None = None
    sequences: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    update: Update = field(default_factory=Update)


@dataclass
class Learned:
    """What came of it.

    Attributes:
        folder: Of the model.
        steps: In order; as they come they are also in the folder's ``steps.jsonl``.
    """

    folder: Path
    steps: list[Step] = field(default_factory=list)

    @property
    def rewards(self) -> list[float]:
        """Of the steps."""
        return [step.reward for step in self.steps]


def grpo(
    env: Mapping[str, Any],
    model: str | PathLike[str] | LocalModel,
    out: str | PathLike[str],
    *,
    steps: int = 100,
    tasks: int = 4,
    group: int = 8,
    renderer: str | Mapping[str, Any] | None = None,
    lora: Lora | None = None,
    learning_rate: float | None = None,
    temperature: float = 1.0,
    max_tokens: int = 1_024,
    clip: float = 0.2,
    scaled: bool = False,
    width: int = 16,
    save_every: int | None = None,
    seed: int = 0,
    device: str | None = None,
    watch: Callable[[Step], None] | None = None,
) -> Learned:
    """Train a model on an environment of verifiers.

    Args:
        env: The ``[env]`` table: task set, program, seats, and what is trained.
        model: A folder, a name on the hub, or a loaded one, which is then changed in place.
        out: Folder of the result; it must be new or empty.
        steps: Updates.
        tasks, group: Tasks of a step, and rollouts of each. A group whose rollouts are all as good teaches nothing.
        renderer: Of verifiers, by name or with its arguments: ``{"name": "qwen3", "enable_thinking": False}``; None
            for the one that fits the model's name, which a folder has not.
        lora: Train adapters alone.
        learning_rate: None for 5e-5 with LoRA, 1e-6 without.
        temperature, max_tokens: Of every reply of every seat that says nothing else.
        clip, scaled: See `rlm_dspy.training.updates`.
        width: Most replies in one batch.
        save_every: Save the model after so many steps too, as ``step_N``.
        seed: Of the order of tasks and of what is drawn.
        device: None for a GPU where there is one.
        watch: Is told of each step.

    Raises:
        MissingExtraError: verifiers or torch is missing.
        ConfigurationError: The environment, the renderer or the model cannot be had, or ``out`` is not empty.
        RLMError: No rollout of a step counted; the message says what ended them. Or the gradients of three steps one
            after the other were no numbers. What was learned before is saved.
    """
    need()
    need_torch()
    import torch
    import verifiers.v1 as vf

    if steps < 1 or tasks < 1 or group < 2:
        raise ConfigurationError("steps and tasks are at least 1, and a group has at least 2 rollouts to compare")
    try:
        loaded = vf.load_environment(vf.resolve_env_config(dict(env)))
    except ValueError as error:
        raise ConfigurationError(f"the environment: {error}") from error
    folder = new_folder(out)
    local = model if isinstance(model, LocalModel) else load(model, lora, device=device)
    rate = learning_rate if learning_rate is not None else (5e-5 if local.lora else 1e-6)
    optimizer = torch.optim.AdamW(list(local.trained()), lr=rate, weight_decay=0.0)
    learned = Learned(folder)
    with Server(local, "policy", width=width, max_tokens=max_tokens, seed=seed) as server, _tokenizer(local) as named:
        client = vf.TrainClientConfig(
            base_url=server.url, api_key_var=NO_KEY, renderer=_renderer(renderer), renderer_model_name=named
        )
        sampling = vf.SamplingConfig(temperature=temperature, max_tokens=max_tokens)
        context = vf.ModelContext(client=client, model="policy", sampling=sampling)

        async def play() -> None:
            chosen = _chosen(list(loaded.taskset), tasks, seed)
            refused = 0
            async with loaded.serving():
                for number in range(1, steps + 1):
                    groups = await asyncio.gather(*(_group(loaded, task, group, context) for task in next(chosen)))
                    step = Step(number)
                    sequences = _told(groups, step, scaled)
                    if not step.rollouts:
                        raise RLMError(f"no rollout of step {number} counted: {_why(groups)}")

                    def change(step: Step = step, sequences: list[Sequence] = sequences) -> None:
                        with server.sampler.paused():
                            step.update = update(local, sequences, optimizer, clip=clip)

                    await asyncio.to_thread(change)
                    learned.steps.append(step)
                    refused = refused + 1 if step.update.refused else 0
                    with (folder / LOG).open("a") as file:
                        file.write(json.dumps(asdict(step)) + "\n")
                    if watch is not None:
                        watch(step)
                    if save_every and number % save_every == 0 and number < steps:
                        local.save(folder / f"step_{number}")
                    if refused == REFUSALS:
                        raise RLMError(
                            f"the gradients of steps {number - REFUSALS + 1} to {number} were no finite numbers, so "
                            "nothing was learned by them: take a smaller learning_rate, or float32"
                        )

        try:
            run_sync(play())
        finally:
            if learned.steps:
                local.save(folder)
    return learned


def _tokenizer(local: LocalModel) -> Any:
    """A folder with the tokenizer alone, for the renderer."""
    folder = tempfile.TemporaryDirectory(prefix="rlm-dspy-tokenizer-")
    local.tokenizer.save_pretrained(folder.name)
    return folder


def _renderer(asked: str | Mapping[str, Any] | None) -> Any:
    if asked is None:
        return None
    from pydantic import TypeAdapter, ValidationError
    from renderers import RendererConfig

    adapter: TypeAdapter[Any] = TypeAdapter(RendererConfig)
    try:
        return adapter.validate_python({"name": asked} if isinstance(asked, str) else dict(asked))
    except ValidationError as error:
        raise ConfigurationError(f"the renderer {asked!r}: {error}") from error


def _chosen(every: list[Any], count: int, seed: int) -> Iterator[list[Any]]:
    """Tasks of each step: all of them in a random order, then all in another."""
    if not every:
        raise ConfigurationError("the task set is empty")
    dice = random.Random(seed)
    shuffled = itertools.chain.from_iterable(dice.sample(every, len(every)) for _ in itertools.count())
    while True:
        yield list(itertools.islice(shuffled, count))


async def _group(env: Any, task: Any, size: int, context: Any) -> list[Any]:
    return list(await asyncio.gather(*(env.run_slot(slot, context) for slot in env.slots(task, size))))


def _told(groups: list[list[Any]], step: Step, scaled: bool) -> list[Sequence]:
    """What the rollouts of a step teach; ``step`` is told of them."""
    found: list[Sequence] = []
    rewards: list[float] = []
    metrics: dict[str, list[float]] = {}
    for episodes in groups:
        good = [episode for episode in episodes if episode.ok and _judged(episode)]
        if void := [episode for episode in episodes if episode not in good]:
            step.void += len(void)
            step.why = _why([void])
        step.rollouts += len(good)
        for episode in good:
            for trace in episode.by_agent.get("agent", ()):
                rewards.append(float(trace.reward))
                for name, value in trace.metrics.items():
                    metrics.setdefault(name, []).append(float(value))
        found += learnable(good, scaled=scaled)
    step.reward = statistics.fmean(rewards) if rewards else 0.0
    step.metrics = {name: round(statistics.fmean(values), 6) for name, values in metrics.items()}
    for one in found:
        step.sequences[one.seat] = step.sequences.get(one.seat, 0) + 1
    return found


def _judged(episode: Any) -> bool:
    """Whether all its rewards are numbers. One that is not would make all of its group NaN."""
    return all(math.isfinite(float(trace.reward)) for trace in episode.traces)


def learnable(episodes: list[Any], *, scaled: bool = False) -> list[Sequence]:
    """The sequences of a group of rollouts of one task, each with its advantage.

    Those of a seat are compared with the others of that seat, so that the weight of its reward does not matter to the
    root's. A seat that is not trained gives none.

    Args:
        episodes: Of verifiers.
        scaled: See `rlm_dspy.training.updates.advantages`.

    Raises:
        ConfigurationError: A seat that is to be trained was played by another server, which gives no tokens.
    """
    seats: dict[str, list[Any]] = {}
    for episode in episodes:
        for trace in episode.traces:
            if trace.agent.trainable and trace.ok:
                seats.setdefault(trace.agent.name, []).append(trace)
    found: list[Sequence] = []
    for seat, traces in seats.items():
        gains = advantages([float(trace.reward) for trace in traces], scaled=scaled)
        for trace, gain in zip(traces, gains, strict=True):
            own = list(of_trace(trace, gain, seat))
            if not own and trace.num_turns:
                raise ConfigurationError(
                    f"the seat {seat!r} is trained, but its server gives no tokens: leave its client out, "
                    f"or set train_{seat} = false"
                )
            found += own
    return found


def _why(groups: list[list[Any]]) -> str:
    errors = [
        error for episodes in groups for episode in episodes for trace in episode.traces for error in trace.errors
    ]
    if errors:
        return f"{errors[-1].type}: {errors[-1].message}"[:1_000]
    every = [episode for episodes in groups for episode in episodes]
    return "none said why" if all(map(_judged, every)) else "their rewards are no finite numbers"


def main(arguments: Several[str] | None = None) -> int:
    """The command; see the top of this module.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m rlm_dspy.training.grpo", description=__doc__.split("\n")[0])
    parser.add_argument("config", type=Path, help="TOML with an [env] table, as for vf-eval")
    parser.add_argument("--model", required=True, help="a folder, or a name on the hub")
    parser.add_argument("--out", required=True, type=Path, help="folder of the result; new or empty")
    parser.add_argument("--steps", type=int, default=100, help="updates (100)")
    parser.add_argument("--tasks", type=int, default=4, help="tasks of a step (4)")
    parser.add_argument("--group", type=int, default=8, help="rollouts of each (8)")
    parser.add_argument("--renderer", help='by name, or as JSON: {"name": "qwen3", "enable_thinking": false}')
    parser.add_argument("--lora", type=int, metavar="RANK", help="train adapters of this rank alone")
    parser.add_argument("--learning-rate", type=float, help="5e-5 with --lora, else 1e-6")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-tokens", type=int, default=1_024, help="of a reply (1024)")
    parser.add_argument("--width", type=int, default=16, help="most replies in one batch (16)")
    parser.add_argument("--save-every", type=int, help="save after so many steps too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cuda or cpu; the GPU where there is one")
    given = parser.parse_args(arguments)
    renderer: Any = given.renderer
    try:
        if renderer and renderer.lstrip().startswith("{"):
            renderer = json.loads(renderer)
        table = tomllib.loads(given.config.read_text())
        if not isinstance(table.get("env"), dict):
            parser.error(f"{given.config} has no [env] table")
        learned = grpo(
            table["env"],
            given.model,
            given.out,
            steps=given.steps,
            tasks=given.tasks,
            group=given.group,
            renderer=renderer,
            lora=Lora(given.lora, 2.0 * given.lora) if given.lora else None,
            learning_rate=given.learning_rate,
            temperature=given.temperature,
            max_tokens=given.max_tokens,
            width=given.width,
            save_every=given.save_every,
            seed=given.seed,
            device=given.device,
            watch=lambda step: print(_line(step), flush=True),
        )
    except (RLMError, OSError, ValueError) as error:
        parser.error(str(error))
    print(f"the model is in {learned.folder}")
    return 0


def _line(step: Step) -> str:
    seats = ", ".join(f"{count} {seat}" for seat, count in step.sequences.items())
    void = f"{step.void} void: {step.why}" if step.void else "0 void"
    return (
        f"step {step.number}: reward {step.reward:.3f} of {step.rollouts} rollouts ({void}), "
        f"{seats or 'no sequences'}; {step.update.tokens} tokens, "
        f"gradient {step.update.gradient:.2g}, gap {step.update.gap:.1e}"
        + ("; the gradient was no number, and was left out" if step.update.refused else "")
    )


if __name__ == "__main__":
    sys.exit(main())

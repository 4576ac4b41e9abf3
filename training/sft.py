"""Fine-tuning on good rollouts, on one GPU or the CPU, by TRL's ``SFTTrainer``.

    python -m rlm_dspy.training.sft sft_rows --model Qwen/Qwen3-0.6B --out tuned --lora 16

The rows are those of `rlm_dspy.traces.sft_from_traces`, `rlm_dspy.optimizers.sft_rows` (in any form) or
`rlm_dspy.training.samples`. Only what the model itself said is learned, token by token what it will sample later
(`rlm_dspy.training.sequences`); observations, demonstrations and failed turns are read and not learned. What comes of
it is a model folder that vLLM, or ``python -m rlm_dspy.training.serve``, serves.

This needs ``pip install 'rlm-dspy[trl]'``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from rlm_dspy.errors import ConfigurationError, RLMError
from rlm_dspy.training.local_model import LocalModel, Lora, load, need_torch, new_folder
from rlm_dspy.training.sequences import Sequence, read_rows, sequences

__all__ = ["Tuned", "main", "sft"]

REPORT = "rlm_dspy_training.json"
"""What was done, beside the model."""


@dataclass
class Tuned:
    """What came of it.

    Attributes:
        folder: Of the model.
        rows: That were read.
        sequences: That were learned.
        too_long: Sequences that were left out, because they have more than ``max_tokens`` or than the model's context.
        tokens, learned: Tokens of all sequences, and how many of them are learned.
        steps: Updates.
        losses: Of the steps: the mean over their learned tokens, nats.
    """

    folder: Path
    rows: int = 0
    sequences: int = 0
    too_long: int = 0
    tokens: int = 0
    learned: int = 0
    steps: int = 0
    losses: list[float] = field(default_factory=list)

    def write(self, **more: Any) -> None:
        """Put this beside the model."""
        about = {**asdict(self), "folder": str(self.folder), **more}
        (self.folder / REPORT).write_text(json.dumps(about, indent=1) + "\n")


def sft(
    rows: Iterable[Mapping[str, Any]],
    model: str | PathLike[str] | LocalModel,
    out: str | PathLike[str],
    *,
    lora: Lora | None = None,
    epochs: float = 1.0,
    steps: int | None = None,
    learning_rate: float | None = None,
    batch: int = 1,
    accumulate: int = 8,
    max_tokens: int = 16_384,
    template: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: str | None = None,
    trainer_options: Mapping[str, Any] | None = None,
    watch: Callable[[int, float], None] | None = None,
) -> Tuned:
    """Fine-tune a model.

    Args:
        rows: See above.
        model: A folder, a name on the hub, or a loaded one, which is then changed in place.
        out: Folder of the result; it must be new or empty.
        lora: Train adapters alone.
        epochs: Times that each sequence is seen, unless ``steps`` says how many updates there are.
        learning_rate: None for 2e-4 with LoRA, 1e-5 without.
        batch, accumulate: Sequences at once on the device, and how often before an update.
        max_tokens: Longer sequences are left out, and counted: cut off they would teach to end in the middle. So are
            those that are longer than the model's context.
        template: Arguments of the chat template, such as ``{"enable_thinking": False}``.
        seed: Of the order.
        device: None for a GPU where there is one.
        trainer_options: Further options of TRL's ``SFTConfig``.
        watch: Is told of each step: its number, from 1, and its loss. Nothing is printed.

    Raises:
        MissingExtraError: TRL or torch is missing.
        ConfigurationError: There is nothing to learn from, a row is none (the message says which), or ``out`` is not
            empty.
    """
    need_torch("trl", "datasets")
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import SFTConfig, SFTTrainer

    folder = new_folder(out)
    local = model if isinstance(model, LocalModel) else load(model, lora, device=device)
    tuned = Tuned(folder)
    kept: list[Sequence] = []
    room = local.window()
    most = min(max_tokens, room or max_tokens)
    for row in rows:
        tuned.rows += 1
        try:
            made = list(sequences(row, local.tokenizer, template))
        except ConfigurationError as error:
            raise ConfigurationError(f"row {tuned.rows}: {error}") from error
        kept += [one for one in made if len(one.ids) <= most]
        tuned.too_long += sum(len(one.ids) > most for one in made)
    if not kept:
        bound = f"max_tokens={max_tokens}" if most == max_tokens else f"the {room} tokens of the model's context"
        raise ConfigurationError(
            f"nothing to learn from in {tuned.rows} rows: "
            + (
                f"{tuned.too_long} sequences have more than {bound}"
                if tuned.too_long
                else "no message in them is an assistant's that is to be learned"
            )
        )
    tuned.sequences, tuned.tokens = len(kept), sum(len(one.ids) for one in kept)
    tuned.learned = sum(one.learned for one in kept)
    labels = [[i if m else -100 for i, m in zip(one.ids, one.mask, strict=True)] for one in kept]
    on_gpu = local.device.type != "cpu"
    rate = learning_rate if learning_rate is not None else (2e-4 if local.lora else 1e-5)
    planned = steps or math.ceil(math.ceil(len(kept) / (batch * accumulate)) * epochs)
    options = {
        "output_dir": str(folder / "checkpoints"),
        "num_train_epochs": epochs,
        "max_steps": steps or -1,
        "learning_rate": rate,
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulate,
        "max_length": None,
        "use_cpu": not on_gpu,
        "bf16": on_gpu,
        _checkpointing(SFTConfig): on_gpu,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "seed": seed,
        "disable_tqdm": True,
        # None at all for a handful of updates: the first would change nothing.
        "warmup_steps": planned // 20,
        "lr_scheduler_type": "cosine",
        **dict(trainer_options or {}),
    }
    trainer = SFTTrainer(
        model=local.model,
        args=SFTConfig(**options),
        train_dataset=Dataset.from_dict({"input_ids": [one.ids for one in kept], "labels": labels}),
        processing_class=local.tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    if watch is not None:
        trainer.add_callback(_watcher(watch))
    trainer.train()
    tuned.steps = int(trainer.state.global_step)
    tuned.losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    checkpoints = folder / "checkpoints"
    if checkpoints.is_dir() and not any(checkpoints.iterdir()):
        checkpoints.rmdir()
    local.save(folder)
    tuned.write(kind="sft", model=local.name, lora=local.lora, learning_rate=rate, seed=seed)
    return tuned


def _watcher(watch: Callable[[int, float], None]) -> Any:
    from transformers import TrainerCallback

    class Watcher(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            if logs and "loss" in logs:
                watch(int(state.global_step), float(logs["loss"]))

    return Watcher()


def _checkpointing(config: Any) -> str:
    # Renamed in transformers 5.24.
    return next(name for name in ("activation_checkpointing", "gradient_checkpointing") if hasattr(config, name))


def main(arguments: Several[str] | None = None) -> int:
    """The command; see the top of this module.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m rlm_dspy.training.sft", description=__doc__.split("\n")[0])
    parser.add_argument("rows", type=Path, help="a file of JSON lines, or a folder with *.jsonl in it")
    parser.add_argument("--model", required=True, help="a folder, or a name on the hub")
    parser.add_argument("--out", required=True, type=Path, help="folder of the result; new or empty")
    parser.add_argument("--lora", type=int, metavar="RANK", help="train adapters of this rank alone")
    parser.add_argument("--epochs", type=float, default=1.0, help="times that each sequence is seen (1)")
    parser.add_argument("--steps", type=int, help="updates, in place of --epochs")
    parser.add_argument("--learning-rate", type=float, help="2e-4 with --lora, else 1e-5")
    parser.add_argument("--batch", type=int, default=1, help="sequences at once on the device (1)")
    parser.add_argument("--accumulate", type=int, default=8, help="batches to an update (8)")
    parser.add_argument("--max-tokens", type=int, default=16_384, help="longer sequences are left out (16384)")
    parser.add_argument("--template", type=json.loads, help='of the chat template: {"enable_thinking": false}')
    parser.add_argument("--device", help="cuda or cpu; the GPU where there is one")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    try:
        tuned = sft(
            read_rows(given.rows),
            given.model,
            given.out,
            lora=Lora(given.lora, 2.0 * given.lora) if given.lora else None,
            epochs=given.epochs,
            steps=given.steps,
            learning_rate=given.learning_rate,
            batch=given.batch,
            accumulate=given.accumulate,
            max_tokens=given.max_tokens,
            template=given.template,
            seed=given.seed,
            device=given.device,
            watch=lambda step, loss: print(f"step {step}: loss {loss:.3f}", flush=True),
        )
    except RLMError as error:
        parser.error(str(error))
    print(
        f"{tuned.sequences} sequences of {tuned.rows} rows, {tuned.learned} of {tuned.tokens} tokens learned, "
        f"{tuned.too_long} too long and left out\n"
        f"{tuned.steps} steps, loss {tuned.losses[0]:.3f} to {tuned.losses[-1]:.3f}; the model is in {tuned.folder}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A model of transformers on this machine, to be trained: loading it, LoRA, saving it whole."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from rlm_dspy.errors import ConfigurationError, MissingExtraError

__all__ = ["LocalModel", "Lora", "load", "need_torch", "new_folder"]

ADAPTER = "adapter"
"""The folder beside the saved model that the LoRA weights alone are in."""


def need_torch(*modules: str) -> None:
    """Say what to install where torch, or what comes with it, is missing.

    Raises:
        MissingExtraError: It is.
    """
    for module in ("torch", "transformers", "peft", *modules):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError("training on this machine", "trl")
    # A question of theirs to a hub that is not asked for anything.
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (arXiv 2106.09685) in place of all weights, by ``peft``.

    Attributes:
        rank, alpha: As there; the update is scaled by ``alpha / rank``.
        targets: Names of the layers; None for all linear ones but the last.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] | None = None

    def wrap(self, model: Any) -> Any:
        """The model with fresh adapters, which alone are trained. Without dropout: a policy has to be the one that was
        sampled from."""
        from peft import LoraConfig, get_peft_model

        targets: Any = list(self.targets) if self.targets else "all-linear"
        config = LoraConfig(
            r=self.rank, lora_alpha=self.alpha, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM"
        )
        return get_peft_model(model, config)


@dataclass
class LocalModel:
    """A model and what belongs to it.

    Attributes:
        model: Of transformers, or of peft around one.
        tokenizer: Its own.
        name: What it was loaded from.
        lora: Whether only adapters are trained.
    """

    model: Any
    tokenizer: Any
    name: str
    lora: bool

    @property
    def device(self) -> Any:
        """Where its weights are."""
        return next(self.model.parameters()).device

    def trained(self) -> Iterable[Any]:
        """The weights that are trained."""
        return (weight for weight in self.model.parameters() if weight.requires_grad)

    def window(self) -> int | None:
        """Tokens of its context, if its configuration says."""
        return int(getattr(self.model.config, "max_position_embeddings", 0) or 0) or None

    def save(self, folder: str | PathLike[str]) -> Path:
        """Save it whole: a folder that transformers and vLLM load. Adapters are merged into it, and kept apart in
        ``adapter`` as well. The model in memory stays as it is."""
        place = Path(folder)
        with without_bars():
            if self.lora:
                import copy

                self.model.save_pretrained(str(place / ADAPTER))
                whole = copy.deepcopy(self.model).merge_and_unload()
            else:
                whole = self.model
            whole.save_pretrained(str(place))
            self.tokenizer.save_pretrained(str(place))
        return place


def load(
    name: str | PathLike[str], lora: Lora | None = None, *, device: str | None = None, dtype: str | None = None
) -> LocalModel:
    """Load a model to train.

    Args:
        name: A folder, or a name on the Hugging Face hub.
        lora: Train adapters alone; None for all weights.
        device: Such as ``"cuda"`` or ``"cpu"``; None for a GPU where there is one.
        dtype: Such as ``"bfloat16"``; None for ``"float32"`` without a GPU, ``"bfloat16"`` for LoRA on one, else
            ``"float32"``: all weights learn in small steps that bfloat16 rounds away.

    Raises:
        MissingExtraError: torch, transformers or peft is missing.
        ConfigurationError: There is no such model.
    """
    need_torch()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    kind = getattr(torch, dtype or ("bfloat16" if lora and place != "cpu" else "float32"), None)
    if not isinstance(kind, torch.dtype):
        raise ConfigurationError(f"no number format {dtype!r}; there are 'float32' and 'bfloat16'")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(name))
        # A name on the hub may be a download of minutes, whose bar tells that something happens.
        with without_bars() if Path(name).exists() else contextlib.nullcontext():
            model = AutoModelForCausalLM.from_pretrained(str(name), dtype=kind)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the model {str(name)!r} cannot be loaded: {error}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.to(place)
    return LocalModel(lora.wrap(model) if lora else model, tokenizer, str(name), lora is not None)


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Without the progress bars of transformers, over what takes a moment."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def new_folder(path: str | PathLike[str]) -> Path:
    """A folder for results, empty.

    Raises:
        ConfigurationError: There is something in it.
    """
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is there already and is not empty; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder

"""DSPy's own way to fine-tune, on this machine: a provider for ``LM.finetune`` and the optimisers that call it.

    lm = dspy.LM("hosted_vllm/base", api_base=URL, provider=LocalProvider("tuned"), finetuning_model="Qwen/Qwen3-0.6B")
    student.set_lm(lm)
    optimizer = TrajectoryFinetune(metric, train_kwargs={"lora": Lora(16), "epochs": 2})
    program = optimizer.compile(student, trainset)
    for predictor in program.predictors():
        predictor.lm.launch()
    ...
    lm.kill()

Jobs run one after another; each model is a new folder. ``launch`` serves it from this process
(`rlm_dspy.training.serve`) and ``kill`` ends that; `LocalProvider.close` ends all. DSPy gives providers conversations,
of which every message of the assistant is learned. ``train_kwargs`` are the options of `rlm_dspy.training.sft.sft`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from dspy.clients.provider import Provider, TrainingJob
from dspy.clients.utils_finetune import TrainDataFormat, TrainingStatus

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.training.local_model import load
from rlm_dspy.training.serve import Server
from rlm_dspy.training.sft import sft

__all__ = ["LocalJob", "LocalProvider"]

PREFIX = "hosted_vllm/"
"""Of the model's name: DSPy speaks to our server as to vLLM."""


class LocalJob(TrainingJob):
    """A job of a `LocalProvider`."""

    def status(self) -> TrainingStatus:
        """How far it is. A failure is the result of the job, as DSPy has it."""
        if not self.done():
            return TrainingStatus.running
        return TrainingStatus.failed if isinstance(self.result(), Exception) else TrainingStatus.succeeded


class LocalProvider(Provider):
    """Fine-tunes and serves models of transformers here.

    Args:
        folder: Where models are put, each in a new folder.
        template: Arguments of the chat template, in training and in serving: ``{"enable_thinking": False}``.
        device: None for a GPU where there is one.
    """

    def __init__(
        self, folder: str | PathLike[str], *, template: Mapping[str, Any] | None = None, device: str | None = None
    ) -> None:
        super().__init__()
        self.finetunable = True
        self.TrainingJob = LocalJob
        self.folder = Path(folder).absolute()
        self.template = dict(template or {})
        self.device = device
        self._servers: dict[str, Server] = {}
        self._lock = threading.RLock()

    def __deepcopy__(self, memo: dict[int, Any]) -> LocalProvider:
        # Copies of a program share its servers.
        return self

    def finetune(
        self,
        job: TrainingJob,
        model: str,
        train_data: list[dict[str, Any]],
        train_data_format: TrainDataFormat | str | None,
        train_kwargs: dict[str, Any] | None = None,
    ) -> str:
        """Train, and give the model's name; called by DSPy.

        Raises:
            ConfigurationError: The rows are no conversations, or teach nothing.
        """
        if train_data_format not in (TrainDataFormat.CHAT, "chat", None):
            raise ConfigurationError(f"rows of conversations are learned from, not of the form {train_data_format}")
        with self._lock:
            number = 1 + sum(1 for _ in self.folder.glob("model_*"))
            out = self.folder / f"model_{number}"
            options = {"template": self.template, "device": self.device, **(train_kwargs or {})}
            sft(train_data, model.removeprefix(PREFIX), out, **options)
        return f"{PREFIX}{out}"

    def launch(self, lm: Any, launch_kwargs: dict[str, Any] | None = None) -> None:
        """Serve the model of ``lm``, if it is one of ours, and let ``lm`` ask there; called by ``LM.launch``."""
        place = Path(str(lm.model).removeprefix(PREFIX))
        if place.parent != self.folder:
            return
        with self._lock:
            if lm.model not in self._servers:
                options = {"template": self.template, **(launch_kwargs or lm.launch_kwargs or {})}
                self._servers[lm.model] = Server(load(place, device=self.device), str(place), **options)
            lm.kwargs.update(api_base=self._servers[lm.model].url, api_key="none")

    def kill(self, lm: Any, launch_kwargs: dict[str, Any] | None = None) -> None:
        """Serve the model of ``lm`` no longer; called by ``LM.kill``."""
        with self._lock:
            server = self._servers.pop(lm.model, None)
        if server is not None:
            server.close()

    def close(self) -> None:
        """End all servers."""
        with self._lock:
            servers, self._servers = list(self._servers.values()), {}
        for server in servers:
            server.close()

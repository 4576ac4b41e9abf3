"""Sampling from a model of transformers, for many requests at once, with the probability of each token.

Requests that wait are answered together, as one padded batch, by a thread of their own. The probabilities are those of
the distribution at the request's temperature, as vLLM gives them to trainers (``processed_logprobs``); cutting it to
``top_p`` changes what is drawn and not what is told. A small model on a CPU or one GPU is what this is for.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rlm_dspy._signals import joined
from rlm_dspy.training.local_model import LocalModel

__all__ = ["Asked", "Sampled", "Sampler"]

REMEMBERED = 100_000
"""Prompts, that it is counted for how often each was asked."""


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        ids: Tokens of the prompt.
        max_tokens: At most so many more.
        temperature: 0.0 takes the most likely token.
        top_p: Draw from the most likely tokens that have this probability together.
        stop: Tokens that end it; they are part of the result.
    """

    ids: list[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop: frozenset[int] = frozenset()


@dataclass
class Sampled:
    """What was said.

    Attributes:
        ids: Tokens, with the one that ended it.
        logprobs: Natural logarithm of the probability of each.
        finish: ``"stop"`` or ``"length"``.
    """

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = "length"


class _Answer(Future[Sampled]):
    """One that can be left while it is being made, too."""

    unwanted = False

    def cancel(self) -> bool:
        self.unwanted = True
        return super().cancel()

    @property
    def awaited(self) -> bool:
        """Whether there is something to do for it."""
        return not self.unwanted and not self.done()


class Sampler:
    """Answers requests, until it is closed.

    Args:
        local: The model. It may be trained while `paused`.
        width: Most requests in one batch.
        seed: Of what is drawn. A request draws by it, by its own prompt, and by how often that was asked before; not
            by what else is asked meanwhile, nor by the order in which that comes.

    Attributes:
        calls: Requests that were answered.
    """

    def __init__(self, local: LocalModel, *, width: int = 16, seed: int = 0) -> None:
        self.local = local
        self.width = width
        self.calls = 0
        self._dice = _Dice(seed, local.device)
        self._lock = threading.Lock()
        self._door = threading.Lock()
        self._closed = False
        self._waiting: queue.SimpleQueue[tuple[Asked, _Answer] | None] = queue.SimpleQueue()
        base = local.model.get_base_model() if hasattr(local.model, "get_base_model") else local.model
        takes = inspect.signature(base.forward).parameters
        self._last_only = "logits_to_keep" in takes
        # Its name up to transformers 5.23 is the second one; the same holds for what the model gives back.
        self._cache = "cache" if "cache" in takes else "past_key_values"
        self._thread = threading.Thread(target=self._work, name="rlm-dspy-sampler", daemon=True)
        self._thread.start()

    def ask(self, asked: Asked) -> Future[Sampled]:
        """The answer, when there is one; cancelled where it is closed already.

        Whoever no longer wants it may cancel it at any time, also while it is being made: the others of its batch are
        answered, and nothing more is done for this one.
        """
        answer = _Answer()
        with self._door:
            if self._closed:
                answer.cancel()
            else:
                self._waiting.put((asked, answer))
        return answer

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While this is held, nothing is sampled, and the weights may change."""
        with self._lock:
            self._dice.next_age()
            yield

    def close(self) -> None:
        """Answer what was asked, and end; idempotent."""
        with self._door:
            if not self._closed:
                self._closed = True
                self._waiting.put(None)
        joined(self._thread)

    def _work(self) -> None:
        while True:
            batch = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < self.width and batch[-1] is not None:
                    batch.append(self._waiting.get_nowait())
            asked = [one for one in batch if one is not None and one[1].set_running_or_notify_cancel()]
            if asked:
                try:
                    with self._lock:
                        self._answer(asked)
                except Exception as error:  # of torch, such as no memory: it is the requests' error, and not the end
                    for _, answer in asked:
                        if not answer.done():
                            answer.set_exception(error)
            if batch[-1] is None:
                return

    def _answer(self, batch: list[tuple[Asked, _Answer]]) -> None:
        import torch

        model, device = self.local.model, self.local.device
        training = model.training
        model.eval()
        longest = max(len(asked.ids) for asked, _ in batch)
        pad = self.local.tokenizer.pad_token_id or 0
        ids = torch.tensor([[pad] * (longest - len(a.ids)) + a.ids for a, _ in batch], device=device)
        mask = torch.tensor([[0] * (longest - len(a.ids)) + [1] * len(a.ids) for a, _ in batch], device=device)
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        options: dict[str, Any] = {"logits_to_keep": 1} if self._last_only else {}
        said = [Sampled() for _ in batch]
        dice = [self._dice.of(asked.ids) if asked.temperature else None for asked, _ in batch]
        past = None
        try:
            with torch.inference_mode():
                while any(answer.awaited for _, answer in batch):
                    out = model(
                        input_ids=ids,
                        attention_mask=mask,
                        position_ids=places,
                        use_cache=True,
                        **options,
                        **{self._cache: past},
                    )
                    past = out[self._cache]
                    drawn = self._draw(out.logits[:, -1].float(), batch, said, dice)
                    ids = torch.tensor(drawn, device=device)[:, None]
                    mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
                    places = places[:, -1:] + 1
        finally:
            model.train(training)
            for (_, answer), so_far in zip(batch, said, strict=True):
                if answer.unwanted and not answer.done():
                    answer.set_result(so_far)

    def _draw(self, logits: Any, batch: list[tuple[Asked, _Answer]], said: list[Sampled], dice: list[Any]) -> list[int]:
        import torch

        drawn = [0] * len(batch)
        for place, ((asked, answer), so_far) in enumerate(zip(batch, said, strict=True)):
            if not answer.awaited:
                continue
            scaled = torch.log_softmax(logits[place] / (asked.temperature or 1.0), dim=-1)
            if asked.temperature == 0:
                token = int(scaled.argmax())
            else:
                token = int(torch.multinomial(_cut(scaled.exp(), asked.top_p), 1, generator=dice[place]))
            drawn[place] = token
            so_far.ids.append(token)
            so_far.logprobs.append(float(scaled[token]))
            if token in asked.stop:
                so_far.finish = "stop"
            if token in asked.stop or len(so_far.ids) >= asked.max_tokens:
                self.calls += 1
                answer.set_result(so_far)
        return drawn


class _Dice:
    """What requests draw by: one generator each."""

    def __init__(self, seed: int, device: Any) -> None:
        self._seed = seed
        self._device = device
        self._age = 0
        self._asked: dict[bytes, int] = {}

    def next_age(self) -> None:
        """Forget what was asked; what is drawn from now on was never drawn before, though."""
        self._age += 1
        self._asked.clear()

    def of(self, ids: list[int]) -> Any:
        import torch

        if len(self._asked) >= REMEMBERED:
            self.next_age()
        prompt = hashlib.blake2b(repr(ids).encode(), digest_size=16).digest()
        again = self._asked[prompt] = self._asked.get(prompt, -1) + 1
        about = f"{self._seed} {self._age} {again} ".encode() + prompt
        number = int.from_bytes(hashlib.blake2b(about, digest_size=8).digest())
        return torch.Generator(device=self._device).manual_seed(number - (1 << 63))


def _cut(probabilities: Any, top_p: float) -> Any:
    if top_p >= 1.0:
        return probabilities
    ordered, order = probabilities.sort(descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = probabilities.clone()
    kept[order[before >= top_p]] = 0.0
    return kept

"""One update of a policy: the clipped policy gradient over the tokens that it sampled, and no others.

Everything that a rollout taught is a `rlm_dspy.training.sequences.Sequence`: tokens, which of them the model sampled,
with which probability, and the advantage of its rollout. The loss is that of GRPO (arXiv 2402.03300) as a mean over all
sampled tokens of the update (arXiv 2503.20783, 2503.14476), without a term for a reference model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Any

from rlm_dspy.training.local_model import LocalModel
from rlm_dspy.training.sequences import Sequence

__all__ = ["Update", "advantages", "logprobs", "update"]

ALIKE = 1e-9
"""Rewards that differ by no more are as good."""


@dataclass
class Update:
    """What an update did.

    Attributes:
        loss: Before it.
        tokens: That it is a mean over.
        gap: Largest difference between what the trainer and the sampler hold for the logarithm of a token's
            probability; with nothing learned in between it is rounding.
        clipped: Share of tokens whose ratio was out of bounds.
        gradient: Norm, before it was clipped.
        refused: The loss or its gradient was no finite number, so the weights were left as they were.
    """

    loss: float = 0.0
    tokens: int = 0
    gap: float = 0.0
    clipped: float = 0.0
    gradient: float = 0.0
    refused: bool = False


def advantages(rewards: Several[float], *, scaled: bool = False) -> list[float]:
    """How much better each rollout of a group was than its mean. Exactly 0.0 for all, where all were as good.

    Args:
        rewards: Of the rollouts of one task, finite.
        scaled: Divide by the standard deviation, as GRPO's paper does; it weighs easy and hard tasks more.
    """
    # The mean of rewards that are alike is not always one of them: 0.7 three times is. Rounding is no difference, and
    # scaled it would be as large as any.
    if not rewards or max(rewards) - min(rewards) <= ALIKE:
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    spread = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5 if scaled else 1.0
    return [(reward - mean) / spread for reward in rewards]


def logprobs(local: LocalModel, sequence: Sequence) -> Any:
    """The logarithm of the probability of each token after those before it, at the sequence's temperature; 0.0 for the
    first. A tensor, with gradients."""
    import torch

    ids = torch.tensor([sequence.ids], device=local.device)
    logits = local.model(input_ids=ids, use_cache=False).logits[0, :-1].float() / (sequence.temperature or 1.0)
    found = torch.log_softmax(logits, dim=-1).gather(1, ids[0, 1:, None])[:, 0]
    return torch.cat([found.new_zeros(1), found])


def update(
    local: LocalModel,
    learned: Iterable[Sequence],
    optimizer: Any,
    *,
    clip: float = 0.2,
    max_gradient: float = 1.0,
) -> Update:
    """Change the weights once, or not at all where there is nothing to learn or the gradient is no number. One sequence
    is on the device at a time.

    Args:
        local: The model.
        learned: With the probabilities that they were sampled with.
        optimizer: Of torch, over the weights that are trained.
        clip: How far the ratio of new to old probability may be from 1 to still count.
        max_gradient: Longer gradients are shortened to this.
    """
    import torch

    kept = [one for one in learned if one.learned]
    done = Update(tokens=sum(one.learned for one in kept))
    moving = [one for one in kept if one.advantage != 0.0]
    if not moving:
        return done
    # Dropout stays off: the policy that is changed is the one that was sampled from.
    local.model.eval()
    optimizer.zero_grad()
    outside = 0
    for one in moving:
        mask = torch.tensor(one.mask, device=local.device)
        old = torch.tensor(one.logprobs, device=local.device)[mask]
        difference = logprobs(local, one)[mask] - old
        ratio = difference.exp()
        gain = torch.minimum(ratio * one.advantage, ratio.clamp(1 - clip, 1 + clip) * one.advantage)
        loss = -gain.sum() / done.tokens
        loss.backward()
        done.loss += float(loss.detach())
        done.gap = max(done.gap, float(difference.detach().abs().max()))
        outside += int(((ratio.detach() - 1).abs() > clip).sum())
    done.clipped = outside / done.tokens
    done.gradient = float(torch.nn.utils.clip_grad_norm_(list(local.trained()), max_gradient))
    if math.isfinite(done.loss) and math.isfinite(done.gradient):
        optimizer.step()
    else:
        # One step by it would make every weight NaN.
        done.refused = True
        done.loss, done.gradient = _finite(done.loss), _finite(done.gradient)
        done.gap = _finite(done.gap)
    optimizer.zero_grad()
    return done


def _finite(value: float) -> float:
    """For JSON, which has no NaN."""
    return value if math.isfinite(value) else 0.0

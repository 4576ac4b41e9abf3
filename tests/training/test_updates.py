"""What an update is to leave alone: groups that teach nothing, numbers that are none."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy.training.sequences import Sequence
from rlm_dspy.training.updates import advantages

REWARDS = st.lists(st.floats(-10, 10), min_size=1, max_size=16)


@given(REWARDS, st.booleans())
def test_advantages_are_about_zero_in_the_mean_and_in_the_order_of_rewards(rewards: list[float], scaled: bool) -> None:
    gains = advantages(rewards, scaled=scaled)
    assert abs(sum(gains)) < 1e-6 * len(gains)
    assert [gain for _, gain in sorted(zip(rewards, gains, strict=True))] == sorted(gains)


@given(st.floats(-10, 10), st.integers(1, 64), st.booleans())
def test_rewards_that_are_alike_teach_nothing_however_they_round(reward: float, count: int, scaled: bool) -> None:
    assert advantages([reward] * count, scaled=scaled) == [0.0] * count
    assert advantages([], scaled=scaled) == []


def test_rewards_of_0_7_have_no_advantage_though_their_mean_is_not_0_7() -> None:
    assert sum([0.7] * 3) / 3 != 0.7
    assert advantages([0.7] * 3, scaled=True) == [0.0] * 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("torch", "peft"):
        pytest.importorskip(module, reason="needs pip install 'rlm-dspy[trl]'")
    import torch

    from rlm_dspy.training.tiny import make_tiny_model

    torch.set_num_threads(1)
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), hidden=16)


def ready(tiny: Path) -> tuple[Any, Any]:
    import torch

    from rlm_dspy.training.local_model import load

    local = load(tiny, device="cpu")
    return local, torch.optim.AdamW(local.model.parameters(), lr=1e-2, weight_decay=0.0)


def weights(local: Any) -> list[Any]:
    return [weight.detach().clone() for weight in local.model.parameters()]


def moved(local: Any, before: list[Any]) -> bool:
    return any(not one.equal(other) for one, other in zip(weights(local), before, strict=True))


def said(advantage: float, logprob: float = -1.0, ids: tuple[int, ...] = (20, 21, 22, 23)) -> Sequence:
    mask = [False, False, True, True]
    return Sequence(list(ids), mask, [0.0, 0.0, logprob, logprob], advantage)


@pytest.mark.heavy
def test_a_step_without_anything_to_learn_moves_nothing_not_even_by_momentum(tiny: Path) -> None:
    from rlm_dspy.training.updates import update

    local, optimizer = ready(tiny)
    update(local, [said(1.0), said(-1.0, ids=(20, 21, 30, 31))], optimizer)
    before = weights(local)
    alike = [said(gain) for gain in advantages([0.7] * 3, scaled=True)]
    nothing_learned = Sequence([20, 21], [False, False], [0.0, 0.0], 1.0)
    for learned in ([], alike, [nothing_learned]):
        done = update(local, learned, optimizer)
        assert (done.loss, done.gradient, done.refused) == (0.0, 0.0, False)
        assert not moved(local, before)
    assert update(local, alike, optimizer).tokens == 6


@pytest.mark.heavy
@pytest.mark.parametrize(
    "broken", [said(math.nan), said(math.inf), said(1.0, logprob=-math.inf), said(1.0, logprob=math.nan)]
)
def test_a_gradient_that_is_no_number_leaves_the_weights_and_the_next_step_learns(tiny: Path, broken: Sequence) -> None:
    from rlm_dspy.training.updates import update

    local, optimizer = ready(tiny)
    update(local, [said(1.0)], optimizer)
    before = weights(local)
    done = update(local, [said(1.0, ids=(20, 21, 30, 31)), broken], optimizer)
    assert done.refused and not moved(local, before)
    assert all(math.isfinite(value) for value in (done.loss, done.gradient, done.gap)), "it is written as JSON"
    done = update(local, [said(1.0)], optimizer)
    assert not done.refused and done.gradient > 0 and moved(local, before)
    assert all(bool(weight.isfinite().all()) for weight in local.model.parameters())


@pytest.mark.heavy
def test_an_update_makes_what_was_good_likelier_and_what_was_bad_less_so(tiny: Path) -> None:
    """For tokens that were sampled; what stands before them is read alone."""
    import torch

    from rlm_dspy.training.updates import logprobs, update

    local, _ = ready(tiny)
    optimizer = torch.optim.SGD(local.model.parameters(), lr=0.1)
    good, bad = said(0.5), said(-0.5, ids=(20, 21, 30, 31))
    with torch.no_grad():
        for one in (good, bad):
            one.logprobs = logprobs(local, one).tolist()
    done = update(local, [good, bad], optimizer)
    assert done.gap < 1e-6 and done.tokens == 4 and done.clipped == 0.0
    with torch.no_grad():
        change = [(logprobs(local, one) - torch.tensor(one.logprobs))[torch.tensor(one.mask)] for one in (good, bad)]
    assert float(change[0].min()) > 0 > float(change[1].max())

"""Real updates by real rollouts: a model made here, verifiers, the harness, a sandbox; nothing is scripted."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, tasks
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.testing import ScriptedLM, code

for module in ("torch", "trl", "peft", "datasets", "verifiers"):
    pytest.importorskip(module, reason="needs pip install 'rlm-dspy[train,trl]'")
pytestmark = pytest.mark.heavy

SUBSET = {"id": "rlm-dspy-needles", "num_tasks": 1, "tokens": 1_000, "seed": 3, "kinds": ["count"]}
EXAMPLE = tasks.example(0, 1_000, 3, "needles", ["count"])
SILENT = {"enable_thinking": False}
RENDERER = {"name": "qwen3", **SILENT}
OPTIONS: dict[str, Any] = {"guidance": False, "max_iters": 1}
RIGHT = code(f"SUBMIT(answer={EXAMPLE.answer})")
WRONG = code(f"SUBMIT(answer={EXAMPLE.answer + 1})")
ASKING = code(f"llm_query('a')\nSUBMIT(answer={EXAMPLE.answer})")


def env(**more: Any) -> dict[str, Any]:
    harness = {"environment": "subprocess", "options": OPTIONS}
    sampling = {"max_tokens": 4, "temperature": 0.7}
    return {"taskset": SUBSET, "agent": {"harness": harness}, "sub": {"sampling": sampling}, **more}


def rows(*replies: str) -> list[dict[str, Any]]:
    """What the root is asked, with each of these replies."""
    lm = ScriptedLM(lambda call: RIGHT)
    with dspy.context(lm=lm):
        RLM(EXAMPLE.signature, interpreter="subprocess", **OPTIONS)(**EXAMPLE.inputs())
    asked = lm.calls[0].messages
    return [{"prompt": asked, "completion": [{"role": "assistant", "content": reply}]} for reply in replies]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``tuned(*replies)``: a model that says one of them, each as often."""
    import torch

    from rlm_dspy.training.sft import sft
    from rlm_dspy.training.tiny import make_tiny_model

    torch.set_num_threads(1)

    def make(*replies: str) -> Path:
        folder = tmp_path_factory.mktemp("tuned")
        found = rows(*replies)
        texts = [message["content"] for row in found for message in row["prompt"] + row["completion"]]
        make_tiny_model(folder / "fresh", texts)
        options: dict[str, Any] = {"learning_rate": 1e-2, "batch": len(found), "accumulate": 1, "template": SILENT}
        sft(found, folder / "fresh", folder / "tuned", steps=70, **options)
        return folder / "tuned"

    return make


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(str(folder / "model.safetensors")))


def test_real_rollouts_of_a_real_task_change_the_weights(tuned: Callable[..., Path], tmp_path: Path) -> None:
    from rlm_dspy.training.grpo import grpo

    torn, out = tuned(RIGHT, WRONG), tmp_path / "out"
    options: dict[str, Any] = {"renderer": RENDERER, "learning_rate": 1e-3, "max_tokens": 24}
    learned = grpo(env(), torn, out, steps=3, tasks=1, group=8, **options)
    assert max(step.update.gap for step in learned.steps) < 1e-4, "trainer and sampler hold the same probabilities"
    assert any(step.update.gradient > 0 for step in learned.steps)
    assert 0 < sum(learned.rewards) < 3, "it is torn"
    assert all(step.rollouts == 8 and step.void == 0 for step in learned.steps)
    lines = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in lines] == learned.rewards
    first, last = weights(torn), weights(out)
    assert all(not first[name].equal(last[name]) for name in first)


def test_seats_are_learned_apart(tuned: Callable[..., Path], tmp_path: Path) -> None:
    """What a seat that is not trained has said changes nothing; one that is trained has its own comparison."""
    import torch

    from rlm_dspy.training.grpo import grpo, learnable
    from rlm_dspy.training.local_model import load
    from rlm_dspy.training.updates import update

    model = tuned(ASKING)
    seen: dict[bool, list[Any]] = {}

    def play(train_sub: bool) -> Any:
        from rlm_dspy.training import grpo as room

        def keep(episodes: list[Any], **more: Any) -> Any:
            seen[train_sub] = episodes
            return learnable(episodes, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(room, "learnable", keep)
            return grpo(
                env(train_sub=train_sub, sub_reward=0.5),
                model,
                tmp_path / str(train_sub),
                steps=1,
                tasks=1,
                group=3,
                renderer=RENDERER,
                max_tokens=40,
            )

    assert play(False).steps[0].sequences == {"agent": 3}
    learned = play(True)
    assert learned.steps[0].sequences == {"agent": 3, "sub": 3}
    found = learnable(seen[True])
    local = load(model)
    for one in found:
        said = local.tokenizer.decode([i for i, m in zip(one.ids, one.mask, strict=True) if m])
        whole = local.tokenizer.decode(one.ids)
        assert said.startswith(ASKING) == (one.seat == "agent")
        assert ("`context`" in whole) == (one.seat == "agent"), "each seat has its own conversation"
        assert one.temperature == (1.0 if one.seat == "agent" else 0.7)
        assert len(one.ids) == len(one.mask) == len(one.logprobs)
        assert one.learned <= (40 if one.seat == "agent" else 4)
    # The probabilities agree at each seat's own temperature.
    for one in found:
        one.advantage = 1.0
    optimizer = torch.optim.SGD(local.model.parameters(), lr=0.0)
    done = update(local, found, optimizer)
    assert done.gap < 1e-4 and done.tokens == sum(one.learned for one in found) and done.gradient > 0


def test_a_loop_that_runs_already_is_no_obstacle(tmp_path: Path) -> None:
    """As in a notebook."""
    from rlm_dspy.training.grpo import grpo
    from rlm_dspy.training.tiny import make_tiny_model

    fresh = make_tiny_model(tmp_path / "fresh")

    async def cell() -> Any:
        return grpo(env(), fresh, tmp_path / "out", steps=1, tasks=1, group=2, renderer=RENDERER, max_tokens=4)

    learned = asyncio.run(cell())
    assert learned.steps[0].rollouts == 2 and (tmp_path / "out" / "model.safetensors").exists()


def test_what_is_asked_wrongly_is_told_before_anything_is_played(tmp_path: Path) -> None:
    from rlm_dspy.training.grpo import grpo, main

    with pytest.raises(ConfigurationError, match="the environment"):
        grpo(env(childern="agent"), "nowhere", tmp_path / "a")
    with pytest.raises(ConfigurationError, match="at least 2"):
        grpo(env(), "nowhere", tmp_path / "b", group=1)
    (tmp_path / "c.toml").write_text("model = 'm'\n")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "c.toml"), "--model", "m", "--out", str(tmp_path / "c")])


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says nothing that makes sense."""
    from rlm_dspy.training.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("fresh") / "model", hidden=16)


def test_a_reward_that_is_no_number_counts_for_nothing(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlm_dspy.errors import RLMError
    from rlm_dspy.training.factory import FamilyTask
    from rlm_dspy.training.grpo import grpo

    monkeypatch.setattr(FamilyTask, "judge", lambda self, case, prediction: float("nan"))
    with pytest.raises(RLMError, match="no rollout of step 1 counted: their rewards are no finite numbers"):
        grpo(env(), fresh, tmp_path / "out", steps=1, tasks=1, group=2, renderer=RENDERER, max_tokens=2)
    # Where it is some, the step says how many and why.
    rewards = itertools.cycle([float("nan"), 0.5])
    monkeypatch.setattr(FamilyTask, "judge", lambda self, case, prediction: next(rewards))
    out = tmp_path / "some"
    (step,) = grpo(env(), fresh, out, steps=1, tasks=1, group=2, renderer=RENDERER, max_tokens=2).steps
    assert (step.rollouts, step.void, step.reward) == (1, 1, 0.5)
    assert step.why == json.loads((out / "steps.jsonl").read_text())["why"] == "their rewards are no finite numbers"


def test_steps_that_cannot_learn_end_the_training_and_are_told(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlm_dspy.errors import RLMError
    from rlm_dspy.training import grpo as room
    from rlm_dspy.training.updates import update

    def broken(local: Any, learned: list[Any], optimizer: Any, **more: Any) -> Any:
        learned[0].advantage = float("nan")
        return update(local, learned, optimizer, **more)

    monkeypatch.setattr(room, "update", broken)
    out = tmp_path / "out"
    with pytest.raises(RLMError, match="steps 1 to 3 were no finite numbers"):
        room.grpo(env(), fresh, out, steps=9, tasks=1, group=2, renderer=RENDERER, max_tokens=2)
    lines = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    assert [line["update"]["refused"] for line in lines] == [True] * 3
    first, last = weights(fresh), weights(out)
    assert all(first[name].equal(last[name]) for name in first), "the model is saved, as it was"

"""Many rollouts on one event loop: what would stop it is done once, before them, and the process is as it was after."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy.training.collecting import RARER, Seldom
from tests.training.conftest import NO_KEY, policy

PROGRAM = """
from rlm_dspy import RLM

made = []

def build(signature):
    made.append(signature)
    return RLM(signature, guidance={"check_answers": False})
"""


@pytest.fixture
def thawed() -> Iterator[None]:
    """What other tests have frozen does not count here."""
    before = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if before:
        gc.freeze()


def test_the_collector_is_changed_while_one_of_several_wants_it(thawed: None) -> None:
    before = gc.get_threshold()
    one, other = Seldom(), Seldom()
    one.begin()
    one.begin()
    other.begin()
    assert gc.get_threshold() == (before[0], before[1], before[2] * RARER) and gc.get_freeze_count() > 0
    one.end()
    one.end()
    assert gc.get_freeze_count() > 0
    other.end()
    assert gc.get_threshold() == before and gc.get_freeze_count() == 0


def test_what_others_have_frozen_stays_so(thawed: None) -> None:
    kept: list[list[int]] = [[] for _ in range(1_000)]
    gc.freeze()
    one = Seldom()
    one.begin()
    one.end()
    # Of all that was frozen, some dies as soon as other threads let it go.
    assert gc.get_freeze_count() >= len(kept)
    gc.unfreeze()


@pytest.mark.heavy
@pytest.mark.parametrize("seldom", [True, False])
def test_a_program_is_made_once_and_nothing_stops_the_rollouts_to_collect(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaks: None, thawed: None, seldom: bool
) -> None:
    vf = pytest.importorskip("verifiers.v1", reason="needs pip install 'rlm-dspy[train]'")
    (tmp_path / "kept_program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "kept_program", raising=False)
    server = serve(policy("print(llm_query('x'))", "SUBMIT(answer='5')"))
    harness = {"program": "kept_program:build", "environment": "subprocess"}
    env = {
        "taskset": {"id": "rlm-dspy-needles", "num_tasks": 6, "tokens": 1_000, "seed": 3, "kinds": ["find"]},
        "agent": {"harness": harness},
        "seldom_collect": seldom,
    }
    loaded = vf.load_environment(vf.resolve_env_config(env))
    client = vf.EvalClientConfig(base_url=server.url, api_key_var=NO_KEY)
    context = vf.ModelContext(client=client, model="m", sampling=vf.SamplingConfig(max_tokens=512))
    before, full = gc.get_threshold(), []

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2:
            full.append(1)

    async def go() -> list[Any]:
        async with loaded.serving():
            assert (gc.get_freeze_count() > 0) is seldom and (gc.get_threshold() != before) is seldom
            gc.callbacks.append(note)
            slots = [slot for task in list(loaded.taskset) for slot in loaded.slots(task, 1)]
            episodes = await asyncio.gather(*(loaded.run_slot(slot, context) for slot in slots))
            gc.callbacks.remove(note)
            return episodes

    episodes = asyncio.run(go())
    assert len(episodes) == 6 and all(episode.ok for episode in episodes)
    assert len(__import__("kept_program").made) == 1
    assert gc.get_threshold() == before and gc.get_freeze_count() == 0
    assert not (seldom and full)

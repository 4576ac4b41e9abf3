"""Fixtures of the training tests: model servers, and rollouts of verifiers' own environments against them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlm_dspy.signatures import Sub
from rlm_dspy.testing import Call, Reply, oracle
from tests.training.servers import ModelServer

NO_KEY = "RLM_DSPY_TEST_NO_KEY"


@pytest.fixture
def serve() -> Iterator[Callable[..., ModelServer]]:
    """``serve(policy, tokenizer=None)`` starts a model server."""
    started: list[ModelServer] = []

    def start(policy: Callable[[Call], str | Reply], tokenizer: Any = None) -> ModelServer:
        started.append(ModelServer(policy, tokenizer))
        return started[-1]

    yield start
    for server in started:
        server.close()


def is_sub(call: Call) -> bool:
    """Whether it is an ``llm_query``."""
    return call.system == Sub.instructions


def policy(*steps: str, sub: str | Reply = "sub", child: tuple[str, ...] = (), answer: Any = "") -> Any:
    """A model that plays the root by these steps of code, children by theirs, and answers all else with ``sub``."""
    root, inner = oracle(*steps, answer={"answer": answer}), oracle(*child) if child else None

    def play(call: Call) -> str | Reply:
        if is_sub(call):
            return sub
        if inner is not None and "`prompt`" in call.own[0]["content"]:
            return inner(call)
        return root(call)

    return play


@pytest.fixture
def play(no_leaks: None) -> Callable[..., list[Any]]:
    """``play(server, taskset={...}, agent={...}, n=1, ...)``: episodes of verifiers, in order of tasks."""

    def run(server: ModelServer, *, n: int = 1, limit: int | None = None, client: Any = None, **env: Any) -> list[Any]:
        import verifiers.v1 as vf

        loaded = vf.load_environment(vf.resolve_env_config(env))
        client = client or vf.EvalClientConfig(base_url=server.url, api_key_var=NO_KEY)
        sampling = vf.SamplingConfig(temperature=1.0, max_tokens=512)
        context = vf.ModelContext(client=client, model="m", sampling=sampling)

        async def episodes() -> list[Any]:
            async with loaded.serving():
                chosen = list(loaded.taskset)[:limit]
                slots = [slot for task in chosen for slot in loaded.slots(task, n)]
                return await asyncio.gather(*(loaded.run_slot(slot, context) for slot in slots))

        return asyncio.run(episodes())

    return run


def traces(episode: Any) -> dict[str, Any]:
    """The trace of each seat of an episode."""
    assert all(len(found) == 1 for found in episode.by_agent.values())
    return {name: found[0] for name, found in episode.by_agent.items()}


async def eventually_in_loop(true: Callable[[], Any], seconds: float = 20.0) -> None:
    """Wait until ``true()``, and let the loop go on meanwhile."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.005)

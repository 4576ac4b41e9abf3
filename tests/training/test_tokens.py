"""What a trainer gets: token ids, masks and seats, by verifiers' own training client and the renderer of Qwen3."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import tasks
from rlm_dspy.testing import Call, code
from tests.training.conftest import NO_KEY, policy, traces
from tests.training.servers import LOGPROB
from tests.training.tokenizer import make

pytest.importorskip("verifiers", reason="needs pip install 'rlm-dspy[train]'")
pytestmark = pytest.mark.heavy

SUBSET = {"id": "rlm-dspy-needles", "num_tasks": 1, "tokens": 1_000, "seed": 3, "kinds": ["count"]}
GOLD = tasks.example(0, 1_000, 3, "needles", ["count"]).answer


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("tokenizer")
    return folder, make(folder)


def client(url: str, folder: Path) -> Any:
    import verifiers.v1 as vf
    from renderers.configs import Qwen3RendererConfig

    renderer = Qwen3RendererConfig(enable_thinking=False)
    return vf.TrainClientConfig(base_url=url, api_key_var=NO_KEY, renderer=renderer, renderer_model_name=str(folder))


def samples(trace: Any) -> Iterator[tuple[list[int], list[bool], list[float]]]:
    """Training samples as prime-rl makes them: one a branch, a reply that two branches share in the first of them."""
    seen: set[int] = set()
    for branch in trace.branches:
        mask: list[bool] = []
        for node in branch.nodes:
            again = node.sampled and id(node) in seen
            mask += [False] * len(node.mask) if again else list(node.mask)
            if node.sampled:
                seen.add(id(node))
        if any(mask):
            yield branch.token_ids, mask, branch.logprobs


TURNS = [
    code("print(len(context))"),
    "I do not know. No code.",
    code("1 / 0"),
    code("print(  'spaces  '  )\n\n\n# and lines\n") + "\n\nAnd words after it.  \n",
    code("if True:\n\tprint('tabs é 𝄞')"),
    code(f"SUBMIT(answer={GOLD})"),
    code(f"SUBMIT(answer={GOLD})"),
]


@pytest.mark.parametrize("guidance", [True, False])
def test_all_turns_of_a_root_are_one_sample(serve: Any, play: Any, tokens: Any, guidance: bool) -> None:
    folder, tokenizer = tokens
    server = serve(lambda call: TURNS[call.turn], tokenizer)
    harness = {"environment": "subprocess", "options": {"guidance": guidance}}
    (episode,) = play(server, taskset=SUBSET, agent={"harness": harness}, client=client(server.url, folder))
    assert episode.ok, [error.message for trace in episode.traces for error in trace.errors]
    root = traces(episode)["agent"]
    assert root.reward == 1.0 and root.num_turns >= 6
    assert root.num_branches == 1
    ((ids, mask, probabilities),) = samples(root)
    assert len(ids) == len(mask) == len(probabilities)
    # Exactly what was sampled is trained, each reply to its end-of-turn token, and with the probability it had.
    replies = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TURNS[: root.num_turns]]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    trained = [one for one, here in zip(ids, mask, strict=True) if here]
    assert trained == [one for reply in replies for one in (*reply, end)]
    assert {p for p, here in zip(probabilities, mask, strict=True) if here} == {LOGPROB}
    # The last prompt begins with the one before and so on: nothing is rendered anew.
    prompts = [body["token_ids"] for body in server.bodies if "token_ids" in body]
    for shorter, longer in itertools.pairwise(prompts):
        assert longer[: len(shorter)] == shorter


def test_sub_calls_and_children_are_samples_of_their_own_seats(serve: Any, play: Any, tokens: Any) -> None:
    folder, tokenizer = tokens
    asks = "print(llm_query_batched(['a', 'b', 'c']), rlm_query('Say it', text='5'))"
    child = ("print(text)", "SUBMIT(response='five')")
    server = serve(policy(asks, f"SUBMIT(answer={GOLD})", f"SUBMIT(answer={GOLD})", child=child), tokenizer)
    harness = {"environment": "subprocess", "options": {"max_depth": 2}}
    env = {"children": "child", "sub": {"sampling": {"max_tokens": 77}}, "train_sub": True}
    (episode,) = play(server, taskset=SUBSET, agent={"harness": harness}, client=client(server.url, folder), **env)
    assert episode.ok, [error.message for trace in episode.traces for error in trace.errors]
    seats = traces(episode)
    assert {name: len(list(samples(trace))) for name, trace in seats.items()} == {"agent": 1, "sub": 3, "child": 1}
    assert all(trace.agent.trainable and trace.reward == 1.0 for trace in seats.values())
    limits = sorted(body["sampling_params"]["max_tokens"] for body in server.bodies if "token_ids" in body)
    assert limits.count(77) == 3, limits


def test_a_prompt_that_fits_no_window_is_the_policy_s_result(serve: Any, play: Any, tokens: Any) -> None:
    """What the model itself has piled up; verifiers refuses it before the model is asked."""
    folder, tokenizer = tokens

    def piling(call: Call) -> str:
        return "words " * 6_000 + code(f"print({call.turn})")

    server = serve(piling, tokenizer)
    harness = {"environment": "subprocess", "options": {"guidance": False, "max_iters": 12, "compaction": False}}
    (episode,) = play(server, taskset=SUBSET, agent={"harness": harness}, client=client(server.url, folder))
    root = episode.by_agent["agent"][0]
    assert episode.ok and root.reward == 0.0, root.errors
    assert root.info["rlm"]["limit"] == "context_window"

"""Rollouts of verifiers' real environments: seats, rewards, metrics, faults; real sandboxes, a server for the model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import tasks
from rlm_dspy.testing import Call, Reply, code, outputs
from tests.training.conftest import NO_KEY, is_sub, policy, traces

pytest.importorskip("verifiers", reason="needs pip install 'rlm-dspy[train]'")
pytestmark = pytest.mark.heavy

SUBSET = {"id": "rlm-dspy-needles", "num_tasks": 1, "tokens": 1_000, "seed": 3, "kinds": ["count"]}
GOLD = tasks.example(0, 1_000, 3, "needles", ["count"]).answer
PLACE = {"environment": "subprocess"}


def agent(**more: Any) -> dict[str, Any]:
    """A root's seat whose code runs in the sandbox of tests."""
    options = {"guidance": {"check_answers": False}, **more.pop("options", {})}
    return {"harness": {**PLACE, "options": options}, **more}


def submit(value: Any) -> str:
    return f"SUBMIT(answer={value!r})"


def test_seats_have_their_own_model_sampling_and_standing(serve: Any, play: Any) -> None:
    asks = "found = llm_query_batched([f'part {n}' for n in range(5)])\nprint(len(found))"
    server = serve(policy(asks, submit(GOLD)))
    sub = {"model": "small", "sampling": {"max_tokens": 77, "temperature": 0.3}}
    (episode,) = play(server, taskset=SUBSET, agent=agent(), sub=sub, sub_reward=0.5)
    assert episode.ok, episode.errors
    seats = traces(episode)
    assert set(seats) == {"agent", "sub"}, "a seat that nobody asked leaves no trace"
    root, calls = seats["agent"], seats["sub"]
    assert root.reward == 1.0 and calls.reward == 0.5
    assert root.agent.trainable and not calls.agent.trainable
    assert root.num_branches == 1 and calls.num_branches == 5
    asked = {(body["model"], body["max_tokens"], body["temperature"]) for body in server.bodies}
    assert asked == {("m", 512, 1.0), ("small", 77, 0.3)}
    assert root.root_reply == str(GOLD)
    figures = root.metrics
    assert figures["turns"] == 2 and figures["sub_calls"] == 5 and 1 < figures["sub_width"] <= 5
    assert figures["agent/calls"] == 2 and figures["sub/input_tokens"] > 0
    assert 0 < figures["delegated"] < 1 and figures["sandbox_errors"] == 0
    assert "cost" not in figures, "an unknown price is not a price of nothing"


def test_cost_is_a_metric_where_prices_are_known(serve: Any, play: Any) -> None:
    options = {"prices": {"m": [1.0, 2.0]}}
    (episode,) = play(serve(policy(submit(GOLD))), taskset=SUBSET, agent=agent(options=options))
    assert traces(episode)["agent"].metrics["cost"] > 0


@pytest.mark.parametrize("children", ["agent", "sub", "child"])
def test_children_are_played_by_the_seat_that_is_named(serve: Any, play: Any, children: str) -> None:
    asks = "print(rlm_query('Say it', text='it is 5'))"
    server = serve(policy(asks, submit(GOLD), child=("print(llm_query('what is it?'))", "SUBMIT(response='five')")))
    options = {"max_depth": 2, "max_llm_calls": 20}
    (episode,) = play(server, taskset=SUBSET, agent=agent(options=options), children=children)
    assert episode.ok, episode.errors
    seats = traces(episode)
    assert seats["agent"].reward == 1.0 and seats["agent"].metrics["children"] == 1
    turns = {name: trace.num_turns for name, trace in seats.items()}
    assert (
        turns
        == {
            "agent": {"agent": 4, "sub": 1},
            "sub": {"agent": 2, "sub": 3},
            "child": {"agent": 2, "sub": 1, "child": 2},
        }[children]
    )
    # A child is a conversation of its own, and one training sample.
    assert seats["agent"].num_branches == (2 if children == "agent" else 1)


HACKS = [
    "SUBMIT(answer=True)",
    "SUBMIT(answer=float('nan'))",
    "SUBMIT(answer=query)",
    "SUBMIT(answer=list(range(10000)))",
    f"SUBMIT(answer='{GOLD} or {GOLD + 1}')",
    "SUBMIT(answer=context)",
    "import os; os._exit(0)",
    "raise SystemExit",
    "x = 1",
]


@pytest.mark.parametrize("hack", HACKS)
def test_a_hack_scores_nothing_and_is_a_result(serve: Any, play: Any, hack: str) -> None:
    server = serve(policy(hack, hack, hack))
    (episode,) = play(server, taskset=SUBSET, agent=agent(options={"max_iters": 2}))
    root = traces(episode)["agent"]
    assert episode.ok and root.ok, root.errors
    assert root.reward == 0.0


def test_an_answer_made_again_by_the_code_that_made_the_task_is_out_of_reach(serve: Any, play: Any) -> None:
    hack = (
        "import importlib.util, os, sys\n"
        "place = os.path.join(os.path.dirname(importlib.util.find_spec('rlm_dspy').origin), 'tasks')\n"
        "try:\n    print(open(os.path.join(place, 'needles.py')).read())\n    SUBMIT(answer=1)\n"
        "except OSError:\n    SUBMIT(answer=-1)"
    )
    server = serve(policy(hack))
    seat = {"harness": {"options": {"guidance": {"check_answers": False}}}}
    (episode,) = play(server, taskset=SUBSET, agent=seat)
    root = traces(episode)["agent"]
    assert episode.ok and root.reward == 0.0 and root.info["rlm"]["prediction"] == {"answer": -1}


def test_listing_every_item_is_not_a_right_list(serve: Any, play: Any) -> None:
    subset = {**SUBSET, "kinds": ["list"]}
    hack = "import re\nSUBMIT(answer=sorted(set(re.findall(r'\\w+', context))))"
    (episode,) = play(serve(policy(hack)), taskset=subset, agent=agent())
    root = traces(episode)["agent"]
    assert root.rewards["format"].score == 1.0 and root.reward < 0.1


@pytest.mark.parametrize(
    ("reply", "limit"),
    [("no code at all", "max_iters"), ("", "max_iters"), (code("1/0"), "max_iters"), (code("x = ("), "max_iters")],
)
def test_a_policy_that_gets_nowhere_is_scored(serve: Any, play: Any, reply: str, limit: str) -> None:
    numbers = iter(range(1_000))
    server = serve(lambda call: f"{reply}\n# {next(numbers)}" if reply else "")
    options = {"max_iters": 2, "guidance": False}
    (episode,) = play(server, taskset=SUBSET, agent=agent(options=options))
    root = traces(episode)["agent"]
    assert episode.ok and root.ok and root.reward == 0.0
    assert root.info["rlm"]["limit"] == limit and not root.info["rlm"]["formed"]
    assert root.metrics["sandbox_errors"] == 2


def test_an_answer_at_a_limit_counts_but_not_as_formed(serve: Any, play: Any) -> None:
    def play_root(call: Call) -> str:
        return str(GOLD) if "No more code can run" in call.prompt else code("print(1)")

    (episode,) = play(serve(play_root), taskset=SUBSET, agent=agent(options={"max_iters": 1}))
    root = traces(episode)["agent"]
    assert root.info["rlm"]["outcome"] == "extracted" and root.info["rlm"]["limit"] == "max_iters"
    assert root.reward == 1.0 and root.rewards["format"].score == 0.0


def test_a_weight_for_the_format_comes_from_the_configuration(serve: Any, play: Any) -> None:
    subset = {**SUBSET, "task": {"rewards": {"format": {"weight": 0.25}}}}
    (episode,) = play(serve(policy(submit(GOLD))), taskset=subset, agent=agent())
    assert traces(episode)["agent"].reward == 1.25


def test_the_limit_of_a_seat_is_a_result(serve: Any, play: Any) -> None:
    server = serve(policy("print(1)", "print(2)", "print(3)", submit(GOLD)))
    (episode,) = play(server, taskset=SUBSET, agent=agent(max_turns=2))
    root = traces(episode)["agent"]
    assert episode.ok and root.stop_condition == "max_turns" and root.num_turns == 2
    assert root.info["rlm"]["limit"] == "max_turns" and root.reward == 0.0


def test_the_limit_of_the_sub_seat_reaches_the_code_and_the_run_goes_on(serve: Any, play: Any) -> None:
    try_it = "try:\n        print(llm_query(f'part {n}'))\n    except Exception as e:\n        print(e)"
    asks = f"for n in range(3):\n    {try_it}"
    server = serve(policy(asks, submit(GOLD)))
    (episode,) = play(server, taskset=SUBSET, agent=agent(), sub={"max_turns": 2})
    seats = traces(episode)
    assert episode.ok and seats["agent"].reward == 1.0
    assert seats["sub"].num_turns == 2 and seats["sub"].stop_condition == "max_turns"
    shown = server.messages[-1][-1]["content"]
    assert "has reached its limit: max_turns" in shown


@pytest.mark.parametrize("asked", ["root", "sub"])
def test_an_endpoint_that_fails_voids_the_rollout(
    serve: Any, play: Any, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlm_dspy.training.endpoint.PAUSES", (0.01,))
    server = serve(policy("print(llm_query('part'))", submit(GOLD)))
    if asked == "root":
        server.failing = [503] * 9
    else:
        act = server.policy

        def failing(call: Call) -> str | Reply:
            server.failing = [500] * 9
            return act(call)

        server.policy = failing
    (episode,) = play(server, taskset=SUBSET, agent=agent())
    assert not episode.ok
    root = episode.by_agent["agent"][0]
    assert not root.ok and root.errors and not root.rewards
    assert all(not trace.ok for trace in episode.traces), "what belongs to a void rollout is void"
    assert len(server.bodies) < 6, "it is given up at once"


def test_a_failure_that_passes_is_not_seen(serve: Any, play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlm_dspy.training.endpoint.PAUSES", (0.01, 0.01))
    server = serve(policy(submit(GOLD)))
    server.failing = [503, 429]
    (episode,) = play(server, taskset=SUBSET, agent=agent())
    root = traces(episode)["agent"]
    assert episode.ok and root.reward == 1.0 and root.num_turns == 1


def test_a_rollout_that_is_tried_again_leaves_nothing_of_the_void_attempt(
    serve: Any, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlm_dspy.training.endpoint.PAUSES", ())
    act = policy("print(llm_query_batched(['a', 'b']))", submit(GOLD))
    server = serve(act)
    failed = iter([True])

    def first_sub_fails(call: Call) -> str | Reply:
        # The request after the root's first turn is a sub-call, which then fails.
        if not is_sub(call) and call.turn == 0 and next(failed, False):
            server.failing = [500]
        return act(call)

    server.policy = first_sub_fails
    (episode,) = play(server, taskset=SUBSET, agent=agent(retries={"max_retries": 2}))
    assert episode.ok, [(trace.agent.name, trace.errors) for trace in episode.traces]
    seats = traces(episode)
    assert seats["agent"].reward == 1.0 and seats["sub"].num_turns == 2


def test_a_sandbox_that_does_not_start_voids_the_rollout(serve: Any, play: Any) -> None:
    place = {"environment": "docker", "environment_options": {"base_url": "tcp://127.0.0.1:9"}}
    (episode,) = play(serve(policy(submit(GOLD))), taskset=SUBSET, agent={"harness": place})
    assert not episode.ok and not episode.by_agent["agent"][0].rewards


def test_cancelling_ends_the_sandbox(serve: Any, eventually: Any, children: Any, no_leaks: None) -> None:
    import verifiers.v1 as vf

    server = serve(policy("import time\ntime.sleep(600)"))
    env = vf.load_environment(vf.resolve_env_config({"taskset": SUBSET, "agent": agent()}))
    client = vf.EvalClientConfig(base_url=server.url, api_key_var=NO_KEY)
    context = vf.ModelContext(client=client, model="m", sampling=vf.SamplingConfig())
    before = children()

    async def go() -> None:
        async with env.serving():
            running = asyncio.create_task(env.run_slot(env.slots(next(iter(env.taskset)), 1)[0], context))
            while not (server.bodies and children() - before):
                await asyncio.sleep(0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(go())
    assert eventually(lambda: not (children() - before))


def test_a_rollout_that_takes_too_long_is_scored_and_its_sandbox_ended(serve: Any, play: Any) -> None:
    server = serve(policy("import time\ntime.sleep(600)"))
    (episode,) = play(server, taskset=SUBSET, agent=agent(timeout={"rollout": 2.0}))
    root = traces(episode)["agent"]
    assert root.ok and root.stop_condition == "agent_timeout" and root.reward == 0.0


def test_a_program_by_its_import_path(serve: Any, play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_program.py").write_text(
        "import dspy\nfrom rlm_dspy import RLM\n"
        "class Twice(dspy.Module):\n"
        "    def __init__(self, signature):\n"
        "        super().__init__()\n"
        "        self.guess = dspy.Predict('query -> guess')\n"
        "        self.rlm = RLM(signature, interpreter='subprocess', sub_lm=dspy.LM('openai/elsewhere'))\n"
        "        self.rlm.act.lm = dspy.LM('openai/elsewhere')\n"
        "    def forward(self, context, query):\n"
        "        self.guess(query=query)\n"
        "        return self.rlm(context=context, query=query)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    asked = policy("print(llm_query('part'))", submit(GOLD))

    def guess(call: Call) -> str | Reply:
        return outputs(guess="many") if "[[ ## guess ## ]]" in call.messages[-1]["content"] else asked(call)

    server = serve(guess)
    harness = {"program": "my_program:Twice"}
    (episode,) = play(server, taskset=SUBSET, agent={"harness": harness})
    assert episode.ok, [error.message for trace in episode.traces for error in trace.errors]
    seats = traces(episode)
    assert seats["agent"].reward == 1.0 and seats["agent"].num_turns == 3 and seats["sub"].num_turns == 1


def test_a_task_set_of_another_package_has_its_prompt_as_input(
    serve: Any, play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain_tasks.py").write_text(
        "import verifiers.v1 as vf\n"
        "class PlainTask(vf.Task[vf.TaskData]):\n"
        "    @vf.reward(weight=1.0)\n"
        "    async def right(self, trace: vf.Trace) -> float:\n"
        "        return float(trace.last_reply == '12')\n"
        "class PlainTasks(vf.Taskset[PlainTask, vf.TasksetConfig]):\n"
        "    def load(self):\n"
        "        yield PlainTask(vf.TaskData(prompt='What is 3 * 4?'), self.config.task)\n"
        "__all__ = ['PlainTasks']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    server = serve(policy("print(llm_query(prompt))", "SUBMIT(answer=str(3 * 4))"))
    own = {"id": "rlm-dspy-tasks", "taskset": {"id": "plain-tasks"}, "agent": agent()}
    (episode,) = play(server, **own)
    assert traces(episode)["agent"].reward == 1.0 and len(episode.traces) == 2
    # Under verifiers' own environment of one agent, all calls are the one seat's.
    seat = {"harness": {"id": "rlm-dspy-harness", **PLACE}, "runtime": {"type": "subprocess"}}
    (episode,) = play(server, taskset={"id": "plain-tasks"}, agent=seat)
    (trace,) = episode.traces
    assert trace.reward == 1.0 and trace.num_turns == 3


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"agent": {"harness": {"options": {"max_itters": 3}}}}, "max_itters"),
        ({"agent": {"harness": {"options": {"max_iters": 0}}}}, "max_iters"),
        ({"agent": {"harness": {"environment": "nowhere"}}}, "nowhere"),
        ({"agent": {"harness": {"environment_options": {"timeout": 3}}}}, "environment"),
        ({"agent": {"harness": {"signature": "no arrow"}}}, "signature"),
        ({"max_concurrent_agents": 1}, "max_concurrent_agents"),
        ({"children": "nobody"}, "children"),
        ({"agent": {"max_turn": 3}}, "max_turn"),
    ],
)
def test_a_wrong_configuration_is_refused_when_it_is_read(env: dict[str, Any], said: str) -> None:
    import verifiers.v1 as vf

    with pytest.raises(ValueError, match=said):
        vf.resolve_env_config({"taskset": SUBSET, **env})


def test_many_rollouts_at_once_do_not_mix(serve: Any, play: Any) -> None:
    subset = {**SUBSET, "num_tasks": 8, "kinds": ["count", "find"]}

    def echo(call: Call) -> str:
        if is_sub(call):
            return f"heard {call.prompt}"
        return code(["heard = llm_query(query)", "SUBMIT(answer=heard)"][call.turn])

    harness = {**PLACE, "signature": "context, query -> answer: str", "options": {"guidance": False}}
    found = play(serve(echo), taskset=subset, agent={"harness": harness}, n=2)
    assert len(found) == 16
    for episode in found:
        root = traces(episode)["agent"]
        said = root.info["rlm"]
        assert said["prediction"]["answer"] == f"heard {said['query']}"
        assert said["seats"]["sub"]["calls"] == 1 == traces(episode)["sub"].num_turns

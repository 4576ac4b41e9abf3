"""Rollouts through verifiers' env server, as prime-rl makes them: worker processes behind ZMQ."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import tasks
from rlm_dspy.testing import Call, code
from tests.training.conftest import NO_KEY, eventually_in_loop, is_sub
from tests.training.test_tokens import client, samples
from tests.training.tokenizer import make

pytest.importorskip("verifiers", reason="needs pip install 'rlm-dspy[train]'")
pytestmark = pytest.mark.heavy

SERVER = """
import json, sys
import verifiers.v1 as vf
from verifiers.v1.serve import env_config_data, serve_env

if __name__ == "__main__":  # its workers are spawned
    config = vf.resolve_env_config(json.loads(sys.argv[2]))
    pool = vf.pool_serve_kwargs(vf.StaticPoolConfig(num_workers=2))
    serve_env(address=sys.argv[1], config_data=env_config_data(config), **pool)
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_two_workers_play_and_their_samples_arrive(
    serve: Any, in_python: Any, eventually: Any, children: Any, tmp_path: Path
) -> None:
    import verifiers.v1 as vf
    from verifiers.v1.serve import EnvClient

    tokenizer = make(tmp_path / "tokenizer")
    gold = {one.query: one.answer for one in tasks.generate(4, 1_000, 3, "needles", ["count"])}

    def answer(call: Call) -> str:
        if is_sub(call):
            return f"heard {call.prompt}"
        asked = next(query for query in gold if query in call.own[0]["content"])
        return code(["import os\nprint(llm_query(query), os.getppid())", f"SUBMIT(answer={gold[asked]})"][call.turn])

    server = serve(answer, tokenizer)
    env = {
        "taskset": {"id": "rlm-dspy-needles", "num_tasks": 4, "tokens": 1_000, "seed": 3, "kinds": ["count"]},
        "agent": {"harness": {"environment": "subprocess", "options": {"guidance": {"check_answers": False}}}},
        "sub": {"sampling": {"max_tokens": 77}},
        "sub_reward": 0.5,
    }
    address = f"tcp://127.0.0.1:{free_port()}"
    process = in_python(SERVER, address, json.dumps(env))

    async def go() -> list[Any]:
        remote = EnvClient(address=address)
        try:
            await remote.wait_for_server_startup(timeout=240)
            sampling = vf.SamplingConfig(temperature=1.0, max_tokens=512)
            return await asyncio.gather(
                *(
                    remote.run(
                        client=client(server.url, tmp_path / "tokenizer"),
                        model="m",
                        sampling=sampling,
                        task_data=task.data.model_dump(mode="json"),
                    )
                    for task in vf.load_taskset(vf.resolve_env_config(env).taskset)
                    for _ in range(2)
                )
            )
        finally:
            await remote.close()

    episodes = asyncio.run(asyncio.wait_for(go(), 300))
    workers = children(process.pid)
    process.terminate()
    process.wait(30)
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert len(episodes) == 8 and all(episode.ok for episode in episodes)
    for episode in episodes:
        seats = {trace.agent.name: trace for trace in episode.traces}
        assert seats["agent"].reward == 1.0 and seats["sub"].reward == 0.5
        assert seats["agent"].agent.trainable and not seats["sub"].agent.trainable
        assert seats["agent"].metrics["sub_calls"] == 1
        ((ids, mask, probabilities),) = samples(seats["agent"])
        assert sum(mask) > 0 and len(ids) == len(mask) == len(probabilities)
        query = seats["agent"].info["rlm"]["query"]
        (heard,) = (node.message.content for node in seats["sub"].nodes if node.sampled)
        assert heard == f"heard {query}"
    limits = {body["sampling_params"]["max_tokens"] for body in server.bodies if "token_ids" in body}
    assert limits == {512, 77}


def test_what_a_killed_worker_played_is_never_answered_and_can_be_played_again(
    serve: Any, in_python: Any, eventually: Any, children: Any, tmp_path: Path
) -> None:
    """verifiers' pool neither notices the death of a worker nor answers for it: so whoever asks sets a deadline."""
    import verifiers.v1 as vf
    from verifiers.v1.serve import EnvClient

    gold = {one.query: one.answer for one in tasks.generate(4, 1_000, 3, "needles", ["count"])}
    there, gate = tmp_path / "there", tmp_path / "gate"
    there.mkdir()
    waits = f"""import os, time
with open(os.path.join({str(there)!r}, str(os.getpid())), "w"): pass
while not os.path.exists({str(gate)!r}): time.sleep(0.02)"""

    def answer(call: Call) -> str:
        asked = next(query for query in gold if query in call.own[0]["content"])
        return code([waits, f"SUBMIT(answer={gold[asked]})"][call.turn])

    server = serve(answer)
    env = {
        "taskset": {"id": "rlm-dspy-needles", "num_tasks": 4, "tokens": 1_000, "seed": 3, "kinds": ["count"]},
        "agent": {"harness": {"environment": "subprocess", "options": {"guidance": {"check_answers": False}}}},
    }
    address = f"tcp://127.0.0.1:{free_port()}"
    process = in_python(SERVER, address, json.dumps(env))

    def alive() -> set[str]:
        return {one.name for one in there.iterdir() if Path(f"/proc/{one.name}").exists()}

    async def go() -> None:
        remote = EnvClient(address=address)
        client = vf.EvalClientConfig(base_url=server.url, api_key_var=NO_KEY)

        def playing(task: Any) -> asyncio.Task[Any]:
            data = task.data.model_dump(mode="json")
            sampling = vf.SamplingConfig(max_tokens=512)
            return asyncio.create_task(remote.run(client=client, model="m", sampling=sampling, task_data=data))

        try:
            await remote.wait_for_server_startup(timeout=240)
            runs = {playing(task): task for task in vf.load_taskset(vf.resolve_env_config(env).taskset)}
            await eventually_in_loop(lambda: len(list(there.iterdir())) == 4, 240)
            worker = min(pid for pid in children(process.pid) if b"spawn_main" in command(pid))
            os.kill(worker, signal.SIGKILL)
            await eventually_in_loop(lambda: len(alive()) == 2, 60)  # its sandboxes end with it
            gate.touch()
            while len(done := [run for run in runs if run.done()]) < 2:
                await asyncio.wait(set(runs) - set(done), timeout=120, return_when=asyncio.FIRST_COMPLETED)
            assert all(run.result().ok for run in done)
            lost = set(runs) - set(done)
            assert len(lost) == 2 and not (await asyncio.wait(lost, timeout=2))[0], "nobody says that they are lost"
            for run in lost:
                run.cancel()
            await asyncio.wait(lost)
            again = await asyncio.wait_for(asyncio.gather(*(playing(runs[run]) for run in lost)), 240)
            assert all(episode.ok and episode.traces[0].reward == 1.0 for episode in again)
        finally:
            await remote.close()

    asyncio.run(asyncio.wait_for(go(), 500))
    workers = children(process.pid)
    process.terminate()
    process.wait(30)
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def command(pid: int) -> bytes:
    """Of a process, or nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""

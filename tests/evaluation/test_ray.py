"""Rows on a Ray cluster of two workers, one of which is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import evaluation
from rlm_dspy.errors import ConfigurationError, MissingExtraError
from rlm_dspy.evaluation import ray_address
from rlm_dspy.testing import code

CLUSTER = """
import json, os, signal, sys, threading, time
import dspy, ray
from ray.cluster_utils import Cluster
from rlm_dspy import evaluation
from rlm_dspy.evaluation.rows import read

cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 0, "include_dashboard": False}})
nodes = [cluster.add_node(num_cpus=1, resources={{f"node{{n}}": 1}}) for n in range(2)]
cluster.wait_for_nodes()
ray.init(address=cluster.address, log_to_driver=False)
lm = dspy.LM("openai/m", api_base={url!r}, api_key="none", cache=False)
program = evaluation.get("rlm", interpreter="subprocess", guidance=False, prices={{"openai/m": (1, 1)}})
seen, killed = [], []

def see(line):
    seen.append(line["row"])
    if len(seen) == 4 and not killed:
        killed.append(True)
        cluster.remove_node(nodes[0], allow_graceful=False)

with dspy.context(lm=lm):
    done = evaluation.map_rows(
        program, read({source!r}), {out!r}, signature="context, query -> answer: str", threads=4, seen=see,
        ray=evaluation.Ray(), prices={{"openai/m": (1, 1)}},
    )
deadline = time.monotonic() + 60
while sum(node["Alive"] for node in ray.nodes()) > {left} and time.monotonic() < deadline:
    time.sleep(0.1)  # until the head has noticed
with open("told.json", "w") as file:
    json.dump([done.to_dict(), len(ray.nodes()), sum(node["Alive"] for node in ray.nodes()), killed], file)
ray.shutdown()
cluster.shutdown()
"""


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rlm-dspy\[ray\]'"):
        evaluation.Ray()


def test_an_address_that_nobody_listens_at_is_an_error_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(ConfigurationError, match=r"no Ray cluster at .*Start one with `ray start --head`"):
            ray_address.check(f"127.0.0.1:{port}")


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "auto"])
def test_a_port_that_never_answers_is_an_error_in_a_stated_time(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = form.format(silent.getsockname()[1])
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ConfigurationError, match=r"nobody answered within 0\.2 seconds"):
            ray_address.check(address, wait=0.2)


def test_a_port_of_something_else_is_an_error(endpoint: Callable[..., Any]) -> None:
    address = endpoint(iter([])).url.removeprefix("http://").split("/")[0]
    with pytest.raises(ConfigurationError, match="something else answers there"):
        ray_address.check(address)


def test_addresses_that_ray_itself_finds_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for address in ("auto", "local", "anyscale://cluster"):
        ray_address.check(address)


@pytest.mark.heavy
def test_the_command_says_that_no_cluster_answers(tmp_path: Path, in_python: Callable[..., Any]) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'rlm-dspy[ray]'")
    (tmp_path / "rows.jsonl").write_text('{"context": "x", "query": "?"}\n')
    source = "import sys; from rlm_dspy.cli import main; sys.exit(main(sys.argv[1:]))"
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = ["map", "rows.jsonl", "--out", "out.jsonl", "--model", "openai/m", "--ray", address]
    process = in_python(source, *arguments)
    stdout, stderr = process.communicate(timeout=120)
    told = f"{stdout}{stderr}"
    assert process.returncode not in (0, None) and f"no Ray cluster at '{address}'" in told, told
    assert "ray start --head" in told and "Traceback" not in told


@pytest.mark.heavy
def test_a_cluster_that_loses_all_workers_ends_the_job_and_loses_no_row(
    tmp_path: Path, endpoint: Callable[..., Any], in_python: Callable[..., Any], ray_folder: None
) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'rlm-dspy[ray]'")
    lost = CLUSTER.replace(
        "(nodes[0], allow_graceful=False)",
        "(nodes[0], allow_graceful=False)\n        cluster.remove_node(nodes[1], allow_graceful=False)",
    ).replace("Ray()", "Ray(patience=2.0)")
    told, _, alive, killed = mapped(lost, 1, tmp_path, endpoint, in_python)
    assert killed and alive == 1
    assert told["stopped"].startswith("giving up: for 2 seconds the Ray cluster has had no machine with 1 CPUs"), told
    assert told["statuses"] == {"answered": told["rows"]} and 4 <= told["rows"] < 12, "what is not done has not failed"


@pytest.fixture
def ray_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place for Ray's sockets, whose paths must be short, and the waits of a machine with other work."""
    waits = {"raylet_start_wait_time_s": "150", "agent_register_timeout_ms": "150000"}
    waits["worker_register_timeout_seconds"] = "150"
    folder = tempfile.mkdtemp()
    for name, value in {"USAGE_STATS_ENABLED": "0", "TMPDIR": folder, **waits}.items():
        monkeypatch.setenv(f"RAY_{name}", value)
    yield
    shutil.rmtree(folder)


@pytest.mark.heavy
def test_a_worker_that_is_killed_costs_no_row(
    tmp_path: Path, endpoint: Callable[..., Any], in_python: Callable[..., Any], ray_folder: None
) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'rlm-dspy[ray]'")
    told, nodes, alive, killed = mapped(CLUSTER, 2, tmp_path, endpoint, in_python)
    assert killed and nodes == 3 and alive == 2
    assert told["rows"] == 12 and told["statuses"] == {"answered": 12} and told["spent"] > 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == list(range(12))
    assert [line["outputs"]["answer"] for line in lines] == [f"ROW {n}" for n in range(12)]


def mapped(script: str, left: int, folder: Path, endpoint: Callable[..., Any], in_python: Callable[..., Any]) -> Any:
    """What the script tells of a job of twelve rows, after which so many nodes are left of its cluster."""
    source, out = folder / "rows.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps({"context": f"row {n}", "query": "?"}) + "\n" for n in range(12)))
    # More than are needed, for what is done again.
    server = endpoint(iter([code("SUBMIT(answer=context.upper())")] * 200))
    process = in_python(script.format(left=left, url=server.url, source=str(source), out=str(out)))
    try:
        _, stderr = process.communicate(timeout=300)
    finally:
        # What the cluster has started is in sessions of its own.
        leave(folder)
    assert process.returncode == 0, stderr
    return json.loads((folder / "told.json").read_text())


def leave(folder: Path) -> None:
    """End what a cluster that was started in this folder has left."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "cwd") == str(folder) and int(entry.name) != os.getpid():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue

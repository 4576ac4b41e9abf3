"""Rows on a Ray cluster of two workers, one of which is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy import evaluation
from rlm_dspy.errors import MissingExtraError

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
with open("told.json", "w") as file:
    json.dump([done.to_dict(), len(ray.nodes()), sum(node["Alive"] for node in ray.nodes()), killed], file)
ray.shutdown()
cluster.shutdown()
"""


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rlm-dspy\[ray\]'"):
        evaluation.Ray()


@pytest.mark.heavy
def test_a_worker_that_is_killed_costs_no_row(
    tmp_path: Path, endpoint: Callable[..., Any], in_python: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'rlm-dspy[ray]'")
    from rlm_dspy.testing import code

    # A machine with other work takes longer to start than Ray waits by itself.
    waits = {"raylet_start_wait_time_s": "150", "agent_register_timeout_ms": "150000"}
    waits["worker_register_timeout_seconds"] = "150"
    # Ray's sockets lie there, whose paths must be short.
    folder = tempfile.mkdtemp()
    for name, value in {"USAGE_STATS_ENABLED": "0", "TMPDIR": folder, **waits}.items():
        monkeypatch.setenv(f"RAY_{name}", value)
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"context": f"row {n}", "query": "?"}) + "\n" for n in range(12)))
    # More than are needed, for what is done again.
    server = endpoint(iter([code("SUBMIT(answer=context.upper())")] * 200))
    process = in_python(CLUSTER.format(url=server.url, source=str(source), out=str(out)))
    try:
        _, stderr = process.communicate(timeout=300)
    finally:
        # What the cluster has started is in sessions of its own.
        leave(tmp_path)
        shutil.rmtree(folder)
    assert process.returncode == 0, stderr
    told, nodes, alive, killed = json.loads((tmp_path / "told.json").read_text())
    assert killed and nodes == 3 and alive == 2
    assert told["rows"] == 12 and told["statuses"] == {"answered": 12} and told["spent"] > 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["row"] for line in lines] == list(range(12))
    assert [line["outputs"]["answer"] for line in lines] == [f"ROW {n}" for n in range(12)]


def leave(folder: Path) -> None:
    """End what a cluster that was started in this folder has left."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "cwd") == str(folder) and int(entry.name) != os.getpid():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue

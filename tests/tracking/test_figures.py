"""What is stored: figures that are the account's, values that stay small, and no secret."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, tracking
from rlm_dspy.environments.base import Environment
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.testing import Call, ScriptedLM, code, oracle, outputs
from rlm_dspy.tracking.capped import Clip, sha256

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")

PRICES = {"scripted/root": (1.0, 2.0), "scripted/sub": (3.0, 4.0)}


def program(sandbox: Environment, **options: Any) -> RLM:
    sub = ScriptedLM(lambda call: f"<{call.prompt}>", model="scripted/sub")
    return RLM("context -> answer", sub_lm=sub, interpreter=sandbox, **options)


def root(*steps: str) -> ScriptedLM:
    return ScriptedLM(oracle(*steps), model="scripted/root")


def leaves(tree: Any) -> dict[str, float]:
    """Tokens and dollars of all leaves together."""
    sums = {"input_tokens": 0, "output_tokens": 0, "cost": 0.0, "lm_calls": 0}
    for node in tree.all():
        if node.span.span_type == "CHAT_MODEL":
            usage, cost = node.get("mlflow.chat.tokenUsage"), node.span.llm_cost
            sums["lm_calls"] += 1
            sums["input_tokens"] += usage["input_tokens"]
            sums["output_tokens"] += usage["output_tokens"]
            sums["cost"] += cost["total_cost"] if cost else 0.0
    return sums


def test_every_figure_is_that_of_the_account(tracked: Any, sandbox: Environment) -> None:
    def policy(call: Call) -> str:
        if "zebra" in call.own[0]["content"]:
            return code("SUBMIT(llm_query('in the child'))")
        steps = ("print(llm_query_batched(['p', 'q', 'p']), predict('a -> b', a='1'))", "x = rlm_query('zebra')")
        return [*map(code, steps), code("SUBMIT(answer=x)")][call.turn]

    rlm = program(sandbox, max_depth=2, prices=PRICES)
    with dspy.context(lm=ScriptedLM(policy, model="scripted/root")):
        usage = rlm(context="c").usage
    (tree,) = tracked()
    about = tree.get("rlm_dspy.run")
    assert about["usage"] == json.loads(json.dumps(usage))
    found = leaves(tree)
    assert found.pop("cost") == pytest.approx(usage["cost"], abs=1e-12)
    assert found == {name: usage[name] for name in found}
    (trace,) = mlflow.search_traces(return_type="list")
    assert trace.info.token_usage["input_tokens"] == usage["input_tokens"]
    assert trace.info.token_usage["output_tokens"] == usage["output_tokens"]
    assert json.loads(trace.info.trace_metadata["mlflow.trace.cost"])["total_cost"] == pytest.approx(usage["cost"])
    assert trace.info.tags["rlm_dspy.outcome"] == "submitted" and trace.info.tags["rlm_dspy.run"] == about["run"]
    leaf = next(node for node in tree.all() if node.span.span_type == "CHAT_MODEL")
    assert (leaf.span.model_name, leaf.get("mlflow.llm.provider")) == ("scripted/root", "scripted")
    assert about["sandbox"]["environment"] == rlm_environment(sandbox)
    assert about["limits"]["max_depth"] == 2 and about["versions"]["mlflow"] == mlflow.__version__
    assert sum(bool(node.get("rlm_dspy.reused")) for node in tree.all()) == 1


def rlm_environment(sandbox: Environment) -> str:
    return str(sandbox.describe().environment)


def test_an_unknown_price_stays_unknown(tracked: Any, sandbox: Environment) -> None:
    with dspy.context(lm=ScriptedLM([code("SUBMIT(answer='3')")], model="openai/gpt-4o-mini-of-mine")):
        assert program(sandbox)(context="c").usage["cost"] is None
    (tree,) = tracked()
    (leaf,) = (node for node in tree.all() if node.span.span_type == "CHAT_MODEL")
    assert leaf.span.llm_cost is None and leaf.get("mlflow.chat.tokenUsage")["input_tokens"] > 0


@pytest.mark.heavy
def test_64_runs_at_once_are_64_correct_trees(tracked: Any, sandbox: Environment) -> None:
    runs = 64
    rlm = program(sandbox, prices=PRICES, max_concurrency=64)
    lm = root("a = llm_query_batched([context + ' one', context + ' two'])\nprint(a)", "SUBMIT(answer=str(a))")

    async def all_of_them() -> list[dspy.Prediction]:
        return await asyncio.gather(*(rlm.acall(context=f"run {number}") for number in range(runs)))

    with dspy.context(lm=lm):
        predictions = asyncio.run(all_of_them())
    found = tracked()
    assert len(found) == runs
    act, call = ["act", "scripted/root"], ["llm_query_batched", "scripted/sub"]
    shape = ["RLM", ["turn 1", act, ["execute", call, call]], ["turn 2", act, "execute"]]
    by_run = {tree.span.inputs["context"]: tree for tree in found}
    for number, prediction in enumerate(predictions):
        tree = by_run[f"run {number}"]
        assert tree.shape() == shape
        assert {c.span.inputs["prompt"] for c in tree.all("llm_query_batched")} == {
            f"run {number} one",
            f"run {number} two",
        }
        for node in tree.all("scripted/sub"):
            assert node.span.inputs["messages"][-1]["content"].startswith(f"run {number} ")
        assert tree.span.outputs == {"answer": prediction.answer}
        assert tree.get("rlm_dspy.run")["usage"] == json.loads(json.dumps(prediction.usage))
        assert {name: value for name, value in leaves(tree).items() if name != "cost"} == {
            name: prediction.usage[name] for name in ("input_tokens", "output_tokens", "lm_calls")
        }


def test_a_large_input_is_stored_as_size_hash_head_and_tail(tracked: Any, sandbox: Environment, database: str) -> None:
    file = Path(database.removeprefix("sqlite:///"))
    text = "head " + "x" * 30_000_000 + " tail"
    rlm = program(sandbox)
    before = file.stat().st_size
    with dspy.context(lm=root("print(llm_query(context[:200_000]), context[-200_000:])", "SUBMIT(answer='3')")):
        rlm(context=text)
    (tree,) = tracked()
    assert file.stat().st_size - before < 200_000
    shown = tree.span.inputs["context"]
    assert (shown["characters"], shown["sha256"]) == (len(text), sha256(text))
    assert shown["head"].startswith("head x") and shown["tail"].endswith("x tail")
    prompt = tree.all("llm_query")[0].span.inputs["prompt"]
    assert prompt["characters"] == 200_000
    (message,) = (m for m in tree.all("scripted/sub")[0].span.inputs["messages"] if m["role"] == "user")
    assert "200,000 characters" in message["content"] and len(message["content"]) < 3_000


def test_the_whole_text_only_by_choice(enable: Callable[..., None], trees: Any, sandbox: Environment) -> None:
    enable(cap=None)
    with dspy.context(lm=ScriptedLM([code("SUBMIT(answer='3')")])):
        program(sandbox)(context="y" * 50_000)
    assert trees()[0].span.inputs["context"] == "y" * 50_000


def test_no_secret_is_stored(
    enable: Callable[..., None],
    trees: Any,
    sandbox: Environment,
    monkeypatch: pytest.MonkeyPatch,
    endpoint: Callable[..., Any],
) -> None:
    secrets = ["sk-abcdefghijklmnop1234", "hunter2-from-the-environment", "header-token-9876543210", "personal-AAA"]
    monkeypatch.setenv("SOME_SERVICE_TOKEN", secrets[1])
    enable(redact=lambda text: text.replace("personal-AAA", "[person]"))
    server = endpoint([code(f"print({' '.join(secrets)!r})"), code("SUBMIT(answer=context)"), outputs(answer="yes")])
    lm = dspy.LM(
        "openai/some-model",
        api_base=server.url,
        api_key=secrets[0],
        extra_headers={"Authorization": f"Bearer {secrets[2]}"},
        temperature=0.5,
        cache=False,
    )
    with dspy.context(lm=lm):
        program(sandbox)(context=" ".join([*secrets, "x" * 20_000, *secrets]))
        dspy.Predict("question -> answer")(question=" ".join(secrets))  # and outside of runs
    told = json.dumps([node.span.to_dict() for tree in trees() for node in tree.all()])
    assert "[person]" in told and "[hidden]" in told and "temperature" in told
    for secret in secrets:
        assert secret not in told
    assert "Authorization" not in told


def test_a_redaction_hook_that_fails_leaves_the_text_out(
    enable: Callable[..., None], trees: Any, sandbox: Environment
) -> None:
    def hook(text: str) -> str:
        raise RuntimeError("no")

    enable(redact=hook)
    with dspy.context(lm=ScriptedLM([code("SUBMIT(answer='3')")])):
        assert program(sandbox)(context="confidential").answer == "3"
    (tree,) = trees()
    assert "confidential" not in json.dumps([node.span.to_dict() for node in tree.all()])


def test_clip_bounds_anything() -> None:
    clip = Clip(100)
    nested: Any = "x"
    for _ in range(50):
        nested = [nested]
    values = {
        "text": "a" * 1_000,
        "bytes": b"b" * 1_000,
        "list": list(range(10_000)),
        "dict": {str(n): "v" * 50 for n in range(1_000)},
        "nested": nested,
        "object": object(),
        "surrogate": "\ud800",
    }
    shown = clip.fields(values)
    assert len(json.dumps(shown)) < 3_000
    assert shown["bytes"] == {"type": "bytes", "bytes": 1_000, "sha256": sha256(b"b" * 1_000)}
    assert shown["list"]["items"] == 10_000


@pytest.mark.parametrize("options", [{"cap": 0}, {"cap": "all"}, {"redact": "keys"}])
def test_an_option_that_cannot_be_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        tracking.enable(**options)


def stored_by(script: str, folder: Path) -> sqlite3.Connection:
    """The store that a program has made in its working directory."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    subprocess.run([sys.executable, "-c", script], cwd=folder, env=environment, check=True, timeout=120)
    return sqlite3.connect(folder / "mlflow.db")


@pytest.mark.heavy
def test_the_store_is_a_file_in_the_working_directory_unless_one_is_named(tmp_path: Path) -> None:
    script = (
        "import dspy, rlm_dspy\n"
        "from rlm_dspy.testing import ScriptedLM, code\n"
        "rlm_dspy.tracking.enable()\n"
        "with dspy.context(lm=ScriptedLM([code('SUBMIT(answer=1)')])):\n"
        "    rlm_dspy.RLM('context -> answer: int', interpreter='inprocess')(context='c')\n"
    )
    with stored_by(script, tmp_path) as store:
        names = [name for (name,) in store.execute("select name from spans order by start_time_unix_nano")]
    # A program that ends at once has written everything.
    assert names == ["RLM", "turn 1", "act", "scripted/lm", "execute"]


@pytest.mark.heavy
def test_a_program_that_changes_its_working_directory_has_a_store_in_each(tmp_path: Path) -> None:
    """MLflow keeps the database that a relative path meant first."""
    script = (
        "import os, dspy, rlm_dspy\n"
        "from rlm_dspy import traces\n"
        "from rlm_dspy.testing import ScriptedLM, code\n"
        "for answer in (1, 2):\n"
        "    os.makedirs(str(answer)), os.chdir(str(answer))\n"
        "    rlm_dspy.tracking.enable(tracking_uri='sqlite:///mlflow.db')\n"
        "    with dspy.context(lm=ScriptedLM([code(f'SUBMIT(answer={answer})')])):\n"
        "        rlm_dspy.RLM('context -> answer: int', interpreter='inprocess')(context='c')\n"
        "    (run,) = traces.runs(tracking_uri='sqlite:///mlflow.db')\n"
        "    assert run.outcome == 'submitted', run\n"
        "    os.chdir('..')\n"
        "os.link('2/mlflow.db', 'mlflow.db')\n"
    )
    with stored_by(script, tmp_path) as second, sqlite3.connect(tmp_path / "1" / "mlflow.db") as first:
        for store in (first, second):
            assert store.execute("select count(*) from trace_info").fetchone() == (1,)


@pytest.mark.heavy
def test_what_a_forked_process_runs_is_tracked_too(tmp_path: Path) -> None:
    """MLflow's own thread is not there in it: traces would wait for ever, and so would `flush`."""
    script = (
        "import os, dspy, rlm_dspy\n"
        "from rlm_dspy.testing import ScriptedLM, code\n"
        "rlm_dspy.tracking.enable()\n"
        "def call():\n"
        "    with dspy.context(lm=ScriptedLM([code('SUBMIT(answer=1)')])):\n"
        "        rlm_dspy.RLM('context -> answer: int', interpreter='inprocess')(context='c')\n"
        "    rlm_dspy.tracking.flush()\n"
        "call()\n"
        "if not (child := os.fork()):\n"
        "    call()\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    with stored_by(script, tmp_path) as store:
        assert store.execute("select count(*) from trace_info").fetchone() == (2,)


def test_without_mlflow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'rlm-dspy\[mlflow\]'"):
        tracking.enable()


def test_the_key_of_an_lm_in_the_place_of_one_that_is_gone_is_hidden() -> None:
    """Python gives the id of an object that is gone to another one."""
    from rlm_dspy.tracking.callback import Tracker
    from rlm_dspy.tracking.store import Store

    class Own:
        def __init__(self, key: str) -> None:
            self.kwargs = {"api_key": key}

    clip = Clip()
    tracker = Tracker(clip, Store(None, "sqlite://"))
    first: Any = Own("first-key-of-an-lm-0123456789")
    place = id(first)
    tracker.on_lm_start("1", first, {})
    del first
    kept = [Own("second-key-of-an-lm-0123456789")]
    while id(kept[-1]) != place and len(kept) < 100_000:
        kept.append(Own("second-key-of-an-lm-0123456789"))
    assert id(kept[-1]) == place
    tracker.on_lm_start("2", kept[-1], {})
    assert "second-key" not in clip.clean("said: second-key-of-an-lm-0123456789")


def test_the_list_of_traces_says_what_was_asked(tracked: Any, sandbox: Environment) -> None:
    with dspy.context(lm=ScriptedLM([code("SUBMIT('x')")])):
        RLM("context, query, n: int -> answer", interpreter=sandbox)(context="x" * 30_000, query="What is it?", n=3)
    tracking.flush()
    (trace,) = mlflow.search_traces(return_type="list", max_results=1)
    shown = json.loads(trace.info.request_preview)
    assert list(shown) == ["query", "n", "context"] and shown["query"] == "What is it?" and "30,000" in shown["context"]

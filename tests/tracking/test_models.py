"""RLMs as MLflow models: the same program in another process, and no key in any file."""

from __future__ import annotations

import copyreg
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import dspy
import pytest

from rlm_dspy import RLM, environments, tracking
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.testing import ScriptedLM, oracle
from rlm_dspy.tracking import models

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")

KEY, HEADER, OTHER = "planted-key-0123456789", "planted-header-0123456789", "planted-other-0123456789"
PIP = {"pip_requirements": ["dspy"]}
LOADED = """
import json, sys
import dspy, mlflow
program = mlflow.dspy.load_model(sys.argv[1])
prediction = program(context="three words here")
print(json.dumps({
    "answer": prediction.answer, "outcome": str(prediction.outcome), "calls": prediction.usage["calls"],
    "limits": program.limits.to_dict(), "instructions": program.act.signature.instructions,
    "demos": len(program.act.demos), "environment": program._factory.describe().environment,
    "callbacks": len(dspy.settings.callbacks), "model": program.sub_lm.model, "key": program.sub_lm.kwargs,
}))
"""


def lm(name: str = "openai/gpt-4o-mini") -> dspy.LM:
    return dspy.LM(name, api_key=KEY, extra_headers={"x-portkey-api-key": HEADER}, temperature=0.5)


def program(**options: Any) -> RLM:
    def shout(text: str) -> str:
        return text.upper()

    given = {"tools": [dspy.Tool(shout, name="shout"), dspy.Tool(lambda text: len(text), name="size")], **options}
    rlm = RLM("context -> answer", interpreter="subprocess", max_iters=7, max_depth=2, sub_lm=lm(), **given)
    rlm.act.signature = rlm.act.signature.with_instructions("Learned: count words.")
    rlm.act.demos = [dspy.Example(turns="1", reasoning="because", code="SUBMIT(answer='x')")]
    rlm.act.lm = ScriptedLM(oracle("n = size(shout(context))", "SUBMIT(answer=str(n))"))
    rlm.act.lm.kwargs["api_key"] = OTHER
    return rlm


def planted(folder: Path) -> list[str]:
    """Files with a key in them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    keys = [one.encode() for one in (KEY, HEADER, OTHER)]
    return [str(path) for path in files if any(key in path.read_bytes() for key in keys)]


@pytest.fixture
def configured() -> Iterator[None]:
    before = dspy.settings.lm
    dspy.configure(lm=lm("openai/gpt-of-the-settings"))
    yield
    dspy.configure(lm=before)


@pytest.mark.heavy
@pytest.mark.parametrize("whole", [False, True], ids=["pickle", "dspy"])
def test_a_logged_model_answers_the_same_in_another_process_and_holds_no_key(
    tracked: Any, configured: None, tmp_path: Path, whole: bool
) -> None:
    rlm = program()
    here = rlm(context="three words here").answer
    with tracking.run("logging"):
        # MLflow's own function, and ours.
        log = mlflow.dspy.log_model if whole else tracking.log_model
        info = log(rlm, name="rlm", use_dspy_model_save=whole, **PIP)
    folder = Path(mlflow.artifacts.download_artifacts(info.model_uri, dst_path=str(tmp_path)))
    assert planted(folder) == []
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["answer"], found["outcome"]) == (here, "submitted") == ("16", "submitted")
    assert found["limits"] == rlm.limits.to_dict() and found["environment"] == "subprocess"
    assert (found["instructions"], found["demos"]) == ("Learned: count words.", 1)
    assert found["model"] == "openai/gpt-4o-mini" and found["key"] == {"temperature": 0.5, **_plain(lm().kwargs)}
    # The program itself still has its keys.
    assert rlm.sub_lm.kwargs["api_key"] == KEY and dspy.settings.lm.kwargs["api_key"] == KEY


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in ("api_key", "extra_headers")}


def test_what_cannot_be_saved_is_named_before_anything_is_written(tmp_path: Path, configured: None) -> None:
    lock, connection = threading.Lock(), environments.get("inprocess")()

    def locked(text: str) -> str:
        with lock:
            return text

    def keyed(text: str, key: str = KEY) -> str:
        return text

    inner = RLM("context -> answer", tools=[locked], max_depth=1)
    wrong = {
        r"the tool 'locked' \(tools=\) cannot be saved .*opens what it needs when it is called": program(
            tools=[locked]
        ),
        r"the interpreter= of the RLM cannot be saved .*by name": program().with_options(
            interpreter=lambda: connection
        ),
        r"the tool 'keyed' \(tools=\) holds a secret.* environment": program(tools=[keyed]),
        r"the tool 'locked'": program(child=inner),
    }
    for number, (message, rlm) in enumerate(wrong.items()):
        with pytest.raises(ConfigurationError, match=message):
            models.save_model(rlm, str(tmp_path / f"model {number}"), **PIP)
    with dspy.context(adapter=_Adapter(lock)), pytest.raises(ConfigurationError, match="the setting adapter"):
        models.save_model(program(), str(tmp_path / "model"), **PIP)
    assert list(tmp_path.iterdir()) == []
    connection.shutdown()


class _Adapter(dspy.ChatAdapter):  # type: ignore[misc]
    def __init__(self, lock: Any) -> None:
        super().__init__()
        self.lock = lock


def test_only_what_is_saved_so_goes_without_keys() -> None:
    rlm = program()
    with models.keyless():
        assert KEY.encode() not in cloudpickle.dumps(rlm)
        other: list[bytes] = []
        thread = threading.Thread(target=lambda: other.append(cloudpickle.dumps(rlm)))
        thread.start()
        thread.join()
        assert KEY.encode() in other[0] and cloudpickle.loads(other[0]).sub_lm.kwargs["api_key"] == KEY
        with models.keyless():
            pass
        assert KEY.encode() not in cloudpickle.dumps(rlm)
    assert dspy.LM not in copyreg.dispatch_table and KEY.encode() in cloudpickle.dumps(rlm)


def test_a_save_that_ends_leaves_another_one_without_keys() -> None:
    rlm = program()
    begun, ended, saved = threading.Event(), threading.Event(), list[bytes]()

    def save() -> None:
        with models.keyless():
            begun.set()
            assert ended.wait(10)
            saved.append(cloudpickle.dumps(rlm))

    thread = threading.Thread(target=save)
    with models.keyless():
        thread.start()
        assert begun.wait(10)
    ended.set()
    thread.join()
    assert KEY.encode() not in saved[0]
    assert dspy.LM not in copyreg.dispatch_table and KEY.encode() in cloudpickle.dumps(rlm)


def test_a_model_saved_under_tracking_is_tracked_where_it_is_loaded(tracked: Any) -> None:
    (tracker,) = (one for one in dspy.settings.callbacks if type(one).__name__ == "Tracker")
    data = cloudpickle.dumps(dspy.settings.callbacks)
    assert any(one is tracker for one in cloudpickle.loads(data))
    tracking.disable()
    assert not tracking.enabled() and all(type(one).__name__ != "Tracker" for one in cloudpickle.loads(data))

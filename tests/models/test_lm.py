"""`local_lm`: a ``dspy.LM`` like any other, whose server comes and goes by itself."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import os
import pickle
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import dspy
import pytest

from rlm_dspy.errors import ConfigurationError, LocalModelError, MissingExtraError
from rlm_dspy.models import LocalLM, ServerOptions, local_lm, resolve, store
from rlm_dspy.models import lm as module
from tests.models.conftest import described

pytestmark = [pytest.mark.usefixtures("servers", "cache"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def lm(tiny: Path) -> LocalLM:
    return local_lm(str(tiny), context=1024, threads=1, max_tokens=8, cache=False)


def test_a_call(lm: LocalLM, tiny: Path) -> None:
    assert lm.server.pid is None  # started by the first call
    first = lm("hello")
    assert len(first) == 1 and first[0] and lm("hello") == first
    assert lm.model == f"openai/{resolve(str(tiny)).served_name}"
    assert lm.kwargs["temperature"] == 0.0 and lm.history[-1]["usage"]["completion_tokens"] == 8


def test_many_threads_and_loops_share_one_server(lm: LocalLM) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: lm.copy()("hello"), range(8)))
    pid = lm.server.pid
    assert len(replies) == 8 and all(replies)

    async def several() -> list[list[str]]:
        return await asyncio.gather(*(lm.acall("hello") for _ in range(4)))

    for _ in range(2):
        assert all(asyncio.run(several()))
    assert lm.server.pid == pid


def test_copies_are_of_the_same_server(lm: LocalLM) -> None:
    lm("hello")
    for other in (copy.deepcopy(lm), pickle.loads(pickle.dumps(lm)), lm.copy(temperature=0.5)):
        assert other("hello") and other.server is lm.server


def test_a_server_that_died_is_no_error(lm: LocalLM) -> None:
    before = lm("hello")
    os.kill(lm.server.pid or 0, signal.SIGKILL)
    assert lm("hello") == before
    os.kill(lm.server.pid or 0, signal.SIGKILL)
    assert asyncio.run(lm.acall("hello")) == before


def test_stopped_and_started(lm: LocalLM) -> None:
    before = lm("hello")
    pid = lm.server.pid
    lm.stop()
    assert not os.path.exists(f"/proc/{pid}")
    assert lm("hello") == before and lm.server.pid not in (pid, None)


def test_a_prompt_that_does_not_fit_names_both_numbers(lm: LocalLM) -> None:
    with pytest.raises(Exception, match=r"exceeds the available context size \(1024 tokens\)"):
        lm("x" * 3000)
    assert lm.server.alive


def test_replies_are_held_to_a_schema(lm: LocalLM) -> None:
    """Random weights answer a typed question in the right form, since the server lets them write nothing else."""

    class Known(dspy.Signature):
        """Say yes or no."""

        question: str = dspy.InputField()
        answer: bool = dspy.OutputField()

    with dspy.context(lm=lm.copy(max_tokens=64), adapter=dspy.JSONAdapter()):
        assert dspy.Predict(Known)(question="?").answer in (True, False)


_OTHER_PROCESS = """
import os, sys, dspy
dspy.configure_cache(enable_disk_cache=False)
program = dspy.Predict("question -> answer")
program.load(sys.argv[1], allow_unsafe_lm_state=True)
assert program.lm.server.pid is None
print(bool(program.lm("hello")), program.lm.server.pid != int(sys.argv[2]), program.lm.kwargs["max_tokens"])
"""


def test_a_saved_program_serves_itself_elsewhere(
    lm: LocalLM, tmp_path: Path, in_python: Callable[..., subprocess.Popen[str]]
) -> None:
    lm("hello")
    program = dspy.Predict("question -> answer")
    program.lm = lm
    program.save(tmp_path / "program.json")
    text = (tmp_path / "program.json").read_text()
    assert "127.0.0.1" not in text and str(lm.kwargs["api_key"]) not in text
    process = in_python(_OTHER_PROCESS, str(tmp_path / "program.json"), str(lm.server.pid))
    out, err = process.communicate(timeout=300)
    assert out.split() == ["True", "True", "8"], err


_WATCHED = """
import os, pickle, sys
os.environ.pop("LITELLM_LOCAL_MODEL_COST_MAP", None)
asked = []

def watch(event, details):
    if event == "urllib.Request" and "://127.0.0.1:" not in details[0]:
        asked.append(details[0])
    elif event == "socket.getaddrinfo" and details[0] not in ("127.0.0.1", "localhost", None):
        asked.append(details[0])

sys.addaudithook(watch)
import dspy
dspy.configure_cache(enable_disk_cache=False)
with open(sys.argv[1], "rb") as file:
    lm = pickle.load(file)
print(bool(lm("hello")), bool(lm.supported_params), asked)
"""


def test_nothing_is_looked_up_on_the_network(
    lm: LocalLM, tmp_path: Path, in_python: Callable[..., subprocess.Popen[str]]
) -> None:
    """Not even a list of prices, which DSPy fetches by itself for what it calls."""
    (tmp_path / "lm.pkl").write_bytes(pickle.dumps(lm))
    out, err = in_python(_WATCHED, str(tmp_path / "lm.pkl")).communicate(timeout=300)
    assert out.split() == ["True", "True", "[]"], err


def test_a_choice_of_prices_is_kept(lm: LocalLM, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "False")
    lm.start()
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "False"
    monkeypatch.delenv("LITELLM_LOCAL_MODEL_COST_MAP")
    local_lm(str(tiny))
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"


def test_state_is_whole(cache: Path) -> None:
    lm = LocalLM(described(), ServerOptions(context=999, parallel=3), pull=False, temperature=0.3, max_tokens=5)
    back = dspy.BaseLM.load_state(lm.dump_state(), allow_custom_lm_class=True)
    assert isinstance(back, LocalLM)
    assert (back.local_model, back.options, back.pull) == (lm.local_model, lm.options, False)
    assert back.model == lm.model and back.kwargs == lm.kwargs and back.cache == lm.cache


def test_what_is_not_here_and_may_not_be_fetched(cache: Path) -> None:
    with pytest.raises(LocalModelError, match=r"is not here\. Fetch it with: rlm-dspy model pull qwen2\.5-coder-1\.5b"):
        local_lm(pull=False)
    with pytest.raises(ConfigurationError, match="there is no model"):
        local_lm("nothing-of-that-name")
    with pytest.raises(ConfigurationError, match="context"):
        local_lm(context=0)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rlm-dspy\[local\]'"):
        local_lm()


@pytest.mark.heavy
@pytest.mark.alone
def test_the_real_model_answers(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The default one, if it is in the cache folder of whoever runs the tests."""
    monkeypatch.undo()
    if store.complete(resolve("qwen2.5-coder-1.5b")) is None:
        pytest.skip(f"the model is not in {store.root()}; rlm-dspy model pull brings it, 1.1 GB")
    lm = local_lm(pull=False, context=4096, cache=False, max_tokens=40)
    assert "Paris" in lm("What is the capital of France? One word.")[0]

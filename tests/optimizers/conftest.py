"""For all tests of optimisers: the toy task as a module, and what every compiled program has to stand.

toy       the module ``toy``
root_lm   the toy's root as ``dspy.settings.lm``
proven    ``proven(compiled)``: it improves, its contract is whole, it is saved and loaded
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import dspy
import pytest
from dspy.clients.provider import Provider

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import ScriptedLM

TOY = Path(__file__).with_name("toy.py")
_NAME = "rlm_dspy_toy"

# What only a contract says: none of it may be in a saved program.
CONTRACT_WORDS = ("SHOW_VARS", "budget()", "sub-LM calls", "rlm_query_batched", "level of children", "zq_lookup")


def load() -> ModuleType:
    """The module of ``toy.py``, the same at each call."""
    if _NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(_NAME, TOY)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_NAME] = module
        spec.loader.exec_module(module)
    return sys.modules[_NAME]


@pytest.fixture(scope="session")
def toy() -> Any:
    """The module ``toy``."""
    return load()


@pytest.fixture
def root_lm(toy: Any) -> Iterator[ScriptedLM]:
    """The toy's root, configured."""
    lm = ScriptedLM(toy.root, model="scripted/root")
    with dspy.context(lm=lm):
        yield lm


class Trainer(Provider):
    """Of the interface that DSPy trains through: writes each job's rows to a file, and reads them again."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.finetunable = True
        self.folder = folder
        self.killed: list[str] = []

    def launch(self, lm: Any, launch_kwargs: Any = None) -> None:
        pass

    def kill(self, lm: Any, launch_kwargs: Any = None) -> None:
        self.killed.append(lm.model)

    def finetune(self, job: Any, model: str, train_data: Any, train_data_format: Any, train_kwargs: Any = None) -> str:
        name = f"{model}-tuned-{len(list(self.folder.iterdir()))}"
        path = self.folder / f"{name.replace('/', '_')}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in train_data))
        return name

    def rows(self, model: str = "") -> list[list[dict[str, str]]]:
        """The messages of every row, of all models or the one of that name."""
        files = sorted(self.folder.glob(f"{model.replace('/', '_')}*.jsonl"))
        return [json.loads(line)["messages"] for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    """A `Trainer` with a folder of its own."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    yield Trainer(folder)


def zq_lookup(key: str, limit: int = 3) -> str:
    """Look something up."""
    return key * limit


def assert_contract(rlm: RLM, lm: ScriptedLM, told: list[str]) -> None:
    """The root of ``rlm`` and of its child are told variables, functions, limits, and how to answer."""
    before = len(lm.calls)
    example = load().heldout()[1]
    rlm(**example.inputs())
    opened = [call for call in lm.calls[before:] if call.turn == 0 and "REPL" in call.system]
    assert len(opened) == 2, "one first turn of the parent, one of its child"
    parent, child = (call.own[0]["content"] for call in opened)
    wanted = [*told, "Variable `log`", "`llm_query(", "`llm_query_batched(", "`SHOW_VARS()", "4 turns"]
    assert [part for part in wanted if part not in parent] == []
    assert "SUBMIT(amount=..., complaints=...), amount: int; complaints: int" in parent and "`rlm_query(" in parent
    assert [part for part in wanted if part not in child and "sub-LM calls" not in part] == []
    assert "SUBMIT(response=...)" in child
    assert all("```python" in call.system for call in opened)


@pytest.fixture
def proven(toy: Any, sandbox: Environment, root_lm: ScriptedLM, tmp_path: Path) -> Callable[..., RLM]:
    """``proven(compiled, act=1.0, sub=1.0, lm=None)``: scores at least so, and so does a fresh program that loads it.

    The fresh program has a tool and a limit of its own, which its root is told.
    """

    def check(compiled: Any, *, act: float = 1.0, sub: float = 1.0, lm: ScriptedLM | None = None) -> RLM:
        scores = toy.scores(compiled)
        assert scores["act"] >= act and scores["sub"] >= sub, scores
        state = json.dumps(compiled.dump_state(), default=str)
        assert [word for word in CONTRACT_WORDS if word in state] == []
        assert "quiet and nothing of note" not in state, "a log is in the saved program"
        assert len(state) < 60_000
        compiled.save(tmp_path / "program.json")
        fresh: RLM = toy.program(sandbox, tools=[zq_lookup], max_llm_calls=37)
        fresh.load(tmp_path / "program.json")
        if lm is not None:
            # LMs are saved by name, and a script has none to find it by.
            fresh.set_lm(lm)
        assert toy.scores(fresh) == scores
        assert_contract(fresh, lm or root_lm, ["`zq_lookup(key: str, limit: int = 3) -> str`", "37 sub-LM calls"])
        return fresh

    return check

"""The ``pyodide`` environment: DSPy's own sandbox as one of ours. Deno fetches Pyodide once, so these are heavy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, ConfigurationError, MissingExtraError, environments
from rlm_dspy.environments import conformance
from rlm_dspy.environments.foreign import ForeignSession
from rlm_dspy.testing import ScriptedLM, code
from tests.environments.deno_cache import seed

# What needs any value to cross, threads, output before an error, an interrupt or a process of its own.
LIMIT = 60.0


@pytest.fixture(scope="module")
def deno(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A Deno that starts DSPy's interpreter, or a skip that says why there is none."""
    folder = tmp_path_factory.mktemp("deno")
    seed(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DENO_DIR", str(folder))
        try:
            with dspy.PythonInterpreter() as interpreter:
                assert "2" in str(interpreter.execute("print(1 + 1)"))
        except Exception as error:
            pytest.skip(f"DSPy's PythonInterpreter does not start here (pip install 'rlm-dspy[pyodide]'): {error}")
        yield folder


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["state_persists"])
def test_conformance(deno: Path, name: str) -> None:
    check = next(check for check in conformance.checks() if check.__name__ == name)
    place = environments.pyodide(timeout=LIMIT)
    check(lambda: ForeignSession(place, timeout=LIMIT, environment=place))


@pytest.mark.heavy
def test_a_program_runs_in_it(deno: Path) -> None:
    """Tools by keyword, sub-calls, errors, a typed answer, set-up code, and the description in the events."""
    root = ScriptedLM(
        [
            code("n = len(context)\nprint(n, factor)"),
            code("print(lookup(word='k'), llm_query(prompt='a'))"),
            code("1 / 0"),
            code("SUBMIT(answer=n * factor)"),
        ]
    )

    def lookup(word: str) -> str:
        """Find a word."""
        return word + "!"

    rlm = RLM(
        "context -> answer: int",
        interpreter=environments.pyodide(setup_code="factor = 3", timeout=LIMIT),
        tools=[lookup],
        sub_lm=ScriptedLM(["of the sub-LM"]),
    )
    with dspy.context(lm=root):
        pred = rlm(context="four")
    outputs = [turn.output for turn in pred.trajectory]
    assert pred.answer == 12 and pred.outcome == "submitted"
    assert outputs[0].strip() == "4 3" and outputs[1].strip() == "k! of the sub-LM"
    assert "ZeroDivisionError" in outputs[2]
    opened = next(event for event in pred.trajectory.events if event.kind == "session_opened")
    assert opened.confined and opened.layers == ("deno", "pyodide")


@pytest.mark.heavy
def test_past_its_time_limit_it_is_replaced(deno: Path) -> None:
    root = ScriptedLM([code("x = 1\nwhile True: pass"), code("SUBMIT(answer='x' in globals())")])
    rlm = RLM("query -> answer: bool", interpreter=environments.pyodide(timeout=3.0))
    with dspy.context(lm=root):
        pred = rlm(query="?")
    assert pred.answer is False and "more than 3 seconds" in pred.trajectory[0].output


@pytest.mark.heavy
def test_set_up_code_that_fails_is_told(deno: Path) -> None:
    rlm = RLM("query -> answer", interpreter=environments.pyodide(setup_code="1 / 0"))
    with dspy.context(lm=ScriptedLM([])), pytest.raises(Exception, match=r"setup_code .* failed: ZeroDivisionError"):
        rlm(query="?")


@pytest.mark.heavy
def test_it_is_a_factory_for_dspys_own_modules(deno: Path) -> None:
    with environments.pyodide()() as interpreter:
        assert isinstance(interpreter, dspy.CodeInterpreter)
        assert str(interpreter.execute("print(6 * 7)")).strip() == "42"


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/deno")
    closed, opened = environments.pyodide(), environments.pyodide(enable_network_access=["example.org"], timeout=None)
    assert closed.describe().confined and not opened.describe().confined
    assert opened.describe().time.level == "not bounded" and closed == environments.pyodide() != opened
    for option, value in (("packages", ["numpy"]), ("files", {"a": b"x"})):
        with pytest.raises(ConfigurationError, match=f"takes no {option}"):
            environments.pyodide(**{option: value})


def test_without_deno_the_error_names_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rlm-dspy\[pyodide\]'"):
        environments.pyodide()

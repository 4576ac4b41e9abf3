"""Saving, loading, copying, pickling: what an RLM keeps, and that the contract is never part of it."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import dspy
import pytest

import rlm_dspy
from rlm_dspy import RLM, ConfigurationError
from rlm_dspy.environments.base import Environment
from rlm_dspy.environments.subprocess_env import Subprocess
from rlm_dspy.testing import ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")


class Clause(dspy.Signature):
    """Find the clause."""

    contract: str = dspy.InputField()
    page: int = dspy.OutputField()


def old_tool(key: str) -> str:
    """An old tool."""
    return key


def new_tool(key: str) -> str:
    """A new tool."""
    return key + "!"


def trained(**options: Any) -> RLM:
    rlm = RLM("context, query -> answer", **options)
    rlm.act.signature = rlm.act.signature.with_instructions("The learned strategy.")
    rlm.act.demos = [dspy.Example(task="t", turns=[], reasoning="r", code="SUBMIT('demo')", augmented=True)]
    rlm.sub.demos = [dspy.Example(prompt="p", response="r", augmented=True)]
    return rlm


def first_request(rlm: RLM, **inputs: Any) -> Any:
    lm = ScriptedLM(lambda call: code("SUBMIT('x')"))
    with dspy.context(lm=lm):
        rlm(**(inputs or {"context": "c", "query": "q"}))
    return lm.calls[0]


# -------------------------------------------------------------------------------------------------------- save and load


@pytest.mark.parametrize("suffix", ["json", "pkl"])
def test_state_of_one_program_loaded_into_another_keeps_the_others_contract(
    sandbox: Environment, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"state.{suffix}"
    trained(tools=[old_tool], max_llm_calls=50).save(path)
    rlm = RLM(
        "context, query -> answer", tools=[new_tool], max_llm_calls=5, max_iters=7, interpreter_factory=sandbox
    )
    rlm.load(path, allow_pickle=True)
    assert rlm.act.signature.instructions == "The learned strategy."
    assert [dict(demo)["code"] for demo in rlm.act.demos] == ["SUBMIT('demo')"]
    request = first_request(rlm)
    assert "The learned strategy." in request.system
    assert "`new_tool(key: str) -> str`" in request.prompt and "old_tool" not in request.prompt
    assert "7 turns" in request.prompt and "5 sub-LM calls" in request.prompt and "50" not in request.prompt
    assert (rlm.max_llm_calls, rlm.max_iters, list(rlm.tools)) == (5, 7, ["new_tool"])


def test_state_goes_to_another_signature_but_for_extract(sandbox: Environment, tmp_path: Path) -> None:
    """Strategy and demonstrations name no input of the task, so they carry over to a task with other inputs."""
    path = tmp_path / "state.json"
    trained().save(path)
    rlm = RLM("text -> answer", interpreter_factory=sandbox)
    rlm.load(path)
    request = first_request(rlm, text="abc")
    assert "The learned strategy." in request.system and "Variable `text`" in request.prompt


def test_saved_json_is_small_and_holds_no_knob(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    trained(tools=[old_tool], max_llm_calls=4321, max_seconds=8765.0).save(path)
    text = path.read_text()
    state = json.loads(text)
    assert set(state) == {"act", "sub", "extract", "compact", "rlm_dspy", "metadata"}
    assert state["rlm_dspy"] == {"schema": 1}
    for word in ("old_tool", "4321", "8765", "llm_query", "context", "query"):
        assert word not in text


def test_api_keys_are_not_saved(tmp_path: Path) -> None:
    rlm = RLM("query -> answer")
    rlm.set_lm(dspy.LM("openai/m", api_key="sk-secret-0123456789"))
    rlm.save(tmp_path / "state.json")
    assert "sk-secret" not in (tmp_path / "state.json").read_text()


@pytest.mark.parametrize("suffix", ["json", "pkl"])
@pytest.mark.parametrize("inside_a_program", [False, True])
@pytest.mark.parametrize("demos", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"extra_headers": {"x-portkey-api-key": "secret-0123456789"}},
        {"headers": {"Authorization": "Bearer secret-0123456789"}},
        {"default_headers": {"x-gateway": "secret-0123456789"}},
        {"aws_secret_access_key": "secret-0123456789"},
        {"azure_ad_token": "secret-0123456789"},
        {"vertex_credentials": {"private": "secret-0123456789"}},
    ],
)
def test_keys_in_headers_and_settings_are_not_saved(
    tmp_path: Path, suffix: str, inside_a_program: bool, demos: bool, settings: dict[str, Any]
) -> None:
    rlm = trained() if demos else RLM("context, query -> answer")
    if demos:
        # A raw training example, which an optimiser may leave among the demonstrations.
        rlm.act.demos.append(dspy.Example(context="c", query="q", answer="a"))
    lm = dspy.LM("openai/m", max_tokens=777, top_p=0.5, api_base="http://127.0.0.1:9/v1", **settings)
    rlm.set_lm(lm)
    program: Any = rlm
    if inside_a_program:
        program = dspy.Module()
        program.rlm = rlm
    path = tmp_path / f"state.{suffix}"
    program.save(path)
    assert b"secret" not in path.read_bytes()
    assert lm.kwargs.items() >= settings.items(), "saving changed the LM itself"
    program.load(path, allow_pickle=True, allow_unsafe_lm_state=True)
    loaded = rlm.act.lm
    assert (loaded.model, loaded.kwargs["max_tokens"], loaded.kwargs["top_p"]) == ("openai/m", 777, 0.5)


def test_a_newer_schema_is_refused() -> None:
    state = RLM("query -> answer").dump_state()
    state["rlm_dspy"]["schema"] = 99
    with pytest.raises(ConfigurationError, match="schema 99"):
        RLM("query -> answer").load_state(state)


def test_state_of_dspys_rlm_is_refused_with_a_hint() -> None:
    state = dspy.RLM("query -> answer").dump_state()
    with pytest.raises(ConfigurationError, match=r"no entry for act, .*dspy\.RLM"):
        RLM("query -> answer").load_state(state)


def test_load_is_all_or_nothing() -> None:
    rlm = RLM("query -> answer")
    state = trained().dump_state()
    del state["extract"]["signature"]
    with pytest.raises(KeyError):
        rlm.load_state(state)
    assert rlm.act.demos == [] and "learned" not in rlm.act.signature.instructions


def test_state_of_a_program_that_holds_an_rlm(sandbox: Environment, tmp_path: Path) -> None:
    class Program(dspy.Module):
        def __init__(self, rlm: RLM) -> None:
            super().__init__()
            self.rlm = rlm

        def forward(self, **inputs: Any) -> dspy.Prediction:
            return self.rlm(**inputs)

    Program(trained()).save(tmp_path / "state.json")
    program = Program(RLM("context, query -> answer", interpreter_factory=sandbox))
    program.load(tmp_path / "state.json")
    assert [name for name, _ in program.named_predictors()] == ["rlm.act", "rlm.sub", "rlm.extract", "rlm.compact"]
    assert program.rlm.act.signature.instructions == "The learned strategy."


# --------------------------------------------------------------------------------------------------- copies and pickles


def through_deepcopy(rlm: Any) -> Any:
    return copy.deepcopy(rlm)


def through_module_deepcopy(rlm: Any) -> Any:
    return rlm.deepcopy()


def through_pickle(rlm: Any) -> Any:
    return pickle.loads(pickle.dumps(rlm))


def through_cloudpickle(rlm: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(rlm))


@pytest.mark.parametrize("through", [through_deepcopy, through_module_deepcopy, through_pickle, through_cloudpickle])
def test_copies_run_and_are_independent(sandbox: Environment, through: Callable[[Any], Any]) -> None:
    original = trained(tools=[old_tool], max_iters=9, interpreter_factory=sandbox)
    made = through(original)
    assert made.dump_state() == original.dump_state()
    assert made.act is not original.act
    request = first_request(made)
    assert "The learned strategy." in request.system and "`old_tool(key: str) -> str`" in request.prompt
    assert "9 turns" in request.prompt
    made.act.demos.clear()
    made.act.signature = made.act.signature.with_instructions("Other.")
    made.max_iters = 2
    assert len(original.act.demos) == 1 and original.act.signature.instructions == "The learned strategy."
    assert original.max_iters == 9


@pytest.mark.parametrize("through", [through_deepcopy, through_pickle, through_cloudpickle])
def test_copies_keep_the_signature_and_its_types(sandbox: Environment, through: Callable[[Any], Any]) -> None:
    made = through(RLM(Clause, interpreter_factory=sandbox))
    with dspy.context(lm=ScriptedLM([code("SUBMIT(page='7')")])):
        assert made(contract="c").page == 7
    if through is through_deepcopy:
        assert made.signature is Clause


def test_pickle_keeps_what_is_shared_within_a_program() -> None:
    rlm = RLM("query -> answer")
    first, second = pickle.loads(pickle.dumps([rlm, rlm.with_options(max_iters=3)]))
    assert first.act is second.act and (first.max_iters, second.max_iters) == (20, 3)


def test_save_program_and_load_in_another_process(
    sandbox: Environment, tmp_path: Path, in_python: Callable[..., Any]
) -> None:
    trained(tools=[old_tool], max_iters=9, interpreter_factory=Subprocess(), sub_lm=dspy.LM("openai/sub")).save(
        tmp_path / "program", save_program=True, modules_to_serialize=[__import__("sys").modules[__name__]]
    )
    script = f"""
import dspy
from rlm_dspy.testing import ScriptedLM, code
rlm = dspy.load({str(tmp_path / "program")!r}, allow_pickle=True)
lm = ScriptedLM([code("print(old_tool('k'))"), code("SUBMIT('x')")])
with dspy.context(lm=lm):
    prediction = rlm(context="c", query="q")
print(prediction.answer, prediction.trajectory[0]["output"], rlm.max_iters, rlm.sub_lm.model)
print("The learned strategy." in lm.calls[0].system)
"""
    out, err = in_python(script).communicate(timeout=60)
    assert out.splitlines() == ["x k 9 openai/sub", "True"], err


def test_predictions_pickle_and_copy(sandbox: Environment) -> None:
    with dspy.context(lm=ScriptedLM([code("print(1)"), code("SUBMIT('x')")])):
        prediction = RLM("query -> answer", interpreter_factory=sandbox)(query="q")
    for through in (through_pickle, through_cloudpickle, through_deepcopy):
        made = through(prediction)
        assert made.answer == "x" and made.outcome == "submitted" and made.outcome.limit is None
        assert made.trajectory == prediction.trajectory and made.trajectory[0].number == 1
        assert made.usage == prediction.usage


# -------------------------------------------------------------------------------------------------------- views and LMs


def test_a_view_shares_predictors_and_callbacks(sandbox: Environment) -> None:
    seen: list[str] = []

    class Watch(dspy.utils.BaseCallback):
        def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
            seen.append(type(instance).__name__)

    rlm = RLM("query -> answer", interpreter_factory=sandbox)
    rlm.callbacks.append(Watch())
    view = rlm.with_options(max_iters=2, max_output_chars=10)
    assert view.act is rlm.act and view.sub is rlm.sub and view.extract is rlm.extract
    assert (view.max_iters, rlm.max_iters) == (2, 20)
    with dspy.context(lm=ScriptedLM([code("SUBMIT('x')")])):
        view(query="q")
    assert seen == ["RLM"]
    with pytest.raises(ConfigurationError, match="unknown options"):
        rlm.with_options(max_iterations=3)
    with pytest.raises(ConfigurationError, match="max_iters"):
        rlm.with_options(max_iters=0)


def test_set_lm_reaches_every_predictor(sandbox: Environment) -> None:
    lm = ScriptedLM([code("print(llm_query('?'))"), "asked", code("1"), "[[ ## answer ## ]]\nx"])
    rlm = RLM("query -> answer", interpreter_factory=sandbox, max_iters=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        rlm.set_lm(lm)
    assert rlm.get_lm() is lm
    prediction = rlm(query="q")
    assert prediction.answer == "x" and prediction.trajectory[0]["output"] == "asked" and len(lm.calls) == 4


def test_set_lm_with_a_sub_lm_warns_and_names_both(sandbox: Environment) -> None:
    sub = ScriptedLM(["never asked"], model="scripted/small")
    lm = ScriptedLM([code("print(llm_query('?'))"), "asked", code("SUBMIT('x')")], model="scripted/big")
    rlm = RLM("query -> answer", interpreter_factory=sandbox, sub_lm=sub)
    with pytest.warns(UserWarning, match=r"scripted/big.*scripted/small") as caught:
        rlm.set_lm(lm)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert rlm(query="q").trajectory[0]["output"] == "asked"
    assert sub.calls == []


def test_order_of_sub_lms(sandbox: Environment) -> None:
    def lm(name: str) -> ScriptedLM:
        return ScriptedLM(lambda call: name)

    def root() -> ScriptedLM:
        return ScriptedLM(lambda call: code("SUBMIT(llm_query('?'))") if "REPL" in call.system else "configured")

    rlm = RLM("query -> answer", interpreter_factory=sandbox)
    with dspy.context(lm=root()):
        assert rlm(query="q").answer == "configured"
        assert rlm.with_options(sub_lm=lm("sub_lm"))(query="q").answer == "sub_lm"
        rlm.sub.lm = lm("sub.lm")
        assert rlm.with_options(sub_lm=lm("sub_lm"))(query="q").answer == "sub.lm"


def test_public_names() -> None:
    for name in rlm_dspy.__all__:
        assert getattr(rlm_dspy, name) is not None

"""Where an RLM differs from ``dspy.RLM`` 3.4 on purpose: each difference, and that it is still one."""

from __future__ import annotations

import datetime
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Reply, ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")


def chat(source: str, reasoning: str = "plan") -> str:
    """A reply in DSPy's chat format, as a model that was prompted by ``dspy.RLM`` writes it."""
    return f"[[ ## reasoning ## ]]\n{reasoning}\n\n[[ ## code ## ]]\n```python\n{source}\n```\n\n[[ ## completed ## ]]"


def lookup(key: str, n: int = 2) -> list[str]:
    """Find a key."""
    return [f"{key}{i}" for i in range(n)]


def both(
    replies: list[str], signature: Any = "context, query -> answer", sub: Any = None, **options: Any
) -> tuple[Any, Any]:
    """The same scripted program on ``dspy.RLM`` and on ours, each in DSPy's ``LocalInterpreter``."""
    predictions = []
    for kind in (dspy.RLM, RLM):
        sub_lm = ScriptedLM(sub) if sub else None
        program = kind(signature, sub_lm=sub_lm, interpreter_factory=dspy.LocalInterpreter, **options)
        with dspy.context(lm=ScriptedLM(replies)):
            predictions.append(program(context="one\ntwo\nthree", query="how many lines?"))
    return predictions[0], predictions[1]


def test_print_and_value_are_both_shown(sandbox: Environment) -> None:
    replies = [chat("print('printed')\n41 + 1"), chat("SUBMIT('x')")]
    theirs, _ = both(replies)
    with dspy.context(lm=ScriptedLM(replies)):
        ours = RLM("context, query -> answer", interpreter_factory=sandbox)(context="c", query="q")
    assert theirs.trajectory[0]["output"] == "42"
    assert ours.trajectory[0]["output"] == "printed\n42"


def test_output_before_an_error_is_kept(sandbox: Environment) -> None:
    replies = [chat("print('before')\n1 / 0"), chat("print('last words')\nSUBMIT('x')")]
    program = RLM("context, query -> answer", interpreter_factory=sandbox)
    with dspy.context(lm=ScriptedLM(replies)):
        ours = program(context="c", query="q")
    theirs, _ = both(replies)
    assert "before" not in theirs.trajectory[0]["output"]
    assert "last words" not in theirs.trajectory[1]["output"]
    assert ours.trajectory[0]["output"].startswith("before\n[Error] Traceback")
    assert "line 2" in ours.trajectory[0]["output"]
    assert ours.trajectory[1]["output"] == "last words\nFINAL: {'answer': 'x'}"


@pytest.mark.parametrize("value", ["0", "False", "[]", "''", "{}"])
def test_falsy_values_are_shown(value: str, sandbox: Environment) -> None:
    replies = [chat(value), chat("SUBMIT('x')")]
    theirs, _ = both(replies)
    with dspy.context(lm=ScriptedLM(replies)):
        ours = RLM("context, query -> answer", interpreter_factory=sandbox)(context="c", query="q")
    assert "no output" in theirs.trajectory[0]["output"]
    assert ours.trajectory[0]["output"] == value


def test_rebinding_an_input_is_kept() -> None:
    theirs, ours = both([chat("context = 'changed'"), chat("print(context)"), chat("SUBMIT('x')")])
    assert theirs.trajectory[1]["output"].strip() == "one\ntwo\nthree"
    assert ours.trajectory[1]["output"] == "changed"


def test_tools_take_positional_arguments() -> None:
    theirs, ours = both([chat("print(lookup('k', 1))"), chat("SUBMIT('x')")], tools=[lookup])
    assert "TypeError" in theirs.trajectory[0]["output"]
    assert ours.trajectory[0]["output"] == "['k0']"


@pytest.mark.parametrize("reply", ["I do not know yet.", "", "[[ ## reasoning ## ]]\nonly a plan"])
def test_a_reply_without_code_is_a_turn(reply: str) -> None:
    replies = [reply, reply, chat("SUBMIT('x')")]  # dspy.RLM asks twice, with two adapters, and gives up
    program = dspy.RLM("context, query -> answer", interpreter_factory=dspy.LocalInterpreter)
    with dspy.context(lm=ScriptedLM(replies)), pytest.raises(Exception) as raised:
        program(context="c", query="q")
    assert not hasattr(raised.value, "trajectory")
    ours = RLM("context, query -> answer", interpreter_factory=dspy.LocalInterpreter)
    with dspy.context(lm=ScriptedLM(replies)):
        prediction = ours(context="c", query="q")
    assert prediction.answer == "x"
    assert [turn.error for turn in prediction.trajectory] == [True, True, False]


def test_defaults_of_input_fields_are_honoured(sandbox: Environment) -> None:
    class Task(dspy.Signature):
        """Answer."""

        query: str = dspy.InputField()
        context: str = dspy.InputField(default="the default")
        answer: str = dspy.OutputField()

    with dspy.context(lm=ScriptedLM([])), pytest.raises(ValueError, match="Missing"):
        dspy.RLM(Task, interpreter_factory=dspy.LocalInterpreter)(query="q")
    with dspy.context(lm=ScriptedLM([code("SUBMIT(context)")])):
        assert RLM(Task, interpreter_factory=sandbox)(query="q").answer == "the default"


def test_errors_carry_the_trajectory() -> None:
    down = Reply(error=dspy.lm15.AuthError("no key"))
    for kind in (dspy.RLM, RLM):
        program = kind("query -> answer", interpreter_factory=dspy.LocalInterpreter)
        with dspy.context(lm=ScriptedLM([down])), pytest.raises(Exception) as raised:
            program(query="q")
        assert hasattr(raised.value, "trajectory") is (kind is RLM)


def test_an_error_after_the_first_turn_is_an_outcome() -> None:
    down = Reply(error=dspy.lm15.AuthError("no key"))
    answer = "[[ ## answer ## ]]\nsaved\n\n[[ ## completed ## ]]"
    program = dspy.RLM("query -> answer", interpreter_factory=dspy.LocalInterpreter)
    with dspy.context(lm=ScriptedLM([chat("print(1)"), down, answer])), pytest.raises(dspy.LMError):
        program(query="q")
    ours = RLM("query -> answer", interpreter_factory=dspy.LocalInterpreter)
    with dspy.context(lm=ScriptedLM([chat("print(1)"), down, answer])):
        prediction = ours(query="q")
    assert prediction.answer == "saved" and prediction.outcome == "extracted"
    assert "no key" in prediction.outcome.error and len(prediction.trajectory) == 1


def test_all_code_blocks_of_a_reply_run() -> None:
    reply = "First:\n```python\na = 1\n```\nThen:\n```python\nprint(a + 1)\n```"
    with dspy.context(lm=ScriptedLM([reply, code("SUBMIT('x')")])):
        ours = RLM("query -> answer", interpreter_factory=dspy.LocalInterpreter)(query="q")
    replies = [f"[[ ## reasoning ## ]]\np\n\n[[ ## code ## ]]\n{reply}\n\n[[ ## completed ## ]]", chat("SUBMIT('x')")]
    with dspy.context(lm=ScriptedLM(replies)):
        theirs = dspy.RLM("query -> answer", interpreter_factory=dspy.LocalInterpreter)(query="q")
    assert "2" not in theirs.trajectory[0]["output"]
    assert ours.trajectory[0]["output"] == "2"


def test_a_fence_inside_a_string_does_not_cut_the_code() -> None:
    source = 'text = """Return\n```json\n{}\n```\nonly"""\nprint(len(text))'
    theirs, ours = both([chat(source), chat("SUBMIT('x')")])
    assert "SyntaxError" in theirs.trajectory[0]["output"] or "[Error]" in theirs.trajectory[0]["output"]
    assert ours.trajectory[0]["output"] == "26"


def test_variables_of_any_type_cross(sandbox: Environment) -> None:
    value = {"when": datetime.date(2020, 1, 2), "raw": b"\0\xff", "set": {1, 2}, "nan": float("inf")}
    program = dspy.RLM("data -> answer", interpreter_factory=dspy.LocalInterpreter)
    with dspy.context(lm=ScriptedLM([chat("SUBMIT('x')")])), pytest.raises(dspy.CodeInterpreterError):
        program(data=value)
    source = "SUBMIT(repr((data['when'].year, data['raw'], data['set'], data['nan'])))"
    with dspy.context(lm=ScriptedLM([code(source)])):
        ours = RLM("data -> answer", interpreter_factory=sandbox)(data=value)
    assert ours.answer == r"(2020, b'\x00\xff', {1, 2}, inf)"


def test_sub_calls_are_a_predictor() -> None:
    names = {name for name, _ in RLM("query -> answer").named_predictors()}
    assert names == {"act", "sub", "extract", "compact"}
    assert {name for name, _ in dspy.RLM("query -> answer").named_predictors()} == {"generate_action", "extract"}


def test_tools_are_shown_with_types_and_defaults(sandbox: Environment) -> None:
    lm = ScriptedLM([code("SUBMIT('x')")])
    with dspy.context(lm=lm):
        RLM("query -> answer", tools=[lookup], interpreter_factory=sandbox)(query="q")
    assert "- `lookup(key: str, n: int = 2) -> list[str]` - Find a key." in lm.calls[0].prompt
    theirs = dspy.RLM("query -> answer", tools=[lookup]).generate_action.signature.instructions
    assert "- `lookup(key: string, n: integer)` - Find a key." in theirs


def test_an_explicit_python_interpreter_is_meant(sandbox: Environment) -> None:
    """DSPy cannot tell its default from the same class given; ours is None where nothing is given."""
    made: list[Any] = []

    class Interpreter(dspy.PythonInterpreter):
        def start(self) -> None:
            made.append(self)
            raise dspy.CodeInterpreterError("no Deno here")

    rlm = RLM("query -> answer", interpreter_factory=Interpreter)
    with (
        dspy.context(lm=ScriptedLM([]), interpreter_factory=sandbox),
        pytest.raises(dspy.CodeInterpreterError, match="no Deno here"),
    ):
        rlm(query="q")
    assert len(made) == 1

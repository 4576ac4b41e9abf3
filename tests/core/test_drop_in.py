"""A program written for ``dspy.RLM`` 3.4 works by replacing the name. See test_differs.py for the rest."""

from __future__ import annotations

import inspect
import json
from typing import Any, Literal

import dspy
import pytest
from dspy.primitives.sandbox_serializable import SandboxSerializable
from dspy.utils import DummyLM

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")


def chat(source: str, reasoning: str = "plan") -> str:
    """A reply in DSPy's chat format, as a model that was prompted by ``dspy.RLM`` writes it."""
    return f"[[ ## reasoning ## ]]\n{reasoning}\n\n[[ ## code ## ]]\n```python\n{source}\n```\n\n[[ ## completed ## ]]"


def lookup(key: str, n: int = 2) -> list[str]:
    """Find a key."""
    return [f"{key}{i}" for i in range(n)]


async def fetch(key: str) -> str:
    """Fetch a key."""
    return f"fetched {key}"


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


# ------------------------------------------------------------------------------------------------- constructor and call


def test_constructor_takes_dspys_parameters_in_dspys_order() -> None:
    theirs = list(inspect.signature(dspy.RLM.__init__).parameters.values())
    ours = list(inspect.signature(RLM.__init__).parameters.values())[: len(theirs)]
    assert [p.name for p in ours] == [p.name for p in theirs]
    assert [p.default for p in ours[:-1]] == [p.default for p in theirs[:-1]]
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in ours)


def test_positional_construction_and_the_call(sandbox: Environment) -> None:
    sub = ScriptedLM(["forty"])
    rlm = RLM("context, query -> answer", 5, 7, 2_000, False, [lookup], sub, sandbox)
    lm = ScriptedLM([code("print(lookup('a'), llm_query('?'))", "look"), code("SUBMIT(answer='x')", "done")])
    with dspy.context(lm=lm):
        prediction = rlm(context="text", query="what?")
    assert (rlm.max_iters, rlm.max_llm_calls, rlm.max_output_chars, rlm.verbose) == (5, 7, 2_000, False)
    assert rlm.sub_lm is sub and list(rlm.tools) == ["lookup"]
    assert prediction.answer == "x"
    assert prediction.trajectory[0]["output"] == "['a0', 'a1'] forty"
    assert prediction.final_reasoning == "done"


def test_result_is_json_able_list_of_dicts(sandbox: Environment) -> None:
    with dspy.context(lm=ScriptedLM([code("print(1)", "look"), code("SUBMIT(answer='x')", "done")])):
        prediction = RLM("query -> answer", interpreter_factory=sandbox)(query="?")
    steps = json.loads(json.dumps(prediction.trajectory))
    assert steps == [
        {"reasoning": "look", "code": "print(1)", "output": "1"},
        {"reasoning": "done", "code": "SUBMIT(answer='x')", "output": "FINAL: {'answer': 'x'}"},
    ]


def test_verbose_prints_each_turn_to_stderr(sandbox: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rlm_dspy.console")
    with dspy.context(lm=ScriptedLM([code("print('seen')", "first look"), code("SUBMIT(answer='x')")])):
        RLM("query -> answer", verbose=True, interpreter_factory=sandbox)(query="?")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "first look" in shown.err and "seen" in shown.err


def test_interpreter_factory_of_one_call_wins(sandbox: Environment) -> None:
    used: list[str] = []

    def factory(name: str) -> Any:
        def make() -> Any:
            used.append(name)
            return sandbox()

        return make

    rlm = RLM("query -> answer", interpreter_factory=factory("own"))
    plain = RLM("query -> answer")
    with dspy.context(lm=ScriptedLM(lambda call: code("SUBMIT(answer='x')")), interpreter_factory=factory("context")):
        rlm(query="?")
        rlm(query="?", interpreter_factory=factory("call"))
        plain(query="?")
    assert used == ["own", "call", "context"]


def test_configured_factory_is_read_at_call_time(sandbox: Environment) -> None:
    rlm = RLM("query -> answer")
    made: list[Any] = []

    def factory() -> Any:
        made.append(sandbox())
        return made[-1]

    with dspy.context(lm=ScriptedLM(lambda call: code("SUBMIT(answer='x')")), interpreter_factory=factory):
        assert rlm(query="?").answer == "x"
    assert len(made) == 1


def test_an_interpreter_in_place_of_a_factory_is_refused(sandbox: Environment) -> None:
    interpreter = sandbox()
    with pytest.raises(TypeError, match="every run needs its own"):
        RLM("query -> answer", interpreter_factory=interpreter)
    rlm = RLM("query -> answer")
    with dspy.context(lm=ScriptedLM([])), pytest.raises(TypeError, match="every run needs its own"):
        rlm(query="?", interpreter_factory=interpreter)
    with (
        dspy.context(lm=ScriptedLM([]), interpreter_factory=interpreter),
        pytest.raises(TypeError, match="every run needs its own"),
    ):
        rlm(query="?")
    with dspy.context(lm=ScriptedLM([])), pytest.raises(TypeError, match="must return a dspy"):
        rlm(query="?", interpreter_factory=lambda: object())


def test_execution_instructions_of_the_factory_are_shown_to_the_root(sandbox: Environment) -> None:
    class Factory:
        execution_instructions = "MARK: this place has seven planets."

        def __call__(self) -> Any:
            return sandbox()

    lm = ScriptedLM(lambda call: code("SUBMIT(answer='x')"))
    rlm = RLM("query -> answer", interpreter_factory=sandbox)
    with dspy.context(lm=lm):
        rlm(query="?", interpreter_factory=Factory())
        rlm(query="?")
    assert "MARK: this place has seven planets." in lm.calls[0].prompt
    assert "MARK" not in lm.calls[1].prompt
    assert sandbox.execution_instructions in lm.calls[1].prompt


# ----------------------------------------------------------------------------------------------------- names and errors


@pytest.mark.parametrize("kind", [dspy.RLM, RLM])
@pytest.mark.parametrize(
    ("signature", "tools"),
    [
        ("llm_query -> answer", None),
        ("llm_query_batched -> answer", None),
        ("SUBMIT -> answer", None),
        ("print -> answer", None),
        ("dspy -> answer", None),
        ("interpreter_factory -> answer", None),
        ("query -> trajectory", None),
        ("query -> final_reasoning", None),
        ("lookup -> answer", [lookup]),
        ("query -> answer", [lookup, lookup]),
        ("query -> answer", [dspy.Tool(lookup, name="llm_query")]),
        ("query -> answer", [dspy.Tool(lookup, name="not a name")]),
        ("query -> answer", [dspy.Tool(lookup, name="class")]),
        ("query -> answer", [dspy.Tool(lookup, name="_dspy_x")]),
    ],
)
def test_names_that_dspy_refuses_are_refused(kind: Any, signature: str, tools: Any) -> None:
    with pytest.raises(ValueError):
        kind(signature, tools=tools)


@pytest.mark.parametrize("kind", [dspy.RLM, RLM])
def test_tools_must_be_a_list_of_callables(kind: Any) -> None:
    with pytest.raises(TypeError, match="must be a list"):
        kind("query -> answer", tools={"lookup": lookup})
    with pytest.raises(TypeError, match="callable"):
        kind("query -> answer", tools=["lookup"])
    assert kind("query -> answer", tools=[]).tools == {}
    assert kind("query -> answer", tools={}).tools == {}


@pytest.mark.parametrize("kind", [dspy.RLM, RLM])
def test_missing_and_unexpected_inputs_are_value_errors(kind: Any) -> None:
    program = kind("context, query -> answer", interpreter_factory=dspy.LocalInterpreter)
    with dspy.context(lm=ScriptedLM([])):
        with pytest.raises(ValueError, match=r"Missing required inputs: \['query'\]"):
            program(context="c")
        with pytest.raises(ValueError, match="extra"):
            program(context="c", query="q", extra=1)
        with pytest.raises(TypeError):
            program("c", "q")


@pytest.mark.parametrize("name", ["outcome", "usage"])
def test_our_results_own_more_names(name: str) -> None:
    dspy.RLM(f"query -> {name}")
    with pytest.raises(ValueError, match="fields of every result"):
        RLM(f"query -> {name}")


# --------------------------------------------------------------------------------------------------------- same results


def test_the_same_program_gives_the_same_result() -> None:
    replies = [
        chat("lines = context.splitlines()\nprint(len(lines))", "count"),
        chat("print(llm_query('first'))\nanswers = llm_query_batched(['a', 'b'])\nprint(answers)", "ask"),
        chat("SUBMIT(answer=str(len(lines)) + answers[1])", "done"),
    ]
    theirs, ours = both(replies, sub=lambda call: f"<{call.prompt[-1:]}>")
    assert ours.answer == theirs.answer == "3<b>"
    assert ours.final_reasoning == theirs.final_reasoning == "done"
    assert [(t["reasoning"], t["code"]) for t in ours.trajectory] == [
        (t["reasoning"], t["code"]) for t in theirs.trajectory
    ]
    assert [t["output"].strip() for t in ours.trajectory] == [t["output"].strip() for t in theirs.trajectory]


@pytest.mark.parametrize(
    ("annotation", "source", "value"),
    [
        ("int", "SUBMIT(answer=3)", 3),
        ("int", "SUBMIT('3')", 3),
        ("float", "SUBMIT(answer=0.5)", 0.5),
        ("bool", "SUBMIT(answer=True)", True),
        ("list[str]", "SUBMIT(['a', 'b'])", ["a", "b"]),
        ("dict[str, int]", "SUBMIT(answer={'a': 1})", {"a": 1}),
        ("str", "SUBMIT(answer='x')", "x"),
        ("str", "SUBMIT(answer=5)", "5"),
        ("Literal['yes', 'no']", "SUBMIT(answer='yes')", "yes"),
        ("Optional[int]", "SUBMIT(answer=None)", None),
    ],
)
def test_submitted_types_are_converted_alike(annotation: str, source: str, value: Any) -> None:
    theirs, ours = both([chat(source)], f"context, query -> answer: {annotation}")
    assert ours.answer == theirs.answer == value
    assert type(ours.answer) is type(theirs.answer)


@pytest.mark.parametrize(
    "source",
    ["SUBMIT(answer='x')", "SUBMIT(answer='x', n='many')", "SUBMIT()", "SUBMIT('x', 1, 2)", "SUBMIT(answer='x', m=1)"],
)
def test_a_wrong_submission_is_a_turn_for_both(source: str) -> None:
    theirs, ours = both([chat(source), chat("SUBMIT(answer='right', n=2)")], "context, query -> answer: str, n: int")
    assert (ours.answer, ours.n) == (theirs.answer, theirs.n) == ("right", 2)
    assert len(ours.trajectory) == len(theirs.trajectory) == 2
    assert ours.trajectory[0].error and "[Error]" in ours.trajectory[0]["output"]


def test_max_iters_falls_back_to_extract_for_both() -> None:
    replies = [chat("print(1)"), chat("print(2)"), "[[ ## answer ## ]]\nfrom history\n\n[[ ## completed ## ]]"]
    theirs, ours = both(replies, max_iters=2)
    assert ours.answer == theirs.answer == "from history"
    assert len(ours.trajectory) == len(theirs.trajectory) == 2
    assert theirs.final_reasoning == "Extract forced final output"
    assert ours.final_reasoning == "extracted after max_iters"
    assert ours.outcome == "extracted" and ours.outcome.limit == "max_iters"


def test_max_llm_calls_is_refused_in_the_code_for_both() -> None:
    source = "try:\n    llm_query_batched(['a', 'b', 'c'])\nexcept RuntimeError as e:\n    print('refused')\n"
    replies = [chat(source + "print(llm_query('x'))"), chat("SUBMIT('x')")]
    theirs, ours = both(replies, sub=lambda call: "yes", max_llm_calls=2)
    assert ours.trajectory[0]["output"] == theirs.trajectory[0]["output"].strip() == "refused\nyes"
    assert ours.usage["calls"] == 1


def test_a_failed_sub_call_of_a_batch_stays_in_its_slot_for_both() -> None:
    def sub(call: Any) -> str:
        if call.prompt.endswith("bad"):
            raise ValueError("broken client")
        return "fine"

    source = "answers = llm_query_batched(['good', 'bad'])\nprint(answers[0], answers[1].startswith('[ERROR]'))"
    theirs, ours = both([chat(source), chat("SUBMIT('x')")], sub=sub)
    assert ours.trajectory[0]["output"] == theirs.trajectory[0]["output"].strip() == "fine True"


def test_error_in_code_is_a_turn_for_both() -> None:
    theirs, ours = both([chat("1 / 0"), chat("def broken(:"), chat("SUBMIT('x')")])
    assert ours.answer == theirs.answer == "x"
    for prediction in (theirs, ours):
        assert "ZeroDivisionError" in prediction.trajectory[0]["output"]
        assert prediction.trajectory[1]["output"].startswith("[Error]")


def test_tools_by_keyword_work_for_both() -> None:
    replies = [chat("print(lookup(key='k'))\nprint(fetch(key='z'))"), chat("SUBMIT('x')")]
    theirs, ours = both(replies, tools=[lookup, fetch])
    assert theirs.trajectory[0]["output"].strip() == ours.trajectory[0]["output"] == "['k0', 'k1']\nfetched z"


def test_sub_agents_by_import_dspy_for_both() -> None:
    source = """
import dspy
plain = dspy.Predict("question -> answer")(question="q1")
thought = dspy.ChainOfThought("question -> answer")(question="q2")
print(plain.answer, thought.answer, thought.reasoning)
"""

    def sub(call: Any) -> str:
        return "[[ ## reasoning ## ]]\nwhy\n\n[[ ## answer ## ]]\nsub\n\n[[ ## completed ## ]]"

    theirs, ours = both([chat(source), chat("SUBMIT('x')")], sub=sub)
    assert theirs.trajectory[0]["output"].strip() == ours.trajectory[0]["output"] == "sub sub why"
    assert ours.usage["calls"] == 2


def test_sub_agents_in_our_sandbox(sandbox: Environment) -> None:
    """Predict, ReAct with a tool, and a nested RLM, all charged to the run's sub-calls."""
    source = """
import dspy
p = dspy.Predict(dspy.Signature("question -> answer: int", "Count."))
agent = dspy.ReAct("question -> answer", tools=[lookup], max_iters=1)
nested = dspy.RLM("text -> answer", max_iters=2)
print(p(question="q").answer + 1)
print(agent(question="q").answer)
print(nested(text="abc").answer)
"""

    def sub(call: Any) -> str:
        if "next_tool_name" in call.prompt:
            return (
                "[[ ## next_thought ## ]]\nuse\n\n[[ ## next_tool_name ## ]]\nlookup\n\n"
                '[[ ## next_tool_args ## ]]\n{"key": "k"}\n\n[[ ## completed ## ]]'
            )
        if "repl_history" in call.prompt:
            return chat("SUBMIT(answer=text.upper())")
        if "trajectory" in call.prompt:
            return "[[ ## reasoning ## ]]\nr\n\n[[ ## answer ## ]]\n" + ("k0" if "k0" in call.prompt else "?")
        return "[[ ## answer ## ]]\n41\n\n[[ ## completed ## ]]"

    rlm = RLM("query -> answer", tools=[lookup], sub_lm=ScriptedLM(sub), interpreter_factory=sandbox, max_llm_calls=9)
    with dspy.context(lm=ScriptedLM([code(source), code("SUBMIT('x')")])):
        prediction = rlm(query="?")
    assert prediction.trajectory[0]["output"] == "42\nk0\nABC"
    assert prediction.usage["calls"] == 4


def test_sub_agents_stop_at_the_limit_of_sub_calls(sandbox: Environment) -> None:
    source = """
import dspy
p = dspy.Predict("question -> answer")
for n in range(3):
    try:
        print(p(question=str(n)).answer)
    except Exception as error:
        print("refused" if "max_llm_calls" in str(error) else error)
"""
    sub = ScriptedLM(lambda call: "[[ ## answer ## ]]\nyes")
    rlm = RLM("query -> answer", sub_lm=sub, interpreter_factory=sandbox, max_llm_calls=2)
    with dspy.context(lm=ScriptedLM([code(source), code("SUBMIT('x')")])):
        prediction = rlm(query="?")
    assert prediction.trajectory[0]["output"] == "yes\nyes\nrefused"
    assert len(sub.calls) == prediction.usage["calls"] == 2


def test_dummy_lm_in_chat_format(sandbox: Environment) -> None:
    lm = DummyLM(
        [
            {"reasoning": "look", "code": "print(len(context))"},
            {"reasoning": "done", "code": "```python\nSUBMIT(answer='four')\n```"},
        ]
    )
    with dspy.context(lm=lm):
        prediction = RLM("context -> answer", interpreter_factory=sandbox)(context="text")
    assert prediction.answer == "four"
    assert [dict(turn) for turn in prediction.trajectory] == [
        {"reasoning": "look", "code": "print(len(context))", "output": "4"},
        {"reasoning": "done", "code": "SUBMIT(answer='four')", "output": "FINAL: {'answer': 'four'}"},
    ]


class Table(SandboxSerializable):
    """Rows that travel as JSON and arrive as a list of tuples."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows

    def sandbox_setup(self) -> str:
        return "import json"

    def to_sandbox(self) -> bytes:
        return json.dumps(self.rows).encode()

    def sandbox_assignment(self, var_name: str, data_expr: str) -> str:
        return f"{var_name} = [tuple(row) for row in json.loads({data_expr})]"

    def rlm_preview(self, max_chars: int = 500) -> str:
        return f"Table of {len(self.rows)} rows"


@pytest.mark.parametrize("factory", ["ours", "foreign"])
def test_sandbox_serializable_inputs(factory: str, sandbox: Environment) -> None:
    lm = ScriptedLM([code("print(table)"), code("SUBMIT(answer=str(sum(a for a, _ in table)))")])
    rlm = RLM("table -> answer", interpreter_factory=sandbox if factory == "ours" else dspy.LocalInterpreter)
    with dspy.context(lm=lm):
        prediction = rlm(table=Table([[1, 2], [3, 4]]))
    assert prediction.answer == "4"
    assert prediction.trajectory[0]["output"] == "[(1, 2), (3, 4)]"
    assert "Table of 2 rows" in lm.calls[0].prompt


def test_literal_is_checked_by_both() -> None:
    class Task(dspy.Signature):
        query: str = dspy.InputField()
        answer: Literal["yes", "no"] = dspy.OutputField()

    replies = [chat("SUBMIT('maybe')"), chat("SUBMIT('no')")]
    for kind in (dspy.RLM, RLM):
        with dspy.context(lm=ScriptedLM(replies)):
            prediction = kind(Task, interpreter_factory=dspy.LocalInterpreter)(query="q")
        assert prediction.answer == "no" and "maybe" in prediction.trajectory[0]["output"]

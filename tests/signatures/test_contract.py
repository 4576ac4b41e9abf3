"""The contract of a run as text."""

from __future__ import annotations

import json

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy.signatures.contract import Contract, FunctionInfo, OutputInfo, VariableInfo

hostile = st.text(alphabet=st.sampled_from("{}[]%`'\"\\\0\r\n\u2028$ aé\ud800"), max_size=40)


@given(hostile, hostile, hostile, hostile)
def test_every_fact_stands_in_it_as_it_is(task: str, preview: str, doc: str, note: str) -> None:
    text = Contract(
        task=task,
        variables=(VariableInfo("v", "str", "3 characters", preview, True, "what it is"),),
        functions=(FunctionInfo("f(x: int) -> str", doc),),
        outputs=(OutputInfo("a", "str", "the {answer}"), OutputInfo("b", "list[int]")),
        limits=("3 turns", note),
        environment="Python {3}",
        notes=(note,),
    ).render()
    assert text.startswith(f"# Task\n{task.strip()}")
    assert f"- `v`: str, 3 characters - what it is\n  = {preview}" in text
    assert "`f(x: int) -> str`" in text and " ".join(doc.split()) in text
    assert "`SUBMIT(a: str, b: list[int])`" in text and "- a: the {answer}" in text
    assert f"- {note}" in text and text.endswith(note) and "Python {3}" in text


def test_a_part_of_a_value_is_never_shown_as_the_whole() -> None:
    whole = VariableInfo("a", "str", "", "'x'", True)
    part = VariableInfo("b", "str", "9 characters", "'x' … 'y'", False)
    text = Contract("t", (whole, part), (), ()).render()
    assert "- `a`: str\n  = 'x'" in text
    assert "- `b`: str, 9 characters\n  begins and ends 'x' … 'y'" in text


def test_no_section_is_empty() -> None:
    text = Contract("t", (), (FunctionInfo("f()"),), (OutputInfo("a", "int"),)).render()
    assert text == (
        "# Task\nt\n\n# Functions\nCallable in the REPL:\n- `f()`\n\n"
        "# Answer\nCall `SUBMIT(a: int)` in code to give the answer; that ends the run."
    )


@pytest.mark.parametrize("count", [1, 200])
def test_many_fields_stay_in_their_order(count: int) -> None:
    outputs = tuple(OutputInfo(f"o{n}", "int", f"number {n}") for n in range(count))
    lines = Contract("t", (), (), outputs).render().splitlines()
    assert [line for line in lines if line.startswith("- o")] == [f"- o{n}: number {n}" for n in range(count)]


def test_a_schema_is_json() -> None:
    schema = {"type": "object", "properties": {"ß": {"enum": ["`", "{", '"']}}}
    text = Contract("t", (), (), (OutputInfo("a", "M", "", schema),)).render()
    line = next(line for line in text.splitlines() if line.startswith("- a follows"))
    assert json.loads(line.partition("JSON schema ")[2]) == schema


def test_a_task_signature_survives_any_docstring() -> None:
    signature = dspy.Signature("q -> a").with_instructions("Use {braces} and `ticks` %s \\n")
    assert Contract(signature.instructions, (), (), ()).render().startswith("# Task\nUse {braces} and `ticks` %s \\n")

"""Feedback from whole trajectories: what went wrong is found, told to the predictor that can change it, and bounded."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM, optimizers
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.optimizers import diagnose, excerpt, feedback
from rlm_dspy.redact import hide
from rlm_dspy.testing import ScriptedLM, code
from rlm_dspy.trajectory import Trajectory

TEXT = "The code word is heron. " + "filler " * 3_000


def run(*replies: str, sub: Any = lambda call: "ok", **options: Any) -> tuple[dspy.Prediction, list[Any]]:
    """One run by a root that says ``replies``, and its trace."""
    rlm = RLM(
        options.pop("signature", "context: str, query -> answer"),
        sub_lm=ScriptedLM(sub, model="scripted/sub"),
        interpreter="inprocess",
        guidance=False,
        **options,
    )
    with dspy.context(lm=ScriptedLM(list(replies), model="scripted/root"), trace=[]):
        prediction = rlm(context=TEXT, query="What is the code word?")
        return prediction, list(dspy.settings.trace)


def kinds(prediction: dspy.Prediction, role: str = "act") -> list[str]:
    return [found.kind for found in diagnose(prediction.trajectory) if found.role == role]


LOOK = code("print(context[:40])")
DONE = code("SUBMIT('heron')")

FAULTS = {
    "no_code": ["I think it is heron.", LOOK, DONE],
    "error": [LOOK, code("1 / 0"), DONE],
    "repeated_error": [LOOK, code("1 / 0"), code("x = 1\n1 / 0"), DONE],
    "repeated_code": [LOOK, LOOK, DONE],
    "printed_whole": [code("print(context)"), DONE],
    "blind_submit": [code("SUBMIT(context[17:22])")],
    "unread_input": [code("print('thinking')"), DONE],
    "serial_calls": [code("print([llm_query(context[n:n + 9]) for n in range(4)])"), DONE],
    "refused_call": [
        code("try:\n    llm_query_batched([context[:9]] * 9, fresh=True)\nexcept Exception as e: print(e)"),
        DONE,
    ],
}


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_is_found_and_told_to_the_root(kind: str, no_leaks: None) -> None:
    prediction, trace = run(*FAULTS[kind], max_llm_calls=8 if kind != "refused_call" else 2, max_output_chars=2_000)
    found = kinds(prediction)
    if kind == "refused_call" and kind not in found:
        # A batch that is refused whole ends as an error of the code, or is caught by it.
        assert "max_llm_calls" in str(prediction.trajectory[0]["output"])
    else:
        assert kind in found
    gold = dspy.Example(context=TEXT, query="?", answer="crane").with_inputs("context", "query")
    judged = feedback(lambda gold, pred, trace=None: gold.answer == pred.answer)
    sentence = next((str(f) for f in diagnose(prediction.trajectory) if f.kind == kind), "")
    assert sentence in judged(gold, prediction, trace, "act", None).feedback
    assert not sentence or sentence not in judged(gold, prediction, trace, "sub", None).feedback


def test_a_clean_run_has_no_fault(no_leaks: None) -> None:
    prediction, _ = run(LOOK, code("print(llm_query_batched([context[:9], context[9:99], context[99:]]))"), DONE)
    assert kinds(prediction) == ["budget"]
    assert [found for found in diagnose(prediction.trajectory) if found.role != "act"] == []


def test_wrong_types_limits_and_failed_extraction(no_leaks: None) -> None:
    prediction, _ = run(LOOK, code("SUBMIT('many')"), "no form", signature="context, query -> answer: int", max_iters=2)
    assert kinds(prediction)[:2] == ["wrong_submit", "limit"]
    assert kinds(prediction, "extract") == ["extract_failed"]


def test_faults_of_children_are_told_as_such(no_leaks: None) -> None:
    child = ScriptedLM([code("1 / 0"), code("SUBMIT('heron')")], model="scripted/child")
    prediction, _ = run(
        code("print(rlm_query('Which word?', text=context))"),
        DONE,
        max_depth=2,
        models={"c": child},
        models_by_depth={1: {"root": "c"}},
    )
    inner = [found for found in diagnose(prediction.trajectory) if found.depth == 1]
    assert "error" in [found.kind for found in inner]
    assert str(inner[0]).startswith("In a child: Turn 1: ")
    assert all(found.depth == 0 for found in diagnose(prediction.trajectory, children=False))
    assert "Child (depth 1) asked 'Which word?'" in excerpt(prediction.trajectory)


def test_a_sub_call_that_had_the_answer_before_it_is_told_so(no_leaks: None) -> None:
    prediction, trace = run(code("print(llm_query('Which word? ' + context[:40]))"), code("SUBMIT('ok')"))
    gold = dspy.Example(context=TEXT, query="?", answer="heron").with_inputs("context", "query")
    judged = feedback(lambda gold, pred, trace=None: float(gold.answer == pred.answer))
    said = judged(gold, prediction, trace, "sub", None)
    assert said.score == 0.0
    assert "though the text it was given has the expected answer: 'heron'" in said.feedback
    assert "expected heron, got ok" in judged(gold, prediction, trace, "act", None).feedback


def test_what_turned_out_well_is_no_fault(no_leaks: None) -> None:
    prediction, trace = run(code("SUBMIT(context[17:22])"))
    gold = dspy.Example(context=TEXT, query="?", answer="heron").with_inputs("context", "query")
    right, wrong = feedback(lambda gold, pred: 1.0), feedback(lambda gold, pred: 0.5)
    assert "before any output was seen" not in right(gold, prediction, trace, "act", None).feedback
    assert "before any output was seen" in wrong(gold, prediction, trace, "act", None).feedback


def test_known_answers_of_sub_calls_are_told(no_leaks: None) -> None:
    def sub_gold(gold: Any, role: str, inputs: Any, outputs: Any) -> Any:
        assert role == "classify"
        return True if inputs["item"] == "a" else "vowel"

    prediction, trace = run(
        code("print(classify_batched([{'item': 'a'}, {'item': 'e'}]))"),
        DONE,
        sub=lambda call: "consonant",
        sub_calls={"classify": "item -> label"},
    )
    gold = dspy.Example(context=TEXT, query="?", answer="heron").with_inputs("context", "query")
    judged = feedback(lambda gold, pred, trace=None: 0.5, sub_gold=sub_gold)
    said = judged(gold, prediction, trace, "rlm.sub_calls['classify']", None).feedback
    assert said.count("right is: vowel") == 1
    assert "asked 'e', it answered 'consonant'" in said


def test_it_is_the_metric_of_stock_gepa_and_of_evaluate(no_leaks: None) -> None:
    seen: list[str] = []

    def reflect(call: Any) -> str:
        seen.append(call.prompt)
        return json.dumps({"new_instruction": "Know the word heron."})

    def root(call: Any) -> str:
        knows = "heron" in call.system
        return code("SUBMIT('heron')" if knows else "1 / 0" if call.turn == 0 else "SUBMIT('?')")

    rlm = RLM("context, query -> answer", interpreter="inprocess", guidance=False)
    data = [
        dspy.Example(context=TEXT[24:], query=str(n), answer="heron").with_inputs("context", "query") for n in range(3)
    ]
    metric = feedback(lambda gold, pred, trace=None: gold.answer == pred.answer)
    with dspy.context(lm=ScriptedLM(root, model="scripted/root")):
        optimizer = dspy.GEPA(
            metric=metric,
            reflection_lm=ScriptedLM(reflect, model="scripted/reflection"),
            max_metric_calls=12,
            num_threads=1,
        )
        compiled = optimizer.compile(rlm, trainset=data, valset=data)
        assert dspy.Evaluate(devset=data, metric=metric, num_threads=1)(compiled).score == 100.0
    assert "Turn 1: the code failed: ZeroDivisionError" in seen[0]


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        (lambda gold, pred: True, 1.0),
        (lambda gold, pred, trace=None: 0.25, 0.25),
        (lambda g, p, t, n, pt: dspy.Prediction(score=0.5, feedback="Half."), 0.5),
        (lambda gold, pred, trace=None: {"score": 2, "feedback": "Twice."}, 2.0),
    ],
)
def test_metrics_of_every_form(metric: Any, score: float) -> None:
    judged = feedback(metric)
    gold = dspy.Example(q="?", answer="a").with_inputs("q")
    assert judged(gold, dspy.Prediction(answer="a")) == score
    assert judged(gold, dspy.Prediction(answer="a"), None, "act", None).score == score
    assert judged(gold, None) == 0.0
    assert feedback(judged) is judged


def test_what_is_no_metric_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="metric must be a function"):
        feedback(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is called as"):
        feedback(lambda: 1.0)
    with pytest.raises(TypeError, match="gives a number"):
        feedback(lambda gold, pred: "good")(None, dspy.Prediction(answer=1))


_text = st.text(max_size=400)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    turns=st.lists(st.fixed_dictionaries({"reasoning": _text, "code": _text, "output": _text}), max_size=30),
    chars=st.integers(400, 5_000),
)
def test_an_excerpt_of_anything_keeps_its_bound(turns: list[dict[str, str]], chars: int) -> None:
    assert len(excerpt(turns, chars=chars)) <= chars  # type: ignore[arg-type]
    diagnose(turns)  # type: ignore[arg-type]


def test_secrets_and_large_outputs_are_in_no_excerpt(no_leaks: None) -> None:
    hide("hunter2-hunter2")
    prediction, _ = run(code("print(context, 'hunter2-hunter2')\nx = 'hunter2-hunter2'"), DONE, max_output_chars=50_000)
    text = excerpt(prediction.trajectory)
    assert "hunter2" not in text
    assert len(text) < 6_000
    assert "What is the code word?" in text and "Ended: submitted" in text
    with pytest.raises(ValueError, match="at least 400"):
        excerpt(Trajectory(), chars=10)


def test_of_a_long_run_its_ends_and_its_failures_are_shown(no_leaks: None) -> None:
    steps = [code(f"print(context[:{400 + n}], {n})", f"step {n}") for n in range(14)]
    steps[6] = code("context.undefined_zq", "step 6")
    prediction, _ = run(*steps, DONE)
    text = excerpt(prediction.trajectory)
    assert "undefined_zq" in text and "AttributeError" in text
    assert "--- Turn 1," in text and "--- Turn 15," in text and "Turn 8: step 7" in text
    assert 3_000 < len(text) <= 6_000


def test_the_room_offers_them() -> None:
    assert {"feedback", "diagnose", "excerpt"} <= set(optimizers.__all__)

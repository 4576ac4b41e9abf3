"""What `RLMGEPA` does with parts that are broken: metrics, reflecting models, examples, programs, its user's Ctrl-C."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM
from rlm_dspy.errors import ConfigurationError, RLMError
from rlm_dspy.optimizers import RLMGEPA, Rollout, collect, feedback, paired_p, search_knobs
from rlm_dspy.optimizers.rollouts import example_digest
from rlm_dspy.redact import hide, redacted
from rlm_dspy.testing import Call, ScriptedLM, code, outputs


def _root(call: Call) -> str:
    if call.turn == 0:
        return code("print(text)", "Look first.")
    return code(f"SUBMIT({'text.split()[-1]' if 'last word' in call.system else repr('?')})")


def _metric(gold: Any, pred: Any, trace: Any = None) -> float:
    return float(pred.answer == gold.answer)


def _examples(count: int) -> list[dspy.Example]:
    return [dspy.Example(text=f"the word is w{n}", answer=f"w{n}").with_inputs("text") for n in range(count)]


def _optimizer(metric: Any = _metric, reply: str = "Take the last word.", **options: Any) -> RLMGEPA:
    lm = ScriptedLM(lambda call: outputs(new_instruction=reply), model="scripted/reflection")
    given = {"reflection_lm": lm, "max_metric_calls": 20, "num_threads": 2, "alpha": None, **options}
    return RLMGEPA(metric, **given)


def _program() -> RLM:
    return RLM("text -> answer", guidance=False, max_iters=3, interpreter="inprocess")


@pytest.fixture(autouse=True)
def _lm(no_leaks: None) -> Iterator[None]:
    with dspy.context(lm=ScriptedLM(_root, model="scripted/root")):
        yield


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (None, "does it end without a return"),
        (float("nan"), "finite number, not nan"),
        (float("inf"), "finite number, not inf"),
        ("good", "a metric gives a number"),
        ({"feedback": "no score"}, "a metric gives a number"),
    ],
)
def test_a_metric_that_never_gives_a_score_is_told_before_the_budget_is_spent(said: Any, told: str) -> None:
    seen: list[Rollout] = []
    with pytest.raises(RLMError, match=f"metric failed on every run.*{told}"):
        _optimizer(lambda gold, pred, trace=None: said, on_rollout=seen.append).compile(
            _program(), trainset=_examples(3)
        )
    assert len(seen) == 3
    (attempt,) = collect(_program(), _examples(1), lambda gold, pred, trace=None: said)
    assert attempt.score == 0.0 and told in (attempt.error or "")


def test_runs_that_a_mended_metric_never_scored_are_made_again(tmp_path: Path) -> None:
    broken = [True]

    def metric(gold: Any, pred: Any, trace: Any = None) -> float:
        if broken[0]:
            raise KeyError("labels.csv")
        return _metric(gold, pred)

    with pytest.raises(RLMError, match=r"labels\.csv"):
        _optimizer(metric, folder=tmp_path / "f").compile(_program(), trainset=_examples(3))
    broken[0] = False
    made = _optimizer(metric, folder=tmp_path / "f")
    made.compile(_program(), trainset=_examples(3))
    assert made.result is not None and made.result.promotion.promoted and made.result.promotion.after == 1.0


@pytest.mark.parametrize(
    "metric",
    [
        lambda gold, pred: pred.answer == gold.answer,
        lambda gold, pred, trace=None: {"score": pred.answer == gold.answer},
        lambda gold, pred, trace=None: dspy.Prediction(score=1 if pred.answer == gold.answer else 0),
        lambda gold, pred, trace, name, called: float(pred.answer == gold.answer),
    ],
)
def test_attempts_take_the_metrics_that_other_optimisers_take(metric: Any) -> None:
    with dspy.context(lm=ScriptedLM(lambda call: code("SUBMIT(text.split()[-1])"))):
        attempts = collect(_program(), _examples(2), metric)
    assert [(attempt.score, attempt.error) for attempt in attempts] == [(1.0, None)] * 2


def test_a_metric_may_fail_where_there_is_no_answer() -> None:
    made = _optimizer(lambda gold, pred, trace=None: float(pred.answer.strip() == gold.answer))
    with dspy.context(lm=ScriptedLM(lambda call: "" if "No more code" in call.prompt else code("print(text)"))):
        made.compile(_program(), trainset=_examples(2))
        found = search_knobs(_program(), _examples(2), made.judge, {"max_iters": [1, 2]})
    assert made.result is not None and made.result.candidates[0].score == 0.0
    assert [setting.score for setting in found.settings] == [0.0, 0.0]


def test_texts_that_are_no_unicode_end_no_compile() -> None:
    asked: list[str] = []

    def reflect(call: Call) -> str:
        asked.append(call.prompt)
        return outputs(new_instruction="\ud800 {braces} %s: take the last word.")

    odd = [dspy.Example(text=f"\udfff is w{n}", answer=f"w{n}").with_inputs("text") for n in range(3)]
    made = _optimizer(lambda gold, pred, trace=None: dspy.Prediction(score=_metric(gold, pred), feedback="\udc80"))
    made.reflection_lm = ScriptedLM(reflect, model="scripted/reflection")
    compiled = made.compile(_program(), trainset=odd)
    assert compiled.act.signature.instructions == "\\ud800 {braces} %s: take the last word."
    for text in asked:
        text.encode()


def test_what_a_metric_says_at_length_is_cut_in_prompts_and_on_disk(tmp_path: Path) -> None:
    def wordy(gold: Any, pred: Any, trace: Any = None) -> dspy.Prediction:
        return dspy.Prediction(score=_metric(gold, pred), feedback="because " * 50_000 + "THE END")

    made = _optimizer(wordy, folder=tmp_path / "f")
    made.compile(_program(), trainset=_examples(2))
    assert sum(path.stat().st_size for path in (tmp_path / "f").iterdir()) < 100_000
    assert "THE END" in (tmp_path / "f" / "rollouts.jsonl").read_text()


def test_known_answers_that_cannot_be_told_end_no_compile(caplog: pytest.LogCaptureFixture) -> None:
    def broken(gold: Any, role: str, inputs: Any, outputs: Any) -> Any:
        raise KeyError("no table")

    judged = feedback(_metric, sub_gold=broken)
    gold = _examples(1)[0]
    told = judged.told("sub", gold, dspy.Prediction(answer="?"), 0.0, "", [], [({"prompt": "w0?"}, {"response": "w0"})])
    assert told.startswith("Score 0.") and "no table" in caplog.text


def test_a_metric_that_changes_an_example_changes_a_copy() -> None:
    def changing(gold: Any, pred: Any, trace: Any = None) -> float:
        score = _metric(gold, pred)
        gold["answer"] = "changed"
        return score

    examples = _examples(2)
    made = _optimizer(changing)
    made.compile(_program(), trainset=examples)
    collect(_program(), examples, changing)
    assert made.result is not None and made.result.promotion.promoted
    assert [one.answer for one in examples] == ["w0", "w1"] and examples[0].inputs().keys() == ["text"]


def test_labels_and_answers_that_compare_item_by_item() -> None:
    numpy = pytest.importorskip("numpy")
    gold = dspy.Example(q="?", answer=numpy.arange(3)).with_inputs("q")
    judged = feedback(lambda gold, pred, trace=None: float((pred.answer == gold.answer).all()))
    assert "the same" in judged(gold, dspy.Prediction(answer=numpy.arange(3)), None, "act").feedback
    wrong = dspy.Prediction(answer=numpy.array([0, 1, 1]))
    assert "expected [0 1 2], got [0 1 1]" in judged(gold, wrong, None, "act").feedback


def test_ctrl_c_leaves_what_was_found_in_the_result_and_the_folder(tmp_path: Path) -> None:
    def interrupted(rollout: Rollout) -> None:
        if rollout.score:
            raise KeyboardInterrupt

    made = _optimizer(folder=tmp_path / "f", on_rollout=interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.compile(_program(), trainset=_examples(3))
    assert made.result is not None and len(made.result.candidates) == 1
    assert not made.result.promotion.promoted and "it was interrupted" in made.result.promotion.why
    assert json.loads((tmp_path / "f" / "result.json").read_text())["stopped"] == "it was interrupted"


def test_a_program_whose_predictors_are_all_frozen_is_refused() -> None:
    class Around(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rlm = _program()
            self.rlm._compiled = True

        def forward(self, text: str) -> Any:
            return self.rlm(text=text)

    with pytest.raises(ConfigurationError, match="compiled are frozen"):
        _optimizer().compile(Around(), trainset=_examples(2))
    with pytest.raises(ConfigurationError, match="num_threads"):
        _optimizer(num_threads=0)


# ----------------------------------------------------------------------------------------------------------- digests


def test_examples_that_differ_have_digests_that_differ() -> None:
    numpy = pytest.importorskip("numpy")
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"t": pandas.date_range("2026-01-01", periods=2_000), "n": range(2_000)})
    other = table.copy()
    other.loc[1_000, "n"] = -1
    array = numpy.arange(5_000)
    pairs: list[tuple[Any, Any]] = [
        ("segfault at 0x7f01", "segfault at 0x7f02"),
        (array, numpy.where(array == 2_500, 0, array)),
        (table, other),
        ({(1, 2): array}, {(1, 2): array + 1}),
        (b"a" * 9_000 + b"b" + b"a" * 9_000, b"a" * 18_001),
        ("x" * 200_000 + "a" + "x" * 200_000, "x" * 200_000 + "b" + "x" * 200_000),
        ({"a", "b"}, {"a", "c"}),
    ]
    for one, two in pairs:
        digests = [example_digest(dspy.Example(x=value).with_inputs("x")) for value in (one, two, one)]
        assert digests[0] == digests[2] != digests[1], (str(one)[:60], str(two)[:60])
    within: list[Any] = []
    within += [within, within]
    assert example_digest(dspy.Example(x=within)) == example_digest(dspy.Example(x=within))


_EVERY_PROCESS = """
import dataclasses, dspy
from rlm_dspy.optimizers.rollouts import example_digest
@dataclasses.dataclass
class Row:
    tags: set
class Opaque:
    pass
rows = [Row({"p", "q", "r"}), Opaque()]
print(example_digest(dspy.Example(x={"some", "more", "words"}, y=rows, z={(1, "a"): {"s", "t"}})))
"""


@pytest.mark.heavy
def test_an_example_has_the_same_digest_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", _EVERY_PROCESS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


# ----------------------------------------------------------------------------------------------------------- the gate


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(-4, 4), min_size=1, max_size=9).filter(any),
    st.sampled_from([1e-12, 1e-6, 0.1, 1 / 3, 1.0, 1e9, 1e15]),
    st.randoms(use_true_random=False),
)
def test_p_does_not_hang_on_the_unit_or_order_of_scores(found: list[int], unit: float, rng: random.Random) -> None:
    whole = paired_p([float(value) for value in found])
    shuffled = list(found)
    rng.shuffle(shuffled)
    assert paired_p([value * unit for value in shuffled]) == whole


@pytest.mark.parametrize("seed", range(4))
def test_p_is_that_of_scipy(seed: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    numpy = pytest.importorskip("numpy")
    rng = numpy.random.default_rng(seed)
    few = rng.normal(0.3, 1.0, 10)
    exact = stats.permutation_test(
        (few, numpy.zeros(10)), lambda a, b: (a - b).sum(), permutation_type="samples", alternative="greater"
    )
    assert paired_p(few.tolist()) == pytest.approx(exact.pvalue)
    many = rng.normal(0.2, 1.0, 60)
    assert paired_p(many.tolist()) == pytest.approx(stats.ttest_1samp(many, 0, alternative="greater").pvalue, abs=0.02)


def test_p_of_what_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        paired_p([0.1, float("nan")])


# ------------------------------------------------------------------------------------------------------------ secrets


def test_a_secret_that_json_would_escape_is_hidden_and_syntax_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide('pass"word\\1\n2')
    monkeypatch.setenv("ODD_TOKEN", '"score": ')
    assert json.loads(json.dumps(redacted({"score": 'a pass"word\\1\n2 b', "l": ['pass"word\\1\n2']}))) == {
        "score": "a [hidden] b",
        "l": ["[hidden]"],
    }

    def telling(gold: Any, pred: Any, trace: Any = None) -> dspy.Prediction:
        return dspy.Prediction(score=_metric(gold, pred), feedback='said pass"word\\1\n2.')

    made = _optimizer(telling, folder=tmp_path / "f")
    made.compile(_program(), trainset=_examples(2))
    for path in (tmp_path / "f").iterdir():
        assert "word" + "\\\\1" not in path.read_text()
    again = _optimizer(telling, folder=tmp_path / "f")
    again.compile(_program(), trainset=_examples(2))
    assert again.result is not None and again.result.rollouts_run == 0


def _copying(lesson: str, asked: list[str]) -> ScriptedLM:
    """A small model: it gives back the last instruction that its prompt holds, with what stands below it."""

    def reply(call: Call) -> str:
        if "current_instruction" not in call.prompt:
            asked.append("lesson")
            return outputs(lesson=lesson.format(len(asked)))
        asked.append("rewrite")
        told = call.prompt.rsplit("[[ ## tried ## ]]", 1)[-1].split("[[ ## rules ## ]]")[0].strip()
        current = call.prompt.rsplit("[[ ## current_instruction ## ]]", 1)[-1].split("[[ ## runs ## ]]")[0].strip()
        return outputs(new_instruction=current if told == "none" else told)

    return ScriptedLM(reply, model="scripted/small")


def test_a_model_that_only_copies_is_asked_for_a_lesson_to_add() -> None:
    asked: list[str] = []
    optimizer = _optimizer(reflection_lm=_copying("Take the last word.", asked), max_metric_calls=60)
    student = _program()
    compiled = optimizer.compile(student, trainset=_examples(3))
    before = student.act.signature.instructions
    assert compiled.act.signature.instructions == f"{before}\nTake the last word."
    # Once unchanged may mean that there is no reason for a change; the same is not asked twice.
    assert asked[-1] == "lesson" and set(asked[:-1]) == {"rewrite"} and len(asked) <= 3
    assert optimizer.result is not None and optimizer.result.candidates[-1].score == 1.0


def test_copies_of_what_was_tried_are_not_tried_again() -> None:
    asked: list[str] = []
    optimizer = _optimizer(reflection_lm=_copying("Be quick, {}.", asked), max_metric_calls=30)
    optimizer.compile(_program(), trainset=_examples(3))
    assert optimizer.result is not None
    texts = [proposal.texts["act"] for proposal in optimizer.result.proposals]
    assert len(texts) == len(set(texts)) > 2
    assert all("->" not in text and "Be quick" in text for text in texts)
    # Some rounds show that it copies; from then on lessons alone are asked for.
    assert asked[0] == "rewrite" and len(asked) > 6 and set(asked[5:]) == {"lesson"}


def test_a_model_that_has_nothing_to_say_is_told() -> None:
    asked: list[str] = []
    optimizer = _optimizer(reflection_lm=_copying("", asked), max_metric_calls=60)
    optimizer.compile(_program(), trainset=_examples(3))
    assert optimizer.result is not None and optimizer.result.metric_calls == 3
    assert optimizer.result.promotion.why == "the reflecting model said nothing new"
    assert "gave nothing new" in str(optimizer.result)


def test_a_lesson_keeps_to_the_length_of_an_instruction() -> None:
    asked: list[str] = []
    student = _program()
    room = len(student.act.signature.instructions) + 200
    optimizer = _optimizer(
        reflection_lm=_copying("Be quick. " * 100, asked), max_metric_calls=12, max_instruction_chars=room
    )
    optimizer.compile(student, trainset=_examples(3))
    assert optimizer.result is not None
    texts = [proposal.texts["act"] for proposal in optimizer.result.proposals]
    assert texts and all(len(text) <= room and text.endswith("Be quick.") for text in texts)
